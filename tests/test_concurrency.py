"""One graph, many runs at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import pytest

from stategraph import Event, MapNode, ParallelNode, RetryPolicy, State, StateGraph, Updates
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, make_graph, trace


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


# --------------------------------------------------------------------------- context variables

REQUEST: ContextVar[str] = ContextVar("REQUEST", default="none")


class Watcher:
    """An observer that notes the request for which it hears of something."""

    def __init__(self, note: Callable[..., Any]) -> None:
        self.note = note

    def on_event(self, event: Event) -> None:
        self.note(f"observer of {event.source}")


def watched_graph(seen: dict[str, set[str]]) -> StateGraph:
    """Return a graph of all kinds of functions, which note the request that they see."""

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
    """Nodes and observers see the context variables of the caller with every driver, in nested graphs, too."""
    for request in ("first", "second"):
        seen: dict[str, set[str]] = {}
        graph, token = watched_graph(seen), REQUEST.set(request)
        try:
            call(graph, State({"items": [1, 2, 3], "inputs": [{"n": 1}, {"n": 2}]}, run_id=RUN))
        finally:
            REQUEST.reset(token)
        assert seen == {place: {request} for place in PLACES}
