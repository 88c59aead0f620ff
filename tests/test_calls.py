"""The calls that first look how a run stands: run, turn, submit, recover and cancel."""

from __future__ import annotations

import asyncio
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    AnswerError,
    CheckpointError,
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    CheckpointStore,
    ConfigError,
    ExecutionError,
    GraphMismatchError,
    InterruptNode,
    MapNode,
    NodeContext,
    Recovered,
    RunBusyError,
    RunCancelledError,
    RunCompleteError,
    RunExistsError,
    RunStatus,
    State,
    StateGraph,
    key_equals,
    stores,
)
from tests.conftest import make_store
from tests.scenarios import (
    HOW,
    RUN,
    Scene,
    as_async_chunks,
    broken_first,
    counted,
    does,
    in_threads,
    make_graph,
    raises,
    reopened,
    returns,
    trace,
    traces,
)

pytestmark = pytest.mark.timeout(120)


def chat(scene: Scene, nodes: Any = None, **options: Any) -> StateGraph:
    """-> a graph whose runs are kept when they complete."""
    return scene.graph(traces("ab") if nodes is None else nodes, **{"preserve": True, **options})


def cancel_from_elsewhere(store: CheckpointStore) -> None:
    """Cancel the run through a graph of its own."""
    make_graph(traces("a"), store=store).cancel(RUN)


def cancels_once(store: CheckpointStore, wait: float = 0) -> Any:
    """-> a node that cancels its run the first time it is called."""
    left = [None]

    def node(state: State) -> dict[str, Any]:
        if left:
            left.pop()
            cancel_from_elsewhere(store)
            time.sleep(wait)
        return {"cancels": 1}

    return node


def recovered(scene: Scene, graph: StateGraph, **options: Any) -> list[Recovered]:
    """-> what comes of a sweep, with the driver of the scene."""
    if scene.call.__name__ == "call_sync":
        return list(graph.recover(**options))

    async def sweep() -> list[Recovered]:
        return [one async for one in graph.arecover(**options)]

    return asyncio.run(sweep())


# --------------------------------------------------------------------------- run


class TestRun:
    """However often it is asked for, the work is done once."""

    def test_there_is_no_such_run(self, any_play: Scene) -> None:
        """It is executed."""
        final = any_play.call(chat(any_play), "run", State({"x": 1}, run_id=RUN))

        assert (final["x"], final["trace"], final.status) == (1, ["a", "b"], RunStatus.COMPLETED)

    def test_it_is_complete(self, any_play: Scene) -> None:
        """Its State is given back, and nothing runs."""
        final = any_play.call(chat(any_play), "run", State(run_id=RUN))
        dead = chat(any_play, {"a": raises(AssertionError()), "b": trace("b")})

        assert any_play.call(dead, "run", State({"other": "input"}, run_id=RUN)) == final

    def test_it_is_unfinished(self, any_play: Scene) -> None:
        """It is resumed."""
        graph = chat(any_play, {"a": trace("a"), "b": broken_first(trace("b"), ValueError())})
        with pytest.raises(ExecutionError):
            any_play.call(graph, "run", State(run_id=RUN))

        assert any_play.call(graph, "run", State(run_id=RUN))["trace"] == ["a", "b"]

    def test_it_is_paused(self, any_play: Scene) -> None:
        """The paused State is given back."""
        graph = chat(any_play, {"ask": InterruptNode("what", "ok"), "b": trace("b")})
        paused = any_play.call(graph, "run", State({"what": 1}, run_id=RUN))

        again = any_play.call(graph, "run", State({"what": 2}, run_id=RUN))

        assert (again.status, again.pause) == (RunStatus.PAUSED, paused.pause)
        assert any_play.resume(graph, {"ok": 1})["trace"] == ["b"]

    def test_it_is_of_another_graph(self, any_play: Scene) -> None:
        """It is not taken for one of this."""
        any_play.call(chat(any_play, name="orders"), "run", State(run_id=RUN))

        with pytest.raises(GraphMismatchError, match="orders"):
            any_play.call(chat(any_play, name="mails"), "run", State(run_id=RUN))

    def test_nothing_is_saved(self, memory_play: Scene) -> None:
        """It is executed each time."""
        graph = chat(memory_play, interval=0)

        for _ in range(2):
            assert memory_play.call(graph, "run", State(run_id=RUN))["trace"] == ["a", "b"]

    def test_two_at_the_same_time(self, any_store: CheckpointStore) -> None:
        """One works, and the one that waits gets the same State."""
        steps: list[int] = []
        nodes = {"a": counted(does(lambda: time.sleep(0.1)), steps), "b": trace("b")}
        graph = make_graph(nodes, store=any_store, preserve=True)
        found: list[Any] = []
        raised = in_threads(*[lambda: found.append(graph.run(State(run_id=RUN), wait=30))] * 2)

        assert (raised, steps) == ([], [1])
        assert found[0] == found[1]

    def test_a_second_one_that_does_not_wait(self, any_play: Scene) -> None:
        """Is refused."""

        def again(state: State) -> dict[str, Any]:
            with pytest.raises(RunBusyError):
                graph.run(State(run_id=RUN))
            return {}

        graph = chat(any_play, {"a": again, "b": trace("b")})

        assert any_play.call(graph, "run", State(run_id=RUN)).step == 2


