"""Calls that first look how a run stands: run, turn, submit, recover and cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import attrs

from stategraph._engine.context import RunContext
from stategraph._engine.failures import failure_at
from stategraph._engine.owning import owning
from stategraph._engine.past import check_not_of_another, newest_of
from stategraph._engine.resume import fitting_saved, renamed, resume_owned
from stategraph._engine.saving import flush, save, take_up
from stategraph._engine.start import admit, begin, id_of
from stategraph._graph.compatibility import check_compatible, off_removed
from stategraph._graph.compiled import CompiledGraph
from stategraph._owners.holds import Hold
from stategraph._protocol.commands import Amend, Load, Save, Task
from stategraph._values.ids import check_given_id
from stategraph._values.progress import evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import (
    AnswerError,
    CheckpointError,
    CheckpointingDisabledError,
    CheckpointNotFoundError,
    ConfigError,
    GraphMismatchError,
    RunBusyError,
    RunCompleteError,
)
from stategraph.state import State, evolve, told, with_data

_WAITS = (RunStatus.PAUSED, RunStatus.CANCELLED)


@attrs.frozen
class Recovered:
    """What came of a run that `StateGraph.recover` has gone on with, or that `StateGraph.run_many` was given.

    Attributes:
        run_id: The run.
        state: The State with which it completed or paused; if there is an error, the last one that the error knows of.
        error: What the run ended with, if it failed.
    """

    run_id: str
    state: State | None
    error: Exception | None = None


# --------------------------------------------------------------------------- run and turn


def run_once(run: RunContext, state: State) -> Task[State]:
    """Run a State, unless its run is there: go on with that, or return how it stands."""
    hold = Hold(id_of(state))
    return owning(run, hold, _run_once(run, hold, state), takes_up=False)


def _run_once(run: RunContext, hold: Hold, state: State) -> Task[State]:
    saved = yield from newest_of(run, state.run_id)
    if saved is None or saved.graph is None:
        if hold.is_cancelled:  # a former run of this id was
            yield from take_up(run, hold)
        return (yield from begin(run, state))
    check_graph(run, saved)
    if hold.is_cancelled and saved.status is RunStatus.ACTIVE:
        saved = yield from cancel_as_told(run, saved)
    if saved.status is RunStatus.COMPLETED or saved.status in _WAITS:
        return saved
    return (yield from resume_owned(run, state.run_id))


def check_graph(run: RunContext, saved: State) -> None:
    """Raise GraphMismatchError if a run is one of another graph."""
    if saved.graph != run.plan.graph:
        change = f"it is a run of graph {saved.graph!r}, not of {run.plan.graph!r}"
        raise GraphMismatchError(saved.run_id, (change,), "Run the State under a run_id of its own.")


def turn(
    run: RunContext,
    run_id: str,
    given: Mapping[str, Any],
    allow_changed: bool,
    migrate: Mapping[str, str],
    *,
    discards_in: Storing | None,
) -> Task[State]:
    """Execute a run with new input, once the turn before is finished; begin the run if there is none.

    Args:
        run: The run.
        run_id: Its id.
        given: The input.
        allow_changed: Whether the turn before is finished though the graph has changed.
        migrate: The new names of nodes, by their old ones.
        discards_in: The store in which a turn before that was cut off is rolled back; None to finish it.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"the input of a turn is a mapping, not {type(given).__name__}")
    check_saves(run.plan)
    if not run.plan.preserve:
        allowed = "true keeps a conversation for its next turn: with false, each turn would begin anew"
        raise ConfigError("checkpoint.preserve", False, allowed)
    task = _turn(run, run_id, given, (allow_changed, migrate), discards_in)
    return owning(run, Hold(check_given_id(run_id)), task)


