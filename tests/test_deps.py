"""What one call gives to its nodes, and who hears of it: `deps=` and `observer=`."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stategraph import (
    ConfigError,
    Event,
    InterruptNode,
    MapNode,
    NodeContext,
    Observer,
    ParallelNode,
    State,
    StateGraph,
)
from stategraph.stores import MemoryStore
from tests.scenarios import Scene, in_threads, make_graph


class Heard(Observer):
    """Notes which runs it hears of."""

    def __init__(self) -> None:
        self.runs: set[str] = set()

    def on_event(self, event: Event) -> None:
        self.runs.add(event.data["run_id"].partition("/")[0])


def asks(given: Any, context: NodeContext[str]) -> dict[str, Any]:
    """Return what the call gave, as a node, a branch or an item."""
    return {context.part or context.node: context.deps}


def everywhere(store: Any, **how: Any) -> StateGraph:
    """Return a graph that has deps in each kind of place, before and after a pause."""
    inner = make_graph({"inner": asks}, store=store, name="inner")
    nodes = {
        "node": asks,
        "branches": ParallelNode({"left": asks}),
        "items": MapNode(lambda item, context: context.deps, over="todo", into="done"),
        "nested": inner.as_node(outputs=["inner"]),
        "ask": InterruptNode(None, "ok"),
        "after": asks,
    }
    return make_graph(nodes, store=store, preserve=True, **how)


def test_each_call_has_its_own(play: Scene) -> None:
    """Nodes, branches, items and nested graphs get the deps of the call that runs them; a resume gives its own. The
    observer of a call hears of that call alone, beside the observer of the graph."""
    of_graph, first, second = Heard(), Heard(), Heard()
    graph = everywhere(play.store, observer=of_graph)

    play.call(graph, "execute", State({"todo": [1, 2]}, run_id="a"), deps="ann", observer=first)
    final = play.call(graph, "resume", "a", {"ok": True}, deps="ben", observer=second)
    play.call(graph, "execute", State({"todo": []}, run_id="b"))

    assert {key: final[key] for key in ("node", "left", "done", "inner", "after")} == {
        "node": "ann",
        "left": "ann",
        "done": ["ann", "ann"],
        "inner": "ann",
        "after": "ben",
    }
    assert (first.runs, second.runs, of_graph.runs) == ({"a"}, {"a"}, {"a", "b"})
    assert play.store.load("b")["node"] is None


def test_calls_at_once_do_not_share_them() -> None:
    """Two calls of one graph at the same time each have their own."""
    meet, heard = threading.Barrier(2), {name: Heard() for name in ("ann", "ben")}

    def waits(state: State, context: NodeContext[str]) -> dict[str, Any]:
        meet.wait(60)
        return {"who": context.deps}

    graph = make_graph({"a": waits, "b": waits}, store=MemoryStore(), preserve=True)
    begin = {
        name: lambda name=name: graph.execute(State(run_id=name), deps=name, observer=heard[name]) for name in heard
    }

    assert in_threads(*begin.values()) == []
    assert {name: graph.store.load(name)["who"] for name in heard} == {"ann": "ann", "ben": "ben"}
    assert {name: heard[name].runs for name in heard} == {"ann": {"ann"}, "ben": {"ben"}}


def test_sweeps_and_batches_give_them() -> None:
    """`recover` and `run_many` pass them to each of their runs, and a turn to its own."""
    graph = make_graph({"a": asks}, store=MemoryStore(), preserve=True)
    graph.submit(State(run_id="r"))
    heard = Heard()

    (recovered,) = graph.recover(deps="worker", observer=heard)
    with graph.run_many([State(run_id="x"), State(run_id="y")], deps="batch") as batch:
        states = [each.state for each in batch]

    assert recovered.state is not None
    assert (recovered.state["a"], heard.runs) == ("worker", {"r"})
    assert [state and state["a"] for state in states] == ["batch", "batch"]
    assert graph.turn("t", {}, deps="turn")["a"] == "turn"


def test_an_observer_that_is_none_is_refused_before_anything_runs() -> None:
    """The error names the option."""
    graph = make_graph({"a": asks}, store=MemoryStore())

    with pytest.raises(ConfigError, match="observer"):
        graph.execute(State(), observer=7)  # type: ignore[arg-type]