# --------------------------------------------------------------------------- turn


class TestTurn:
    """A conversation: the turn before is finished, then a new one begins."""

    def test_turns(self, any_play: Scene) -> None:
        """The first begins the run, the others go on with it."""
        for number in (1, 2, 3):
            state = any_play.call(chat(any_play), "turn", RUN, {"said": number})

            assert (state["said"], len(state["trace"]), state.step) == (number, 2 * number, 2 * number)

    @pytest.mark.parametrize("how", HOW)
    def test_a_turn_that_was_cut_off(self, any_play: Scene, how: str) -> None:
        """It is finished first, with its own input."""
        heard: list[tuple[Any, Any]] = []

        def hear(state: State) -> dict[str, Any]:
            heard.append((state["said"], state.step))
            return {}

        graph = chat(any_play, {"a": trace("a"), "b": broken_first(hear, ValueError())}, **HOW[how])
        with pytest.raises(ExecutionError):
            any_play.call(graph, "turn", RUN, {"said": 1})

        final = any_play.call(graph, "turn", RUN, {"said": 2})

        assert heard == [(1, 1), (2, 3)]
        assert (final["said"], final.step) == (2, 4)

    def test_a_turn_that_is_paused(self, any_play: Scene) -> None:
        """Takes an answer first: the input is not taken, and nothing is lost."""
        graph = chat(any_play, {"ask": InterruptNode("said", "ok"), "b": trace("b")})
        paused = any_play.call(graph, "turn", RUN, {"said": 1})

        with pytest.raises(AnswerError, match="new turn"):
            any_play.call(graph, "turn", RUN, {"said": 2})

        assert any_play.store.load(RUN) == paused
        assert any_play.resume(graph, {"ok": 1})["said"] == 1
        assert any_play.call(graph, "turn", RUN, {"said": 2}).pause is not None

    def test_a_turn_that_was_cancelled(self, any_play: Scene) -> None:
        """Is not finished."""
        graph = chat(any_play, {"a": trace("a"), "b": broken_first(trace("b"), ValueError())})
        with pytest.raises(ExecutionError):
            any_play.call(graph, "turn", RUN, {"said": 1})
        graph.cancel(RUN)

        assert any_play.call(graph, "turn", RUN, {"said": 2})["trace"] == ["a", "a", "b"]

    def test_labels(self, any_play: Scene) -> None:
        """They are those of the run, until a turn brings others."""
        for labels, expected in (({"user": "ann"}, "ann"), (None, "ann"), ({"user": "bob"}, "bob")):
            state = any_play.call(chat(any_play), "turn", RUN, {}, labels=labels)

            assert state.labels == {"user": expected}
        assert [run.run_id for run in any_play.store.runs(labels={"user": "bob"})] == [RUN]

    @pytest.mark.parametrize("how", ["failed", "interrupted", "cancelled", "before its first node"])
    @pytest.mark.parametrize(("completed", "durability"), [(0, "sync"), (2, "sync"), (2, "async")])
    def test_a_turn_that_is_discarded(self, play: Scene, how: str, completed: int, durability: str) -> None:
        """The run goes on from the end of the last completed turn, however often that is done."""
        broken = KeyboardInterrupt() if how == "interrupted" else ValueError()
        nodes = {"a": trace("a"), "b": raises(broken)}
        if how.startswith("before"):
            nodes = {"a": raises(broken), "b": trace("b")}
        graph, dead = (chat(play, made, retention="full", durability=durability) for made in (None, nodes))
        for number in range(completed):
            play.call(graph, "turn", RUN, {"said": number})
        for _ in range(2):
            with pytest.raises((ExecutionError, KeyboardInterrupt)):
                play.call(dead, "turn", RUN, {"said": "lost", "more": "lost"}, unfinished="discard")
            if how == "cancelled":
                dead.cancel(RUN)

        final = play.call(graph, "turn", RUN, {"said": "last"}, unfinished="discard", by="ann")

        assert dict(final) == {"said": "last", "trace": ["a", "b"] * (completed + 1)}
        assert (final.step, final.status) == (2 * (completed + 1), RunStatus.COMPLETED)
        assert any(row.kind == "rollback" and row.by == "ann" for row in play.store.history(RUN))
        assert play.call(graph, "turn", RUN, {"said": "next"}, unfinished="discard")["said"] == "next"

    def test_turns_that_were_rolled_back_are_not_gone_back_to(self, play: Scene) -> None:
        """Not even if they were completed."""
        graph = chat(play, retention="full")
        for number in (1, 2):
            play.call(graph, "turn", RUN, {"said": number})
        play.store.rollback(RUN, 3)

        assert play.call(graph, "turn", RUN, {}, unfinished="discard")["trace"] == ["a", "b"] * 2

    def test_a_turn_that_waits_is_not_discarded(self, play: Scene) -> None:
        """It is not cut off."""
        graph = chat(play, {"ask": InterruptNode("said", "ok")}, retention="full")
        play.call(graph, "turn", RUN, {"said": 1})

        with pytest.raises(AnswerError):
            play.call(graph, "turn", RUN, {"said": 2}, unfinished="discard")

    def test_what_cannot_be_discarded(self, memory_play: Scene) -> None:
        """The error says what it takes."""
        for how, text in (({"unfinished": "drop"}, "discard"), ({"unfinished": "discard"}, "full")):
            with pytest.raises(ConfigError, match=text):
                memory_play.call(chat(memory_play), "turn", RUN, {}, **how)
        memory_play.call(chat(memory_play), "turn", RUN, {})
        dead = chat(memory_play, {"a": trace("a"), "b": raises(ValueError())})
        with pytest.raises(ExecutionError):
            memory_play.call(dead, "turn", RUN, {})
        with pytest.raises(CheckpointError, match="full"):
            memory_play.call(chat(memory_play, retention="full"), "turn", RUN, {}, unfinished="discard")

    def test_what_is_no_input(self, memory_play: Scene) -> None:
        """Is refused, and so is a graph that saves nothing."""
        with pytest.raises(TypeError, match="mapping"):
            memory_play.call(chat(memory_play), "turn", RUN, "hello")
        with pytest.raises(CheckpointingDisabledError):
            memory_play.call(chat(memory_play, interval=0), "turn", RUN, {})


