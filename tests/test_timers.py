"""Clocks: a run goes on by itself when its time has come, once and never early, whichever call takes it up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    AnswerError,
    CheckpointConfig,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    ParallelNode,
    Recovered,
    RetryPolicy,
    RunCompleteError,
    State,
    StateGraph,
    WaitNode,
)
from stategraph.stores import CheckpointStore
from stategraph.testing.crashing import FixedClock
from stategraph.turns import Order, perform
from tests.conftest import make_store
from tests.scenarios import RUN

DAY = 86_400.0


def graph_of(store: CheckpointStore, *nodes: tuple[str, Any], **config: Any) -> StateGraph:
    """Return a graph of nodes that follow each other."""
    graph: StateGraph = StateGraph(
        GraphConfig("timers", checkpoint=CheckpointConfig(interval=1, preserve=True, **config)), store=store
    )
    for name, node in nodes:
        graph.add_node(name, node)
    for (one, _), (other, _) in pairwise(nodes):
        graph.add_edge(one, other)
    graph.set_entry_point(nodes[0][0])
    graph.set_exit_point(nodes[-1][0])
    return graph


def done(state: State) -> dict[str, Any]:
    return {"done": state.get("done", 0) + 1}


def sweep(graph: StateGraph, *, is_async: bool) -> list[Recovered]:
    """Return the results of a sweep."""

    async def swept() -> list[Recovered]:
        return [recovered async for recovered in graph.arecover()]

    return asyncio.run(swept()) if is_async else [*graph.recover()]


def ends(graph: StateGraph) -> list[Any]:
    """Return the statuses, or the errors, with which the runs of a sweep end."""
    results = [*graph.recover()]
    return [result.error or (result.state is not None and result.state.status) for result in results]


@pytest.fixture(params=["memory", "sqlite", "disk", "four methods"])
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """Each store that a fixed clock applies to."""
    with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=["memory", "sqlite", "disk", "postgres", "redis"])
def each(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """Each built-in store."""
    with make_store(request.param, tmp_path) as store:
        yield store


class TestWaits:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_goes_on_when_its_time_has_come(
        self, local: CheckpointStore, fixed_clock: FixedClock, *, is_async: bool
    ) -> None:
        """A sweep leaves a wait alone, and `resume` refuses it, until its time; then a sweep goes on, once."""
        graph = graph_of(local, ("wait", WaitNode(30 * DAY)), ("end", done))
        assert graph.execute(State(run_id=RUN)).status == "paused"

        assert sweep(graph, is_async=is_async) == []
        for call in (lambda: graph.resume(RUN), lambda: graph.answer(RUN, "now")):
            with pytest.raises(AnswerError, match="it waits until 2020-01-31"):
                call()
        fixed_clock.advance(29 * DAY)
        assert sweep(graph, is_async=is_async) == []
        assert graph.run(local.load(RUN).update()).status == "paused"
        fixed_clock.advance(timedelta(days=2))

        assert [found.run_id for found in local.runs(overdue=True)] == [RUN]
        (recovered,) = sweep(graph, is_async=is_async)
        assert (recovered.error, recovered.state and recovered.state["done"]) == (None, 1)
        assert sweep(graph, is_async=is_async) == []
        assert local.runs(overdue=True) == []

    def test_until_a_time_of_the_state(self, fixed_clock: FixedClock, local: CheckpointStore) -> None:
        """`until` names the key of the time: a run with a time that has passed does not pause."""
        graph = graph_of(local, ("wait", WaitNode(until="at")), ("end", done))

        past = graph.execute(State({"at": datetime(2019, 1, 1, tzinfo=UTC)}))
        waits = graph.execute(State({"at": datetime(2020, 3, 1, tzinfo=UTC)}))

        assert (past.status, waits.status) == ("completed", "paused")
        with pytest.raises(ExecutionError, match="takes a datetime with a time zone"):
            graph.execute(State({"at": "noon"}))
        fixed_clock.advance(61 * DAY)
        assert [recovered.run_id for recovered in graph.recover()] == [waits.run_id]

    def test_copies_and_rollbacks_never_go_on_early(self, fixed_clock: FixedClock, tmp_path: Path) -> None:
        """A fork of a run that waits, and a run that is rolled back to its wait, wait until the same time."""
        with make_store("sqlite", tmp_path) as store:
            graph = graph_of(store, ("wait", WaitNode(DAY)), ("end", done), retention="full")
            graph.execute(State(run_id=RUN))
            store.fork(RUN, "copy")
            store.rollback(RUN, 0)

            assert ends(graph) == ["paused"] * 2
            assert [*graph.recover()] == []
            fixed_clock.advance(DAY)
            assert {recovered.run_id for recovered in graph.recover()} == {RUN, "copy"}

    def test_nested_and_several(self, fixed_clock: FixedClock, tmp_path: Path) -> None:
        """A run goes on when the first of its waits ends, in nested graphs and branches too; then it waits for the
        next."""
        with make_store("sqlite", tmp_path) as store:
            inner = [graph_of(store, ("wait", WaitNode(days * DAY)), (f"end{days}", lambda _: {})) for days in (1, 3)]
            branches = {f"b{place}": graph.as_node(outputs=[]) for place, graph in enumerate(inner)}
            graph = graph_of(store, ("both", ParallelNode(branches)), ("end", done))
            graph.execute(State(run_id=RUN))

            assert [*graph.recover()] == []
            fixed_clock.advance(DAY)
            assert ends(graph) == ["paused"]
            assert [*graph.recover()] == []
            fixed_clock.advance(2 * DAY)
            assert ends(graph) == ["completed"]

    def test_arguments(self) -> None:
        """A wait has a length, or a key, and not both."""
        for given in ({}, {"seconds": 1.0, "until": "at"}):
            with pytest.raises(TypeError, match="either seconds, or until"):
                WaitNode(**given)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="seconds: -1 is not allowed"):
            WaitNode(-1)


class TestOnEveryStore:
    def test_what_is_due_is_taken_up_by_one(self, each: CheckpointStore) -> None:
        """In every store: waits, unanswered pauses with an `otherwise`, stored answers and submitted runs are taken up
        when they are due, the first due one first, and others are left alone."""
        asks = InterruptNode(None, "ok", deadline=0.5, otherwise="late")
        open_end = InterruptNode(None, "open")
        graph = graph_of(each, ("wait", WaitNode(3)), ("ask", asks), ("open", open_end), ("end", done))
        graph.submit(State(run_id="later"), at=0.1)
        graph.execute(State(run_id="waits"))
        graph.submit(State(run_id="tomorrow"), at=DAY)
        time.sleep(3.5)

        assert {run.run_id for run in each.runs(overdue=True)} == {"waits", "later"}
        assert (each.count(overdue=True), each.count(overdue=False)) == (2, 1)
        assert [recovered.run_id for recovered in graph.recover()] == ["later", "waits"]
        time.sleep(3.5)
        assert [recovered.run_id for recovered in graph.recover()] == ["waits", "later"]
        assert (each.load("waits")["ok"], "ok" in each.load("later")) == ("late", False)
        graph.answer("waits", True)
        assert "waits" in [run.run_id for run in each.runs(overdue=True)]
        assert ("waits", "completed") in [
            (recovered.run_id, recovered.state and recovered.state.status) for recovered in graph.recover()
        ]
        assert each.load("tomorrow").step == 0


class TestDeadlines:
    def test_nobody_at_work(self, local: CheckpointStore, fixed_clock: FixedClock) -> None:
        """A run whose deadline has passed fails in the next sweep, and goes on without one when it is resumed."""
        graph = graph_of(local, ("ask", InterruptNode(None, "ok")), ("end", done))
        graph.execute(State(run_id=RUN), deadline=DAY)
        assert [*graph.recover()] == []
        fixed_clock.advance(DAY)

        (recovered,) = graph.recover()

        assert isinstance(recovered.error, ExecutionError)
        assert isinstance(recovered.error.__cause__, TimeoutError)
        assert local.load(RUN).status == "failed"
        assert [*graph.recover()] == []
        assert graph.resume(RUN).status == "paused"
        assert graph.resume(RUN, {"ok": True}).status == "completed"

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_at_work(self, local: CheckpointStore, kind: str) -> None:
        """A call that is at work stops before its next node, or at its next await, and the run has failed."""

        def slow(state: State) -> dict[str, Any]:
            time.sleep(0.2)
            return {}

        async def forever(state: State) -> dict[str, Any]:
            await asyncio.sleep(300)
            return {}

        graph = graph_of(local, ("first", slow if kind == "sync" else forever), ("end", done))
        with pytest.raises(ExecutionError, match="deadline"):
            graph.execute(State(run_id=RUN), deadline=0.1)

        assert (local.load(RUN).status, local.load(RUN).step) == ("failed", 1 if kind == "sync" else 0)

    def test_a_complete_run_was_in_time(self, local: CheckpointStore, fixed_clock: FixedClock) -> None:
        """It stays complete, whichever call looks at it after its deadline."""
        graph = graph_of(local, ("end", done))
        graph.execute(State(run_id=RUN), deadline=DAY)
        fixed_clock.advance(DAY)

        with pytest.raises(RunCompleteError):
            graph.resume(RUN)

        assert local.load(RUN).status == "completed"

    def test_of_each_turn(self, local: CheckpointStore, fixed_clock: FixedClock) -> None:
        """The deadline of a turn is not that of the next turn."""
        graph = graph_of(local, ("end", done))
        graph.turn(RUN, {"n": 1}, deadline=DAY)
        fixed_clock.advance(2 * DAY)

        assert graph.turn(RUN, {"n": 2}).status == "completed"


class TestRetries:
    def test_a_long_delay_is_saved(self, local: CheckpointStore, fixed_clock: FixedClock) -> None:
        """A run waits for an attempt that is more than a minute away as for any other time: no process has to, and
        the number of attempts and the error are kept. A year passes in a moment."""
        tries: list[Any] = []

        def flaky(state: State) -> dict[str, Any]:
            tries.append(state)
            if len(tries) < 13:
                raise ConnectionError(f"no {len(tries)}")
            return {}

        graph = graph_of(local, ("a", lambda _: {}))
        graph = graph_of(local, ("end", lambda _: {}))
        retry = RetryPolicy(max_attempts=13, initial_delay=30.0, backoff_multiplier=1e6, max_delay=31 * DAY)
        graph = StateGraph("timers", store=local, preserve=True)
        graph.add_node("flaky", flaky, retry=retry)
        graph.set_entry_point("flaky")
        graph.set_exit_point("flaky")

        state = graph.execute(State(run_id=RUN))
        assert state.pause is not None
        assert (len(tries), state.status, state.pause.value["attempt"]) == (2, "paused", 2)  # 30 s are not saved
        assert state.pause.value["error"] == {"type": "ConnectionError", "message": "ConnectionError: no 2"}
        with pytest.raises(AnswerError, match="waits until"):
            graph.resume(RUN)
        for _ in range(12):
            fixed_clock.advance(31 * DAY)
            assert len([*graph.recover()]) <= 1

        state = local.load(RUN)
        assert (len(tries), state.status, state.facts and state.facts.attempts) == (13, "completed", None)
        assert next(row for row in local.history(RUN) if row.attempts > 1 or row.kind == "end").step == 1


class TestOrders:
    def test_an_order_that_is_delivered_again_goes_on_when_it_is_due(
        self, local: CheckpointStore, fixed_clock: FixedClock
    ) -> None:
        """`perform` returns a run that waits; performed again when it is due, the order goes on."""
        graph = graph_of(local, ("wait", WaitNode(DAY)), ("end", done))
        order = Order("timers", RUN, state=State(run_id=RUN))

        assert perform(order, [graph]).status == "paused"
        assert perform(order, [graph]).status == "paused"
        fixed_clock.advance(DAY)
        assert perform(order, [graph]).status == "completed"