def _turn(
    run: RunContext,
    run_id: str,
    given: Mapping[str, Any],
    changed: tuple[bool, Mapping[str, str]],
    discards_in: Storing | None,
) -> Task[State]:
    state = yield from newest_of(run, run_id)
    if state is None:
        return (yield from begin(run, State(given, run_id=run_id)))
    check_not_of_another(run, state)
    waits = state.status is RunStatus.PAUSED and off_removed(run.plan, state) is state
    if discards_in is not None and not waits and state.status is not RunStatus.COMPLETED:
        state = yield (Amend, run.services.write, partial(_without_last_turn, discards_in, run_id, run.by))
    elif not waits and state.status not in (RunStatus.COMPLETED, RunStatus.CANCELLED):
        state = yield from resume_owned(_another(run), run_id, *changed)
    if state.status is RunStatus.PAUSED and state.pause is not None:
        raise AnswerError(run_id, state.pause, "a new turn begins once the one before is finished")
    return (yield from begin(run, fitting_saved(run, state, given).update(given), restart=True))


class Storing(Protocol):
    """A store that can roll a run back."""

    def history(self, run_id: str, /) -> Sequence[Any]: ...
    def rollback(self, run_id: str, step: int, revision: int | None, /, *, by: str | None) -> State: ...


def _without_last_turn(store: Storing, run_id: str, by: str | None) -> State:
    """Roll a run back to the end of its last completed turn; return that State, empty if there is none."""
    rows = store.history(run_id)
    newest = rows[-1].step
    for row in reversed(rows):
        if row.status is RunStatus.COMPLETED and row.step <= newest:
            return store.rollback(run_id, row.step, row.revision, by=by)
        if row.kind is Kind.ROLLBACK:  # what came after its step was rolled back before
            newest = min(newest, row.step)
    if rows[0].step or rows[0].kind is not Kind.INPUT:
        reason = 'the end of the turn before is not kept, as it was saved without retention="full"; finish this turn'
        raise CheckpointError(run_id, reason)
    return with_data(store.rollback(run_id, 0, rows[0].revision, by=by), {})


def _another(run: RunContext) -> RunContext:
    """Return the context of another call on the same run, of the same owner."""
    services = run.services.nested(run.plan.graph, run.plan.persist)
    return RunContext(run.plan, services, run.wanted, signal=run.signal)


# --------------------------------------------------------------------------- submit and cancel


def submit(run: RunContext, state: State) -> Task[State]:
    """Save a State as one that is to run; return it as it is saved."""
    check_saves(run.plan)
    return owning(run, Hold(id_of(state), is_brief=True), _submit(run, state))


def _submit(run: RunContext, state: State) -> Task[State]:
    is_new = state.step == 0 and state.graph is None
    state = yield from admit(run, state)
    if is_new and state is not run.found:  # else that is done
        yield from save(run, (Save, run.services.save, state), state)
    yield from flush(run, state)
    return state


def cancel(run: RunContext, run_id: str) -> Task[None]:
    """Cancel a run: at once if nobody is at work on it, else have its owner told."""
    check_saves(run.plan)
    check_given_id(run_id)
    try:
        yield from owning(run, Hold(run_id, is_brief=True), _cancel(run, run_id))
    except RunBusyError:
        yield (Amend, run.services.cancel, (run_id, run.by))
    else:
        return
    try:  # once more: its owner may have let go of it before it could be told
        yield from owning(run, Hold(run_id, is_brief=True), _cancel(run, run_id))
    except (RunBusyError, CheckpointNotFoundError, RunCompleteError):
        return


def _cancel(run: RunContext, run_id: str) -> Task[None]:
    saved: State = yield (Load, run.services.load, run_id)
    check_not_of_another(run, saved)
    if saved.status is RunStatus.COMPLETED:
        raise RunCompleteError(run_id, saved.checkpoint_node)
    if saved.status is not RunStatus.CANCELLED:
        yield from _save_cancelled(run, saved, run.by)


def cancel_as_told(run: RunContext, saved: State) -> Task[State]:
    """Save a run as cancelled by whoever has told so an owner that is gone."""
    by = yield (Load, run.services.cancelled_by, saved.run_id)
    return (yield from _save_cancelled(run, saved, by))


def _save_cancelled(run: RunContext, saved: State, by: str | None) -> Task[State]:
    state = evolve(told(saved, by=by), status=RunStatus.CANCELLED)
    yield from save(run, (Save, run.services.save, state), state)
    yield from flush(run, state)
    return state


