"""Nodes that were renamed, removed or changed since a run was saved."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stategraph import (
    AnswerError,
    ExecutionError,
    GraphError,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    NodeContext,
    Recovered,
    State,
    StateGraph,
)
from tests.scenarios import RUN, Scene, make_graph, raises, trace, traces


def swept(scene: Scene, graph: StateGraph, **options: Any) -> list[Recovered]:
    """Return what comes of a sweep, with the driver of the scene."""
    if scene.call.__name__ == "call_sync":
        return list(graph.recover(**options))

    async def sweep() -> list[Recovered]:
        return [one async for one in graph.arecover(**options)]

    return asyncio.run(sweep())


def fail_before(play: Scene, node: str, names: str = "ab") -> None:
    """Leave a run that failed at a node after these."""
    with pytest.raises(ExecutionError):
        play.execute(make_graph({**traces(names), node: raises(ValueError())}, store=play.store))


class TestTurnsAndSweeps:
    """`turn` and `recover` continue runs of a changed graph as `resume` does."""

    def test_a_turn_that_was_cut_off_before_a_rename(self, any_play: Scene) -> None:
        """It is finished under the new name, then the new one begins."""
        broken = make_graph({**traces("ab"), "c": raises(ValueError())}, store=any_play.store, preserve=True)
        with pytest.raises(ExecutionError):
            any_play.call(broken, "turn", RUN, {"said": 1})
        graph = make_graph(traces("axc"), store=any_play.store, preserve=True)
        with pytest.raises(GraphMismatchError, match="'b'"):
            any_play.call(graph, "turn", RUN, {"said": 2})

        for number in (2, 3):
            final = any_play.call(graph, "turn", RUN, {"said": number}, migrate={"b": "x"})

        assert "".join(final["trace"]) == "abc" + "axc" * 2

    @pytest.mark.parametrize("how", [{"migrate": {"a": "x"}}, {"allow_changed": True}], ids=str)
    def test_a_sweep(self, any_play: Scene, how: dict[str, Any]) -> None:
        """A sweep with the new names continues runs that a changed graph refuses."""
        make_graph(traces("ab"), store=any_play.store, preserve=True).submit(State(run_id=RUN))
        graph = make_graph(traces("xb"), store=any_play.store, preserve=True)
        assert isinstance(swept(any_play, graph)[0].error, GraphMismatchError)

        (recovered,) = swept(any_play, graph, **how)

        assert recovered.error is None
        assert any_play.store.load(RUN)["trace"] == ["x", "b"]


class TestRemoved:
    """A graph declares where runs continue that stand at a removed node."""

    @pytest.mark.parametrize("answer", [{}, {"ok": True}], ids=str)
    @pytest.mark.parametrize("before", ["present", "removed, too"])
    def test_the_node_that_waits(self, any_play: Scene, answer: dict[str, Any], before: str) -> None:
        """The run needs no answer any more, but keeps one."""
        nodes = {"a": trace("a"), "ask": InterruptNode(None, "ok"), "b": trace("b")}
        any_play.execute(make_graph(nodes, store=any_play.store))
        graph = make_graph(traces("ab" if before == "present" else "xb"), store=any_play.store, preserve=True)
        with pytest.raises(GraphMismatchError, match="stands_at"):
            any_play.resume(graph, answer)
        graph.stands_at({"ask": "b", "a": "b"})

        final = any_play.resume(graph, answer)

        assert (final["trace"], final.get("ok"), final.step) == (["a", "b"], answer.get("ok"), 2)
        assert final.fingerprint == graph.fingerprint

    def test_a_turn(self, any_play: Scene) -> None:
        """The turn that waited is finished, and the new one begins."""
        nodes = {"a": trace("a"), "ask": InterruptNode(None, "ok"), "b": trace("b")}
        any_play.call(make_graph(nodes, store=any_play.store, preserve=True), "turn", RUN, {})
        graph = make_graph(traces("ab"), store=any_play.store, preserve=True)
        graph.stands_at({"ask": "b"})

        assert "".join(any_play.call(graph, "turn", RUN, {})["trace"]) == "abab"

    def test_a_nested_graph(self, play: Scene) -> None:
        """A nested graph has its own declaration."""

        def make(nodes: dict[str, Any]) -> tuple[StateGraph, StateGraph]:
            nested = make_graph(nodes, store=play.store, name="nested")
            return nested, make_graph({"in": nested.as_node()}, store=play.store)

        play.execute(make({"a": trace("a"), "ask": InterruptNode(None, "ok"), "b": trace("b")})[1])
        nested, graph = make(traces("ab"))
        nested.stands_at({"ask": "b"})

        assert play.resume(graph, {"ok": True}, allow_changed=True)["trace"] == ["a", "b"]

    def test_a_name_that_is_not_there(self, memory_play: Scene) -> None:
        """The error names it, before anything runs."""
        graph = make_graph(traces("ab"), store=memory_play.store)
        graph.stands_at({"ask": "nowhere"})

        with pytest.raises(GraphError, match=r"stands_at.*'nowhere'"):
            graph.validate()


class TestMigrate:
    """resume with the new names of nodes."""

    def test_the_node_that_was_completed_last(self, any_play: Scene) -> None:
        """The run continues after the renamed node, as a run of the new graph."""
        fail_before(any_play, "c")
        graph = make_graph(traces("axc"), store=any_play.store, preserve=True)
        with pytest.raises(GraphMismatchError, match=r"'b'.*migrate"):
            any_play.resume(graph)

        final = any_play.resume(graph, migrate={"b": "x"})

        assert (final["trace"], final.fingerprint) == (["a", "b", "c"], graph.fingerprint)

    def test_the_node_that_waits(self, any_play: Scene) -> None:
        """It takes the answer under its new name."""
        nodes = {**traces("a"), "ask": InterruptNode(None, "ok")}
        any_play.execute(make_graph(nodes, store=any_play.store))
        graph = make_graph({**traces("a"), "approve": InterruptNode(None, "ok")}, store=any_play.store)
        with pytest.raises(GraphMismatchError, match="'ask'"):
            any_play.resume(graph)

        final = any_play.resume(graph, {"ok": 1}, migrate={"ask": "approve"})

        assert (final["ok"], final.checkpoint_node) == (1, "approve")

    def test_a_node_whose_items_are_half_done(self, play: Scene) -> None:
        """Finished items of a renamed node stay finished."""
        done: list[int] = []
        broken = [1]

        def double(n: int) -> int:
            if n == 2 and broken.pop():
                raise ValueError("not yet")
            done.append(n)
            return n * 2

        def make(name: str) -> StateGraph:
            return make_graph({name: MapNode(double, "items", "out", 1), "end": trace("end")}, store=play.store)

        with pytest.raises(ExecutionError):
            play.execute(make("old"), State({"items": [0, 1, 2, 3]}, run_id=RUN))
        broken.append(0)

        final = play.resume(make("new"), migrate={"old": "new"})

        assert (final["out"], sorted(done)) == ([0, 2, 4, 6], [0, 1, 2, 3])

    @pytest.mark.parametrize("depth", [1, 2])
    def test_a_graph_that_is_under_way(self, play: Scene, depth: int) -> None:
        """A renamed nested graph continues in its current step, also after a crash; paths name nested nodes."""
        log: Any = []
        failing: Any = []

        def make(names: list[str], old: str, ask: str) -> StateGraph:
            nodes = {
                old: lambda state: log.append(state.run_id) or {},
                ask: InterruptNode(None, "ok"),
                "c": lambda state: failing.pop() if failing else {"c": 1},
            }
            graph = make_graph(nodes, store=play.store)
            for level, name in enumerate(names):
                nodes = {name: graph.as_node(), "end": trace("end")}
                graph = make_graph(nodes, store=play.store, name=f"level {level}")
            return graph

        olds, news = ["a", "b"][:depth], ["x", "y"][:depth]
        play.execute(make(olds, "first", "ask"))
        renamed, before, after = make(news, "new first", "approve"), "/".join(reversed(olds)), "/".join(reversed(news))
        migrate = {f"{before}/first": f"{after}/new first", f"{before}/ask": f"{after}/approve"}
        if depth == 2:
            migrate[f"{olds[1]}/{olds[0]}"] = f"{news[1]}/{news[0]}"
        migrate[olds[-1]] = news[-1]
        with pytest.raises(AnswerError):
            play.resume(renamed, migrate=migrate)
        failing.append("no mapping")
        with pytest.raises(ExecutionError):
            play.resume(renamed, {"ok": 5}, migrate=migrate)

        final = play.resume(renamed)

        assert (final["ok"], final["c"], log) == (5, 1, ["/".join([RUN, *(f"#1/{name}" for name in reversed(olds))])])

    def test_the_step_under_way_keeps_its_idempotency_key(self, any_play: Scene) -> None:
        """The current step keeps its idempotency key under the new name, so nothing is paid twice."""
        keys: list[str] = []

        def pay(state: State, context: NodeContext) -> dict[str, Any]:
            keys.append(context.idempotency_key)
            if len(keys) == 1:
                raise ValueError("the answer was lost")
            return {}

        with pytest.raises(ExecutionError):
            any_play.execute(make_graph({"a": trace("a"), "pay": pay}, store=any_play.store))
        any_play.resume(make_graph({"a": trace("a"), "charge": pay}, store=any_play.store), migrate={"pay": "charge"})

        assert keys == [f"flow/{RUN}/#2/pay"] * 2

    def test_names_that_are_unknown(self, any_play: Scene) -> None:
        """A slip of the pen is no renaming; but one that was made already can be made again."""
        fail_before(any_play, "c")
        graph = make_graph({**traces("ax"), "c": raises(ValueError())}, store=any_play.store)

        with pytest.raises(GraphMismatchError, match=r"'bb', which the graph did not have.*were a, b, c"):
            any_play.resume(graph, migrate={"bb": "x"})
        with pytest.raises(GraphMismatchError, match=r"'nowhere', which the graph does not have.*were a, b, c"):
            any_play.resume(graph, migrate={"bb": "nowhere"})
        with pytest.raises(GraphMismatchError, match=r"'nowhere'.*a, x, c"):
            any_play.resume(graph, migrate={"b": "nowhere"})
        for _ in range(2):
            with pytest.raises(ExecutionError):
                any_play.resume(graph, migrate={"b": "x"})
