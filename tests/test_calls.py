"""The calls that depend on the status of a run: run, turn, submit, recover and cancel."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import pytest

from stategraph import (
    AnswerError,
    CheckpointStore,
    ExecutionError,
    InterruptNode,
    NodeContext,
    Recovered,
    RetryPolicy,
    RunCancelledError,
    RunExistsError,
    RunLostError,
    RunStatus,
    State,
    StateGraph,
    register_type,
)
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import Killed
from stategraph.turns import Order, perform
from tests.conftest import ANY_PLAYS, PLAYS, make_store
from tests.pages import text_of
from tests.pairs import every_pair
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
    trace,
    traces,
)

pytestmark = pytest.mark.timeout(600)


def chat(scene: Scene, nodes: Any = None, **options: Any) -> StateGraph:
    """Return a graph whose runs are kept when they complete."""
    return scene.graph(traces("ab") if nodes is None else nodes, **{"preserve": True, **options})


def cancel_from_elsewhere(store: CheckpointStore) -> None:
    """Cancel the run through another graph."""
    make_graph(traces("a"), store=store).cancel(RUN)


def cancels_once(store: CheckpointStore, wait: float = 0) -> Any:
    """Return a node that cancels its run the first time it is called."""
    left = [None]

    def node(state: State) -> dict[str, Any]:
        if left:
            left.pop()
            cancel_from_elsewhere(store)
            time.sleep(wait)
        return {"cancels": 1}

    return node


def recovered(scene: Scene, graph: StateGraph, **options: Any) -> list[Recovered]:
    """Return what comes of a sweep, with the driver of the scene."""
    if scene.call.__name__ == "call_sync":
        return list(graph.recover(**options))

    async def sweep() -> list[Recovered]:
        return [one async for one in graph.arecover(**options)]

    return asyncio.run(sweep())


# --------------------------------------------------------------------------- run


class Lines(TypedDict):
    """Values that are converted."""

    n: float
    lines: list[Line]
    ok: int


@register_type
@dataclass
class Line:
    """What becomes of a mapping."""

    sku: str


def begins(scene: Scene, graph: StateGraph, how: str, data: dict[str, Any]) -> State:
    """Begin the run with these data, in one of the ways to do that; return its State."""
    state = State(data, run_id=RUN)
    if how == "perform":
        return perform(Order("flow", RUN, state=state), [graph])
    if how == "submit":
        graph.submit(state)
        (done,) = recovered(scene, graph)
        assert done.state is not None
        return done.state
    return scene.call(graph, how, state)


class TestRun:
    """`run` does the work once, however often it is called."""

    def test_it_is_complete(self, any_play: Scene) -> None:
        """`run` returns the State of a complete run, and runs nothing."""
        final = any_play.call(chat(any_play), "run", State(run_id=RUN))
        dead = chat(any_play, {"a": raises(AssertionError()), "b": trace("b")})

        assert any_play.call(dead, "run", State(run_id=RUN)) == final

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

        again = any_play.call(graph, "run", State({"what": 1}, run_id=RUN))

        assert (again.status, again.pause) == (RunStatus.PAUSED, paused.pause)
        assert any_play.resume(graph, {"ok": 1})["trace"] == ["b"]

    @every_pair(how=HOW, begun_by=["run", "execute", "submit", "perform"], any_play=ANY_PLAYS, indirect=["any_play"])
    def test_it_began_with_other_data(self, any_play: Scene, how: str, begun_by: str) -> None:
        """Other data under the id of a run are refused in each of its states; the data that it began with never are."""
        nodes = {
            "a": lambda state: {"n": state["n"] + 1},
            "ask": InterruptNode(None, "ok"),
            "b": broken_first(lambda state: {"n": state["n"] + 1}, ValueError()),
            "c": lambda state: {"n": state["n"] + 1},
        }
        ours, others = ({"n": n, "lines": [{"sku": "x"}]} for n in (1, 2))

        def agree(*statuses: str) -> None:
            for begin in ("run", "perform"):
                graph = chat(any_play, nodes, store=reopened(any_play.store), schema=Lines, **HOW[how])
                with pytest.raises(RunExistsError, match="began with other data"):
                    begins(any_play, graph, begin, others)
                found = begins(any_play, graph, begin, dict(reversed(ours.items())))
                assert found.status in statuses

        begins(any_play, chat(any_play, nodes, schema=Lines, **HOW[how]), begun_by, ours)
        agree("paused")
        with pytest.raises(ExecutionError):
            any_play.resume(chat(any_play, nodes, store=reopened(any_play.store), schema=Lines, **HOW[how]), {"ok": 1})
        agree("completed")

    def test_what_counts_as_other_data(self, any_play: Scene) -> None:
        """Types count. Labels, the author, and keys that are not saved do not, whatever they hold."""
        left_out: Any = {"persist": {"except": ["token"]}}
        graph = chat(any_play, **left_out)
        any_play.call(graph, "run", State({"n": 1, "token": object()}, run_id=RUN), labels={"team": "a"}, by="ann")

        again = any_play.call(graph, "run", State({"n": 1, "token": 5}, run_id=RUN), labels={"team": "b"}, by="bob")

        assert again["trace"] == ["a", "b"]
        assert any_play.call(graph, "run", again)["trace"] == ["a", "b"]  # what the run itself returned
        for other in (State({"n": 1.0}, run_id=RUN), State(run_id=RUN), again.set("n", 2)):
            with pytest.raises(RunExistsError, match=r"began with other data.*is completed; turn"):
                any_play.call(graph, "run", other)

    def test_a_run_that_an_older_version_began(self, any_play: Scene) -> None:
        """It does not know its input: `run` returns its State for any data."""
        any_play.store.save(State({"n": 1}, run_id=RUN, graph="flow", status="completed", checkpoint_node="b", step=2))

        assert any_play.call(chat(any_play), "run", State({"n": 5}, run_id=RUN))["n"] == 1


# --------------------------------------------------------------------------- turn


class TestTurn:
    """A conversation: the turn before is finished, then a new one begins."""

    def test_turns(self, any_play: Scene) -> None:
        """The first turn begins the run, and the others continue it."""
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
        """A cancelled turn is over, and the next turn begins at the entry point."""
        graph = chat(any_play, {"a": trace("a"), "b": broken_first(trace("b"), ValueError())})
        with pytest.raises(ExecutionError):
            any_play.call(graph, "turn", RUN, {"said": 1})
        graph.cancel(RUN)

        assert any_play.call(graph, "turn", RUN, {"said": 2})["trace"] == ["a", "a", "b"]

    def test_labels(self, any_play: Scene) -> None:
        """A run keeps its labels until a turn gives others."""
        for labels, expected in (({"user": "ann"}, "ann"), (None, "ann"), ({"user": "bob"}, "bob")):
            state = any_play.call(chat(any_play), "turn", RUN, {}, labels=labels)

            assert state.labels == {"user": expected}
        assert [run.run_id for run in any_play.store.runs(labels={"user": "bob"})] == [RUN]

    @every_pair(
        how=["failed", "interrupted", "cancelled", "before its first node"],
        completed=[0, 2],
        durability=["sync", "async"],
        play=PLAYS,
        indirect=["play"],
    )
    def test_a_turn_that_is_discarded(self, play: Scene, how: str, completed: int, durability: str) -> None:
        """The next turn continues from the end of the last completed turn, however many were discarded."""
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

    def test_a_turn_that_waits_is_not_discarded(self, play: Scene) -> None:
        """It is not cut off."""
        graph = chat(play, {"ask": InterruptNode("said", "ok")}, retention="full")
        play.call(graph, "turn", RUN, {"said": 1})

        with pytest.raises(AnswerError):
            play.call(graph, "turn", RUN, {"said": 2}, unfinished="discard")


# --------------------------------------------------------------------------- executing an incomplete run


class TestExecute:
    """The State of a run that is not complete is not begun again by mistake."""

    @pytest.mark.parametrize("method", ["execute", "stream"])
    def test_a_paused_run(self, any_play: Scene, method: str) -> None:
        """`execute` keeps a pause unless restart=True discards it."""
        graph = chat(any_play, {"ask": InterruptNode("what", "ok"), "b": trace("b")})
        paused = any_play.execute(graph, State({"what": 1}, run_id=RUN))

        with pytest.raises(RunExistsError, match=r"is paused.*resume\('run'\).*turn\('run'.*restart=True"):
            list(graph.stream(paused)) if method == "stream" else any_play.execute(graph, paused)

        assert any_play.store.load(RUN) == paused
        again = any_play.execute(graph, paused.set("what", 2), restart=True)
        assert again.pause is not None
        assert (again.pause.value, again.step) == (2, 0)

    def test_a_run_whose_worker_was_killed_in_a_nested_graph(self, any_play: Scene) -> None:
        """Its input stands in the history once, also if it is given again: `execute` does not begin it again."""
        inner = make_graph(
            {"a": trace("a"), "b": broken_first(trace("b"), Killed())}, store=any_play.store, name="inner"
        )
        graph = chat(any_play, {"nested": inner.as_node()}, retention="full")
        graph.submit(State({"x": 1}, run_id=RUN))
        with suppress(Killed):
            recovered(any_play, graph)

        with pytest.raises(RunExistsError):
            any_play.execute(graph, State({"x": 1}, run_id=RUN))

        assert any_play.resume(graph).status is RunStatus.COMPLETED
        assert [row.kind.value for row in any_play.store.history(RUN)].count("input") <= 1


# --------------------------------------------------------------------------- submit and recover


class TestRecover:
    """`recover` completes submitted and abandoned runs once."""

    @pytest.mark.parametrize("how", HOW)
    def test_a_submitted_run_waits_for_a_sweep(self, any_play: Scene, how: str) -> None:
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

    def test_submitting_a_state_with_a_past(self, any_play: Scene) -> None:
        """That of a complete run is its next turn; another is refused, with a way out that exists."""
        graph = chat(any_play)
        final = any_play.execute(graph)

        graph.submit(final.set("more", 1))

        with pytest.raises(RunExistsError, match=r"execute\(state, restart=True\)"):
            graph.submit(any_play.store.load(RUN))
        (done,) = recovered(any_play, graph)
        assert done.state is not None
        assert (done.state["trace"], done.state["more"]) == (["a", "b", "a", "b"], 1)

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

    def test_only_runs_that_were_left(self, any_play: Scene) -> None:
        """Paused, failed, complete and foreign runs stay as they are."""
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
        """The others continue after a failure, which is reported with its run."""
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

    def test_how_many(self, any_play: Scene) -> None:
        """`recover` takes the oldest runs first, up to the limit."""
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

    @pytest.mark.parametrize("how", ["cancel", "Ctrl-C"])
    def test_workers_that_are_stopped_within_a_step(self, any_play: Scene, how: str) -> None:
        """None of them counts as a lost owner, however many they are."""
        stop = threading.Event()

        def fail(state: State) -> None:
            stop.set()
            raise OSError("not yet") if how == "cancel" else KeyboardInterrupt

        retry = RetryPolicy(max_attempts=9, initial_delay=60)
        graph = chat(any_play, {"a": fail}, policies={"a": {"retry": retry}})
        graph.submit(State(run_id=RUN))

        for _ in range(3):
            stop.clear()
            if how == "Ctrl-C":
                with pytest.raises(KeyboardInterrupt):
                    recovered(any_play, graph, max_recoveries=2)
            else:
                (stopped,) = recovered(any_play, graph, cancel=stop, max_recoveries=2)
                assert isinstance(stopped.error, RunCancelledError)


# --------------------------------------------------------------------------- cancel


class TestCancel:
    """From anywhere."""

    @pytest.mark.parametrize("how", HOW)
    def test_a_run_at_work(self, any_play: Scene, how: str) -> None:
        """The owner stops before the next node, and the run can be resumed."""
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

    @pytest.mark.parametrize("preserve", [True, False])
    @pytest.mark.parametrize(("node", "status"), [("a", "cancelled"), ("b", "completed")])
    def test_waiting_for_what_comes_of_it(self, any_play: Scene, node: str, status: str, preserve: bool) -> None:
        """With `wait` the caller learns the status; a run whose last node is at work completes."""
        begun = threading.Event()

        def work(state: State, context: NodeContext) -> dict[str, Any]:
            begun.set()
            while not context.cancelled:
                time.sleep(0.01)
            assert graph.cancel(RUN, wait=0.01) == "active"
            return {}

        graph = make_graph({**traces("ab"), node: work}, store=any_play.store, preserve=preserve)

        def cancel() -> None:
            begun.wait(300)
            assert graph.cancel(RUN, wait=300) == status

        def execute() -> None:
            with contextlib.suppress(RunCancelledError):
                any_play.execute(graph)

        assert in_threads(execute, cancel) == []
        if status == "cancelled":
            assert graph.cancel(RUN, wait=0) == status

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

    def test_a_node_whose_run_is_lost(self, any_play: Scene) -> None:
        """It is to stop, and handles no error."""
        seen: list[bool] = []
        store: Any = any_play.store

        def looks(state: State, context: NodeContext) -> dict[str, Any]:
            store.delete(RUN, take_over=True)
            seen.extend(context.cancelled for _ in range(2))
            return {}

        with pytest.raises(RunLostError):
            any_play.execute(chat(any_play, {"a": trace("a"), "b": looks}))

        assert seen == [True, True]

    @pytest.mark.parametrize(
        ("is_async", "from_another", "is_nested"),
        [(False, False, False), (True, False, True), (False, True, True), (True, True, False)],
    )
    def test_a_generator(self, play: Scene, is_async: bool, from_another: bool, is_nested: bool) -> None:
        """A generator is closed at a chunk, in this process at the next one; its chunks so far are kept."""
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
                        time.sleep(0.01)  # a run looks for cancellations of other handles now and then
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
        """A nested run stops and resumes with its outer run."""
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
        """Let the worker run to its end; return its output."""
        return self.process.communicate("\n")[0]


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Any]:
    """Yield a graph of this process, and what starts workers with the same one."""
    started: list[Worker] = []
    with make_store("sqlite", tmp_path) as store:

        def start(task: str, **options: Any) -> Worker:
            started.append(Worker(task, "sqlite", tmp_path, options))
            return started[-1]

        yield make_graph(dict.fromkeys("abc", dict), store=store, preserve=True), start, tmp_path
        for one in started:
            one.process.kill()
            one.process.communicate()


class TestProcesses:
    """Workers that share a store."""

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
        assert graph.resume("poison").status is RunStatus.COMPLETED  # here, it kills no process

    @pytest.mark.parametrize("options", [{}, {"durability": "exit"}], ids=str)
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


# --------------------------------------------------------------------------- the help of calls


def test_help_names_every_option() -> None:
    """Signatures, which `help` and editors show, name each option of a call; no text refers to a private name."""
    for cls in (StateGraph, CheckpointStore, SqliteStore):
        for _, method in inspect.getmembers(cls, inspect.isfunction):
            if not method.__name__.startswith("_"):
                assert "Unpack" not in str(inspect.signature(method))
                assert re.findall(r"stategraph\.(?:\w+\.)*_\w+", inspect.getdoc(method) or "") == []
    assert {"pause", "by", "key"} <= inspect.signature(StateGraph.answer).parameters.keys()


def test_a_default_in_a_signature_is_what_leaving_it_out_means(tmp_path: Path) -> None:
    """A call with all of them does what the call without them does."""

    def call(method: Any, *arguments: Any) -> Any:
        parameters = inspect.signature(method).parameters.values()
        return method(*arguments, **{each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY})

    with SqliteStore(tmp_path / "runs.db") as store:
        graph = make_graph({"a": InterruptNode(None, "ok"), "b": trace("b")}, store=store, preserve=True)
        assert call(graph.execute, State(run_id=RUN)).status is RunStatus.PAUSED
        call(graph.answer, RUN, "yes")
        assert [each.state["ok"] for each in call(graph.recover)] == ["yes"]
        assert call(graph.turn, RUN, {"ok": None}).status is RunStatus.PAUSED
        assert call(graph.resume, RUN, {"ok": "no"})["trace"] == ["b", "b"]
        assert [each.run_id for each in call(store.iter_runs)] == [RUN]
        assert call(store.count) == 1


# --------------------------------------------------------------------------- the table of calls

TABLE = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in text_of("docs/calls.md").partition("## What a call does")[2].splitlines()
    if line.startswith("|") and not line.startswith("|-")
]
CALLS = [title.partition(",")[0].strip("`") for title in TABLE[0][1:]]
CELLS = [(row[0], call, cell) for row in TABLE[1:] for call, cell in zip(CALLS, row[1:], strict=True)]


class Story:
    """A run of two nodes that is brought into a state in its second node, and goes on from there."""

    def __init__(self, store: CheckpointStore) -> None:
        self.ran: list[str] = []
        self.ends: Any = None
        self.graph = make_graph({"a": self._node("a"), "b": self._node("b")}, store=store, preserve=True)

    def _node(self, name: str) -> Any:
        def node(state: State) -> State:
            self.ran.append(name)
            ends, self.ends = (self.ends, None) if name == "b" else (None, self.ends)
            if isinstance(ends, BaseException):
                raise ends
            return state if ends is None else ends(state)

        return node

    def begin(self, status: str) -> None:
        """Bring the run into a state."""
        ends = {
            "cut off after a step": KeyboardInterrupt(),
            "failed": ValueError("no"),
            "paused": lambda state: state.paused("asks", response_param="ok"),
        }
        if status == "not there":
            return
        self.ends = ends.get("failed" if status == "cancelled" else status)
        with contextlib.suppress(KeyboardInterrupt, ExecutionError):
            self.graph.execute(State(run_id=RUN))
        if status == "cancelled":
            self.graph.cancel(RUN)
        self.ran.clear()

    def call(self, name: str) -> Any:
        """Make a call; return its result, or the name of its error."""
        calls: dict[str, Any] = {
            "execute": lambda: self.graph.execute(State({"new": 1}, run_id=RUN)),
            "run": lambda: self.graph.run(State(run_id=RUN)),
            "turn": lambda: self.graph.turn(RUN, {"new": 1}),
            "resume": lambda: self.graph.resume(RUN),
            "recover": lambda: [*self.graph.recover()],
        }
        try:
            return calls[name]()
        except Exception as error:
            return type(error).__name__


@pytest.mark.parametrize(("status", "call", "does"), CELLS, ids=lambda text: text)
def test_the_table_of_calls_is_true(status: str, call: str, does: str) -> None:
    """What docs/calls.md says that a call does with a run, it does."""
    story = Story(MemoryStore())
    story.begin(status)
    before = story.graph.store.load(RUN) if status != "not there" else None

    result = story.call(call)

    if "Error" in does:
        assert (result, story.ran) == (does.split("`")[1], [])
    else:
        steps = {"begin": ["a", "b"], "conti": ["b"], "finish": ["b", "a", "b"], "return": [], "does ": []}
        assert story.ran == next(ran for start, ran in steps.items() if does.startswith(start))
        assert not isinstance(result, str)
    if does == "does nothing":
        assert result == []
    elif does == "returns its State":
        assert result == before
    elif "Error" not in does:
        assert story.graph.store.load(RUN).status is RunStatus.COMPLETED