# --------------------------------------------------------------------------- executing what is not complete


class TestExecute:
    """The State of a run that is not complete is not begun again by mistake."""

    @pytest.mark.parametrize("method", ["execute", "stream"])
    def test_a_paused_run(self, any_play: Scene, method: str) -> None:
        """Its pause stays, unless that is asked for."""
        graph = chat(any_play, {"ask": InterruptNode("what", "ok"), "b": trace("b")})
        paused = any_play.execute(graph, State({"what": 1}, run_id=RUN))

        with pytest.raises(RunExistsError, match=r"is paused.*resume\('run'\).*turn\('run'.*restart=True"):
            list(graph.stream(paused)) if method == "stream" else any_play.execute(graph, paused)

        assert any_play.store.load(RUN) == paused
        again = any_play.execute(graph, paused.set("what", 2), restart=True)
        assert again.pause is not None
        assert (again.pause.value, again.step) == (2, 0)

    def test_what_is_no_answer(self, memory_play: Scene) -> None:
        """Is refused."""
        with pytest.raises(ConfigError, match="restart"):
            memory_play.execute(chat(memory_play), restart=1)


# --------------------------------------------------------------------------- submit and recover


class TestRecover:
    """What was submitted, or left unfinished, is done once."""

    @pytest.mark.parametrize("how", HOW)
    def test_what_was_submitted(self, any_play: Scene, how: str) -> None:
        """Nothing runs until a sweep takes it up."""
        ran: list[int] = []
        graph = chat(any_play, {"a": counted(trace("a"), ran), "b": trace("b")}, **HOW[how])
        graph.set_defaults({"y": 2})
        given = State({"x": 1}, run_id=RUN)

        saved = graph.submit(given)

        assert reopened(any_play.store).load(RUN) == saved
        assert (saved.step, saved.status, saved.graph, ran) == (0, RunStatus.ACTIVE, "flow", [])
        assert any_play.store.owner(RUN) is None
        (done,) = recovered(any_play, graph)
        assert done == Recovered(RUN, any_play.store.load(RUN))
        assert done.state is not None
        assert (dict(done.state), done.state.progress) == ({"x": 1, "y": 2, "trace": ["a", "b"]}, None)
        assert recovered(any_play, graph) == []

    def test_submitting_twice(self, any_play: Scene) -> None:
        """The same is the same run; other data are refused, and so is a run that has begun."""
        graph = chat(any_play)
        first = graph.submit(State({"x": 1}, run_id=RUN))
        history = any_play.store.history(RUN)
        assert graph.submit(State({"x": 1}, run_id=RUN)) == first
        assert any_play.store.history(RUN) == history
        with pytest.raises(RunExistsError):
            graph.submit(State({"x": 2}, run_id=RUN))
        assert len(recovered(any_play, graph)) == 1

        with pytest.raises(RunExistsError):
            graph.submit(State({"x": 1}, run_id=RUN))

    def test_labels_stay(self, any_play: Scene) -> None:
        """However often the run is submitted or begun, unless others are given."""
        graph = chat(any_play)
        graph.submit(State(run_id=RUN), labels={"team": "news"})
        graph.submit(State(run_id=RUN))
        assert [run.labels for run in any_play.store.runs(labels={"team": "news"})] == [{"team": "news"}]

        assert any_play.execute(graph).labels == {"team": "news"}
        graph.submit(State(run_id="other"), labels={"team": "news"})
        assert any_play.execute(graph, State(run_id="other"), labels={"team": "ads"}).labels == {"team": "ads"}

    def test_executing_what_was_submitted(self, any_play: Scene) -> None:
        """By `run`, or by `execute` with the same State."""
        graph = chat(any_play)
        graph.submit(State({"x": 1}, run_id=RUN))
        graph.submit(State({"x": 1}, run_id="other"))

        assert any_play.call(graph, "run", State(run_id=RUN))["x"] == 1
        assert any_play.execute(graph, State({"x": 1}, run_id="other"))["trace"] == ["a", "b"]

    def test_the_next_turn_can_be_submitted(self, any_play: Scene) -> None:
        """A complete run with new input is one that is to go on."""
        graph = chat(any_play)
        graph.submit(any_play.execute(graph).set("said", 2))

        (done,) = recovered(any_play, graph)

        assert done.state is not None
        assert (done.state["trace"], done.state.step) == ([*"abab"], 4)

    def test_only_runs_that_were_left(self, any_play: Scene) -> None:
        """Those that wait, have failed, are complete, or are of another graph stay as they are."""
        nodes = {"ask": InterruptNode("what", "ok"), "b": trace("b")}
        graph = chat(any_play, nodes)
        for name in ("paused", "cancelled"):
            any_play.execute(graph, State({"what": 1}, run_id=name))
        graph.cancel("cancelled")
        broken = chat(any_play, {"a": raises(ValueError())})
        with pytest.raises(ExecutionError):
            any_play.execute(broken, State(run_id="failed"))
        any_play.execute(chat(any_play), State(run_id="complete"))
        chat(any_play, name="other").submit(State(run_id="other"))
        before = {name: any_play.store.load(name) for name in any_play.store.list()}

        assert recovered(any_play, graph) == []

        assert {name: any_play.store.load(name) for name in any_play.store.list()} == before

    def test_one_that_fails(self, any_play: Scene) -> None:
        """The others go on; the error is told."""
        nodes = {"a": lambda state: {"half": 1 / state["n"]}, "b": trace("b")}
        graph = chat(any_play, nodes)
        for number in range(3):
            graph.submit(State({"n": number - 1}, run_id=f"r{number}"))

        done = {one.run_id: one for one in recovered(any_play, graph)}

        assert sorted(done) == ["r0", "r1", "r2"]
        assert isinstance(done["r1"].error, ExecutionError)
        assert done["r1"].state is not None
        assert (done["r1"].state.status, any_play.store.load("r1").status) == (RunStatus.FAILED, RunStatus.FAILED)
        assert [done[name].error for name in ("r0", "r2")] == [None, None]

    def test_one_that_is_at_work(self, any_play: Scene) -> None:
        """Is left to its owner."""
        graph = chat(any_play)
        with graph.stream(State(run_id=RUN)) as states:
            next(states)

            assert recovered(any_play, graph) == []

    def test_one_that_no_longer_fits(self, any_play: Scene) -> None:
        """Is told each time, and is not counted as one that takes processes down."""
        chat(any_play).submit(State(run_id=RUN))
        changed = chat(any_play, traces("axb"))

        for _ in range(3):
            (done,) = recovered(any_play, changed, max_recoveries=1)
            assert isinstance(done.error, GraphMismatchError)
        assert recovered(any_play, chat(any_play), max_recoveries=1)[0].error is None

    def test_a_graph_that_saves_nothing(self, memory_play: Scene) -> None:
        """It would find nothing to go on with, and nobody would know why."""
        with pytest.raises(CheckpointingDisabledError, match="interval"):
            chat(memory_play, interval=0).recover()

    def test_how_many(self, any_play: Scene) -> None:
        """At most the limit, beginning with the oldest."""
        graph = chat(any_play)
        for number in range(3):
            graph.submit(State(run_id=f"r{number}"))

        taken = [one.run_id for one in recovered(any_play, graph, limit=2)]

        assert len(taken) == 2
        if type(any_play.store).__name__ != "FourMethodStore":
            assert taken == ["r0", "r1"]
        assert len(recovered(any_play, graph)) == 1

    def test_a_sweep_that_is_stopped(self, any_play: Scene) -> None:
        """The run under way stops before its next node, no other begins, and none counts as a lost owner."""
        stop = threading.Event()
        graph = chat(any_play, {"a": does(stop.set), "b": trace("b")})
        for number in range(2):
            graph.submit(State(run_id=f"r{number}"))

        (stopped,) = recovered(any_play, graph, cancel=stop)
        assert isinstance(stopped.error, RunCancelledError)
        assert stopped.state is not None
        assert (stopped.state.status, stopped.state.step) == (RunStatus.ACTIVE, 1)
        assert recovered(any_play, graph, cancel=stop) == []
        done = recovered(any_play, graph, max_recoveries=1)
        assert [one.error for one in done] == [None, None]

    @pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": "1"}, {"max_recoveries": 0}, {"cancel": 1}])
    def test_what_is_no_number(self, memory_play: Scene, wrong: dict[str, Any]) -> None:
        """Is refused at once."""
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            chat(memory_play).recover(**wrong)

    def test_one_that_was_stopped(self, any_play: Scene) -> None:
        """By whoever goes on with it, again and again: its owners live, and nothing is counted."""
        stop = threading.Event()
        graph = chat(any_play, {"a": does(stop.set), "b": trace("b")})
        with pytest.raises(RunCancelledError):
            any_play.execute(graph, cancel=stop)
        for _ in range(3):
            with pytest.raises(RunCancelledError):
                any_play.resume(graph, cancel=stop)

        assert recovered(any_play, graph, max_recoveries=1)[0].error is None


