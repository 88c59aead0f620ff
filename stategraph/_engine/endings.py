"""Ending a run early: which error is raised, and which States are saved first."""

from __future__ import annotations

from typing import Any, cast

import attrs

from stategraph._engine.context import PATH_LENGTH, RunContext, fitting
from stategraph._engine.events import announce_entry, announce_error, announce_failure
from stategraph._engine.saving import flush, newest_of, save, save_with_next, take_up
from stategraph._graph.compiled import CompiledNode
from stategraph._protocol.commands import CannotAwait, Escaped, Load, Parts, Stopped, StoreFailed, Task
from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import begin_with_users
from stategraph._values.frozen import lay_over
from stategraph._values.provenance import ErrorInfo, Facts, RunStatus
from stategraph.edges import NoWay
from stategraph.errors import (
    CheckpointSaveError,
    ExecutionError,
    MaxIterationsError,
    NotSerializableError,
    RunCancelledError,
    StepConflictError,
)
from stategraph.state import State, data_of, evolve, told

_SAVE_ERRORS = (CheckpointSaveError, NotSerializableError, StepConflictError)
"""Errors with which a retried save would fail again."""

_MOST_KEYS = 8  # listed in an error


# --------------------------------------------------------------------------- errors


def end_early(run: RunContext, error: BaseException) -> Task[None]:
    """Save the pending States; raise the public exception that replaces an internal one."""
    public = error
    if run.services.is_cancelled and run.outer_step is None and isinstance(error, Stopped | ExecutionError):
        public = yield from _cancelled(run, error)
    elif isinstance(error, Stopped):
        public = RunCancelledError(run.state, str(error))
        public.__cause__ = error.__cause__
    elif isinstance(error, Escaped | StoreFailed | CannotAwait):
        public = cast(BaseException, error.__cause__)
    if public is not error:
        move_notes(error, public)
    yield from rescue(run, public)
    if run.state.status is RunStatus.CANCELLED and run.saved is run.state:  # the next call does not have to be notified
        yield from _noting(public, "While its cancellation was being forgotten", take_up(run))
    if public is not error:
        raise public from public.__cause__


def _cancelled(run: RunContext, error: BaseException) -> Task[RunCancelledError]:
    """Return the error for a run that another caller cancelled. A node may fail because of the cancellation."""
    by: str | None = None
    try:
        by = yield (Load, run.services.store._cancelled_by, run.state.run_id)
    except GeneratorExit:
        raise
    except BaseException as second:  # the cancellation is saved without that error
        error.add_note(f"While it was asked who has cancelled the run: {describe_exception(second)}")
    save_with_next(run, run.state)
    run.state = evolve(told(run.state, by=by), status=RunStatus.CANCELLED)
    is_failure = isinstance(error, ExecutionError)
    stopped = RunCancelledError(run.state, "it was cancelled" if is_failure else str(error))
    stopped.__cause__ = error if is_failure else error.__cause__
    return stopped


def move_notes(error: BaseException, other: BaseException) -> None:
    """Copy the notes of an error, which report later failures, to the error raised in its place."""
    for note in getattr(error, "__notes__", ()):
        other.add_note(note)


# --------------------------------------------------------------------------- saving


def rescue(run: RunContext, error: BaseException) -> Task[None]:
    """Save pending States before an error is raised; a second failure becomes a note on the first."""
    state = error.state if isinstance(error, ExecutionError) else run.state
    yield from _noting(error, "While the run was being stopped", _save_unsaved(run, error, state))
    yield from _noting(error, "While its last saves were waited for", flush(run, state))
    yield from announce_error(run, state, error)


def _noting(error: BaseException, when: str, task: Task[None]) -> Task[None]:
    """Run a task and turn its exception into a note on an error."""
    try:
        yield from task
    except GeneratorExit:
        raise
    except BaseException as second:
        error.add_note(f"{when}: {describe_exception(second)}")


def _save_unsaved(run: RunContext, error: BaseException, state: State) -> Task[None]:
    if isinstance(error, NotSerializableError) and run.plan.saves:
        info = ErrorInfo.of(error, run.path[-1] if run.path else state.checkpoint_node)
        yield from _save_what_can_be(run, evolve(told(state), status=RunStatus.FAILED, error=info))
    elif run.plan.saves and state is not run.saved and not isinstance(error, _SAVE_ERRORS):
        try:
            if run.state is not state:
                save_with_next(run, run.state)
            yield from save(run, state)
        except StepConflictError:  # a node changed an object in its State before it failed: the saved value stays
            ended = yield from _end_newest(run, state, at_least=state.step)
            if ended is None:
                raise
            if isinstance(error, ExecutionError):
                error.state = ended
        except NotSerializableError:
            yield from _save_what_can_be(run, state)
            raise
    if run.unsaved_parts and run.plan.loads_parts:
        yield (Parts, run.services.save_parts, (state, run.unsaved_parts))


