"""How a run ends: completed, paused, failed, cancelled, or abandoned. What is saved, and which exception is raised."""

from __future__ import annotations

import signal
import threading
from functools import partial
from typing import Any, TypeVar, cast

import attrs

from stategraph._engine.context import (
    PATH_LENGTH,
    RunContext,
    announce_entry,
    announce_error,
    announce_failure,
    described,
    emit,
    fitting,
)
from stategraph._engine.saving import (
    amend,
    drop_joined_parts,
    due_if_turns_wait,
    flush,
    newest_of,
    save,
    save_with_next,
)
from stategraph._engine.spending import check_limits
from stategraph._graph.compiled import CompiledNode
from stategraph._owners.base import NewEntriesError
from stategraph._progress import is_late, pause_as
from stategraph._protocol import Amend, CannotAwait, Delete, Load, Parts, Stopped, StoreFailed, Task
from stategraph._text.shown import describe_exception
from stategraph._util.callables import begin_with_users, failures
from stategraph._values import clock
from stategraph._values.events import EventType
from stategraph._values.frozen import lay_over
from stategraph._values.progress import Pause, evolved, pause_of
from stategraph._values.provenance import ErrorInfo, Facts, RunStatus
from stategraph.edges import NoWay
from stategraph.errors import (
    CheckpointError,
    CheckpointSaveError,
    ExecutionError,
    MaxIterationsError,
    NotSerializableError,
    RunCancelledError,
    StepConflictError,
)
from stategraph.state import State, data_of, evolve, recorded, taken_of, time_ns_of

_SAVE_ERRORS = (CheckpointSaveError, NotSerializableError, StepConflictError)
"""Errors of a save: saving the same State again would raise them again."""


_Answer = TypeVar("_Answer")


def complete(run: RunContext) -> Task[None]:
    """Complete the run: keep the final State or delete the run, as configured.

    Raises:
        NewEntriesError: Its inbox has entries that it has not taken in.
    """
    step = run.state
    if run.session.inbox > taken_of(step):
        run.state = yield from due_if_turns_wait(run, step)
    # `run.state` becomes this one when no nested run is left: if that is interrupted, the next call does it.
    state = recorded(run.state, status=RunStatus.COMPLETED)
    if run.plan.saves and run.plan.preserve:
        if run.has_joined_parts:
            if step is not run.saved:
                yield from save(run, step)
            yield from drop_joined_parts(run, state)
            yield from flush(run, step)
        else:
            save_with_next(run, step)
        run.state = state
        yield from save(run, state)
    elif run.plan.saves and run.outer_step is None:  # a nested run may have to continue until its outer step is saved
        run.saved = None  # an interrupted deletion may have been made: then the step is saved again
        yield (Delete, run.session.delete, state)
        yield from emit(run, EventType.CHECKPOINT_DELETE, state)
    run.state = state
    yield from emit(run, EventType.GRAPH_COMPLETE, state, run.began_ns)


def pause_at(run: RunContext, stage: CompiledNode, pause: Pause, changed: State | None) -> Task[None]:
    """Save the run as paused, with the State that the node has changed before, if it has."""
    if not run.plan.saves:
        why = "checkpoint.interval is 0, or the graph is nested and the store keeps no parts"
        raise failure_at(run, stage.name, f"cannot pause: nothing is saved ({why})")
    schema, keys = run.plan.schema, [each.key_of_data for each in pause.each]
    lost = [key for key in keys if schema is not None and key is not None and key not in schema.fields]
    if schema is not None and lost:
        why = f"the answer is to come under {lost[0]!r}, which is no field of {schema.name}"
        raise failure_at(run, stage.name, f"cannot pause: {why}")
    if changed is None:
        save_with_next(run, run.state)
    else:
        if run.state is not run.saved and run.state is not run.found:
            yield from save(run, run.state)
        run.state = changed
    pause = pause_of([_identified(run, stage.name, each) for each in pause.each])
    if run.outer_step is not None and run.plan.persist is not None:  # the outer run saves it, too
        pause = pause_as(pause, run.without_unsaved)
    at = max(clock.to_ns(pause.at), time_ns_of(run.state))  # the pause of a nested graph may have begun earlier
    run.state = state = recorded(run.state, status=RunStatus.PAUSED, pause=pause, _time_ns=at)
    about = {"pause_node": pause.node, "reason": pause.reason, "response_param": pause.response_param}
    yield from (save if changed is None else amend)(run, state)
    if run.plan.write_behind or run.session.is_cancelled:
        yield (Load, run.session.stop_if_cancelled, state)
    yield from emit(run, EventType.GRAPH_PAUSE, state, run.began_ns, **about)


def _identified(run: RunContext, node: str, pause: Pause) -> Pause:
    """Return a pause at a node, with its id. A pause of a nested run keeps its id: it is the same pause.

    If no store of stategraph can keep its value, the id depends on the time alone.
    """
    if pause.id:
        return attrs.evolve(pause, node=node, attempt=0)
    pause, state = attrs.evolve(pause, node=node), run.state
    shown = {"reason": pause.reason, "node": pause.node, "response_param": pause.response_param, "at": pause.at}
    question = {**shown, "run_id": state.run_id, "step": state.step, "generation": state.generation}
    return attrs.evolve(pause, id=run.plan.digest({**question, "value": pause.value}) or run.plan.digest(question))


