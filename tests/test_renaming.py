"""Nodes that were renamed, or changed otherwise, since a run was saved."""

from __future__ import annotations

import asyncio
import contextlib
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
    RunStatus,
    State,
    StateGraph,
    key_equals,
)
from tests.scenarios import RUN, Scene, make_graph, raises, trace, traces


def swept(scene: Scene, graph: StateGraph, **options: Any) -> list[Recovered]:
    """-> what comes of a sweep, with the driver of the scene."""
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
    """turn and recover go on with runs of a graph that has changed, as resume does."""

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

    def test_a_turn_that_was_cut_off_before_a_change(self, any_play: Scene) -> None:
        """It is finished in the graph as it is now, if that is allowed."""
        broken = make_graph({"a": trace("a"), "c": raises(ValueError())}, store=any_play.store, preserve=True)
        with pytest.raises(ExecutionError):
            any_play.call(broken, "turn", RUN, {})
        graph = make_graph(traces("abc"), store=any_play.store, preserve=True)

        assert "".join(any_play.call(graph, "turn", RUN, {}, allow_changed=True)["trace"]) == "abcabc"

    @pytest.mark.parametrize("how", [{"migrate": {"a": "x"}}, {"allow_changed": True}], ids=str)
    def test_a_sweep(self, any_play: Scene, how: dict[str, Any]) -> None:
        """Runs that a deployed change has stopped go on."""
        make_graph(traces("ab"), store=any_play.store, preserve=True).submit(State(run_id=RUN))
        graph = make_graph(traces("xb"), store=any_play.store, preserve=True)
        assert isinstance(swept(any_play, graph)[0].error, GraphMismatchError)

        (recovered,) = swept(any_play, graph, **how)

        assert recovered.error is None
        assert any_play.store.load(RUN)["trace"] == ["x", "b"]