def _save_what_can_be(run: RunContext, last: State) -> Task[None]:
    """Save the newest of the last States that can be saved, with the end of the run."""
    # Without the pause and emitted chunks, which may be the values that cannot be saved.
    tried = [*run.recent, evolve(last, pause=None, progress=last.progress and last.progress.changed(partial=None))]
    run.recent.clear()
    while tried:
        try:
            yield from save(run, _ended(tried.pop(), last))
        except NotSerializableError:
            continue
        return
    yield from _end_newest(run, last)


def _end_newest(run: RunContext, last: State, at_least: int = 0) -> Task[State | None]:
    """Save the newest saved State again with the end of the run; return it, or None if it is from another run."""
    kept = yield from newest_of(run, last.run_id)
    if kept is None or not at_least <= kept.step <= last.step:
        return None
    return (yield from save(run, _ended(kept, last)))


def _ended(state: State, last: State) -> State:
    return evolve(told(state), status=last.status, error=last.error)


# --------------------------------------------------------------------------- nodes that fail


def handle(
    run: RunContext, stage: CompiledNode, step: Any, error: Exception, began_ns: int
) -> Task[tuple[str, dict[str, Any]]]:
    """Return the node that handles the failure of another node, and its input data; raise if there is none."""
    attempt = 1
    if step is not None:
        attempt, began_ns = step.attempt, step.began_ns or began_ns
    begin_with_users(error)
    yield from announce_failure(run, stage.name, error, attempt, began_ns)
    failure, handler = _node_failure(run, stage.name, attempt, error), stage.policies.on_error
    if handler is None:
        raise failure from error
    return handler, handled_data(run, failure, run.state, stage.name)


def _node_failure(run: RunContext, name: str, attempt: int, error: Exception) -> ExecutionError:
    """Return the error for a node that failed, with this attempt as its last."""
    attempts = f" after {attempt} attempts" if attempt > 1 else ""
    hint = _keys_at(run.state, error) if type(error) is KeyError else ""
    failure = failure_at(run, name, f"failed{attempts}: {describe_exception(error)}{hint}", error)
    if attempts:
        info = cast(ErrorInfo, failure.state.error)
        told = attrs.evolve(info, message=f"{info.message} ({attempts.strip()})".lstrip())
        failure.state = evolve(failure.state, error=told, facts=Facts(attempts=attempt))
    return failure


def _keys_at(state: State, error: KeyError) -> str:
    """Describe the keys of a State for the error of a node that looked up a missing key; else return ""."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    found = {} if last is None else last.tb_frame.f_locals
    if not state or "key" not in found or not isinstance(found.get("self"), State):
        return ""
    from difflib import get_close_matches  # imported when used: 10 ms

    close = get_close_matches(str(error.args[0]), state, n=3)
    keys = [*close, *(key for key in state if key not in close)]
    listed = ", ".join([*map(shorten, keys[:_MOST_KEYS]), *["..."] * (len(keys) > _MOST_KEYS)])
    return f" (the State has {listed})"


def failure_at(
    run: RunContext, name: str, reason: str, cause: Exception | None = None, kind: type[ExecutionError] = ExecutionError
) -> ExecutionError:
    """Return the error for a failed node, or for a node that the engine cannot pass, with the State to save."""
    info = ErrorInfo.said(kind.__name__, reason, name) if cause is None else ErrorInfo.of(cause, name)
    path = tuple(run.path) if run.path and run.path[-1] == name else (*run.path, name)[-PATH_LENGTH:]
    return kind(name, evolve(told(run.state), status=RunStatus.FAILED, error=info), path, reason)


def handled_data(run: RunContext, failure: ExecutionError, before: State, name: str) -> dict[str, Any]:
    """Return the input data of the handler of a failed node: the data before that node, and the error."""
    error = cast(ErrorInfo, failure.state.error)
    data = {"error": {"type": error.type, "message": error.message, "node": error.node}}
    return lay_over(data_of(before), fitting(run, data, before, name))


def too_many_nodes(run: RunContext, name: str) -> ExecutionError:
    """Return the error for a run that exceeds its limit of nodes."""
    reason = (
        f"is not entered: this call has run {run.plan.max_iterations} nodes (max_iterations) without reaching "
        "an exit point; if that is not an endless loop, raise max_iterations or go on with resume"
    )
    return failure_at(run, name, reason, kind=MaxIterationsError)


def no_way_on(run: RunContext, stage: CompiledNode, no_way: NoWay) -> Task[ExecutionError]:
    """Return the error for a node without a matching edge."""
    yield from announce_entry(run, stage, no_way, "", begins=False)
    cause = no_way.error
    if cause is not None:
        begin_with_users(cause)
        edge = stage.edges[no_way.tried - 1]
        reason = f"cannot be left: the predicate of edge {edge} failed: {describe_exception(cause)}"
    else:
        reason = f"cannot be left: no edge passes (tried {', '.join(map(str, stage.edges)) or 'none: it has none'})"
    error = failure_at(run, stage.name, reason, cause)
    error.__cause__ = cause
    return error
