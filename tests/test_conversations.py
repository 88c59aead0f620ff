"""Runs that continue after their end, forks with other data, and graphs with renamed nodes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stategraph import (
    ExecutionError,
    GraphMismatchError,
    MapNode,
    ParallelNode,
    ParentStep,
    RunBusyError,
    RunStatus,
    State,
    StateGraph,
    key_equals,
)
from stategraph._values.entries import Entry
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, FourMethodStore, Scene, chain, make_graph, raises, reopened, trace, traces


def answer(state: State) -> dict[str, Any]:
    """Answer the question, and add it to the earlier ones."""
    return {"answer": f"{state['question']}!", "asked": [*state.get("asked", ()), state["question"]]}


def chat(store: Any, **options: Any) -> StateGraph:
    """Return a graph that answers a question."""
    nodes = {"a": trace("a"), "answer": answer}
    return make_graph(nodes, store=store, **{"preserve": True, "retention": "full", **options})


class TestTurns:
    """A completed run that is executed with new input."""

    def test_it_is_the_same_run(self, any_play: Scene) -> None:
        """A second turn keeps the data, counts steps on and extends the history, in any process."""
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

    def test_a_run_of_another_graph(self, any_play: Scene) -> None:
        """A graph refuses an incomplete run of another graph, and continues a complete one."""
        orders = make_graph({**traces("a"), "b": raises(ValueError("no"))}, store=any_play.store, name="orders")
        mails = make_graph(traces("z"), store=any_play.store, name="mails", preserve=True)
        with pytest.raises(ExecutionError):
            any_play.execute(orders)
        failed = any_play.store.load(RUN)

        with pytest.raises(GraphMismatchError, match="'orders', not of 'mails'"):
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

    @pytest.mark.parametrize("way_out", ["resume", "cancel", "discard"])
    def test_a_failed_turn_blocks_the_next(self, play: Scene, way_out: str) -> None:
        """The next call finishes it with its own input. If it fails again, a note says whose failure it is, and what
        goes on; each of these ways does."""
        graph = chat(play.store)
        play.turn(graph, {"question": "one"})
        broken = {"question": None, "asked": None}
        for given in (broken, {"question": "two"}):
            with pytest.raises(ExecutionError, match="'answer'") as caught:
                play.turn(graph, given)
        assert "TypeError" in str(caught.value)
        (note,) = caught.value.__notes__
        assert "failure of a turn before" in note
        assert f"{way_out}(" in note or 'unfinished="discard"' in note

        if way_out == "resume":
            assert play.resume(graph, {"question": "mended", "asked": ["one"]})["asked"] == ["one", "mended"]
        elif way_out == "cancel":
            graph.cancel(RUN)
        discards: Any = {"unfinished": "discard"} if way_out == "discard" else {}
        final = play.turn(graph, {"question": "two", "asked": ["given"]}, **discards)

        assert (final["asked"], final.status) == (["given", "two"], RunStatus.COMPLETED)

    def test_a_stored_turn_that_fails_is_not_that_of_the_call(self, play: Scene) -> None:
        """Turns that wait are executed first; the note is there as well."""
        graph = chat(play.store)
        play.turn(graph, {"question": "one"})
        play.store.append(RUN, [Entry("turn", [{"asked": None}, "enqueue", 0], name="stored")])

        with pytest.raises(ExecutionError, match="'answer'") as caught:
            play.turn(graph, {"question": "two"})

        assert "failure of a turn before" in caught.value.__notes__[0]
        with pytest.raises(ExecutionError) as caught:  # the failure of the call's own turn
            graph.turn("other", {"question": "one", "asked": None})
        assert not hasattr(caught.value, "__notes__")


class TestForks:
    """A copy of a run, from any of its steps."""

    def test_fork_and_edit(self, play: Scene) -> None:
        """A fork continues from its step with other data and names its source, which stays as it is."""
        edges = [("a", "x", key_equals("way", "x")), *chain("abc"), ("x", "c")]
        graph = make_graph(traces("abxc"), edges, store=play.store, exits="c", preserve=True, retention="full")
        final = play.execute(graph)

        forked = play.store.fork(RUN, "copy", 1)
        other = play.call(graph, "resume", "copy", {"way": "x"})

        assert (forked.parent, forked.status, forked.step) == (ParentStep(RUN, 1), RunStatus.ACTIVE, 1)
        assert (other["trace"], other.parent, other.step) == (["a", "x", "c"], ParentStep(RUN, 1), 3)
        assert play.store.load(RUN) == final
        assert {run.run_id: run.parent for run in play.store.runs()} == {"copy": ParentStep(RUN, 1), RUN: None}


def test_waiting_turns_are_served_in_the_order_in_which_they_came() -> None:
    """First come, first served; a call that gives up makes room for the next."""

    async def listen(state: State) -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {"heard": [*state.get("heard", ()), state["n"]]}

    graph = make_graph({"listen": listen}, store=MemoryStore(), preserve=True)

    async def talk() -> list[State | BaseException]:
        calls = [graph.aturn(RUN, {"n": n}, wait=0.001 if n == 2 else 300) for n in range(12)]
        return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = asyncio.run(talk())

    assert [type(outcome) for outcome in outcomes if not isinstance(outcome, State)] == [RunBusyError]
    assert list(graph.store.load(RUN)["heard"]) == [n for n in range(12) if n != 2]
