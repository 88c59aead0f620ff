"""Runs that were cancelled while a call was at work on them: what is saved when it stops."""

from __future__ import annotations

from typing import cast

from stategraph._engine.context import RunContext
from stategraph._engine.rescue import noting, rescue, with_notes
from stategraph._engine.saving import save_with_next, take_up
from stategraph._owners.holds import Hold
from stategraph._protocol.commands import Load, Task
from stategraph._text.shown import describe_exception
from stategraph._values.provenance import RunStatus
from stategraph.errors import ExecutionError, RunCancelledError
from stategraph.state import evolve, told


def end_cancelled(run: RunContext, error: BaseException) -> Task[None]:
    """Save a run as cancelled, then raise. A node that fails may have done that because it was told."""
    is_failure = isinstance(error, ExecutionError)
    by = yield from _canceller(run, error)
    save_with_next(run, run.state)
    run.state = evolve(told(run.state, by=by), status=RunStatus.CANCELLED)
    stop = with_notes(RunCancelledError(run.state, "it was cancelled" if is_failure else str(error)), error)
    yield from rescue(run, stop)
    if run.saved is run.state:  # whoever takes it up later need not be told
        forgotten = take_up(run, cast(Hold, run.services.hold))
        yield from noting(stop, "While its cancellation was being forgotten", forgotten)
    raise stop from (error if is_failure else error.__cause__)


def _canceller(run: RunContext, error: BaseException) -> Task[str | None]:
    """Return who has cancelled the run, if that was said."""
    by: str | None = None
    try:
        by = yield (Load, run.services.cancelled_by, run.state.run_id)
    except GeneratorExit:
        raise
    except BaseException as second:  # that it was cancelled is saved without it
        error.add_note(f"While it was asked who has cancelled the run: {describe_exception(second)}")
    return by