# --------------------------------------------------------------------------- cancel


class TestCancel:
    """From anywhere."""

    @pytest.mark.parametrize("how", HOW)
    def test_a_run_at_work(self, any_play: Scene, how: str) -> None:
        """Its owner stops before the next node; it can be taken up again."""
        # where not every step is saved, a run looks once in a while
        graph = chat(any_play, {"a": cancels_once(any_play.store, wait=0.06), "b": trace("b")}, **HOW[how])
        with pytest.raises(RunCancelledError) as stopped:
            any_play.execute(graph)

        kept = any_play.store.load(RUN)
        assert (kept.status, kept.step, kept["cancels"]) == (RunStatus.CANCELLED, 1, 1)
        assert stopped.value.state == kept
        assert [row.run_id for row in any_play.store.runs(status="cancelled")] == [RUN]
        assert any_play.call(graph, "run", State(run_id=RUN)) == kept
        assert recovered(any_play, graph) == []
        final = any_play.resume(graph)
        assert (final["trace"], final.status) == (["b"], RunStatus.COMPLETED)

    def test_a_node_that_looks_at_its_context(self, any_play: Scene) -> None:
        """It may return early."""
        seen: list[bool] = []

        def looks(state: State, context: NodeContext) -> dict[str, Any]:
            seen.append(context.cancelled)
            cancel_from_elsewhere(any_play.store)
            until = time.monotonic() + 10
            while not context.cancelled and time.monotonic() < until:
                time.sleep(0.01)
            seen.append(context.cancelled)
            return {}

        with pytest.raises(RunCancelledError):
            any_play.execute(chat(any_play, {"a": looks, "b": trace("b")}))

        assert seen == [False, True]

    def test_a_node_that_fails_because_it_is_cancelled(self, any_play: Scene) -> None:
        """The run is cancelled, not failed; the error of the node is the cause."""

        def gives_up(state: State, context: NodeContext) -> dict[str, Any]:
            cancel_from_elsewhere(any_play.store)
            while not context.cancelled:
                time.sleep(0.01)
            raise TimeoutError("told to stop")

        with pytest.raises(RunCancelledError) as stopped:
            any_play.execute(chat(any_play, {"a": trace("a"), "b": gives_up}))

        assert any_play.store.load(RUN).status is RunStatus.CANCELLED
        assert "told to stop" in str(stopped.value.__cause__)
        assert any_play.resume(chat(any_play))["trace"] == ["a", "b"]

    def test_one_that_is_taken_back(self, play: Scene) -> None:
        """A run that was cancelled, and rolled back since, is not cancelled any more."""

        graph = chat(play, {"a": trace("a"), "b": cancels_once(play.store), "c": trace("c")}, retention="full")
        with pytest.raises(RunCancelledError):
            play.execute(graph)
        play.store.rollback(RUN, 1)

        (done,) = recovered(play, chat(play, traces("abc")))
        assert done.error is None

    def test_a_map(self, play: Scene) -> None:
        """It stops before all of its items are done; those that are done are not repeated."""
        done: list[int] = []

        def item(value: int) -> int:
            done.append(value)
            if len(done) == 3:
                cancel_from_elsewhere(play.store)
            return value

        graph = chat(play, {"map": MapNode(item, "items", "out", 1)})
        with pytest.raises(RunCancelledError):
            play.execute(graph, State({"items": list(range(50))}, run_id=RUN))

        assert play.store.load(RUN).status is RunStatus.CANCELLED
        assert len(done) < 10
        assert play.resume(graph)["out"] == list(range(50))
        assert len(done) <= 51

    @pytest.mark.parametrize("limit", ["cancel", "timeout"])
    def test_a_node_that_asks_about_its_call(self, any_play: Scene, limit: str) -> None:
        """Whatever stops the call."""
        stop = threading.Event()

        def asks(state: State, context: NodeContext) -> dict[str, Any]:
            told = [context.cancelled]
            stop.set()
            time.sleep(0.3)
            return {"told": [*told, context.cancelled]}

        options: dict[str, Any] = {"cancel": stop} if limit == "cancel" else {"timeout": 0.2}
        with pytest.raises(RunCancelledError) as stopped:
            any_play.execute(chat(any_play, {"a": asks, "b": trace("b")}), **options)

        assert stopped.value.state["told"] == [False, True]
        assert stopped.value.state.status is RunStatus.ACTIVE

    def test_nobody_is_at_work(self, any_play: Scene) -> None:
        """It is cancelled at once, and once more does nothing."""
        graph = chat(any_play, {"a": trace("a"), "b": broken_first(trace("b"), ValueError())})
        with pytest.raises(ExecutionError):
            any_play.execute(graph)

        for _ in range(2):
            graph.cancel(RUN)
            assert any_play.store.load(RUN).status is RunStatus.CANCELLED

        assert any_play.store.load(RUN).step == 1
        assert any_play.resume(graph)["trace"] == ["a", "b"]

    def test_a_run_that_waits(self, any_play: Scene) -> None:
        """It takes the answer all the same when it is taken up."""
        graph = chat(any_play, {"ask": InterruptNode("what", "ok"), "b": trace("b")})
        any_play.execute(graph, State({"what": 1}, run_id=RUN))
        graph.cancel(RUN)

        with pytest.raises(AnswerError):
            any_play.resume(graph)

        assert any_play.store.load(RUN).status is RunStatus.CANCELLED
        assert any_play.resume(graph, {"ok": True})["ok"] is True

    def test_a_run_that_is_about_to_wait(self, any_play: Scene) -> None:
        """It is cancelled where it would have paused."""

        def pauses(state: State) -> Any:
            cancel_from_elsewhere(any_play.store)
            return state.paused("wait", response_param="ok")

        with pytest.raises(RunCancelledError):
            any_play.execute(chat(any_play, {"a": pauses, "b": trace("b")}))

        kept = any_play.store.load(RUN)
        assert kept.status is RunStatus.CANCELLED
        assert kept.pause is not None

    @pytest.mark.parametrize("is_nested", [False, True])
    @pytest.mark.parametrize("from_another", [False, True])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_generator(self, play: Scene, is_async: bool, from_another: bool, is_nested: bool) -> None:
        """It is closed at a chunk; in a run of this process, at the next one. What it had emitted is kept."""
        log: list[Any] = []

        def cancel() -> None:
            cancel_from_elsewhere(reopened(play.store) if from_another else play.store)

        def node(state: State) -> Generator[int, None, None]:
            try:
                for number in range(1000):
                    log.append(number)
                    if number == 2:
                        cancel()
                    if from_another and number > 2:
                        time.sleep(0.01)  # other handles are asked once in a while
                    yield number
            finally:
                log.append("closed")

        nodes: dict[str, Any] = {"talks": as_async_chunks(node) if is_async else node}
        if is_nested:
            nodes = {"inner": make_graph(nodes, store=play.store, name="inner").as_node()}
        graph = chat(play, {"a": trace("a"), **nodes})
        with pytest.raises(RunCancelledError):
            play.execute(graph)

        kept = play.store.load(RUN)
        assert (kept.status, kept.step) == (RunStatus.CANCELLED, 1)
        assert log[:3] == [0, 1, 2]
        assert log[-1] == "closed"
        assert len(log) < 1000 if from_another else len(log) == 4
        if not is_nested:
            assert kept.partial is not None
            assert kept.partial.chunks == tuple(log[:-1])

    def test_a_nested_run(self, play: Scene) -> None:
        """It stops with the run around it, and goes on with it."""
        ran: list[int] = []
        inner = make_graph(
            {"x": counted(cancels_once(play.store), ran), "y": trace("y")}, store=play.store, name="inner"
        )
        graph = chat(play, {"a": trace("a"), "inner": inner.as_node()})
        with pytest.raises(RunCancelledError):
            play.execute(graph)

        assert (play.store.load(RUN).status, play.store.load(RUN).step) == (RunStatus.CANCELLED, 1)
        assert play.resume(graph)["trace"] == ["a", "y"]
        assert ran == [1]

    def test_a_run_that_is_not_there_or_complete(self, any_play: Scene) -> None:
        """It is an error that says so."""
        graph = chat(any_play)
        with pytest.raises(CheckpointNotFoundError):
            graph.cancel(RUN)
        any_play.execute(graph)

        with pytest.raises(RunCompleteError):
            graph.cancel(RUN)

    def test_a_run_that_completes_before_it_sees_the_cancellation(self, any_play: Scene) -> None:
        """It is complete, and its next turn is not cancelled."""
        graph = chat(any_play, {"a": returns({})}, durability="exit")
        late = chat(any_play, {"a": does(lambda: graph.cancel(RUN))}, durability="exit")

        assert any_play.execute(late).status is RunStatus.COMPLETED
        assert any_play.call(graph, "turn", RUN, {}).status is RunStatus.COMPLETED

    def test_a_context_can_be_pickled(self) -> None:
        """As parts in processes are given one."""
        found: list[NodeContext] = []

        def look(state: State, context: NodeContext) -> dict[str, Any]:
            found.append(context)
            return {}

        make_graph({"a": look}, store=stores.MemoryStore()).execute(State(run_id=RUN))

        again = pickle.loads(pickle.dumps(found[0]))
        assert again == found[0]
        assert again.cancelled is False