# --------------------------------------------------------------------------- ending early


def end_early(run: RunContext, error: BaseException) -> Task[None]:
    """Save the pending States; raise the public exception that replaces an internal one.

    KeyboardInterrupt, for example, is not internal: it passes unchanged.
    """
    if isinstance(error, GeneratorExit):  # the stream of the run was abandoned: that counts as a crash
        return
    public = error
    if run.session.is_cancelled and run.outer_step is None and isinstance(error, Stopped | ExecutionError):
        public = yield from _cancelled(run, error)
    elif isinstance(error, Stopped) and run.outer_step is None and is_late(run.state):
        public = too_late(run)
    elif isinstance(error, Stopped):
        public = RunCancelledError(run.state, str(error))
        public.__cause__ = error.__cause__
    elif isinstance(error, StoreFailed | CannotAwait):
        public = cast(BaseException, error.__cause__)
    elif run.is_job and _is_exit(error):
        begin_with_users(error)
        name = run.path[-1] if run.path else run.state.checkpoint_node
        public = failure_at(run, name, f"failed: {described(run, error)}", error)
        public.__cause__ = error
    if isinstance(public, CheckpointError) and public.state is None:  # a queued save failed, and a load reports it
        public.state = run.state
    if public is not error:
        copy_notes(error, public)
    yield from save_pending(run, public)
    if run.state.status is RunStatus.CANCELLED and run.saved is run.state:
        # The State records the cancellation now, so the store can forget the request.
        known = save_cancelled(run, run.state.run_id, run.state.by)
        yield from noting(public, "While its cancellation was being cleared", known)
    if public is not error:
        raise public from public.__cause__


def _is_exit(error: BaseException) -> bool:
    """Return whether code of a node raised an exception such as SystemExit, and no signal of the program did."""
    if isinstance(error, (*failures(), Stopped, StoreFailed, CannotAwait)):
        return False
    if isinstance(error, KeyboardInterrupt):  # Ctrl-C comes to the main thread
        return threading.current_thread() is not threading.main_thread()
    from traceback import walk_tb  # imported when used

    handlers = [getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()]
    return all(frame.f_code not in handlers for frame, _ in walk_tb(error.__traceback__))


def _cancelled(run: RunContext, error: BaseException) -> Task[RunCancelledError]:
    """Return the error for a run that another caller cancelled.

    An ExecutionError counts as the cancellation, because that may have caused it.
    """
    # The run is saved as cancelled even if its canceller is unknown.
    by = yield from noting(error, "While the caller that cancelled the run was looked up", canceller_of(run, run.state))
    save_with_next(run, run.state)
    ended = yield from noting(error, "While waiting turns were looked up", due_if_turns_wait(run, run.state))
    run.state = recorded(ended or run.state, by=by, status=RunStatus.CANCELLED)
    is_failure = isinstance(error, ExecutionError)
    stopped = RunCancelledError(run.state, "it was cancelled" if is_failure else str(error))
    stopped.__cause__ = error if is_failure else error.__cause__
    return stopped


def save_cancelled(run: RunContext, run_id: str, by: str | None) -> Task[State]:
    """Save a run as cancelled, if it is not, and due if turns wait; return its State. The store forgets the request."""
    save_idle = partial(run.session.store._save_cancelled, run_id, by)
    cancelled: State = yield (Amend, run.session.write, (run_id, save_idle))
    return cancelled


def canceller_of(run: RunContext, state: State) -> Task[str | None]:
    """Return the name of the caller that cancelled the run of a State, if given."""
    by: str | None = yield (Load, run.session.store._cancelled_by, state.run_id)
    return by


def end_cancelled(run: RunContext, saved: State) -> Task[State]:
    """Save a run as cancelled: its last owner ended before it noticed the cancellation."""
    by = yield from canceller_of(run, saved)
    return (yield from save_cancelled(run, saved.run_id, by))


def copy_notes(error: BaseException, other: BaseException) -> None:
    """Copy the notes of an error, which report later failures, to the error raised in its place."""
    for note in getattr(error, "__notes__", ()):
        other.add_note(note)


def save_pending(run: RunContext, error: BaseException) -> Task[None]:
    """Save pending States before an error is raised."""
    state = error.state if isinstance(error, ExecutionError) else run.state
    yield from noting(error, "While the run was being stopped", _save_unsaved(run, error, state))
    yield from noting(error, "While the run waited for its last saves", flush(run, state))
    yield from announce_error(run, state, error)


def noting(error: BaseException, when: str, task: Task[_Answer]) -> Task[_Answer | None]:
    """Return the answer of a task, or None after a failure, which becomes a note on an error.

    An exception that ends the program, such as a second KeyboardInterrupt, is raised at once; and so is a
    NewEntriesError: the run does not end.
    """
    try:
        return (yield from task)
    except NewEntriesError:
        raise
    except (Exception, Stopped, StoreFailed) as second:
        error.add_note(f"{when}: {describe_exception(second)}")
        return None


