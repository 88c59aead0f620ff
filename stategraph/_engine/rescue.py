"""What is saved of a run that ends before its time, before the error goes up."""

from __future__ import annotations

from typing import TypeVar

from stategraph._engine.context import RunContext
from stategraph._engine.saving import flush, save, save_with_next
from stategraph._protocol.commands import Load, Parts, Save, Task
from stategraph._text.shown import describe_exception
from stategraph._values.events import EventType
from stategraph._values.provenance import ErrorInfo, RunStatus
from stategraph.errors import (
    CheckpointNotFoundError,
    CheckpointSaveError,
    ExecutionError,
    NotSerializableError,
    StepConflictError,
)
from stategraph.state import State, evolve, told


def rescue(run: RunContext, error: BaseException) -> Task[None]:
    """Save what is not saved yet before an error is raised; a second failure becomes a note on the first."""
    state = error.state if isinstance(error, ExecutionError) else run.state
    yield from noting(error, "While the run was being stopped", _save_unsaved(run, error, state))
    yield from noting(error, "While its last saves were waited for", flush(run, state))
    yield from tell_end(run, state, error)


def tell_end(run: RunContext, state: State, error: BaseException) -> Task[None]:
    """Tell the observer that the run ends early."""
    if EventType.GRAPH_ERROR in run.wanted:
        from stategraph._engine.announce import announce_error  # imported when used: it is there since the run began

        yield from noting(error, "While its observer was being told", announce_error(run, state, error))


def _save_unsaved(run: RunContext, error: BaseException, state: State) -> Task[None]:
    if run.plan.saves and state is not run.saved and not isinstance(error, _SAVE_ERRORS):
        yield from _save_last(run, error, state)
    elif isinstance(error, NotSerializableError):
        info = ErrorInfo.of(error, run.path[-1] if run.path else state.checkpoint_node)
        yield from _keep_what_can_be(run, evolve(told(state), status=RunStatus.FAILED, error=info))
    if run.unsaved_parts and run.plan.loads_parts:
        yield (Parts, run.services.save_parts, (state, run.unsaved_parts))


def _save_last(run: RunContext, error: BaseException, state: State) -> Task[None]:
    """Save the State with which the run ends."""
    if run.state is not state:
        save_with_next(run, run.state)
    try:
        yield from save(run, (Save, run.services.save, state), state)
        yield from flush(run, state)
    except StepConflictError:
        if run.saved is None or run.saved.step != state.step:
            raise
        # A node changed an object in its State before it failed: what is saved stays, how the run stands is new.
        kept = yield (Load, run.services.load, state.run_id)
        if kept.step != state.step:
            raise
        ended = yield from _save_ended(run, kept, state)
        if isinstance(error, ExecutionError):
            error.state = ended
    except NotSerializableError:
        yield from _keep_what_can_be(run, state)
        raise


def _keep_what_can_be(run: RunContext, last: State) -> Task[None]:
    """Keep as many of the last steps as can be, and how the run ended, if the last State itself cannot be kept."""
    # Without the pause and what was emitted: it may be these that cannot be.
    bare = evolve(last, pause=None, progress=last.progress and last.progress.changed(partial=None))
    tried = [*run.recent, bare]
    run.recent.clear()
    while tried:
        try:
            yield from _save_ended(run, tried.pop(), last)
        except NotSerializableError:
            continue
        return
    try:
        kept = yield (Load, run.services.load, last.run_id)
    except CheckpointNotFoundError:
        return
    if kept.step <= last.step:
        yield from _save_ended(run, kept, last)


def _save_ended(run: RunContext, state: State, last: State) -> Task[State]:
    """Save a State as the one with which the run ends, in the way in which it ended with another one; return it."""
    state = evolve(told(state), status=last.status, error=last.error)
    yield from save(run, (Save, run.services.save, state), state)
    yield from flush(run, state)
    return state


_Error = TypeVar("_Error", bound=BaseException)
_SAVE_ERRORS = (CheckpointSaveError, NotSerializableError, StepConflictError)
"""What a save ends with when trying it again would end the same."""


def noting(error: BaseException, when: str, task: Task[None]) -> Task[None]:
    """Do a task; what it raises becomes a note on an error."""
    try:
        yield from task
    except GeneratorExit:
        raise
    except BaseException as second:
        error.add_note(f"{when}: {describe_exception(second)}")


def with_notes(error: _Error, other: BaseException) -> _Error:
    """Return an error with the notes of the exception that it stands for: failures that came on top of it."""
    for note in getattr(other, "__notes__", ()):
        error.add_note(note)
    return error
