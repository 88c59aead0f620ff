"""stategraph on event loops: async nodes, and many short runs at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from typing import Any

from benchmarks import scratch, threads
from benchmarks.counters import START
from benchmarks.measure import Run
from benchmarks.peers.ours import KEPT, count, loop_graph, quietly
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph
from stategraph.stores.sqlite import SqliteStore

STEPS_OF_A_RUN = 5
SYNC = CheckpointConfig(store="sqlite", preserve=True)
ASYNC = CheckpointConfig(store="sqlite", preserve=True, durability="async")

Node = Callable[[State], Awaitable[Mapping[str, Any]]]


async def _count(state: State) -> Mapping[str, Any]:
    return count(state)


def async_nodes_awaited(steps: int) -> Run:
    """One run of async nodes under `aexecute`, memory store."""
    graph = loop_graph(_count, steps, KEPT)  # type: ignore[arg-type]
    return quietly(lambda: asyncio.run(graph.aexecute(State(START))))


def sync_nodes_awaited(steps: int) -> Run:
    """One run of sync nodes under `aexecute`, memory store."""
    graph = loop_graph(count, steps, KEPT)
    return quietly(lambda: asyncio.run(graph.aexecute(State(START))))


def async_nodes_waited_for(steps: int) -> Run:
    """One run of async nodes under `execute`, memory store."""
    graph = loop_graph(_count, steps, KEPT)  # type: ignore[arg-type]
    return quietly(lambda: graph.execute(State(START)))


def crowd(runs: int) -> Run:
    """So many runs at once on one event loop, each of five async steps."""
    return _crowd(runs, SYNC)


def crowd_saved_behind(runs: int) -> Run:
    """The same with durability "async"."""
    return _crowd(runs, ASYNC)


def short_runs(runs: int) -> Run:
    """Runs of two steps, one after the other."""
    return _short_runs(SYNC)(runs)


def short_runs_saved_behind(runs: int) -> Run:
    """The same with durability "async"."""
    return _short_runs(ASYNC)(runs)


def short_runs_of_threads(runs: int) -> Run:
    """The same with durability "async", in eight threads."""
    some = _short_runs(ASYNC)
    return quietly(threads.together([some(max(1, runs // threads.COUNT)) for _ in range(threads.COUNT)]))


def _crowd(runs: int, checkpoint: CheckpointConfig) -> Run:
    graph = _chain(_count, STEPS_OF_A_RUN, checkpoint)

    async def all_at_once() -> None:
        await asyncio.gather(*[graph.aexecute(State(START)) for _ in range(runs)])

    return quietly(lambda: asyncio.run(all_at_once()))


def _short_runs(checkpoint: CheckpointConfig) -> Callable[[int], Run]:
    graph = _chain(count, 2, checkpoint)

    def some(runs: int) -> Run:
        def run() -> None:
            for _ in range(runs):
                graph.execute(State(START))

        return run

    return some


def _chain(node: Any, steps: int, checkpoint: CheckpointConfig) -> StateGraph:
    """Return the graph of so many nodes, one after the other, on a store of its own."""
    store = SqliteStore(scratch.folder() / "crowd.db")
    scratch.at_end(store.close)
    graph = StateGraph(GraphConfig(name="benchmark", checkpoint=checkpoint, observer="noop"), store=store)
    names = [f"count {number}" for number in range(steps)]
    for name in names:
        graph.add_node(name, node)
    for name, following in pairwise(names):
        graph.add_edge(name, following)
    graph.set_entry_point(names[0])
    graph.set_exit_point(names[-1])
    return graph
