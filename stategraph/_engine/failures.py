"""Runs that end before their time: the error to raise, and what is saved before it goes up."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import attrs

from stategraph._engine.announce import emit
from stategraph._engine.context import PATH_LENGTH, RunContext
from stategraph._engine.saving import flush, keep_what_can_be, save_last
from stategraph._graph.compiled import CompiledNode
from stategraph._protocol.commands import CannotAwait, Escaped, Parts, Stopped, StoreFailed, Task
from stategraph._text.shown import describe_exception
from stategraph._values.events import EventType
from stategraph._values.provenance import ErrorInfo, RunStatus
from stategraph.edges import NoWay
from stategraph.errors import (
    CheckpointSaveError,
    ExecutionError,
    MaxIterationsError,
    NotSerializableError,
    RunCancelledError,
    StateGraphError,
    StepConflictError,
)
from stategraph.state import State, evolve


def end_early(run: RunContext, error: BaseException) -> Task[None]:
    """Save what is to be saved, then raise.

    An exception that only drivers and steps know is replaced by the public one that it stands for.
    """
    if isinstance(error, Stopped):
        stop = with_notes(RunCancelledError(run.state, str(error)), error)
        yield from rescue(run, stop)
        raise stop from error.__cause__
    if isinstance(error, Escaped):
        yield from rescue(run, error)
        raise cast(BaseException, error.__cause__) from None
    if isinstance(error, StoreFailed | CannotAwait):
        cause = cast(StateGraphError, error.__cause__)
        yield from rescue(run, cause)
        raise cause from cause.__cause__
    yield from rescue(run, error)


def end_dropped(run: RunContext) -> Task[None]:
    """End a run whose driver is gone, unless others have taken it: a garbage collection may find it late."""
    if run.services.is_lost:
        return
    yield from end_early(run, Stopped("it was dropped before its end"))


def too_many_nodes(run: RunContext, name: str) -> ExecutionError:
    """Return the error for one node too many."""
    reason = (
        f"is not entered: this call has run {run.plan.max_iterations} nodes (max_iterations) without reaching "
        "an exit point; if that is not an endless loop, raise max_iterations or go on with resume"
    )
    return failure_at(run, name, reason, kind=MaxIterationsError)


def no_way_on(run: RunContext, stage: CompiledNode, no_way: NoWay) -> ExecutionError:
    """Return the error for a node that cannot be left."""
    cause = no_way.error
    if cause is not None:
        edge = stage.edges[no_way.tried - 1]
        reason = f"cannot be left: the predicate of edge {edge} failed: {describe_exception(cause)}"
    else:
        reason = f"cannot be left: no edge passes (tried {', '.join(map(str, stage.edges)) or 'none: it has none'})"
    error = failure_at(run, stage.name, reason, cause)
    error.__cause__ = cause
    return error


def node_failure(run: RunContext, name: str, attempt: int, error: Exception) -> ExecutionError:
    """Return the error for a node that failed, the last time in this attempt."""
    attempts = f" after {attempt} attempts" if attempt > 1 else ""
    failure = failure_at(run, name, f"failed{attempts}: {describe_exception(error)}", error)
    if attempts:
        info = cast(ErrorInfo, failure.state.error)
        told = attrs.evolve(info, message=f"{info.message} ({attempts.strip()})".lstrip())
        failure.state = evolve(failure.state, error=told)
    return failure


def failure_at(
    run: RunContext, name: str, reason: str, cause: Exception | None = None, kind: type[ExecutionError] = ExecutionError
) -> ExecutionError:
    """Return the error for a node that failed, or that the engine could not go on at, with the State to be kept."""
    info = ErrorInfo.said(kind.__name__, reason, name) if cause is None else ErrorInfo.of(cause, name)
    path = tuple(run.path) if run.path and run.path[-1] == name else (*run.path, name)[-PATH_LENGTH:]
    return kind(name, evolve(run.state, status=RunStatus.FAILED, error=info), path, reason)


def rescue(run: RunContext, error: BaseException) -> Task[None]:
    """Save what is not saved yet before an error is raised; a second failure becomes a note on the first."""
    try:
        yield from _last_saves(run, error)
    except GeneratorExit:  # the driver is gone: another one begins anew
        run.hand_over(_last_saves(run, error))
        raise


def _last_saves(run: RunContext, error: BaseException) -> Task[None]:
    state = error.state if isinstance(error, ExecutionError) else run.state
    yield from _noting(error, "While the run was being stopped", _save_unsaved(run, error, state))
    yield from _noting(error, "While its last saves were waited for", flush(run, state))
    told = emit(run, EventType.GRAPH_ERROR, state, error=describe_exception(error))
    yield from _noting(error, "While its observer was being told", told)


def _save_unsaved(run: RunContext, error: BaseException, state: State) -> Task[None]:
    if run.plan.saves and state is not run.saved and not isinstance(error, _SAVE_ERRORS):
        yield from save_last(run, state)
    elif isinstance(error, NotSerializableError):
        info = ErrorInfo.of(error, run.path[-1] if run.path else state.checkpoint_node)
        yield from keep_what_can_be(run, evolve(state, status=RunStatus.FAILED, error=info))
    if run.unsaved_parts and run.plan.loads_parts:
        yield (Parts, run.services.save_parts, (state, run.unsaved_parts))


_Error = TypeVar("_Error", bound=BaseException)
_SAVE_ERRORS = (CheckpointSaveError, NotSerializableError, StepConflictError)
"""What a save ends with when trying it again would end the same."""


def _noting(error: BaseException, when: str, task: Task[None]) -> Task[None]:
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


def error_data(failure: ExecutionError) -> dict[str, Any]:
    """Return what a handler of failures finds in the State."""
    error = cast(ErrorInfo, failure.state.error)
    return {"error": {"type": error.type, "message": error.message, "node": error.node}}