def _save_unsaved(run: RunContext, error: BaseException, state: State) -> Task[None]:
    if isinstance(error, NotSerializableError) and run.plan.saves:
        info = ErrorInfo.of(error, run.path[-1] if run.path else state.checkpoint_node, described(run, error))
        yield from _save_without_chunks(run, recorded(state, status=RunStatus.FAILED, error=info))
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
            yield from _save_without_chunks(run, state)
            raise
    if run.unsaved_parts and run.plan.loads_parts:
        yield (Parts, run.session.save_parts, (state, run.unsaved_parts))


def _save_without_chunks(run: RunContext, last: State) -> Task[None]:
    """Save a State without its pause and chunks, which may be the reason why it cannot be saved.

    If that fails, too, save the newest checkpoint with its end.
    """
    progress = last.progress and last.progress.changed(partial=None)
    try:
        yield from save(run, recorded(last, pause=None, progress=progress))
    except NotSerializableError:
        yield from _end_newest(run, last)


def _end_newest(run: RunContext, last: State, at_least: int = 0) -> Task[State | None]:
    """Save the newest checkpoint again with the end of the run; return it, or None if it is from another run."""
    kept = yield from newest_of(run, last.run_id)
    if kept is None or not at_least <= kept.step <= last.step:
        return None
    return (yield from save(run, recorded(kept, status=last.status, error=last.error)))


# --------------------------------------------------------------------------- nodes that fail


def handle(
    run: RunContext, stage: CompiledNode, step: Any, error: Exception, began_ns: int
) -> Task[tuple[str, dict[str, Any]]]:
    """Return the node that handles the failure of another node, and its data: that before the failure, and the error.

    Raises:
        ExecutionError: no node handles it.
    """
    attempt, name = 1, stage.name
    if step is not None:
        attempt, began_ns = step.attempt, step.began_ns or began_ns
    begin_with_users(error)
    yield from announce_failure(run, name, error, attempt, began_ns)
    check_limits(run, name, error)
    attempts = f" after {attempt} attempts" if attempt > 1 else ""
    failure = failure_at(run, name, f"failed{attempts}: {described(run, error)}", error)
    if attempts:
        info = cast(ErrorInfo, failure.state.error)
        info = attrs.evolve(info, message=f"{info.message} ({attempts.strip()})".lstrip())
        facts = attrs.evolve(failure.state.facts or Facts(), attempts=attempt)
        failure.state = evolve(failure.state, error=info, facts=facts)
    handler = stage.policies.on_error
    if handler is None:
        raise failure from error
    found = cast(ErrorInfo, failure.state.error)
    data = {"error": {"type": found.type, "message": found.message, "node": found.node}}
    return handler, lay_over(data_of(run.state), fitting(run, data, run.state, name))


def failure_at(
    run: RunContext,
    name: str,
    reason: str,
    cause: BaseException | None = None,
    kind: type[ExecutionError] = ExecutionError,
) -> ExecutionError:
    """Return the error for a failed node, or for a node that the engine cannot pass, with the State to save."""
    info = (
        ErrorInfo.said(kind.__name__, reason, name)
        if cause is None
        else ErrorInfo.of(cause, name, described(run, cause))
    )
    path = tuple(run.path) if run.path and run.path[-1] == name else (*run.path, name)[-PATH_LENGTH:]
    return kind(name, recorded(run.state, status=RunStatus.FAILED, error=info), path, reason)


def too_late(run: RunContext) -> ExecutionError:
    """Return the error for a run whose deadline has passed. Resumed, it has none any more."""
    progress = run.state.progress
    deadline = clock.to_datetime(progress.deadline_ns if progress else 0)
    cause = TimeoutError(f"the run had to be complete by {deadline}")
    name = run.path[-1] if run.path else run.state.checkpoint_node or run.plan.entry
    error = failure_at(run, name, f"is where the run was when its deadline passed: {cause}", cause)
    error.state = evolve(error.state, pause=None, progress=evolved(progress, deadline_ns=0))
    error.__cause__ = cause
    return error


def too_many_nodes(run: RunContext, name: str) -> ExecutionError:
    """Return the error for a run that exceeds its limit of nodes."""
    reason = (
        f"is not entered: this call has run {run.plan.max_iterations} nodes (max_iterations) without reaching "
        "an exit point; if that is not an endless loop, raise max_iterations or continue with resume"
    )
    return failure_at(run, name, reason, kind=MaxIterationsError)


def no_way_on(run: RunContext, stage: CompiledNode, no_way: NoWay) -> Task[ExecutionError]:
    """Return the error for a node without a matching edge."""
    yield from announce_entry(run, stage, no_way, "", begins=False)
    cause = no_way.error
    if cause is not None:
        begin_with_users(cause)
        edge = stage.edges[no_way.tried - 1]
        reason = f"cannot be left: the predicate of edge {edge} failed: {described(run, cause)}"
    else:
        reason = f"cannot be left: no edge passes (tried {', '.join(map(str, stage.edges)) or 'none: it has none'})"
    error = failure_at(run, stage.name, reason, cause)
    error.__cause__ = cause
    return error