def check_saves(plan: CompiledGraph) -> None:
    """Raise CheckpointingDisabledError if a graph saves nothing."""
    if not plan.saves:
        raise CheckpointingDisabledError(plan.graph)


# --------------------------------------------------------------------------- recover


def recover(
    run: RunContext, hold: Hold, max_recoveries: int, allow_changed: bool, migrate: Mapping[str, str]
) -> Task[Recovered | None]:
    """Go on with a run, if it is one that was left unfinished and that nobody owns."""
    check_saves(run.plan)
    try:
        task = go_on(run, hold, max_recoveries, allow_changed, migrate)
        recovered: Recovered | None = yield from owning(run, hold, task, takes_up=False)
    except RunBusyError:
        return None
    except Exception as error:
        return Recovered(hold.run_id, getattr(error, "state", None), error)
    return recovered


def go_on(
    run: RunContext, hold: Hold, max_recoveries: int, allow_changed: bool, migrate: Mapping[str, str]
) -> Task[Recovered | None]:
    """Go on with a run whose owner was lost, and count that; return None if it is not one that goes on by itself."""
    saved = yield from newest_of(run, hold.run_id)
    if saved is None or saved.status is not RunStatus.ACTIVE or saved.graph != run.plan.graph:
        return None
    if hold.is_cancelled:
        yield from cancel_as_told(run, saved)
        return None
    fitting = renamed(run, saved, migrate)
    check_compatible(run.plan, fitting, allow_changed)
    recoveries = saved.progress.recoveries if saved.progress else 0
    # Before the first of these, one was lost whom nobody has counted: that who made the State, if a node did.
    lost = recoveries + 1 if recoveries and saved.checkpoint_node else recoveries
    if lost >= max_recoveries:
        yield from _fail(run, fitting, lost)
    counted = told(evolve(saved, progress=evolved(saved.progress, recoveries=recoveries + 1)), Kind.UPDATE)
    yield from save(run, (Amend, run.services.amend, counted), counted)
    try:
        return Recovered(hold.run_id, (yield from resume_owned(run, hold.run_id, allow_changed, migrate)))
    except CheckpointError:  # the store would not take that either
        raise
    except Exception:
        yield from _forget_recoveries(run, counted)
        raise


def _forget_recoveries(run: RunContext, counted: State) -> Task[None]:
    """Count nothing, for the owner lives, unless the run has been saved again anyhow."""
    newest = yield from newest_of(run, counted.run_id)
    if newest is not None and newest.step == counted.step and newest.progress and newest.progress.recoveries:
        yield (
            Amend,
            run.services.amend,
            told(evolve(newest, progress=evolved(newest.progress, recoveries=0)), Kind.UPDATE),
        )


def _fail(run: RunContext, saved: State, lost: int) -> Task[None]:
    """Fail a run that takes down whoever goes on with it."""
    names = _next_nodes(run.plan, saved)
    run.state = saved
    reason = (
        f"has taken down {lost} owners of the run, one after the other (max_recoveries): the run is failed, and "
        f"recover leaves it alone; resume({saved.run_id!r}) goes on with it"
    )
    if len(names) > 1:
        reason = f"or another one after {saved.checkpoint_node!r} ({', '.join(names[1:])}) {reason}"
    failure = failure_at(run, names[0], reason)
    failure.state = evolve(failure.state, progress=evolved(saved.progress, recoveries=0))
    yield from save(run, (Save, run.services.save, failure.state), failure.state)
    yield from flush(run, failure.state)
    raise failure


def _next_nodes(plan: CompiledGraph, saved: State) -> list[str]:
    """Return the nodes that may come next. No predicate is asked: it may be what takes the process down."""
    if saved.progress and saved.progress.next_node:
        return [saved.progress.next_node]
    if not saved.checkpoint_node:
        return [plan.entry]
    return list(dict.fromkeys(edge.target for edge in plan.stages[saved.checkpoint_node].edges)) or [
        saved.checkpoint_node
    ]
