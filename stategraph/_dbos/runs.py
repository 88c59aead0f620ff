"""The runs of a runner, from their stores and from DBOS: the status of a run, a list of runs, a turn to wait for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, cast

import attrs

from stategraph._dbos.checks import check_no_loop
from stategraph._dbos.orders import (
    DATABASE,
    OPEN,
    WAITING,
    WAY_OUT,
    Turn,
    find_turns,
    newest_by_run,
    order_of,
    turn_id,
    turns_of,
)
from stategraph._engine.answers import to_be_answered
from stategraph._engine.calling import turn_of
from stategraph._progress import is_overdue
from stategraph._text.shown import describe_exception
from stategraph._values.progress import Pause
from stategraph._values.provenance import RunStatus, StatusName
from stategraph.errors import (
    AnswerError,
    CheckpointNotFoundError,
    ExecutionError,
    RunCancelledError,
    RunCompleteError,
    StateGraphError,
)
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores.summaries import Summary
from stategraph.stores.toolkit import state_from_bytes
from stategraph.turns import Order


@attrs.frozen
class CurrentRun:
    """The current status of a run in DBOS and in its store.

    Attributes:
        run_id: The run.
        turns: Its newest turns in DBOS, the newest first.
        graph: Its graph; None if no store has the run.
        saved: Its newest State; None if no store has the run.
    """

    run_id: str
    turns: list[Turn]
    graph: StateGraph | None
    saved: State | None

    @classmethod
    def of(cls, run_id: str, graphs: Mapping[str, StateGraph]) -> CurrentRun:
        """Look up a run, first in DBOS: if no store has it afterwards, it has not begun, or is finished and deleted."""
        turns = turns_of(run_id)
        for graph in graphs.values():
            try:
                saved = graph.store.load(run_id)
            except CheckpointNotFoundError:
                continue
            return cls(run_id, turns, graphs.get(saved.graph or "", graph), saved)
        if not turns:
            raise CheckpointNotFoundError(run_id, DATABASE, way_out=WAY_OUT)
        return cls(run_id, turns, None, None)

    @property
    def open_turn(self) -> Turn | None:
        """The newest turn if it waits for a worker or runs."""
        newest = self.turns[0] if self.turns else None
        if newest is None or not newest.is_open:
            return None
        saved = self.saved
        is_open = saved is None or newest.number > turn_of(saved) or saved.status is RunStatus.ACTIVE
        return newest if is_open else None

    def next_order(self) -> Order:
        """Return the order for the next turn. A run that has not begun begins with the State of its first turn.

        Raises:
            RunCompleteError: the run is complete.
        """
        number = 1 + max([0 if self.saved is None else turn_of(self.saved), *(turn.number for turn in self.turns)])
        if self.saved is not None and self.graph is not None:
            if self.saved.status is RunStatus.COMPLETED:
                raise RunCompleteError(self.run_id, self.saved.checkpoint_node)
            return Order(self.graph, self.run_id, number)
        if self.turns[0].status == "SUCCESS":
            raise RunCompleteError(self.run_id, "an exit point")
        first = order_of(turn_id(self.run_id, 1))
        if first is None:
            raise CheckpointNotFoundError(self.run_id, DATABASE, way_out=WAY_OUT)
        return attrs.evolve(first, number=number)

    def awaited_pause(self, updates: Mapping[str, Any], pause_id: Any) -> Pause:
        """Return the pause that the updates answer. Raise AnswerError unless the run waits for them at that pause."""
        saved = self.saved
        pause = None if saved is None or saved.status is not RunStatus.PAUSED else saved.pause
        if saved is None or pause is None:
            status = "not begun, or complete" if saved is None else saved.status.value
            raise AnswerError(self.run_id, None, f"the run waits for no answer: it is {status}")
        if pause_id not in (None, *(waiting.id for waiting in pause.each)):
            problem = "this pause is over: the run waits at another one"
            raise AnswerError(self.run_id, pause, problem)
        pause = cast(Pause, to_be_answered(saved, updates, pause_id).pause)
        if pause.response_param not in (None, *updates) and not is_overdue(pause):
            raise AnswerError(self.run_id, pause, "no answer is given")
        if self.open_turn is not None:
            raise AnswerError(self.run_id, pause, "another answer to it was given before, and only one counts")
        return pause


_WAITING = dict(zip(WAITING, ("queued", "delayed"), strict=True))


@attrs.frozen
class RunView:
    """A run.

    Attributes:
        run_id: The run.
        graph: The name of its graph.
        status: Its status: "queued" or "delayed" while a turn waits for a worker, otherwise one of `RunStatus`.
        step: How many nodes it has completed.
        turn: The id of its newest turn that is unfinished or has failed.
        queue: The queue of that turn.
        worker: The last worker of that turn.
        error: Why the run or its newest turn failed.
        pause: What it waits for.
        labels: Its labels.
    """

    run_id: str
    graph: str
    status: str
    step: int = 0
    turn: str | None = None
    queue: str | None = None
    worker: str | None = None
    error: str | None = None
    pause: Pause | None = None
    labels: Mapping[str, str] = attrs.field(factory=dict)

    @classmethod
    def of_stored(cls, summary: Summary) -> RunView:
        """Return a run as its store knows it."""
        error = summary.error
        return cls(
            summary.run_id,
            summary.graph or "",
            summary.status.value,
            summary.step,
            error=None if error is None else f"{error.type}: {error.message} (at {error.node})",
            pause=summary.pause,
            labels=summary.labels,
        )

    @classmethod
    def of_turn(cls, turn: Turn, summary: Summary | None) -> RunView:
        """Return a run with an unfinished or failed turn. Without a summary, the run has not begun."""
        if summary is None:
            status = "failed" if turn.status == "ERROR" else "active"
            view = cls(turn.run_id, turn.graph, status, labels=turn.labels)
        else:
            view = cls.of_stored(summary)
        status = view.status if view.status == RunStatus.COMPLETED else _WAITING.get(turn.status, view.status)
        error = view.error or (describe_exception(turn.error) if turn.error else None)
        return attrs.evolve(view, status=status, error=error, turn=turn.id, queue=turn.queue, worker=turn.worker)


def list_runs(
    graphs: Mapping[str, StateGraph], status: str | None, labels: Mapping[str, str], limit: int
) -> Iterator[RunView]:
    """Yield the runs of graphs: first those with unfinished or failed turns, then the others in their stores.

    Stores filter by status and labels. A turn may then change the status of a run.
    """
    turns = _turns(graphs, status, limit)
    stored: dict[str, Summary] = {}
    if status not in _WAITING.values():
        for name, graph in graphs.items():
            found = graph.store.runs(cast("StatusName | None", status), name, labels=labels, limit=limit)
            stored.update((summary.run_id, summary) for summary in found)
    for run_id, turn in turns.items():
        yield RunView.of_turn(turn, stored.pop(run_id, None) or _summary_of(graphs[turn.graph], run_id))
    yield from map(RunView.of_stored, stored.values())


def _turns(graphs: Mapping[str, StateGraph], status: str | None, limit: int) -> dict[str, Turn]:
    """Return the unfinished turns, and failed turns without a later one, by run."""
    statuses = [known for known, name in _WAITING.items() if name == status] or [*OPEN, "ERROR"]
    listed = find_turns(status=statuses, load_output=True, limit=limit)
    found = newest_by_run(turn for turn in listed if turn.graph in graphs)
    ended = [f"{run_id}#" for run_id, turn in found.items() if not turn.is_open]
    newest = newest_by_run(find_turns(workflow_id_prefix=ended)) if ended else {}
    return {run_id: turn for run_id, turn in found.items() if turn.is_open or newest[run_id].id == turn.id}


def _summary_of(graph: StateGraph, run_id: str) -> Summary | None:
    """Return the summary of a run that is not on the page of its store."""
    found = graph.store.iter_runs(prefix=run_id)
    return next((summary for summary in found if summary.run_id == run_id), None)


_SOONEST, _LATEST = 0.01, 0.25  # seconds between two looks whether a turn is done


@attrs.frozen(repr=False)
class TurnHandle:
    """A turn that was ordered.

    Attributes:
        run_id: The run.
        number: The number of the turn in its run.
        graph: Its graph.
    """

    run_id: str
    number: int
    graph: StateGraph

    @property
    def id(self) -> str:
        """The id of its workflow in DBOS."""
        return turn_id(self.run_id, self.number)

    @property
    def status(self) -> str:
        """Its status in DBOS: DELAYED, ENQUEUED, PENDING, SUCCESS, ERROR or CANCELLED."""
        return self._found().status

    def result(self, timeout: float | None = None) -> State:
        """Wait for the end of the turn; return the State with which the run completed or paused.

        A preserved run is loaded from its store, so a later turn may have changed it.

        Args:
            timeout: How many seconds to wait; None for no limit.

        Raises:
            TimeoutError: the turn has not ended in time. It continues.
            RunCancelledError: the run was cancelled.
            ExecutionError: the run has failed.
            Other exceptions: as for `stategraph.turns.perform`.
        """
        check_no_loop("handle.result")
        until = None if timeout is None else monotonic() + timeout
        wait = _SOONEST
        while self._found().is_open:
            left = wait if until is None else until - monotonic()
            if left <= 0:
                raise TimeoutError(f"turn {self.number} of run {self.run_id!r} is not done after {timeout} seconds")
            sleep(min(wait, left))
            wait = min(2 * wait, _LATEST)
        return self._outcome(self._found(load_output=True))

    def _outcome(self, found: Turn) -> State:
        if isinstance(found.error, ExecutionError):  # DBOS keeps only the run and step of its State
            with suppress(StateGraphError):  # the State is gone or damaged
                found.error.state = self.graph.store.load(self.run_id)
        if found.error is not None:
            raise found.error
        if found.status == "SUCCESS" and found.outcome["state"] is not None:
            return state_from_bytes(self.run_id, found.outcome["state"])
        try:
            state = self.graph.store.load(self.run_id)
        except CheckpointNotFoundError:
            if found.status != "CANCELLED":
                raise
            state = State(run_id=self.run_id, status=RunStatus.CANCELLED)
        is_cancelled = found.status == "CANCELLED" or found.outcome["status"] == RunStatus.CANCELLED
        if is_cancelled and turn_of(state) <= self.number:
            raise RunCancelledError(state, "it was cancelled")
        return state

    def _found(self, **which: Any) -> Turn:
        for found in find_turns(workflow_ids=[self.id], **which):
            return found
        raise CheckpointNotFoundError(self.run_id, DATABASE, way_out=WAY_OUT)

    def __repr__(self) -> str:
        return f"TurnHandle({self.id!r}, {self.graph.name!r})"
