"""Resuming a run from where it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stategraph._engine.context import NOTHING_GIVEN, RunContext, fitting
from stategraph._engine.loop import run_from
from stategraph._engine.owning import owning
from stategraph._engine.past import with_all_keys
from stategraph._engine.saving import emit, save
from stategraph._engine.start import stamped, with_origins
from stategraph._graph.compatibility import check_compatible, off_removed
from stategraph._graph.compiled import CompiledNode
from stategraph._owners.holds import Hold
from stategraph._progress.answers import awaited
from stategraph._protocol.commands import Amend, Load, Save, Task
from stategraph._text.shown import shorten
from stategraph._values import clock
from stategraph._values.events import EventType
from stategraph._values.frozen import changed_items, lay_over
from stategraph._values.ids import check_given_id
from stategraph._values.progress import evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import CheckpointingDisabledError, SchemaError
from stategraph.state import State, data_of, evolve, told, with_data

if TYPE_CHECKING:
    from stategraph._values.progress import Pause


def resume_with(
    run: RunContext,
    run_id: str,
    updates: Mapping[str, Any] | None,
    allow_changed: bool,
    migrate: Mapping[str, str] | None,
    pause: Pause | str | None = None,
) -> Task[State]:
    """Return the task that resumes a run as a user asks for it. Raises TypeError if something is of a wrong type."""
    if updates is not None and not isinstance(updates, Mapping):
        raise TypeError(f"updates are a mapping, not {type(updates).__name__}")
    return resume(run, run_id, updates or {}, *checked_changes(allow_changed, migrate), _id_of(pause))


def checked_changes(allow_changed: object, migrate: Mapping[str, str] | None) -> tuple[bool, Mapping[str, str]]:
    """Return how a call goes on with a run of a graph that has changed. Raises TypeError if that is of a wrong type."""
    if not isinstance(allow_changed, bool):
        raise TypeError(f"allow_changed is True or False, not {shorten(allow_changed)}")
    if migrate is not None and not isinstance(migrate, Mapping):
        raise TypeError(f"migrate is a mapping of old names to new ones, not {type(migrate).__name__}")
    wrong = [name for pair in (migrate or {}).items() for name in pair if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"migrate: {shorten(wrong[0])} is not allowed; names of nodes are")
    return allow_changed, migrate or {}


def _id_of(pause: Pause | str | None) -> str | None:
    """Return the id of the pause that is to be answered, None for whichever there is."""
    found = pause if pause is None or isinstance(pause, str) else getattr(pause, "id", None)
    if pause is not None and (not isinstance(found, str) or not found):
        raise TypeError(f"pause is State.pause of a run that waits, or its id, not {shorten(pause)}")
    return found


def resume(
    run: RunContext,
    run_id: str,
    updates: Mapping[str, Any],
    allow_changed: bool,
    migrate: Mapping[str, str] = NOTHING_GIVEN,
    pause_id: str | None = None,
) -> Task[State]:
    """Run on from the newest saved State of a run, with its data updated."""
    check_given_id(run_id)
    if not run.plan.saves:
        raise CheckpointingDisabledError(run.plan.graph)
    task = revived(run, run_id, updates, allow_changed, migrate, pause_id)
    owned = owning(run, Hold(run_id), task, then_runs=True)
    return _taking_over(run, run_id, updates, allow_changed, migrate, owned) if run.takes_over else owned


def _taking_over(
    run: RunContext,
    run_id: str,
    updates: Mapping[str, Any],
    allow_changed: bool,
    migrate: Mapping[str, str],
    task: Task[State],
) -> Task[State]:
    """Do a task that takes a run from its owner, if the run can go on here: else its owner is to keep it."""
    saved = yield (Load, run.services.load, run_id)
    check_compatible(run.plan, renamed(run, saved, migrate), allow_changed)
    fitting_saved(run, saved, updates)
    return (yield from task)


def resume_owned(
    run: RunContext, run_id: str, allow_changed: bool = False, migrate: Mapping[str, str] = NOTHING_GIVEN
) -> Task[State]:
    """Do what `resume` does, as the owner of the run."""
    return (yield from run_from(run, (yield from revived(run, run_id, NOTHING_GIVEN, allow_changed, migrate))))


def revived(
    run: RunContext,
    run_id: str,
    updates: Mapping[str, Any] = NOTHING_GIVEN,
    allow_changed: bool = False,
    migrate: Mapping[str, str] = NOTHING_GIVEN,
    pause_id: str | None = None,
    *,
    turn: int = 0,
) -> Task[CompiledNode | None]:
    """Make the newest saved State of a run the State of the call; return the node that it stands after.

    Args:
        run: The call.
        run_id: The run.
        updates: Laid over its data.
        allow_changed: Go on even if the graph has changed.
        migrate: New names of nodes by their old ones.
        pause_id: The id of the pause that is answered, if that is said.
        turn: The number of the turn that is taken up, if turns are counted: it is saved with what is changed.
    """
    began = clock.monotonic_ns()
    loaded = yield (Load, run.services.load, run_id)
    yield from emit(run, EventType.CHECKPOINT_LOAD, loaded, began)
    if pause_id is not None or (updates and (loaded.pause is not None or loaded.progress is not None)):
        from stategraph._engine.answering import check_answers  # imported when used: few runs pause

        check_answers(loaded, updates, pause_id, run.waits_since)
    run.allow_changed = allow_changed
    saved = renamed(run, loaded, migrate)
    check_compatible(run.plan, saved, allow_changed)
    is_same = saved is loaded and not migrate and not turn
    if turn:
        saved = evolve(saved, progress=evolved(saved.progress, turn=turn))
    if saved.pause is not None and saved.pause.others:
        from stategraph._engine.answering import to_be_answered

        saved = to_be_answered(saved, updates, pause_id)
    return (yield from revive(run, saved, updates, is_same=is_same))


def renamed(run: RunContext, saved: State, migrate: Mapping[str, str]) -> State:
    """Return a saved State with its nodes renamed, and away from a node that the graph says was removed.

    The new names for nested graphs are kept in the run.
    """
    run.renamed_nested = {}
    if not migrate:
        return off_removed(run.plan, saved)
    from stategraph._graph.renaming import migrate_state, split_migration  # imported when used

    own, run.renamed_nested = split_migration(migrate, run.plan)
    return off_removed(run.plan, migrate_state(saved, own, run.plan))


def fitting_saved(run: RunContext, saved: State, updates: Mapping[str, Any]) -> State:
    """Return a saved State as the schema of the graph wants it, but for the keys that updates are to replace.

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
    """Make a saved State the State of the run, durably if it changes; return the node that it stands after.

    Args:
        run: The run.
        saved: The State.
        updates: Laid over its data.
        inputs: What the run began with, where that is known.
        is_same: Whether it is as it was saved.
    """
    saved = fitting_saved(run, saved, updates)
    step, pause, asked = saved.step, saved.pause, awaited(saved)
    if saved.status is RunStatus.PAUSED or (saved.status is RunStatus.CANCELLED and saved.pause is not None):
        from stategraph._engine.pauses import take_answer  # imported when used: few runs pause

        saved, updates = yield from take_answer(run, saved, updates)
        is_same = False
    elif saved.pause is not None or saved.progress is not None:
        from stategraph._engine.pauses import take_answer_of_fork

        updates = yield from take_answer_of_fork(run, saved, updates)
    saved = _open_to_answers(saved, updates)
    updates = fitting(run, updates, saved)
    all_keys, changes = yield from with_all_keys(run, saved, updates, inputs)
    data = lay_over(data_of(all_keys), changes)
    if run.plan.persist is not None:  # those that are not saved come again
        unsaved = {key: value for key, value in run.plan.defaults.items() if key not in run.plan.persist}
        data = lay_over(unsaved, data)
    state = with_origins(run, stamped(run, with_data(all_keys, data)), all_keys, changes.keys())
    run.state = _noting_replaced(run, state, data_of(all_keys)) if changes else state
    run.has_joined_parts = run.plan.loads_parts  # perhaps: whoever made this State may not have come to drop them
    amends = saved.step == step
    if amends:
        is_answer = asked is not None and (asked is pause or asked.response_param in updates)
        run.state = told(run.state, Kind.ANSWER if is_answer else Kind.UPDATE, run.by)
    if is_same and not updates:
        run.found = run.state
        if saved.status is RunStatus.ACTIVE and saved.structure == run.state.structure:
            run.saved = run.state  # as it is: nothing is to be told of it
    else:
        command = (Amend, run.services.amend, run.state) if amends else (Save, run.services.save, run.state)
        yield from save(run, command, run.state)
    yield from emit(run, EventType.CHECKPOINT_RESUME, run.state)
    return run.plan.stages.get(saved.checkpoint_node)


def _noting_replaced(run: RunContext, state: State, before: dict[str, Any]) -> State:
    """Return the State with the values that were replaced, if there may be nested runs that know only the old ones.

    What was noted by an earlier resume stays, for nested runs may not have been given that either.
    """
    if not run.plan.loads_parts:
        return state
    from stategraph._values.sameness import differing_items  # imported when used: where runs may be nested

    persist = run.plan.persist
    values = before if persist is None else {key: value for key, value in before.items() if key in persist}
    given = differing_items(before, data_of(state))
    replaced = {key: (values[key],) if key in values else () for key in given}
    earlier = state.progress.replaced if state.progress else {}
    return evolve(state, progress=evolved(state.progress, replaced={**replaced, **earlier}))


def _open_to_answers(saved: State, updates: Mapping[str, Any]) -> State:
    """Return the State with the given keys as possible answers again."""
    progress = saved.progress
    if progress is None or progress.answered.isdisjoint(updates):
        return saved
    return evolve(saved, progress=evolved(progress, answered=progress.answered - updates.keys()))
