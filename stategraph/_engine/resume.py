"""Resuming a run from its saved State."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stategraph._engine.context import NOTHING_GIVEN, RunContext, fitting
from stategraph._engine.events import emit
from stategraph._engine.loop import run_from
from stategraph._engine.pauses import check_answers, take_answer, take_answer_of_fork, to_be_answered
from stategraph._engine.saving import amend, check_saves, owning, save
from stategraph._engine.start import stamped, with_all_keys, with_origins
from stategraph._graph.changed import check_compatible, off_removed
from stategraph._graph.compiled import CompiledNode
from stategraph._owners.base import Ownership
from stategraph._progress.answers import awaited
from stategraph._protocol.commands import Load, Task
from stategraph._text.shown import shorten
from stategraph._values import clock
from stategraph._values.events import EventType
from stategraph._values.frozen import changed_items, lay_over
from stategraph._values.ids import check_given_id
from stategraph._values.progress import evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import SchemaError
from stategraph.state import State, data_of, evolve, told, with_data

if TYPE_CHECKING:
    from stategraph._values.progress import Pause


def resume(
    run: RunContext, run_id: str, updates: Mapping[str, Any] | None = None, pause: Pause | str | None = None
) -> Task[State]:
    """Resume a run from its newest saved State with updated data.

    Args:
        run: The call.
        run_id: The run.
        updates: Values that replace data of the run.
        pause: The pause to answer, or its id, if given.

    Raises:
        TypeError: an argument is of a wrong type.
    """
    if updates is not None and not isinstance(updates, Mapping):
        raise TypeError(f"updates are a mapping, not {type(updates).__name__}")
    pause_id = pause if pause is None or isinstance(pause, str) else getattr(pause, "id", None)
    if pause is not None and (not isinstance(pause_id, str) or not pause_id):
        raise TypeError(f"pause is State.pause of a run that waits, or its id, not {shorten(pause)}")
    check_given_id(run_id)
    check_saves(run.plan)
    owned = owning(run, Ownership(run_id), resume_owned(run, run_id, updates or {}, pause_id))
    return _taking_over(run, run_id, updates or {}, owned) if run.takes_over else owned


def _taking_over(run: RunContext, run_id: str, updates: Mapping[str, Any], task: Task[State]) -> Task[State]:
    """Run a task that takes over a run, after checking that the run can continue here: otherwise its owner keeps it."""
    saved = yield (Load, run.services.load, run_id)
    check_compatible(run.plan, renamed(run, saved, run.migrate), run.allow_changed)
    fitting_saved(run, saved, updates)
    return (yield from task)


def resume_owned(
    run: RunContext,
    run_id: str,
    updates: Mapping[str, Any] = NOTHING_GIVEN,
    pause_id: str | None = None,
    *,
    turn: int = 0,
) -> Task[State]:
    """Do what `resume` does, as the owner of the run.

    `turn` is the number of the turn that begins; it is saved with the other changes.
    """
    began = clock.monotonic_ns()
    loaded = yield (Load, run.services.load, run_id)
    yield from emit(run, EventType.CHECKPOINT_LOAD, loaded, began)
    if pause_id is not None or updates:
        check_answers(loaded, updates, pause_id, run.waits_since)
    saved = renamed(run, loaded, run.migrate)
    check_compatible(run.plan, saved, run.allow_changed)
    is_same = saved is loaded and not run.migrate and not turn
    if turn:
        saved = evolve(saved, progress=evolved(saved.progress, turn=turn))
    if saved.pause is not None and saved.pause.others:
        saved = to_be_answered(saved, updates, pause_id)
    return (yield from run_from(run, (yield from revive(run, saved, updates, is_same=is_same))))


def renamed(run: RunContext, saved: State, migrate: Mapping[str, str]) -> State:
    """Return a saved State with its nodes renamed, moved away from a node that the graph lists as removed.

    Remember the new names for nested graphs in the run.
    """
    run.renamed_nested = {}
    if not migrate:
        return off_removed(run.plan, saved)
    from stategraph._graph.changed import migrate_state, split_migration  # imported when used

    own, run.renamed_nested = split_migration(migrate, run.plan)
    return off_removed(run.plan, migrate_state(saved, own, run.plan))


def fitting_saved(run: RunContext, saved: State, updates: Mapping[str, Any]) -> State:
    """Validate a saved State against the schema of the graph, except keys that updates replace, and return it.

    Raises:
        SchemaError: it does not fit; the error names the run and the step.
    """
    if run.plan.schema is None:
        return saved
    kept = {key: value for key, value in data_of(saved).items() if key not in updates}
    try:
        made = fitting(run, kept, {})
    except SchemaError as error:
        error.run_id, error.step = saved.run_id, saved.step
        raise
    changed = changed_items(kept, made)
    return with_data(saved, lay_over(data_of(saved), changed)) if changed else saved


def revive(
    run: RunContext,
    saved: State,
    updates: Mapping[str, Any],
    inputs: Mapping[str, Any] = NOTHING_GIVEN,
    *,
    is_same: bool,
) -> Task[CompiledNode | None]:
    """Make a saved State the State of the run, durably if it changes; return the last completed node.

    Args:
        run: The run.
        saved: The State.
        updates: Values that replace its data.
        inputs: The input of the run, if known.
        is_same: Whether the State is unchanged since it was saved.
    """
    saved = fitting_saved(run, saved, updates)
    step, pause, asked = saved.step, saved.pause, awaited(saved)
    if saved.status is RunStatus.PAUSED or (saved.status is RunStatus.CANCELLED and pause is not None):
        saved, updates = yield from take_answer(run, saved, updates)
        is_same = False
    else:
        updates = yield from take_answer_of_fork(run, saved, updates)
    progress = saved.progress
    if progress is not None and not progress.answered.isdisjoint(updates):  # new values may answer again
        saved = evolve(saved, progress=evolved(progress, answered=progress.answered - updates.keys()))
    updates = fitting(run, updates, saved)
    all_keys, changes = yield from with_all_keys(run, saved, updates, inputs)
    data = lay_over(data_of(all_keys), changes)
    if run.plan.persist is not None:  # keys that are not saved get their defaults again
        unsaved = {key: value for key, value in run.plan.defaults.items() if key not in run.plan.persist}
        data = lay_over(unsaved, data)
    state = with_origins(run, stamped(run, with_data(all_keys, data)), all_keys, changes.keys())
    run.state = _noting_replaced(run, state, data_of(all_keys)) if changes else state
    run.has_joined_parts = run.plan.loads_parts  # possibly: an earlier call may have crashed before
    amends = saved.step == step
    if amends:
        is_answer = asked is not None and (asked is pause or asked.response_param in updates)
        run.state = told(run.state, Kind.ANSWER if is_answer else Kind.UPDATE, run.by)
    if is_same and not updates:
        run.found = run.state
        if saved.status is RunStatus.ACTIVE and saved.structure == run.state.structure:
            run.saved = run.state  # unchanged: there is nothing to report
    else:
        yield from (amend if amends else save)(run, run.state)
    yield from emit(run, EventType.CHECKPOINT_RESUME, run.state)
    return run.plan.stages.get(saved.checkpoint_node)


def _noting_replaced(run: RunContext, state: State, before: dict[str, Any]) -> State:
    """Record the replaced values in the State, if there may be nested runs that know only the old ones.

    Records of an earlier resume stay: nested runs may not have received those updates either.
    """
    if not run.plan.loads_parts:
        return state
    from stategraph._values.sameness import differing_items  # imported when used: for graphs with nested runs

    persist = run.plan.persist
    values = before if persist is None else {key: value for key, value in before.items() if key in persist}
    given = differing_items(before, data_of(state))
    replaced = {key: (values[key],) if key in values else () for key in given}
    earlier = state.progress.replaced if state.progress else {}
    return evolve(state, progress=evolved(state.progress, replaced={**replaced, **earlier}))
