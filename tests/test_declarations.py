"""What a graph declares about its earlier forms, once, for every way to go on with a run."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointStore,
    ExecutionError,
    GraphError,
    GraphMismatchError,
    InterruptNode,
    NodeContext,
    State,
    StateGraph,
)
from stategraph.stores.sqlite import SqliteStore
from stategraph.turns import Order, perform
from tests.scenarios import RUN, Scene, does, make_graph, trace

ANSWER = {"ok": True}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CheckpointStore]:
    with SqliteStore(tmp_path / "runs.db") as opened:
        yield opened


def asking(store: CheckpointStore, *names: str, graph: str = "flow") -> StateGraph:
    """Return a graph whose second node asks for "ok"."""
    nodes = {
        name: InterruptNode(None, "ok") if place == 1 else trace("abcd"[place]) for place, name in enumerate(names)
    }
    return make_graph(nodes, store=store, name=graph, preserve=True)


def _last(states: Iterable[State]) -> State:
    return [*states][-1]


def _forked(graph: StateGraph) -> State:
    graph.store.delete("copy")
    graph.store.fork(RUN, "copy")
    return graph.resume("copy", ANSWER)


def _after(method: str, *about: Any, then: Callable[[StateGraph], State]) -> Callable[[StateGraph], State]:
    def way(graph: StateGraph) -> State:
        getattr(graph, method)(RUN, *about)
        return then(graph)

    return way


def _resumed(graph: StateGraph) -> State:
    return graph.resume(RUN, ANSWER)


def _swept(graph: StateGraph) -> Any:
    return next(iter(graph.recover())).state


WAYS: dict[str, Callable[[StateGraph], State]] = {
    "resume": _resumed,
    "stream": lambda graph: _last(graph.stream_resume(RUN, ANSWER)),
    "run": _after("answer", True, then=lambda graph: graph.run(State(run_id=RUN))),
    "sweep": _after("answer", True, then=_swept),
    "message": _after("send", {"said": 1}, then=_resumed),
    "order": lambda graph: perform(Order("old", RUN, 2, updates=ANSWER), [graph]),
    "cancelled": _after("cancel", then=_resumed),
    "fork": _forked,
}


class TestEveryWay:
    """One declaration serves every way to go on with a run."""

    @pytest.mark.parametrize("way", WAYS)
    def test_of_a_renamed_graph_with_renamed_nodes(self, store: CheckpointStore, way: str) -> None:
        """The run goes on under its new names, and belongs to the new graph afterwards."""
        asking(store, "a", "ask", "b", graph="old").execute(State(run_id=RUN))
        graph = asking(store, "x", "approve", "b", graph="new")
        with pytest.raises((GraphMismatchError, LookupError)):
            WAYS[way](graph)
        graph.moved_from("old")
        graph.renamed({"a": "x", "ask": "approve"})

        final = WAYS[way](graph)

        assert (final["trace"], final["ok"], final.status, final.graph) == (["a", "c"], True, "completed", "new")
        assert store.load(final.run_id).fingerprint == graph.fingerprint

    def test_of_any_store(self, any_play: Scene) -> None:
        """Every store keeps such a run, also if a new turn is given to it."""
        any_play.execute(asking(any_play.store, "a", "ask", "b", graph="old"))
        graph = asking(any_play.store, "x", "approve", "b", graph="new")
        graph.moved_from("older", "old")
        graph.renamed({"a": "x", "ask": "approve"})

        any_play.resume(graph, ANSWER)
        final = any_play.turn(graph, {"ok": None})

        assert (final.status, final.graph, final["trace"]) == ("paused", "new", ["a", "c", "a"])

    def test_a_new_turn_of_a_complete_run(self, store: CheckpointStore) -> None:
        """A conversation that ended under the old name is continued under the new one."""
        make_graph({"a": trace("a")}, store=store, name="old", preserve=True).turn(RUN, {})
        graph = make_graph({"a": trace("a")}, store=store, name="new", preserve=True)
        graph.moved_from("old")

        assert graph.turn(RUN, {})["trace"] == ["a", "a"]

    def test_a_run_that_was_submitted_under_the_old_name(self, store: CheckpointStore) -> None:
        """Sweeps look for runs of both names."""
        for name in ("old", "new"):
            make_graph({"a": trace("a")}, store=store, name=name, preserve=True).submit(State(run_id=name))
        graph = make_graph({"x": trace("x")}, store=store, name="new", preserve=True)
        graph.moved_from("old")
        assert {one.run_id: type(one.error) for one in graph.recover()} == dict.fromkeys(
            ("old", "new"), GraphMismatchError
        )
        assert [*graph.recover()] == []  # they are set aside until the graph changes
        graph.renamed({"a": "x"})

        assert {one.run_id for one in graph.recover() if one.error is None} == {"old", "new"}


class TestRenamed:
    """Names of nodes that are declared apply to the runs that are older."""

    @pytest.mark.parametrize("before", ["abc", "xbc", "ybc"])
    def test_twice(self, store: CheckpointStore, before: str) -> None:
        """Runs of each version continue at the newest name."""
        asking(store, "s", *before).execute(State(run_id=RUN))
        graph = asking(store, "s", *"ybc")
        graph.renamed({"a": "x"})
        graph.renamed({"x": "y"})

        final = graph.resume(RUN, ANSWER)
        assert (final.status, final.fingerprint) == ("completed", graph.fingerprint)

    def test_then_removed(self, store: CheckpointStore) -> None:
        """A node that was renamed, and then removed, is found by both declarations."""
        asking(store, *"abc").execute(State(run_id=RUN))
        graph = make_graph({"a": trace("a"), "c": trace("c")}, store=store, preserve=True)
        graph.renamed({"b": "approve"})
        graph.stands_at({"approve": "c"})

        assert graph.resume(RUN, allow_changed=True)["trace"] == ["a", "c"]

    def test_a_new_node_takes_the_old_name(self, store: CheckpointStore) -> None:
        """Runs that know both names are of the new version, and nothing is renamed in them."""
        names = ["b", "approve", "c"]
        asking(store, *"abc").execute(State(run_id="old"))
        graph = asking(store, *names)
        graph.renamed({"a": "b", "b": "approve"})
        graph.execute(State(run_id="new"))

        with pytest.raises(GraphMismatchError):  # "b" was the name of two nodes: the run knows it as the other one
            graph.resume("old", ANSWER)
        assert graph.resume("new", ANSWER)["trace"] == ["a", "c"]

    def test_a_nested_graph_that_is_under_way(self, play: Scene) -> None:
        """The nested graph has declarations of its own, and its run continues in its step."""

        def make(node: str, ask: str, nested: str) -> tuple[StateGraph, StateGraph]:
            inner = asking(play.store, "a", ask, "c", graph=nested)
            return inner, make_graph({node: inner.as_node(), "end": trace("end")}, store=play.store, preserve=True)

        play.execute(make("in", "ask", "inner")[1])
        inner, graph = make("into", "approve", "nested")
        graph.renamed({"in": "into"})
        with pytest.raises(GraphMismatchError, match=r"'inner'.*moved_from"):
            play.resume(graph, ANSWER)
        inner.moved_from("inner")
        inner.renamed({"ask": "approve"})

        assert play.resume(graph, ANSWER)["trace"] == ["a", "c", "end"]

    def test_a_name_that_is_not_there(self, store: CheckpointStore) -> None:
        """The error names it, before anything runs."""
        graph = asking(store, *"abc")
        graph.renamed({"old": "nowhere"})

        with pytest.raises(GraphError, match=r"renamed.*'nowhere'"):
            graph.validate()


class TestIdempotency:
    """A step that is repeated keeps its idempotency key under every new name."""

    @pytest.mark.parametrize("is_nested", [False, True])
    def test_of_graph_and_node(self, play: Scene, *, is_nested: bool) -> None:
        """A payment that was under way when graph and node were renamed twice is made under its first key."""
        keys: list[str] = []

        def pay(state: State, context: NodeContext) -> dict[str, Any]:
            keys.append(context.idempotency_key)
            if len(keys) < 3:
                raise OSError("the answer was lost")
            return {}

        def make(name: str, node: str) -> StateGraph:
            inner = make_graph({node: pay}, store=play.store, name="inner")
            inner.renamed({old: node for old in ("pay", "charge") if old != node})
            step = {"in": inner.as_node()} if is_nested else {node: pay}
            graph = make_graph({"a": trace("a"), **step}, store=play.store, name=name, preserve=True)
            graph.moved_from("first", "second")
            if not is_nested:
                graph.renamed({old: node for old in ("pay", "charge") if old != node})
            return graph

        with pytest.raises(ExecutionError):
            play.execute(make("first", "pay"))
        with pytest.raises(ExecutionError):
            play.resume(make("second", "charge"))
        play.resume(make("third", "settle"))

        assert keys == [f"first/{RUN}/#2/" + ("in/#1/pay" if is_nested else "pay")] * 3


class TestModules:
    """A graph that moved to another module declares the old one."""

    def test_sweeps_take_its_runs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are not left alone, and nothing is warned."""
        monkeypatch.syspath_prepend(tmp_path)
        for name in ("old_flows", "new_flows"):
            (tmp_path / f"{name}.py").write_text(
                "from stategraph import StateGraph\n"
                f"graph = StateGraph('flow', store={str(tmp_path / 'runs.db')!r}, preserve=True)\n"
                "graph.add_node('a', lambda state: {'by': __name__})\n"
                "graph.set_entry_point('a')\ngraph.set_exit_point('a')\n"
            )
        old, new = (importlib.import_module(name) for name in ("old_flows", "new_flows"))
        old.graph.submit(State(run_id=RUN))
        with pytest.warns(UserWarning, match=r"left alone"):
            assert [*new.graph.recover()] == []
        new.graph.moved_from("old_flows")

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert [one.state["by"] for one in new.graph.recover()] == ["new_flows"]
        for module in (old, new):
            module.graph.store.close()
            del sys.modules[module.__name__]

    def test_wrong_arguments(self, store: CheckpointStore) -> None:
        """Declarations are checked when they are made."""
        graph = make_graph({"a": does(lambda: None)}, store=store)
        for wrong in (lambda: graph.renamed("a"), lambda: graph.moved_from(1)):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="old names"):
                wrong()
