"""Nodes that fail, and runs that end before their time: the error to raise, and what is saved before it goes up."""

from __future__ import annotations

from typing import Any, TypeVar, cast

import attrs

from stategraph._engine.context import PATH_LENGTH, RunContext, fitting
from stategraph._engine.saving import emit, flush, save, save_with_next, take_up, tell
from stategraph._graph.compiled import CompiledNode
from stategraph._owners.holds import Hold
from stategraph._protocol.commands import CannotAwait, Escaped, Load, Parts, Save, Stopped, StoreFailed, Task
from stategraph._text.shown import describe_exception
from stategraph._values.events import EventType
from stategraph._values.frozen import lay_over
from stategraph._values.provenance import ErrorInfo, RunStatus
from stategraph.edges import NoWay
from stategraph.errors import (
    CheckpointNotFoundError,
    CheckpointSaveError,
    ExecutionError,
    MaxIterationsError,
    NotSerializableError,
    RunCancelledError,
    StateGraphError,
    StepConflictError,
)
from stategraph.state import State, data_of, evolve, told


def end_early(run: RunContext, error: BaseException) -> Task[None]:
    """Save what is to be saved, then raise.

    An exception that only drivers and steps know is replaced by the public one that it stands for.
    """
    run.services.heeds_cancel = False
    if run.services.kept is run.state is not run.saved:
        run.saved = run.state
        yield from emit(run, EventType.CHECKPOINT_SAVE, run.state)
    if run.services.is_cancelled and run.outer_step is None and isinstance(error, Stopped | ExecutionError):
        yield from _end_cancelled(run, error)
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


def _end_cancelled(run: RunContext, error: BaseException) -> Task[None]:
    """Save a run as cancelled, then raise. A node that fails may have done that because it was told."""
    is_failure = isinstance(error, ExecutionError)
    save_with_next(run, run.state)
    run.state = evolve(told(run.state), status=RunStatus.CANCELLED)
    stop = with_notes(RunCancelledError(run.state, "it was cancelled" if is_failure else str(error)), error)
    yield from rescue(run, stop)
    if run.saved is run.state:  # whoever takes it up later need not be told
        forgotten = take_up(run, cast(Hold, run.services.hold))
        yield from noting(stop, "While its cancellation was being forgotten", forgotten)
    raise stop from (error if is_failure else error.__cause__)


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


def no_way_on(run: RunContext, stage: CompiledNode, no_way: NoWay) -> Task[ExecutionError]:
    """Return the error for a node that cannot be left."""
    from stategraph._engine.announce import announce_entry  # imported when used: graphs seldom have a dead end

    yield from announce_entry(run, stage, no_way, "", begins=False)
    cause = no_way.error
    if cause is not None:
        edge = stage.edges[no_way.tried - 1]
        reason = f"cannot be left: the predicate of edge {edge} failed: {describe_exception(cause)}"
    else:
        reason = f"cannot be left: no edge passes (tried {', '.join(map(str, stage.edges)) or 'none: it has none'})"
    error = failure_at(run, stage.name, reason, cause)
    error.__cause__ = cause
    return error


def handle(run: RunContext, stage: CompiledNode, attempt: int, error: Exception) -> Task[tuple[str, dict[str, Any]]]:
    """Return the node that handles the failure of another one, and the data that it finds; raise if there is none."""
    state, name = run.state, stage.name
    about = {"attempt": attempt, "error": describe_exception(error)}
    yield from tell(run, EventType.NODE_ERROR, state.run_id, state.step + 1, name, about)
    failure, handler = _node_failure(run, name, attempt, error), stage.policies.on_error
    if handler is None:
        raise failure from error
    return handler, handled_data(run, failure, state, name)


def _node_failure(run: RunContext, name: str, attempt: int, error: Exception) -> ExecutionError:
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
    return kind(name, evolve(told(run.state), status=RunStatus.FAILED, error=info), path, reason)


def rescue(run: RunContext, error: BaseException) -> Task[None]:
    """Save what is not saved yet before an error is raised; a second failure becomes a note on the first."""
    try:
        yield from _last_saves(run, error)
    except GeneratorExit:  # the driver is gone: another one begins anew
        run.hand_over(_last_saves(run, error))
        raise


def _last_saves(run: RunContext, error: BaseException) -> Task[None]:
    state = error.state if isinstance(error, ExecutionError) else run.state
    yield from noting(error, "While the run was being stopped", _save_unsaved(run, error, state))
    yield from noting(error, "While its last saves were waited for", flush(run, state))
    told = emit(run, EventType.GRAPH_ERROR, state, error=describe_exception(error))
    yield from noting(error, "While its observer was being told", told)


def _save_unsaved(run: RunContext, error: BaseException, state: State) -> Task[None]:
    if run.plan.saves and state is not run.saved and not isinstance(error, _SAVE_ERRORS):
        yield from _save_last(run, state)
    elif isinstance(error, NotSerializableError):
        info = ErrorInfo.of(error, run.path[-1] if run.path else state.checkpoint_node)
        yield from _keep_what_can_be(run, evolve(told(state), status=RunStatus.FAILED, error=info))
    if run.unsaved_parts and run.plan.loads_parts:
        from stategraph._engine.parts import save_parts  # imported when used: few nodes have parts

        yield (Parts, save_parts, (run.services, state, run.unsaved_parts))


def _save_last(run: RunContext, state: State) -> Task[None]:
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
        yield from _save_ended(run, kept, state)
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


def _save_ended(run: RunContext, state: State, last: State) -> Task[None]:
    """Save a State as the one with which the run ends, in the way in which it ended with another one."""
    state = evolve(told(state), status=last.status, error=last.error)
    yield from save(run, (Save, run.services.save, state), state)
    yield from flush(run, state)


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


def handled_data(run: RunContext, failure: ExecutionError, before: State, name: str) -> dict[str, Any]:
    """Return the data that a handler finds of a node that has failed: those before it, and the error."""
    error = cast(ErrorInfo, failure.state.error)
    data = {"error": {"type": error.type, "message": error.message, "node": error.node}}
    return lay_over(data_of(before), fitting(run, data, before, name))
