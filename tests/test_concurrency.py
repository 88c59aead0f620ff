"""One graph, many runs at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest

from stategraph import (
    CheckpointStore,
    Event,
    ExecutionError,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
    Updates,
)
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Node, make_graph, shorter_than, trace, traces

EDGES = [("a", "b"), ("b", "a", shorter_than(6)), ("b", "c")]


def own(name: str) -> Node:
    """-> a node that appends its name and the run that it is told of."""

    def node(state: State, context: NodeContext) -> dict[str, Any]:
        assert context.run_id == state.run_id
        assert context.step == state.step + 1 == len(state.get("trace", ())) + 1
        return {"trace": [*state.get("trace", ()), f"{name} of {context.run_id}"]}

    return node


def expected(run_id: str) -> list[str]:
    """-> the trace of a run that nothing disturbs."""
    return [f"{name} of {run_id}" for name in "abababc"]


RUNS = [f"run-{number}" for number in range(24)]


class TestThreads:
    """Runs in threads."""

    @pytest.mark.parametrize("are_tasks", [False, True])
    def test_they_never_mix(self, any_store: CheckpointStore, as_node: Any, are_tasks: bool) -> None:
        """Every run has its own data, step and context, as tasks on one event loop, too."""
        graph = make_graph({name: as_node(own(name)) for name in "abc"}, EDGES, store=any_store, preserve=True)

        async def main() -> list[State]:
            return await asyncio.gather(*(graph.aexecute(State(run_id=run_id)) for run_id in RUNS))

        if are_tasks:
            finals = asyncio.run(main())
        else:
            with ThreadPoolExecutor(8) as pool:
                finals = list(pool.map(lambda run_id: graph.execute(State(run_id=run_id)), RUNS))

        assert [final["trace"] for final in finals] == [expected(run_id) for run_id in RUNS]
        assert any_store.list() == sorted(RUNS)
        assert [any_store.load(final.run_id) for final in finals] == finals

    def test_they_fail_alone(self, any_store: CheckpointStore) -> None:
        """A run that fails and is resumed does not disturb the others."""
        failed: set[str] = set()
        errors: list[tuple[str, ...]] = []

        def fail_once(state: State) -> dict[str, Any]:
            if int(state.run_id[4:]) % 2 and state.run_id not in failed:
                failed.add(state.run_id)
                raise ValueError(state.run_id)
            return {"trace": [*state["trace"], "b"]}

        graph = make_graph({**traces("ac"), "b": fail_once}, [("a", "b"), ("b", "c")], exits="c", store=any_store)

        def run(run_id: str) -> State:
            try:
                return graph.execute(State(run_id=run_id))
            except ExecutionError as error:
                errors.append((run_id, error.state.run_id, str(error.__cause__)))
                return graph.resume(run_id)

        with ThreadPoolExecutor(8) as pool:
            finals = list(pool.map(run, RUNS))

        assert sorted(errors) == [(run_id, run_id, run_id) for run_id in sorted(failed)]
        assert {tuple(final["trace"]) for final in finals} == {("a", "b", "c")}
        assert any_store.list() == []


class TestTasks:
    """Runs as tasks on one event loop."""

    def test_one_is_cancelled(self) -> None:
        """The others complete."""
        store, started = MemoryStore(), asyncio.Event()

        async def slow(state: State) -> dict[str, Any]:
            if state.run_id == "run-0":
                started.set()
                await asyncio.Event().wait()
            return {}

        async def main() -> list[Any]:
            graph = make_graph({"a": trace("a"), "b": slow}, store=store)
            tasks = [asyncio.create_task(graph.aexecute(State(run_id=run_id))) for run_id in RUNS]
            await started.wait()
            tasks[0].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        first, *others = asyncio.run(main())

        assert isinstance(first, asyncio.CancelledError)
        assert {final.step for final in others} == {2}
        assert store.list() == ["run-0"]


class TestChanging:
    """A graph that is changed while it runs."""

    def test_a_run_keeps_the_plan_that_it_has(self, driver: Any, as_node: Any) -> None:
        """Nodes, edges and exit points that are added count from the next call on."""
        store = MemoryStore()

        def change(state: State) -> dict[str, Any]:
            if not state.get("changed"):
                graph.add_node("d", trace("d"))
                graph.add_edge("c", "d")
                graph.add_edge("d", "a")
                graph.set_exit_point("b")
            return {"changed": True}

        graph = make_graph({"a": as_node(change), "b": trace("b"), "c": trace("c")}, store=store)

        final = driver(graph, "execute", State(run_id=RUN))

        assert (final["trace"], final.checkpoint_node) == (["b", "c"], "c")
        assert final.fingerprint != graph.fingerprint

    def test_building_and_running_at_once(self) -> None:
        """Runs that start while edges are added see each of them whole or not at all."""
        graph = make_graph(traces("ab"), store=MemoryStore(), interval=0)
        done = threading.Event()

        def run() -> set[tuple[str, ...]]:
            found = set()
            while not done.is_set():
                found.add(tuple(graph.execute(State())["trace"]))
            return found

        with ThreadPoolExecutor(4) as pool:
            runners = [pool.submit(run) for _ in range(4)]
            for number in range(200):
                graph.add_edge("a", "b", lambda state: True, name=str(number))
            done.set()

        assert {path for runner in runners for path in runner.result()} <= {("a", "b")}


# --------------------------------------------------------------------------- context variables

REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


class Watcher:
    """An observer that notes the request for which it hears of something."""

    def __init__(self, note: Callable[..., Any]) -> None:
        self.note = note

    def on_event(self, event: Event) -> None:
        self.note(f"observer of {event.source}")


def watched_graph(seen: dict[str, set[str]]) -> StateGraph:
    """-> a graph of all kinds of functions, which note the request that they see."""

    def note(place: str, result: Any = None) -> Any:
        seen.setdefault(place, set()).add(REQUEST.get())
        return result

    def sync(place: str, result: Any) -> Callable[..., Any]:
        return lambda _: note(place, result)

    def with_await(place: str, result: Any) -> Callable[..., Any]:
        async def node(_: Any) -> Any:
            note(place)
            await asyncio.sleep(0)
            return note(place, result)

        return node

    def chunks(state: State) -> Iterator[Any]:
        yield note("generator", "chunk")
        yield Updates(note("generator", {}))

    async def async_chunks(state: State) -> AsyncIterator[Any]:
        yield note("async generator", "chunk")
        yield Updates(note("async generator", {}))

    def fail(state: State) -> dict[str, Any]:
        raise ValueError(REQUEST.get())

    store = MemoryStore()
    nested = {"sync": sync("nested", {}), "async": with_await("nested async", {})}
    inner = make_graph(nested, store=store, name="inner")
    tried: dict[str, Any] = {"timeout": 60, "retry": RetryPolicy(max_attempts=2)}
    nodes = {
        "sync": sync("node", {}),
        "async": with_await("async node", {}),
        "timed": sync("node with a timeout", {}),
        "generator": chunks,
        "async generator": async_chunks,
        "branches": ParallelNode({"a": sync("branch", {}), "b": with_await("async branch", {})}),
        "items": MapNode(sync("item", 0), over="items", into="done"),
        "async_items": MapNode(with_await("async item", 0), over="items", into="done"),
        "tried_items": MapNode(sync("item with policies", 0), over="items", into="done", **tried),
        "nested": inner.as_node(outputs=[]),
        "graphs": MapNode(inner.as_node(), over="inputs", into="done"),
        "fails": fail,
        "handler": sync("handler", {}),
        "end": sync("end", {}),
    }
    chain = [*nodes][:-2]
    edges = [*pairwise(chain), ("handler", "end", sync("predicate", True))]
    policies: dict[str, dict[str, Any]] = {"fails": {"on_error": "handler"}, "timed": {"timeout": 60}}
    return make_graph(nodes, [*edges, ("fails", "end")], store=store, observer=Watcher(note), policies=policies)


PLACES = {
    *("node", "async node", "node with a timeout", "generator", "async generator", "branch", "async branch"),
    *("item", "async item", "item with policies", "nested", "nested async", "handler", "predicate", "end"),
    *("observer of flow", "observer of inner"),
}


async def _all_of(found: Any) -> None:
    async for _ in found:
        pass


@pytest.mark.parametrize(
    "call",
    [
        lambda graph, state: graph.execute(state),
        lambda graph, state: graph.run(state),
        lambda graph, state: [*graph.stream(state)],
        lambda graph, state: [*graph.run_many([state])],
        lambda graph, state: asyncio.run(graph.aexecute(state)),
        lambda graph, state: asyncio.run(graph.arun(state)),
        lambda graph, state: asyncio.run(_all_of(graph.astream(state))),
        lambda graph, state: asyncio.run(_all_of(graph.arun_many([state]))),
    ],
    ids=["execute", "run", "stream", "run_many", "aexecute", "arun", "astream", "arun_many"],
)
def test_all_that_a_call_runs_sees_its_context_variables(call: Any) -> None:
    """Whatever drives the run, in threads and tasks; the observer of the outer graph hears of nested ones, too."""
    for request in ("first", "second"):
        seen: dict[str, set[str]] = {}
        graph, token = watched_graph(seen), REQUEST.set(request)
        try:
            call(graph, State({"items": [1, 2, 3], "inputs": [{"n": 1}, {"n": 2}]}, run_id=RUN))
        finally:
            REQUEST.reset(token)
        assert seen == {place: {request} for place in PLACES}


def request_of(_: Any) -> str:
    """Return the request as a process sees it."""
    return REQUEST.get()


def test_processes_see_none() -> None:
    """A fresh process has the default: what it is to know is handed over as data."""
    node = MapNode(request_of, over="items", into="seen", max_workers=1, processes=True)
    token = REQUEST.set("first")
    try:
        final = make_graph({"map": node}, store=MemoryStore()).execute(State({"items": [1]}))
    finally:
        REQUEST.reset(token)
    assert list(final["seen"]) == ["none"]
