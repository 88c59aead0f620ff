"""Nodes that fail, and runs that end before their time: the error to raise."""

from __future__ import annotations

from typing import Any, cast

import attrs

from stategraph._engine.context import PATH_LENGTH, RunContext, fitting
from stategraph._engine.rescue import rescue, with_notes
from stategraph._engine.saving import emit
from stategraph._graph.compiled import CompiledNode
from stategraph._protocol.commands import CannotAwait, Escaped, Stopped, StoreFailed, Task
from stategraph._text.shown import describe_exception
from stategraph._util.tracebacks import begin_with_users
from stategraph._values.events import EventType
from stategraph._values.frozen import lay_over
from stategraph._values.provenance import ErrorInfo, Facts, RunStatus
from stategraph.edges import NoWay
from stategraph.errors import ExecutionError, MaxIterationsError, RunCancelledError, StateGraphError
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
        from stategraph._engine.cancelled import end_cancelled  # imported when used: few runs are cancelled

        yield from end_cancelled(run, error)
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
        begin_with_users(cause)
        edge = stage.edges[no_way.tried - 1]
        reason = f"cannot be left: the predicate of edge {edge} failed: {describe_exception(cause)}"
    else:
        reason = f"cannot be left: no edge passes (tried {', '.join(map(str, stage.edges)) or 'none: it has none'})"
    error = failure_at(run, stage.name, reason, cause)
    error.__cause__ = cause
    return error


def handle(
    run: RunContext, stage: CompiledNode, step: Any, error: Exception, began_ns: int
) -> Task[tuple[str, dict[str, Any]]]:
    """Return the node that handles the failure of another one, and the data that it finds; raise if there is none."""
    state, name, attempt = run.state, stage.name, 1 if step is None else step.attempt
    begin_with_users(error)
    if EventType.NODE_ERROR in run.wanted:
        from stategraph._engine.announce import announce_failure  # imported when used: it is there since the run began

        yield from announce_failure(run, name, error, attempt, began_ns if step is None else step.began_ns or began_ns)
    failure, handler = _node_failure(run, name, attempt, error), stage.policies.on_error
    if handler is None:
        raise failure from error
    return handler, handled_data(run, failure, state, name)


def _node_failure(run: RunContext, name: str, attempt: int, error: Exception) -> ExecutionError:
    """Return the error for a node that failed, the last time in this attempt."""
    attempts = f" after {attempt} attempts" if attempt > 1 else ""
    hint = ""
    if type(error) is KeyError:
        from stategraph._engine.hints import keys_at  # imported when used

        hint = keys_at(run.state, error)
    failure = failure_at(run, name, f"failed{attempts}: {describe_exception(error)}{hint}", error)
    if attempts:
        info = cast(ErrorInfo, failure.state.error)
        told = attrs.evolve(info, message=f"{info.message} ({attempts.strip()})".lstrip())
        failure.state = evolve(failure.state, error=told, facts=Facts(attempts=attempt))
    return failure


def failure_at(
    run: RunContext, name: str, reason: str, cause: Exception | None = None, kind: type[ExecutionError] = ExecutionError
) -> ExecutionError:
    """Return the error for a node that failed, or that the engine could not go on at, with the State to be kept."""
    info = ErrorInfo.said(kind.__name__, reason, name) if cause is None else ErrorInfo.of(cause, name)
    path = tuple(run.path) if run.path and run.path[-1] == name else (*run.path, name)[-PATH_LENGTH:]
    return kind(name, evolve(told(run.state), status=RunStatus.FAILED, error=info), path, reason)


def handled_data(run: RunContext, failure: ExecutionError, before: State, name: str) -> dict[str, Any]:
    """Return the data that a handler finds of a node that has failed: those before it, and the error."""
    error = cast(ErrorInfo, failure.state.error)
    data = {"error": {"type": error.type, "message": error.message, "node": error.node}}
    return lay_over(data_of(before), fitting(run, data, before, name))
