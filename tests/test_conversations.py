"""Runs that go on after their end, copies of runs that take another way, and graphs whose nodes were renamed."""

from __future__ import annotations

from typing import Any

import pytest

from stategraph import (
    ExecutionError,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    ParallelNode,
    ParentStep,
    RunExistsError,
    RunStatus,
    State,
    StateGraph,
    key_equals,
)
from tests.scenarios import (
    RUN,
    FourMethodStore,
    Scene,
    broken_first,
    chain,
    make_graph,
    raises,
    reopened,
    trace,
    traces,
)


def answer(state: State) -> dict[str, Any]:
    """Answer the question with regard to what was asked before."""
    return {"answer": f"{state['question']}!", "asked": [*state.get("asked", ()), state["question"]]}


def chat(store: Any, **options: Any) -> StateGraph:
    """-> a graph that answers a question."""
    nodes = {"a": trace("a"), "answer": answer}
    return make_graph(nodes, store=store, **{"preserve": True, "retention": "full", **options})


class TestTurns:
    """A completed run that is executed with new input."""

    def test_it_is_the_same_run(self, any_play: Scene) -> None:
        """Its data are there, its steps count on, and its history grows; any process can go on."""
        any_play.execute(chat(any_play.store), State({"question": "one"}, run_id=RUN))
        store = reopened(any_play.store)

        final = any_play.execute(chat(store), store.load(RUN).set("question", "two"))

        assert (final["asked"], final["answer"], final.run_id) == (["one", "two"], "two!", RUN)
        assert (final.step, final.status, store.list()) == (4, RunStatus.COMPLETED, [RUN])
        if not isinstance(store, FourMethodStore):
            kinds = ["input", "step", "step", "end"]
            assert [row.kind for row in store.history(RUN)] == kinds * 2
            assert [row.step for row in store.history(RUN)] == [0, 1, 2, 2, 2, 3, 4, 4]
            assert store.load(RUN, 1)["question"] == "one"
            assert [store.load(RUN, 2, number)["question"] for number in range(3)] == ["one", "one", "two"]

    def test_a_failure_in_a_later_turn(self, any_play: Scene) -> None:
        """It is resumed like any other, in the turn where it stands."""
        any_play.execute(chat(any_play.store), State({"question": "one"}, run_id=RUN))
        broken = make_graph({"a": trace("a"), "answer": raises(ValueError())}, store=any_play.store)
        with pytest.raises(ExecutionError):
            any_play.execute(broken, any_play.store.load(RUN).set("question", "two"))

        final = any_play.resume(chat(any_play.store))

        assert (final["asked"], final.step) == (["one", "two"], 4)

    def test_input_overrides_the_checkpoint_overrides_defaults(self, any_play: Scene) -> None:
        """Defaults fill what is missing, whenever a run begins or goes on."""
        graph = chat(any_play.store)
        graph.set_defaults({"question": "default", "style": "default", "tone": "default"})
        given = State({"question": "one", "style": "short"}, run_id=RUN)
        any_play.execute(graph, given)

        final = any_play.execute(graph, any_play.store.load(RUN).set("question", "two"))

        assert (final["question"], final["style"], final["tone"]) == ("two", "short", "default")

    def test_defaults_that_came_later(self, any_play: Scene) -> None:
        """They are for runs that begin, those of a graph within too: one that is resumed goes on with what it had."""
        with pytest.raises(ExecutionError):
            any_play.execute(make_graph({**traces("a"), "b": raises(ValueError())}, store=any_play.store))
        graph = make_graph({**traces("a"), "b": lambda state: {"seen": state["x"]}}, store=any_play.store)
        graph.set_defaults({"x": 1})
        outer = make_graph({"inner": graph.as_node()}, store=any_play.store, name="outer")

        with pytest.raises(ExecutionError):
            any_play.resume(graph)
        assert any_play.resume(graph, {"x": 2})["seen"] == 2
        assert any_play.call(outer, "execute", State(run_id="outer"))["seen"] == 1

    def test_a_default_that_a_node_has_removed(self, any_play: Scene) -> None:
        """It stays removed when the run is resumed: the final State is that of a run that nothing has stopped."""
        nodes = {"a": lambda state: state.remove("x"), "b": broken_first(trace("b"), ValueError())}
        graph = make_graph(nodes, store=any_play.store)
        graph.set_defaults({"x": 1})
        with pytest.raises(ExecutionError):
            any_play.execute(graph)

        assert dict(any_play.resume(graph)) == {"trace": ["b"]}

    @pytest.mark.parametrize("turns", [2, 3])
    def test_an_interrupt_asks_in_every_turn(self, any_play: Scene, turns: int) -> None:
        """The answer of an earlier turn answers nothing."""
        nodes = {"ask": InterruptNode("question", "ok"), "answer": answer}
        graph = make_graph(nodes, store=any_play.store, preserve=True)
        state = State({"question": "0"}, run_id=RUN)
        for turn in range(turns):
            paused = any_play.execute(graph, state)
            assert paused.pause is not None
            assert paused.pause.value == str(turn)
            state = any_play.resume(graph, {"ok": turn}).set("question", str(turn + 1))

        assert (state["asked"], state["ok"]) == ([str(turn) for turn in range(turns)], turns - 1)

    def test_a_new_value_is_an_answer(self, any_play: Scene) -> None:
        """One that the next turn brings along is input, as in the first."""
        nodes = {"ask": InterruptNode("question", "ok"), "answer": answer}
        graph = make_graph(nodes, store=any_play.store, preserve=True)
        first = any_play.execute(graph, State({"question": "one", "ok": 1}, run_id=RUN))

        assert any_play.execute(graph, first.update({"question": "two", "ok": 2})).status is RunStatus.COMPLETED

    def test_a_run_that_was_deleted_when_it_completed(self, any_play: Scene) -> None:
        """Its final State can be executed all the same, and interrupts ask again."""
        nodes = {"ask": InterruptNode("question", "ok"), "answer": answer}
        graph = make_graph(nodes, store=any_play.store)
        first = any_play.execute(graph, State({"question": "one", "ok": 1}, run_id=RUN))
        assert any_play.store.list() == []

        paused = any_play.execute(graph, first.set("question", "two"))

        assert (paused.status, paused.step) == (RunStatus.PAUSED, 2)
        assert any_play.resume(graph, {"ok": 2})["asked"] == ["one", "two"]

    def test_a_run_of_another_graph(self, any_play: Scene) -> None:
        """One that is not complete is not taken over, for it could not go on any more; a complete one is handed on."""
        orders = make_graph({**traces("a"), "b": raises(ValueError("no"))}, store=any_play.store, name="orders")
        mails = make_graph(traces("z"), store=any_play.store, name="mails", preserve=True)
        with pytest.raises(ExecutionError):
            any_play.execute(orders)
        failed = any_play.store.load(RUN)

        with pytest.raises(GraphMismatchError, match=r"'orders'.*not complete.*'mails'"):
            any_play.execute(mails, failed)
        assert any_play.store.load(RUN) == failed

        done = any_play.resume(make_graph(traces("ab"), store=any_play.store, name="orders", preserve=True))
        assert any_play.execute(mails, done)["trace"] == ["a", "b", "z"]

    @pytest.mark.parametrize("kind", ["parallel", "map", "child"])
    def test_parts_of_an_attempt_that_failed_are_not_used(self, play: Scene, kind: str) -> None:
        """A run that starts over with other data does all of the step again, even one of the same number."""
        ready = {"go": False}

        def double(state: Any) -> Any:
            n = state if kind == "map" else state["n"]
            return n * 2 if kind == "map" else {"double": n * 2}

        def wait(state: Any) -> Any:
            if not ready["go"] and (kind != "map" or state == 0):
                raise ValueError("not yet")
            return 0 if kind == "map" else {}

        nodes: dict[str, Any] = {
            "parallel": ParallelNode({"double": double, "wait": wait}, on_failure="finish"),
            "map": MapNode(lambda n: wait(n) if n == 0 else double(n), "items", "double", 1),
            "child": make_graph({"double": double, "wait": wait}, store=play.store, name="child").as_node(),
        }
        graph = make_graph({"work": nodes[kind]}, store=play.store, name="outer")
        with pytest.raises(ExecutionError):
            play.execute(graph, State({"n": 1, "items": [1, 0]}, run_id=RUN))
        ready["go"] = True

        final = play.execute(graph, play.store.load(RUN).update({"n": 5, "items": [5, 0]}), restart=True)

        assert final["double"] == ([10, 0] if kind == "map" else 10)


