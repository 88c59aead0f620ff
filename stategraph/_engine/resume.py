"""Resuming a run from its saved State."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import attrs

from stategraph._engine.answers import check_answer, check_answers, take_answer, take_answer_of_fork, to_be_answered
from stategraph._engine.context import NOTHING_GIVEN, RunContext, emit, fitting, kept_at, with_origins
from stategraph._engine.ending import save_pending, too_late
from stategraph._engine.inbox import answered_before, stored_answers, unread, updates_of
from stategraph._engine.loop import prepared, run_from, with_all_keys
from stategraph._engine.owning import owning_saved
from stategraph._engine.saving import amend, save
from stategraph._engine.spending import recall
from stategraph._engine.step import digest_of_part
from stategraph._graph.changed import (
    began_elsewhere,
    carried_over,
    check_compatible,
    nodes_under_way,
    other_module,
    split_migration,
)
from stategraph._graph.compiled import CompiledGraph, CompiledNode
from stategraph._graph.versions import upgraded_data, version_of
from stategraph._owners.base import NewEntriesError
from stategraph._progress import awaited, is_late, old_values, without_answers
from stategraph._protocol import Load, Parts, Task
from stategraph._text.shown import shorten
from stategraph._values import clock
from stategraph._values.entries import Entry
from stategraph._values.events import EventType
from stategraph._values.frozen import lay_over
from stategraph._values.progress import PERSON, Pause, evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph._values.registered_types import Older, as_stored
from stategraph._values.sameness import differing_items
from stategraph.errors import AnswerError, ExecutionError, GraphMismatchError, SchemaError
from stategraph.state import State, data_of, evolve, recorded, taken_of, with_data


def resume(
    run: RunContext,
    run_id: str,
    updates: Mapping[str, Any] | None = None,
    pause: Pause | str | None = None,
    redo: Sequence[str] = (),
) -> Task[State]:
    """Resume a run from its newest saved State with updated data.

    Args:
        run: The call.
        run_id: The run.
        updates: Values that replace data of the run.
        pause: The pause to answer, or its id, if given.
        redo: The parts of the step under way that are done again.

    Raises:
        TypeError: an argument is of a wrong type.
    """
    if updates is not None and not isinstance(updates, Mapping):
        raise TypeError(f"updates are a mapping of keys to values, not {type(updates).__name__}: {{'key': value}}")
    pause_id = pause if pause is None or isinstance(pause, str) else getattr(pause, "id", None)
    if pause is not None and (not isinstance(pause_id, str) or not pause_id):
        raise TypeError(f"pause is State.pause of a run that waits, or its id, not {shorten(pause)}")
    run.redo = redo
    owned = owning_saved(run, run_id, resume_owned(run, run_id, updates or {}, pause_id))
    return _taking_over(run, run_id, updates or {}, owned) if run.takes_over else owned


def _taking_over(run: RunContext, run_id: str, updates: Mapping[str, Any], task: Task[State]) -> Task[State]:
    """Run a task that takes over a run, after checking that the run can continue here: otherwise its owner keeps it."""
    saved = yield (Load, run.session.load, run_id)
    fitting_saved(run, (yield from compatible(run, saved)), updates)
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
    while True:
        try:
            stage = yield from _revived(run, run_id, updates, pause_id, turn)
        except NewEntriesError:  # while this was decided: perhaps an answer
            continue
        state = yield from run_from(run, stage)
        if state.status is not RunStatus.PAUSED or run.session.inbox <= taken_of(state):
            return state
        updates, pause_id, turn = NOTHING_GIVEN, None, 0  # an answer to another pause of the same step may be there
        if not stored_answers(state, (yield from unread(run, state))):
            return state


def _revived(
    run: RunContext, run_id: str, updates: Mapping[str, Any], pause_id: str | None, turn: int
) -> Task[CompiledNode | None]:
    """Make the saved State of a run the State of the call, with the updates and what its inbox has for it."""
    began = clock.monotonic_ns()
    loaded = yield (Load, run.session.load, run_id)
    yield from emit(run, EventType.CHECKPOINT_LOAD, loaded, began)
    if is_late(loaded):
        run.state = run.saved = loaded
        failure = too_late(run)
        yield from save_pending(run, failure)
        raise failure
    if pause_id is not None or updates:
        check_answers(loaded, updates, pause_id, run.waits_since)
    entries = yield from unread(run, loaded)
    saved = yield from compatible(run, loaded)
    pauses, stored = loaded.pause.each if loaded.pause else (), stored_answers(loaded, entries)
    own = [pause.id for pause in pauses if pause.response_param in updates] if pause_id is None else [pause_id]
    given = next((entry for entry in stored if not own or entry.place in own), None)
    if stored:  # the others may answer other pauses of the step
        entries = entries[: entries.index(stored[0]) + (given is stored[0])]
    if given is not None:
        given, updates, pause_id = yield from _with_stored_answer(run, saved, given, updates, pause_id)
    run.answered = given
    if entries and run.plan.loads_parts and (yield (Load, run.session.has_parts, run_id)):
        entries = []  # they are taken in after the step: its parts, and effects in them, would be done again
    is_same = saved is loaded and not run.migrate and not turn and not entries
    author, run.state = (run.by if given is None else given.by), saved
    if entries:
        try:
            messages, by = updates_of(run, saved, entries)
        except ExecutionError as failure:
            if saved.pause is None:
                yield from save_pending(run, failure)
            raise
        asked_for = {pause.response_param for pause in (*pauses, *(saved.pause.each if saved.pause else ()))}
        updates = {**{key: value for key, value in messages.items() if key not in asked_for}, **updates}
        author = author if given is not None else run.by or by
    if turn:
        saved = evolve(saved, progress=evolved(saved.progress, turn=turn))
    if saved.pause is not None and saved.pause.others:
        saved = to_be_answered(saved, updates, pause_id)
    yield from recall(run, loaded)
    run.session.refuse_new_entries(loaded.pause is not None)  # only a pause is decided: messages may keep coming
    try:
        taken = entries[-1].seq if entries else 0
        return (yield from revive(run, saved, updates, is_same=is_same, by=author, taken=taken))
    finally:
        run.session.refuse_new_entries(False)


def _with_stored_answer(
    run: RunContext, saved: State, entry: Entry, updates: Mapping[str, Any], pause_id: str | None
) -> Task[tuple[Entry, Mapping[str, Any], str]]:
    """Return a stored answer, the updates of a resume with it, and the id of the pause that it answers.

    An answer of the call itself takes the place of one that the graph refuses by now, as if given at the same time.

    Raises:
        AnswerError: The call answers the same pause, and the stored answer fits: an answer counts once.
    """
    pause = next(pause for pause in cast(Pause, saved.pause).each if pause.id == entry.place)
    key = pause.response_param
    if pause_id == entry.place or key in updates:
        try:
            yield from check_answer(run, saved, pause, entry.value[0], (entry.by, entry.at_ns, PERSON))
        except AnswerError:
            if key is None or key not in updates:
                raise
            entry = attrs.evolve(entry, value=[updates[key], None], by=run.by)
        else:
            raise answered_before(saved.run_id, entry)
    return entry, (updates if key is None else {**updates, key: entry.value[0]}), entry.place


def compatible(run: RunContext, saved: State) -> Task[State]:
    """Return a saved State for the graph of the run: with its nodes renamed, and not at a node listed as removed.

    Remember the new names for nested graphs in the run.

    Raises:
        RunCompleteError, GraphMismatchError: The State cannot continue in the graph, or parts of the step under way are
            done that it has no use for.
    """
    own, run.renamed_nested = split_migration(run.migrate, run.plan)
    loaded, (saved, lost) = saved, carried_over(run.plan, saved, own)
    check_compatible(run.plan, saved, run.allow_changed, run.nested_path)
    module = "" if run.outer_step is not None else other_module(run.plan, saved)
    if module:
        warnings.warn(f"run {saved.run_id!r} goes on, but {began_elsewhere(run.plan, module)}", stacklevel=2)
    done: list[str] = []
    for node, at in {} if run.abandon_parts else lost.items():
        parts = yield (Load, run.session.done_at, (saved, at))
        done += [f"parts of node {run.nested_path + node!r} are done: {', '.join(parts)}"] if parts else []
    if version_of(loaded) != version_of(saved):
        if not run.abandon_parts:
            done += yield from _not_upgraded(run, loaded, saved)
        saved = _keeping_digests(run, loaded, saved)
    if done:
        way_out = "Finish it with the graph that began it; or resume it with abandon_parts=True, which gives them up"
        raise GraphMismatchError(saved.run_id, tuple(done), way_out)
    return saved


def _not_upgraded(run: RunContext, loaded: State, saved: State) -> Task[list[str]]:
    """Describe finished parts of the step under way, and nested runs, that an upgrade does not reach.

    The data of a part are not in the State yet: they stay as they are if the upgrade leaves them so. A nested run has
    the data of the State that it began with, and is upgraded by its own graph.
    """
    plan, found = run.plan, list[str]()
    kept = saved.progress.kept_names if saved.progress else ()
    for name in dict.fromkeys((*kept, *nodes_under_way(saved, saved.structure or plan.structure))):
        stage = plan.stages.get(name)
        if stage is None or not stage.node.has_parts or not run.plan.loads_parts:
            continue
        at, node = kept_at(name, saved), cast(Any, stage.node)
        parts: Mapping[str, Any] = yield (Load, run.session.load_parts, (saved.run_id, *at, "part"))
        if parts and not getattr(node, "has_branches", False):
            (into,) = node.part_writes(None)
            parts = {", ".join(parts): {"set": {into: [*parts.values()]}}}
        for label, value in parts.items():
            if not _is_neutral(plan, loaded, data_of(saved), value["set"]):
                found.append(f"part {label} of node {run.nested_path + name!r} is done, in an older form")
        versions = {graph.plan().structure.version for graph in node.graphs}
        changes = versions and _changes_input(node, loaded, saved)
        for run_id in (yield (Load, run.session.nested_at, (saved, at))) if changes else ():
            state: State | None = yield (Load, run.session.find, run_id)
            if state is not None and version_of(state) in versions:
                found.append(f"nested run {run_id!r} has data in an older form, and its graph no upgrade of its own")
    return found


def _changes_input(node: Any, loaded: State, saved: State) -> bool:
    """Return whether an upgrade changes the data with which graphs of a node begin."""
    if hasattr(node, "over"):
        return saved.get(node.over) not in loaded.values()
    try:
        return any(graph.given(loaded) != graph.given(saved) for graph in node.graphs)
    except Exception:  # of a function of the user, which knows only one of the forms
        return True


def _is_neutral(plan: CompiledGraph, loaded: State, after: Mapping[str, Any], updates: Mapping[str, Any]) -> bool:
    """Return whether an upgrade of the data leaves these updates of them as they are."""
    try:
        both = upgraded_data(plan, loaded, {**data_of(loaded), **updates})
    except GraphMismatchError:
        return False
    wanted = {**after, **updates}
    return both.keys() == wanted.keys() and not differing_items(both, wanted)


def fitting_saved(run: RunContext, saved: State, updates: Mapping[str, Any]) -> State:
    """Validate a saved State against the schema of the graph, except keys that updates replace, and return it.

    Raises:
        SchemaError: it does not fit; the error names the run and the step.
    """
    if run.plan.schema is None:
        return saved
    kept = {key: value for key, value in data_of(saved).items() if key not in updates}
    try:
        checked = fitting(run, kept, {})
    except SchemaError as error:
        error.run_id, error.step = saved.run_id, saved.step
        raise
    changed = differing_items(kept, checked)
    return with_data(saved, lay_over(data_of(saved), changed)) if changed else saved


def revive(
    run: RunContext,
    saved: State,
    updates: Mapping[str, Any],
    inputs: Mapping[str, Any] = NOTHING_GIVEN,
    *,
    is_same: bool,
    by: str | None = None,
    taken: int = 0,
) -> Task[CompiledNode | None]:
    """Make a saved State the State of the run, durably if it changes; return the last completed node.

    Args:
        run: The run.
        saved: The State.
        updates: Values that replace its data.
        inputs: The input of the run, if known.
        is_same: Whether the State is unchanged since it was saved.
        by: The author of the updates, if known.
        taken: The number of the newest entry of the inbox that the updates take in; 0 if they take in none.
    """
    run.effects.clear()  # an answer may have changed them
    if saved.error is not None:
        run.failures[saved.step, saved.error.node, ""] = saved.error
    stored, saved = saved, fitting_saved(run, saved, updates)
    is_same = is_same and saved is stored
    saved = _keeping_digests(run, stored, saved)
    step, pause, question = saved.step, saved.pause, awaited(saved)
    if saved.status is RunStatus.PAUSED or (saved.status is RunStatus.CANCELLED and pause is not None):
        saved, updates = yield from take_answer(run, saved, updates)
        is_same = False
    else:
        saved, updates = yield from take_answer_of_fork(run, saved, updates)
    progress = saved.progress
    if progress is not None and not progress.answered.isdisjoint(updates):  # new values may answer again
        saved = evolve(saved, progress=evolved(progress, answered=progress.answered - updates.keys()))
    if taken:  # not before: a run that fails above has taken in nothing
        saved = evolve(saved, progress=evolved(saved.progress, taken=taken))
    updates = fitting(run, updates, saved)
    all_keys, changes = yield from with_all_keys(run, saved, updates, inputs)
    data = lay_over(data_of(all_keys), changes)
    if run.plan.persist is not None:  # keys that are not saved get their defaults again
        data = lay_over(run.plan.unsaved_defaults, data)
    state = with_origins(run, prepared(run, with_data(all_keys, data)), all_keys, changes.keys())
    run.state = _noting_replaced(run, state, data_of(all_keys)) if changes else state
    # Possibly: an earlier call may have crashed before, or the graph has no use for them any more.
    run.has_joined_parts = run.plan.loads_parts or run.abandon_parts
    amends = saved.step == step
    if amends:
        is_answer = question is not None and (question is pause or question.response_param in updates)
        run.state = recorded(run.state, Kind.ANSWER if is_answer else Kind.UPDATE, by)
    if run.redo:  # not before: a resume that is refused does nothing again
        yield (Parts, run.session.redo, (state.run_id, run.redo, run.repeat_effects))
        run.redo = ()
    if is_same and not updates:
        run.found = run.state
        if saved.status is RunStatus.ACTIVE and saved.structure == run.state.structure:
            run.saved = run.state  # unchanged: there is nothing to report
    else:
        yield from (amend if amends else save)(run, run.state)
    yield from emit(run, EventType.CHECKPOINT_RESUME, run.state)
    return run.plan.stages.get(saved.checkpoint_node)


def _keeping_digests(run: RunContext, stored: State, saved: State) -> State:
    """Record under which digests finished parts of the current step are kept whose inputs were converted since."""
    older: Older = getattr(run.session, "older", {})  # a session that only saves and loads notes none
    if not run.plan.loads_parts or (saved is stored and not older):
        return saved
    kept = known = saved.progress.kept_digests if saved.progress else {}
    inputs = [*_inputs_of_parts(data_of(without_answers(stored)), data_of(without_answers(saved)))]
    with as_stored(older):
        olds = [digest_of_part(run, saved, then) for then, _ in inputs]
    for old, (_, now) in zip(olds, inputs, strict=True):
        new = digest_of_part(run, saved, now)
        if old and new and new not in olds:
            kept = {**kept, new: known.get(old, old)}
    return saved if kept is known else evolve(saved, progress=evolved(saved.progress, kept_digests=kept))


def _inputs_of_parts(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield what parts of a step may be made of, before and after a conversion.

    They are the data of the State, the input of a graph, and each item of lists. Keys that are gone are taken as
    renamed, in their order.
    """
    yield from ((old, new), ({"": dict(old)}, {"": dict(new)}))
    renamed = iter([value for key, value in new.items() if key not in old])
    for key, value in old.items():
        now = new[key] if key in new else next(renamed, None)
        if isinstance(value, list | tuple) and isinstance(now, list | tuple):
            yield from (({"": then}, {"": item}) for then, item in zip(value, now, strict=False))


def _noting_replaced(run: RunContext, state: State, before: dict[str, Any]) -> State:
    """Record the replaced values in the State, if there may be nested runs that know only the old ones.

    Records of an earlier resume stay: nested runs may not have received those updates either.
    """
    if not run.plan.loads_parts:
        return state
    earlier = state.progress.replaced if state.progress else {}
    replaced = {**old_values(run.plan.persist, before, data_of(state)), **earlier}
    return evolve(state, progress=evolved(state.progress, replaced=replaced))