class TestRemoved:
    """A graph says once where runs go on from that stand at a node which was removed."""

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

    def test_it_is_durable(self, any_play: Scene) -> None:
        """A run that fails there needs the declaration no more."""
        fail_before(any_play, "c")
        graph = make_graph({"a": trace("a"), "c": raises(ValueError())}, store=any_play.store)
        graph.stands_at({"b": "c"})
        with pytest.raises(ExecutionError):
            any_play.resume(graph)

        assert any_play.resume(make_graph(traces("ac"), store=any_play.store))["trace"] == ["a", "b", "c"]

    def test_the_node_before_a_pause(self, any_play: Scene) -> None:
        """The run still waits for its answer."""
        ask = InterruptNode(None, "ok")
        any_play.execute(make_graph({"a": trace("a"), "ask": ask, "b": trace("b")}, store=any_play.store))
        graph = make_graph({"ask": ask, "b": trace("b")}, store=any_play.store)
        graph.stands_at({"a": "ask"})
        with pytest.raises(AnswerError):
            any_play.resume(graph)

        assert any_play.resume(graph, {"ok": True})["trace"] == ["a", "b"]

    def test_a_turn(self, any_play: Scene) -> None:
        """The turn that waited is finished, and the new one begins."""
        nodes = {"a": trace("a"), "ask": InterruptNode(None, "ok"), "b": trace("b")}
        any_play.call(make_graph(nodes, store=any_play.store, preserve=True), "turn", RUN, {})
        graph = make_graph(traces("ab"), store=any_play.store, preserve=True)
        graph.stands_at({"ask": "b"})

        assert "".join(any_play.call(graph, "turn", RUN, {})["trace"]) == "abab"

    def test_a_sweep(self, any_play: Scene) -> None:
        """The run that stands there goes on by itself."""
        any_play.execute(
            make_graph({"a": trace("a"), "b": InterruptNode(None, "ok")}, store=any_play.store, preserve=True)
        )
        waiting = any_play.store.load(RUN)
        any_play.store.fork(RUN, "copy")  # it stands before "b", and does not wait
        graph = make_graph(traces("ac"), store=any_play.store, preserve=True)
        graph.stands_at({"b": "c"})

        (recovered,) = swept(any_play, graph)

        assert recovered.run_id == "copy"
        assert any_play.store.load("copy")["trace"] == ["a", "c"]
        assert any_play.store.load(RUN) == waiting

    def test_a_nested_graph(self, play: Scene) -> None:
        """Its own declaration counts."""

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
        """The run goes on behind it, and is a run of the graph as it is now."""
        fail_before(any_play, "c")
        graph = make_graph(traces("axc"), store=any_play.store, preserve=True)
        with pytest.raises(GraphMismatchError, match=r"'b'.*migrate"):
            any_play.resume(graph)

        final = any_play.resume(graph, migrate={"b": "x"})

        assert (final["trace"], final.fingerprint) == (["a", "b", "c"], graph.fingerprint)

    def test_it_is_durable(self, any_play: Scene) -> None:
        """A second resume needs no names any more."""
        fail_before(any_play, "c")
        with pytest.raises(ExecutionError):
            any_play.resume(
                make_graph({**traces("ax"), "c": raises(ValueError())}, store=any_play.store), migrate={"b": "x"}
            )

        assert any_play.store.load(RUN).checkpoint_node == "x"
        assert any_play.resume(make_graph(traces("axc"), store=any_play.store))["trace"] == ["a", "b", "c"]

    def test_the_node_that_waits(self, any_play: Scene) -> None:
        """It takes the answer under its new name."""
        nodes = {**traces("a"), "ask": InterruptNode(None, "ok")}
        any_play.execute(make_graph(nodes, store=any_play.store))
        graph = make_graph({**traces("a"), "approve": InterruptNode(None, "ok")}, store=any_play.store)
        with pytest.raises(GraphMismatchError, match="'ask'"):
            any_play.resume(graph)

        final = any_play.resume(graph, {"ok": 1}, migrate={"ask": "approve"})

        assert (final["ok"], final.checkpoint_node) == (1, "approve")

    def test_the_node_that_comes_next(self, any_play: Scene) -> None:
        """Where that is decided already, as after an answer that was given."""
        ask = InterruptNode(None, "ok", validator=lambda ok: ok != "bad")
        graph = make_graph({"ask": ask, "b": trace("b")}, store=any_play.store)
        any_play.execute(graph)
        any_play.store.fork(RUN, "copy")  # stands before "ask", and is not paused

        renamed = make_graph({"approve": ask, "b": trace("b")}, store=any_play.store)
        final = any_play.call(renamed, "resume", "copy", {"ok": 1}, migrate={"ask": "approve"})

        assert (final["ok"], final["trace"]) == (1, ["b"])

    def test_a_graph_that_was_visited_before(self, play: Scene) -> None:
        """Each of its runs has an id of its own."""
        ids: Any = []

        def note(state: State) -> dict[str, Any]:
            ids.append(state.run_id)
            return {"n": len(ids)}

        inner = make_graph({"note": note}, store=play.store, name="inner")

        def make(name: str, b: Any) -> Any:
            edges = [(name, "b"), ("b", name, key_equals("n", 1)), ("b", "end")]
            return make_graph({name: inner.as_node(), "b": b, "end": trace("end")}, edges, store=play.store)

        with pytest.raises(ExecutionError):
            play.execute(make("old", raises(ValueError())))

        play.resume(make("new", trace("b")), migrate={"old": "new"})

        assert ids == [f"{RUN}/#1/old", f"{RUN}/#3/new"]

    def test_a_node_whose_items_are_half_done(self, play: Scene) -> None:
        """What is finished of its step stays finished."""
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
        """It goes on within, in the next step as well as after a crash; nodes within are named by their paths."""
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
        """What was paid under the old name is not paid once more under the new one."""
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

    def test_names_that_move_on(self, any_play: Scene) -> None:
        """The same call again does the same again."""
        names = {"a": "b", "b": "c"}
        fail_before(any_play, "b", "a")
        graph = make_graph({**traces("b"), "c": raises(ValueError())}, store=any_play.store)
        for _ in range(2):
            with pytest.raises(ExecutionError):
                any_play.resume(graph, migrate=names, allow_changed=True)

        assert any_play.store.load(RUN).checkpoint_node == "b"

    @pytest.mark.parametrize("pauses", [True, False])
    @pytest.mark.parametrize("depth", [1, 2])
    def test_changes_of_a_nested_graph_are_named(self, play: Scene, depth: int, pauses: bool) -> None:
        """As of the graph itself; and nothing happens before that."""
        last = InterruptNode(None, "ok") if pauses else raises(ValueError("not yet"))

        def make(names: str, end: Any) -> StateGraph:
            graph = make_graph({**traces(names), "end": end}, store=play.store)
            for level in range(depth):
                graph = make_graph({"in": graph.as_node()}, store=play.store, name=f"level {level}")
            return graph

        with contextlib.nullcontext() if pauses else pytest.raises(ExecutionError):
            play.execute(make("a", last))
        saved = play.store.load(RUN)
        changed = make("ab", last if pauses else trace("end"))

        with pytest.raises(GraphMismatchError, match="node 'b' was added"):
            play.resume(changed, {"ok": 1})
        if pauses:
            assert play.store.load(RUN) == saved

        final = play.resume(changed, {"ok": 1}, allow_changed=True)
        assert (final.status, final["trace"]) == (RunStatus.COMPLETED, ["a"] if pauses else ["a", "b", "end"])

    def test_a_question_that_is_asked_again(self, play: Scene) -> None:
        """A run within that goes on waiting has its new names from then on, as the outer one has."""

        def make(ask: str, more: str) -> StateGraph:
            inner = make_graph({ask: InterruptNode(None, "ok"), **traces(more)}, store=play.store)
            return make_graph({"in": inner.as_node()}, store=play.store, name="outer")

        play.execute(make("ask", "b"))
        play.store.fork(RUN, "copy")
        changed = make("approve", "bc")
        migrate = {"in/ask": "in/approve"}
        asked = play.call(changed, "resume", "copy", migrate=migrate, allow_changed=True)

        assert asked.status is RunStatus.PAUSED
        assert play.call(changed, "resume", "copy", {"ok": 1})["trace"] == ["b", "c"]

    def test_a_node_within_that_is_gone(self, play: Scene) -> None:
        """It is named, with the way out, and nothing is lost."""

        def make(inner: str) -> StateGraph:
            graph = make_graph({inner: trace("a"), "ask": InterruptNode(None, "ok")}, store=play.store)
            return make_graph({"in": graph.as_node()}, store=play.store, name="outer")

        play.execute(make("old"))
        with pytest.raises(GraphMismatchError, match=r"'old'.*migrate=\{'in/old': \"in/...\"\}."):
            play.resume(make("new"), {"ok": 1})

        assert play.resume(make("new"), {"ok": 1}, migrate={"in/old": "in/new"})["trace"] == ["a"]

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

    def test_with_updates(self, play: Scene) -> None:
        """Parts that were made of other data are not used."""
        ready: list[int] = []

        def double(n: int) -> int:
            if n == 0 and not ready:
                raise ValueError("not yet")
            return n * 2

        work = MapNode(double, "items", "out", 1)
        with pytest.raises(ExecutionError):
            play.execute(
                make_graph({"a": trace("a"), "work": work}, store=play.store), State({"items": [1, 0]}, run_id=RUN)
            )
        ready.append(1)
        graph = make_graph({"x": trace("x"), "work": work}, store=play.store)

        assert play.resume(graph, {"items": [5, 0]}, migrate={"a": "x"})["out"] == [10, 0]

    def test_other_changes_are_named(self, any_play: Scene) -> None:
        """Only the names are forgiven: what was added, removed or rewired besides is named."""
        fail_before(any_play, "c")
        edges = [("a", "x"), ("x", "new"), ("new", "c")]
        graph = make_graph(traces(["a", "x", "c", "new"]), edges, store=any_play.store, exits="c")

        with pytest.raises(GraphMismatchError) as caught:
            any_play.resume(graph, migrate={"b": "x"})

        told = ["node 'new' was added", "edge 'x' -> 'new'", "edge 'x' -> 'c' (always()) was removed", "allow_changed"]
        assert all(text in str(caught.value) for text in told)
        assert "'b'" not in str(caught.value)
        final = any_play.resume(graph, migrate={"b": "x"}, allow_changed=True)
        assert final["trace"] == ["a", "b", "new", "c"]