class TestForks:
    """A copy of a run, from any of its steps."""

    def test_fork_and_edit(self, play: Scene) -> None:
        """The copy goes on from the step with other data, and tells where it comes from; the source stays."""
        edges = [("a", "x", key_equals("way", "x")), *chain("abc"), ("x", "c")]
        graph = make_graph(traces("abxc"), edges, store=play.store, exits="c", preserve=True, retention="full")
        final = play.execute(graph)

        forked = play.store.fork(RUN, "copy", 1)
        other = play.call(graph, "resume", "copy", {"way": "x"})

        assert (forked.parent, forked.status, forked.step) == (ParentStep(RUN, 1), RunStatus.ACTIVE, 1)
        assert (other["trace"], other.parent, other.step) == (["a", "x", "c"], ParentStep(RUN, 1), 3)
        assert play.store.load(RUN) == final
        assert {run.run_id: run.parent for run in play.store.runs()} == {"copy": ParentStep(RUN, 1), RUN: None}

    def test_a_copy_can_be_executed(self, any_play: Scene) -> None:
        """From the entry point, with new input; its steps count on."""
        any_play.execute(chat(any_play.store), State({"question": "one"}, run_id=RUN))

        any_play.store.fork(RUN, "copy")
        final = any_play.execute(chat(any_play.store), any_play.store.load("copy").set("question", "two"))

        assert (final["asked"], final.step, final.run_id) == (["one", "two"], 4, "copy")
        assert any_play.store.load(RUN)["asked"] == ["one"]

    def test_the_id_is_taken(self, any_play: Scene) -> None:
        """Nothing is changed."""
        any_play.execute(chat(any_play.store), State({"question": "one"}, run_id=RUN))
        with pytest.raises(RunExistsError):
            any_play.store.fork(RUN, RUN)

    @pytest.mark.parametrize("visits", [1, 2])
    def test_of_a_run_that_waits(self, any_play: Scene, visits: int) -> None:
        """The copy waits again where the source waits, or takes the answer that its first resume brings."""
        edges = [("ask", "ask", key_equals("ok", 0)), ("ask", "end")]
        nodes = {"ask": InterruptNode(None, "ok"), "end": trace("end")}
        graph = make_graph(nodes, edges, store=any_play.store)
        any_play.execute(graph)
        if visits == 2:
            any_play.resume(graph, {"ok": 0})
        any_play.store.fork(RUN, "one")
        any_play.store.fork(RUN, "two")
        any_play.store.delete(RUN)

        assert any_play.call(graph, "resume", "one").status is RunStatus.PAUSED
        assert any_play.call(graph, "resume", "one", {"ok": 1})["trace"] == ["end"]
        assert any_play.call(graph, "resume", "two", {"ok": 2})["ok"] == 2

    @pytest.mark.parametrize("kind", ["parallel", "child"])
    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_finished_parts_are_copied(self, play: Scene, kind: str, durability: str) -> None:
        """The copy does not do them again, and deleting the source leaves it whole."""
        done: Any = []

        def first(state: State) -> dict[str, Any]:
            done.append(state.run_id)
            return {"first": 1}

        def second(state: State) -> dict[str, Any]:
            if not state.run_id.startswith("copy"):
                raise ValueError("only in the copy")
            return {"second": 2}

        inner = make_graph({"first": first, "second": second}, store=play.store, name="inner")
        work = ParallelNode({"first": first, "second": second}, 1) if kind == "parallel" else inner.as_node()
        graph = make_graph({**traces("a"), "work": work}, store=play.store, preserve=True, durability=durability)
        with pytest.raises(ExecutionError):
            play.execute(graph)

        play.store.fork(RUN, "copy")
        play.store.delete(RUN)
        final = play.call(graph, "resume", "copy")

        assert (final["first"], final["second"], len(done)) == (1, 2, 1)
        assert play.store.list() == ["copy"]

    @pytest.mark.parametrize("kind", ["parallel", "child"])
    def test_rollback_drops_them(self, play: Scene, kind: str) -> None:
        """What is done behind the step is done again, as another generation."""
        done: Any = []

        def first(state: State) -> dict[str, Any]:
            done.append(1)
            return {"first": 1}

        second = broken_first(lambda state: {}, ValueError("once"))
        inner = make_graph({"first": first, "second": second}, store=play.store, name="inner")
        work = ParallelNode({"first": first, "second": second}, 1) if kind == "parallel" else inner.as_node()
        graph = make_graph({**traces("ab"), "work": work}, store=play.store, retention="full")
        with pytest.raises(ExecutionError):
            play.execute(graph)

        state = play.store.rollback(RUN, 2)

        assert (state.generation, play.resume(graph)["first"], len(done)) == (1, 1, 2)

    def test_of_a_run_whose_graph_within_is_over(self, play: Scene) -> None:
        """There is nothing of it to be copied."""
        inner = make_graph({"x": broken_first(trace("x"), ValueError("once"))}, store=play.store, name="inner")
        nodes = {"inner": inner.as_node(), "b": broken_first(trace("b"), ValueError("once"))}
        graph = make_graph(nodes, store=play.store, durability="exit")
        for method in ("execute", "resume"):
            with pytest.raises(ExecutionError):
                getattr(play, method)(graph)

        play.store.fork(RUN, "copy")

        assert play.call(graph, "resume", "copy")["trace"] == ["x", "b"]
