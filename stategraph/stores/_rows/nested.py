"""Forks and rollbacks, with the nested runs that they copy or remove; and finished parts that an older version saved.

Older versions kept parts in a run that no list shows: its id names the outer run and the step (see
`stategraph._values.ids`). Each of its checkpoints has the parts of one save.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from stategraph._values.entries import Entry
from stategraph._values.ids import directly_nested, is_parts_id, nested_range, outer_id, parts_id, step_of
from stategraph._values.progress import KeptParts
from stategraph._values.provenance import ParentStep
from stategraph.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    RunExistsError,
)
from stategraph.state import State, evolve, taken_of
from stategraph.stores._checks import forked_from, is_in_story, keeps_nested, rolled_back, steps_under_way
from stategraph.stores._rows.entries import copied, entries
from stategraph.stores._rows.loading import chains, load, loaded, read, visible
from stategraph.stores._rows.records import MAX_STEP, CheckpointRecord, Removal, RunRecord, WriteBatch
from stategraph.stores._rows.run_log import EMPTY, RunLog
from stategraph.stores._rows.saving import next_place


def load_parts(log: RunLog, run_id: str, step: int, node: str) -> KeptParts:
    """Return the parts of a step that an older version kept, as `CheckpointStore.load_parts`."""
    try:
        return KeptParts(read(log, parts_id(run_id, step, node), partial(_values, log)))
    except CheckpointNotFoundError:
        return KeptParts({})
    except CheckpointError as error:
        raise _of_outer_run(error, run_id) from error.__cause__


def _values(log: RunLog, run: RunRecord) -> dict[str, Sequence[Any]]:
    found: dict[str, Sequence[Any]] = {}
    for row in visible(log, run):
        chain = log.table.chain(run.run_id, row.sequence)
        if chain:  # it was not removed at the same time
            found.update(log.encoder.data(run.run_id, chain, run.incarnation))
    return found


def drop_nested(log: RunLog, run_id: str, up_to: int, *, newer_parts: bool = False) -> None:
    """Remove the nested runs and parts of a run up to a step, and all later parts too if `newer_parts`.

    With retention "full", nested runs that belong to the history stay.
    """
    nested_ids = log.table.nested_ids(run_id)
    run = log.find(run_id) if nested_ids else None
    story = (run.step, load(log, run_id).generation) if run and log.policy_of(run_id, run).keeps_all else None
    for nested_id in nested_ids:
        direct = directly_nested(run_id, nested_id)
        is_over = step_of(direct) <= up_to or (newer_parts and is_parts_id(direct))
        if is_over and (story is None or is_parts_id(direct) or not is_in_story(direct, *story)):
            log.remove(nested_id)


def _of_outer_run(error: CheckpointError, run_id: str) -> CheckpointError:
    """Attribute an error to the outer run, which users can load or delete."""
    if error.run_id:
        error.run_id = run_id
    return error


# --------------------------------------------------------------------------- rollbacks


def rollback(log: RunLog, run_id: str, step: int, revision: int | None, by: str | None) -> State:
    """Roll a run back to a step, as `CheckpointStore.rollback`."""
    return read(log, run_id, lambda run: _rolled_back(log, run, step, revision, by), step)


def _rolled_back(log: RunLog, run: RunRecord, step: int, revision: int | None, by: str | None) -> State | None:
    """Roll a run back; return its State, or None if others write to the run at the same time."""
    to, loaded_state = loaded(log, run, step, revision)
    newest = _newest(log, run, loaded_state)
    state = rolled_back(loaded_state, newest, by, _spent_after(log, run.run_id, newest.step))
    keeps_all = log.policy_of(run.run_id, run).keeps_all
    place = next_place(log, run, state) if keeps_all else (to.sequence, to.revision)
    row, base = log.encoder.encode(state, run.incarnation, place)
    back = log.next_run(run, row, state, run.incarnation)
    # In one batch: parts of later steps are neither left for a repeated step, nor lost if others have written.
    batch = WriteBatch(
        back,
        run,
        (row,),
        cut_above=None if keeps_all else to.sequence,
        cut_nested=None if keeps_all else nested_range(run.run_id),
        cut_parts=keeps_all,
        cut_journal=MAX_STEP,
        outer=log.outer_of(back),
    )
    if not log.write(batch):
        return None
    log.remember((back, base, None, EMPTY))
    return state


def _newest(log: RunLog, run: RunRecord, otherwise: State) -> State:
    """Return the newest State of a run or, if that is damaged, a State with its parent."""
    try:
        return load(log, run.run_id)
    except CheckpointError:
        return evolve(otherwise, parent=run.parent)


def _spent_after(log: RunLog, run_id: str, step: int) -> list[Entry]:
    """Return the entries of what a run has spent after a step, if they are not damaged."""
    try:
        return entries(log, run_id, step + 1, ("spend",), 0)
    except CheckpointError:
        return []


# --------------------------------------------------------------------------- forks


def fork(log: RunLog, run_id: str, new_run_id: str, step: int | None, revision: int | None) -> State:
    """Copy a run to another id, as `CheckpointStore.fork`."""
    return read(log, run_id, lambda run: _forked(log, run, new_run_id, step, revision), step)


def _forked(log: RunLog, run: RunRecord, new_run_id: str, step: int | None, revision: int | None) -> State | None:
    """Copy a run; return the State of the copy, or None if others write to the run at the same time."""
    row, source = loaded(log, run, step, revision)
    forked = forked_from(source, new_run_id)
    incarnation = log.incarnation_for(new_run_id)
    # The nested runs and entries of a completed step belong to this run; the copy repeats that step.
    is_at_newest = keeps_nested(source) and source.step == run.step
    batches = [_copied_run(log, run, forked, row, incarnation, with_journal=is_at_newest)]
    if is_at_newest:
        batches += _nested(log, run.run_id, forked, incarnation)
    if len(batches) > 1 and log.is_stale(run):
        return None
    if len(batches[0].put) > 1 and not _has_only_grown(log, run):
        return None
    begin_runs(log, batches)
    return forked


def _has_only_grown(log: RunLog, run: RunRecord) -> bool:
    """Return whether all checkpoints of a run are still there since its record was read."""
    now = log.table.run(run.run_id)
    if now is None or now.incarnation != run.incarnation:
        return False
    return now.version == run.version or all(log.policy_of(run.run_id, record).keeps_all for record in (run, now))


def begin_runs(log: RunLog, batches: Sequence[WriteBatch]) -> None:
    """Begin a run and its nested runs, which follow it, in one transaction. If that fails for one, remove all.

    The run itself is written last: where a transaction has one run, a crash leaves nested runs without it, which are no
    runs.

    Raises:
        RunExistsError: a run with one of the ids exists.
    """
    for batch in batches:
        log.remove_left_over(batch.run_id)
        if log.table.run(batch.run_id) is not None:
            raise RunExistsError(batch.run_id, log.table.store)
    batches = [*batches[1:], batches[0]]
    outcomes = log.table.apply(batches)
    if all(outcome is True for outcome in outcomes):
        return
    # Also if it is unknown: no other run has this version.
    written = [batch for batch, outcome in zip(batches, outcomes, strict=True) if outcome]
    if written:
        log.table.apply([Removal(batch.run_id, batch.run.version) for batch in written])
    for batch, outcome in zip(batches, outcomes, strict=True):
        if isinstance(outcome, CheckpointError):
            outcome.run_id = outcome.run_id or batch.run_id
            raise outcome
    raise RunExistsError(batches[outcomes.index(False)].run_id, log.table.store)


def _copied_run(
    log: RunLog,
    source: RunRecord,
    copy: State,
    at: CheckpointRecord,
    incarnation: bytes,
    *,
    with_journal: bool = True,
) -> WriteBatch:
    """Return the batch that begins a run with this State, and with the history of the source before a row."""
    earlier = [row for row in visible(log, source) if row.sequence < at.sequence]
    row, _ = log.encoder.encode(copy, incarnation, (at.sequence, at.revision))
    run = log.next_run(None, row, copy, incarnation, policy=source.policy)
    copies = _copied_rows(log, source, copy.run_id, incarnation, earlier)
    steps = sorted(steps_under_way(copy)) if with_journal else ()
    journal = tuple(entry for step in steps for entry in copied(log, source, step, copy.run_id, incarnation))
    return WriteBatch(run, None, (*copies, row), entries=journal, taken=taken_of(copy))


def _copied_rows(
    log: RunLog, source: RunRecord, run_id: str, incarnation: bytes, rows: Sequence[CheckpointRecord]
) -> list[CheckpointRecord]:
    """Return copies of rows, and of the rows that they build on, for another run."""
    copies: list[CheckpointRecord] = []
    for chain in chains(log, source, rows):
        # Checked, because the new seals of copies would hide damage.
        checked = log.encoder.check(source.run_id, chain, source.incarnation)
        copies += log.sealer.seal_chain(run_id, checked, incarnation)
    return copies


def _nested(log: RunLog, run_id: str, copy: State, incarnation: bytes) -> Iterator[WriteBatch]:
    """Yield the batches that copy the nested runs and the parts of the steps of a run that are under way."""
    steps = steps_under_way(copy)
    for nested_id in log.table.nested_ids(run_id):
        if outer_id(nested_id) == run_id and step_of(nested_id) in steps:
            copied_run = _copied_parts if is_parts_id(nested_id) else _copied_nested_run
            new_id = copy.run_id + nested_id.removeprefix(run_id)
            with suppress(CheckpointNotFoundError):  # it was removed at the same time
                yield from read(log, nested_id, lambda run: copied_run(log, run, new_id, copy, incarnation))  # noqa: B023


def _copied_parts(
    log: RunLog, run: RunRecord, new_id: str, outer: State, incarnation: bytes
) -> list[WriteBatch] | None:
    copies = _copied_rows(log, run, new_id, incarnation, visible(log, run))
    if log.is_stale(run):  # they may be others than those of this record
        return None
    parent, tip = ParentStep(outer.run_id, step_of(new_id) - 1), copies[-1].seal
    copy = run._replace(run_id=new_id, number=0, parent=parent, incarnation=incarnation, tip=tip)
    return [WriteBatch(log.sealer.sealed_run(copy), None, tuple(copies))]


def _copied_nested_run(log: RunLog, run: RunRecord, new_id: str, outer: State, incarnation: bytes) -> list[WriteBatch]:
    row, state = loaded(log, run)
    copy = evolve(state, run_id=new_id, parent=ParentStep(outer.run_id, step_of(new_id) - 1))
    return [_copied_run(log, run, copy, row, incarnation), *_nested(log, run.run_id, copy, incarnation)]