# --------------------------------------------------------------------------- processes

WORKER = """
import os, sys, time
from pathlib import Path
from stategraph import CheckpointConfig, GraphConfig, RunCancelledError, State, StateGraph

task, kind, folder, options = sys.argv[1], sys.argv[2], Path(sys.argv[3]), eval(sys.argv[4])
path = str(folder / ("runs.db" if kind == "sqlite" else "runs"))
checkpoint = CheckpointConfig(store=kind, preserve=True, options={"path": path}, **options)
graph = StateGraph(GraphConfig("flow", observer="noop", checkpoint=checkpoint))

def ship(state, context):
    with open(folder / "log", "a") as log:
        log.write(f"{state.run_id} {context.node}\\n")
    if state.get("poison") and context.node == "b":
        os.kill(os.getpid(), 9)
    if state.get("slow") and context.node == "a":
        print("at work", flush=True)
        while not (folder / "go on").exists():
            time.sleep(0.01)
    return {context.node: 1}

for name in "abc":
    graph.add_node(name, ship)
graph.add_edge("a", "b")
graph.add_edge("b", "c")
graph.set_entry_point("a")
graph.set_exit_point("c")
if task == "sweep":
    print("ready", flush=True)
    sys.stdin.readline()
    for one in graph.recover(max_recoveries=3):
        print(one.run_id, one.error, flush=True)
elif task == "cancel":
    graph.cancel("run")
elif task == "run":
    try:
        graph.run(State({"slow": True}, run_id="run"))
    except RunCancelledError as error:
        print("stopped", error.state.status, error.state.step, flush=True)
"""


