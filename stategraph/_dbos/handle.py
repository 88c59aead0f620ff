"""TurnHandle: a turn that was ordered, to wait for."""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

import attrs

from stategraph._dbos.checks import check_no_loop
from stategraph._dbos.orders import DATABASE, WAY_OUT, Ordered, find_turns
from stategraph._engine.turning import turn_of
from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointNotFoundError, ExecutionError, RunCancelledError, StateGraphError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores.toolkit import state_from_bytes

_SOONEST, _LATEST = 0.01, 0.25  # seconds after which it is looked again whether a turn is done


@attrs.frozen(repr=False)
class TurnHandle:
    """A turn that was ordered.

    Attributes:
        run_id: The run.
        number: Which turn of the run it is.
        id: The id of its workflow in DBOS.
        graph: Its graph.
    """

    run_id: str
    number: int
    id: str
    graph: StateGraph

    @property
    def status(self) -> str:
        """What DBOS says of it: DELAYED, ENQUEUED, PENDING, SUCCESS, ERROR or CANCELLED."""
        return self._found().status

    def result(self, timeout: float | None = None) -> State:
        """Wait for the end of the turn; return the State with which the run has completed or paused.

        A run that is preserved is loaded: it may have gone on since, with a later turn.

        Args:
            timeout: For how many seconds to wait; None for as long as it takes.

        Raises:
            TimeoutError: it has not ended by then. It goes on.
            RunCancelledError: the run was cancelled.
            ExecutionError: the run has failed.
            And all else that `stategraph.turns.perform` raises.
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
        return self._came_of(self._found(load_output=True))

    def _came_of(self, found: Ordered) -> State:
        if found.error is not None:
            raise self._with_state(found.error)
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

    def _with_state(self, error: Exception) -> Exception:
        """Return an error with the State of the run, where DBOS has kept no more than which it was."""
        if isinstance(error, ExecutionError):
            try:
                error.state = self.graph.store.load(self.run_id)
            except StateGraphError:  # it is gone, or damaged: the error tells what it can
                return error
        return error

    def _found(self, **which: Any) -> Ordered:
        for found in find_turns(workflow_ids=[self.id], **which):
            return found
        raise CheckpointNotFoundError(self.run_id, DATABASE, way_out=WAY_OUT)

    def __repr__(self) -> str:
        return f"TurnHandle({self.id!r}, {self.graph.name!r})"
