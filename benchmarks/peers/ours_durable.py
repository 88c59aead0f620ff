"""stategraph with the stores that outlive the process: every step saved, "sync" unless the name says otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import documents, items, messages, scratch, threads
from benchmarks.counters import START
from benchmarks.measure import Run
from benchmarks.peers.ours import Node, count, count_by_setting, execution, loop_graph, quietly
from stategraph import (
    CheckpointConfig,
    CheckpointStore,
    GraphConfig,
    State,
    StateGraph,
    get_checkpoint_store,
)
from stategraph._values.progress import Part
from stategraph.stores.sqlite import SqliteStore


def saved_steps(steps: int) -> Run:
    """Retention "latest", the default."""
    return _counting(steps)


def saved_steps_in_full(steps: int) -> Run:
    """Retention "full"."""
    return _counting(steps, retention="full")


def saved_steps_on_disk(steps: int) -> Run:
    """The store "disk"."""
    return _counting(steps, store="disk")


def steps_saved_behind(steps: int) -> Run:
    """Durability "async", with the wait at the end of the run."""
    return _counting(steps, durability="async")


def steps_saved_behind_in_full(steps: int) -> Run:
    """The same with retention "full"."""
    return _counting(steps, durability="async", retention="full")


def steps_saved_at_exit(steps: int) -> Run:
    """Durability "exit"."""
    return _counting(steps, durability="exit")


def saved_steps_of_threads(steps: int) -> Run:
    """Eight runs in as many threads, on one store, and a share of the steps each."""
    share = max(1, steps // threads.COUNT)
    graphs = [_graph(share) for _ in range(threads.COUNT)]
    return quietly(threads.together([_executing(graph, START) for graph in graphs]))


def items_mapped(count: int) -> Run:
    """A MapNode in four threads; each item is a part."""
    return _mapping(count)


def items_mapped_alone(count: int) -> Run:
    """The same in one thread, so that each item is saved alone."""
    return _mapping(count, workers=1)


def parts_loaded(count: int) -> Run:
    """The finished parts of a step, by a store that was opened just now."""
    folder = scratch.folder()
    with SqliteStore(folder / "runs.db") as store:
        store.save(State(run_id="run", step=1))
        store.save_parts("run", [Part(2, "map", str(number), number, "0a") for number in range(count)])
    opened = SqliteStore(folder / "runs.db")
    scratch.at_end(opened.close)
    return lambda: opened.load_parts("run", 2, "map")


def items_mapped_behind(count: int) -> Run:
    """The same with durability "async", with the wait at the end of the run."""
    return _mapping(count, durability="async")


def changed_key(steps: int) -> Run:
    """A large State, one small key of which changes."""
    return execution(_graph(steps), State(documents.start()))


def changed_key_in_full(steps: int) -> Run:
    """The same with retention "full"."""
    return execution(_graph(steps, retention="full"), State(documents.start()))


def changed_key_of_many(steps: int) -> Run:
    """A State of many keys, one of which changes."""
    return execution(_graph(steps), State(documents.of_many_keys()))


def changed_key_of_many_by_setting(steps: int) -> Run:
    """The same, by a node that returns a State."""
    return execution(_graph(steps, node=count_by_setting), State(documents.of_many_keys()))


def messages_saved(steps: int) -> Run:
    """A list that grows, retention "full"."""
    return _append_messages(scratch.folder(), steps)


def messages_saved_behind(steps: int) -> Run:
    """The same with durability "async"."""
    return _append_messages(scratch.folder(), steps, durability="async")


def messages_loaded(steps: int) -> Run:
    """The newest State, by a store that was opened just now."""
    store = _prepared_store(steps)
    return lambda: store.load(messages.RUN)


def messages_loaded_to_an_older_step(steps: int) -> Run:
    """The State at three quarters of the steps."""
    store = _prepared_store(steps)
    return lambda: store.load(messages.RUN, steps * 3 // 4)


def messages_opened_and_loaded(steps: int) -> Run:
    """Opening the store as well."""
    _prepared(steps)
    return lambda: _prepared_store(steps).load(messages.RUN)


def oldest_unsaved_step(steps: int) -> Callable[[], float]:
    """-> how long a step was unsaved at most, with durability "async": seconds from its end until it was durable."""
    return _oldest_unsaved(steps)


def oldest_unsaved_step_in_full(steps: int) -> Callable[[], float]:
    """The same with retention "full"."""
    return _oldest_unsaved(steps, retention="full")


def drain(steps: int) -> Callable[[], float]:
    """Return seconds from the end of the last step until the run returned, with durability "async"."""
    return _drain(steps)


def drain_in_full(steps: int) -> Callable[[], float]:
    """The same with retention "full"."""
    return _drain(steps, retention="full")


class _NotesAges(SqliteStore):
    """Notes how old the oldest of its States were when they had become durable, in seconds."""

    oldest = 0.0

    def save_many(self, states: Sequence[State]) -> None:
        super().save_many(states)
        self.oldest = max(self.oldest, _age(states[0]))


def _age(state: State) -> float:
    return time.time() - state.timestamp.timestamp()


def _oldest_unsaved(steps: int, **checkpoint: Any) -> Callable[[], float]:
    store = _NotesAges(scratch.folder() / "runs")
    graph = _graph(steps, given=store, durability="async", **checkpoint)

    def run() -> float:
        quietly(lambda: graph.execute(State(START)))()
        return store.oldest

    return run


def _drain(steps: int, **checkpoint: Any) -> Callable[[], float]:
    graph = _graph(steps, durability="async", **checkpoint)

    def run() -> float:
        ends: list[State] = []
        quietly(lambda: ends.append(graph.execute(State(START))))()
        return _age(ends[0])

    return run


def _counting(steps: int, **checkpoint: Any) -> Run:
    return execution(_graph(steps, **checkpoint), State(START))


def _executing(graph: StateGraph, start: Mapping[str, Any]) -> Run:
    return lambda: graph.execute(State(start))


def _graph(steps: int, given: CheckpointStore | None = None, node: Node = count, **checkpoint: Any) -> StateGraph:
    graph = loop_graph(node, steps, _kept(scratch.folder(), **checkpoint), given)
    scratch.at_end(graph.store.close)
    return graph


def _mapping(count: int, workers: int = items.WORKERS, **checkpoint: Any) -> Run:
    graph = StateGraph(GraphConfig(name="benchmark", checkpoint=_kept(scratch.folder(), **checkpoint)))
    from stategraph import MapNode  # not up there: an older stategraph, measured beside this one, has none

    graph.add_node("map", MapNode(items.done, over="items", into="results", max_workers=workers))
    graph.set_entry_point("map")
    graph.set_exit_point("map")
    scratch.at_end(graph.store.close)
    return execution(graph, State({"items": list(range(count))}))


def _kept(folder: Path, **checkpoint: Any) -> CheckpointConfig:
    options = {"path": str(folder / "runs")}
    return CheckpointConfig(interval=1, preserve=True, options=options, **{"store": "sqlite", **checkpoint})


def _append_messages(folder: Path, steps: int, **checkpoint: Any) -> Run:
    def append(state: State) -> Mapping[str, Any]:
        return {"n": state["n"] + 1, "messages": [*state["messages"], messages.message(state["n"])]}

    graph = loop_graph(append, steps, _kept(folder, retention="full", **checkpoint))
    scratch.at_end(graph.store.close)
    return execution(graph, State({"n": 0, "messages": []}, run_id=messages.RUN))


def _prepare(folder: Path, steps: int) -> None:
    _append_messages(folder, steps, durability="async")()
    get_checkpoint_store("sqlite", path=str(folder / "runs")).close()


_prepared = scratch.prepared(_prepare)


def _prepared_store(steps: int) -> CheckpointStore:
    store = get_checkpoint_store("sqlite", path=str(_prepared(steps) / "runs"))
    scratch.at_end(store.close)
    return store