class Worker:
    """A process with the graph of the workers."""

    def __init__(self, task: str, kind: str, folder: Path, options: dict[str, Any]) -> None:
        command = [sys.executable, "-c", WORKER, task, kind, str(folder), repr(options)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def said(self) -> str:
        """Return its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ended(self) -> str:
        """Let it go on to its end; return what it says until then."""
        return self.process.communicate("\n")[0]


@pytest.fixture(params=["sqlite", "disk"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """-> a graph of this process, and what starts workers with the same one."""
    started: list[Worker] = []
    with make_store(request.param, tmp_path) as store:

        def start(task: str, **options: Any) -> Worker:
            started.append(Worker(task, request.param, tmp_path, options))
            return started[-1]

        yield make_graph(dict.fromkeys("abc", dict), store=store, preserve=True), start, tmp_path
        for one in started:
            one.process.kill()
            one.process.communicate()


class TestProcesses:
    """Workers that share a store."""

    def test_three_that_sweep(self, shared: Any) -> None:
        """Each run is done once."""
        graph, start, folder = shared
        names = [f"order-{number}" for number in range(40)]
        for name in names:
            graph.submit(State(run_id=name))
        workers = [start("sweep") for _ in range(3)]
        for worker in workers:
            assert worker.said() == "ready"
        for worker in workers:
            worker.process.stdin.write("\n")
            worker.process.stdin.flush()

        told = [line.split()[0] for worker in workers for line in worker.ended().splitlines()]

        assert sorted(told) == sorted(names)
        done = Counter((folder / "log").read_text().splitlines())
        assert done == Counter(f"{name} {node}" for name in names for node in "abc")
        assert {graph.store.load(name).status for name in names} == {RunStatus.COMPLETED}

    def test_a_run_that_kills_its_process(self, shared: Any) -> None:
        """It is failed in the end, and says so; until then the runs before it are done, and afterwards all."""
        graph, start, folder = shared
        graph.submit(State(run_id="first"))
        graph.submit(State({"poison": True}, run_id="poison"))
        graph.submit(State(run_id="last"))

        ends = []
        for _ in range(4):
            worker = start("sweep")
            ends.append((worker.ended(), worker.process.wait()))
        killed, healthy = ends[:3], ends[3]

        assert [code for _, code in killed] == [-signal.SIGKILL] * 3
        assert healthy[1] == 0
        assert "node 'b' of run 'poison' has taken down 3 owners" in healthy[0]
        kept = graph.store.load("poison")
        assert (kept.status, kept.step, kept.error.node, kept.progress) == (RunStatus.FAILED, 1, "b", None)
        assert graph.store.load("last").status is RunStatus.COMPLETED
        assert Counter((folder / "log").read_text().splitlines())["poison b"] == 3
        assert list(graph.recover()) == []
        assert graph.resume("poison").status is RunStatus.COMPLETED  # here, it kills nobody

    @pytest.mark.parametrize("options", [{}, {"durability": "async"}, {"durability": "exit"}, {"interval": 2}], ids=str)
    def test_cancelling_what_another_is_at_work_on(self, shared: Any, options: dict[str, Any]) -> None:
        """It stops before its next node."""
        graph, start, folder = shared
        worker = start("run", **options)
        assert worker.said() == "at work"

        graph.cancel(RUN)
        time.sleep(0.06)
        (folder / "go on").touch()

        assert worker.said() == "stopped cancelled 1"
        worker.ended()
        assert graph.store.load(RUN).status is RunStatus.CANCELLED
        assert (folder / "log").read_text().splitlines() == ["run a"]
        assert graph.resume(RUN).status is RunStatus.COMPLETED

    def test_one_that_was_killed_before_it_was_told(self, shared: Any) -> None:
        """The run is cancelled, and no sweep goes on with it."""
        graph, start, _ = shared
        graph.submit(State({"slow": True}, run_id=RUN))
        worker = start("run")
        assert worker.said() == "at work"
        graph.cancel(RUN)
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()

        assert list(graph.recover()) == []
        assert graph.store.load(RUN).status is RunStatus.CANCELLED
        assert graph.resume(RUN).status is RunStatus.COMPLETED


def test_a_node_behind_a_predicate_is_named(play: Scene) -> None:
    """Where several may come next, all are told."""
    edges = [("a", "b", key_equals("x", 1)), ("a", "c"), ("b", "c")]
    graph = chat(play, traces("abc"), edges=edges)
    with graph.stream(State(run_id=RUN)) as states:
        next(states)
    for _ in range(2):  # as a sweep that dies leaves it
        state = play.store.load(RUN)
        _die_in(graph, state)

    (done,) = recovered(play, graph, max_recoveries=2)

    assert done.error is not None
    assert "'b'" in str(done.error)
    assert "c" in str(done.error)


def _die_in(graph: StateGraph, state: State) -> None:
    """Count a recovery, as an owner does before it goes on."""
    import attrs

    from stategraph._values.progress import evolved

    recoveries = state.progress.recoveries if state.progress else 0
    graph.store.save(attrs.evolve(state, progress=evolved(state.progress, recoveries=recoveries + 1)))
