"""Saving States: build a write batch, and resolve conflicts with other writers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from stategraph._owners.base import Ownership, current, on_behalf_of
from stategraph.errors import (
    CheckpointNotFoundError,
    CheckpointSaveError,
    NotSerializableError,
    StepConflictError,
)
from stategraph.state import State, data_of
from stategraph.stores._checks import check_step
from stategraph.stores._codec.delta import are_of_one_save, have_same_data
from stategraph.stores._rows.encoder import DeltaBase, Place
from stategraph.stores._rows.loading import load
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, WriteBatch
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.base import RetentionPolicy

_TRIES = 5  # attempts at a save while others write to the same run

_Following: TypeAlias = tuple[RunRecord | None, CheckpointRecord, DeltaBase, DeltaBase | None]
"""A State to write: the current record of its run, its row, the base of the next row, and the base of this row."""

_Prepared: TypeAlias = tuple[WriteBatch, DeltaBase, DeltaBase | None]
"""The batch to write, the base of the next row, and the base of the newest row."""

Saves: TypeAlias = tuple[Ownership | None, Sequence[State]]
"""States of one run to save, in order, and its owner."""


def save(log: RunLog, state: State, *, may_change_data: bool = False) -> None:
    """Save a State; with `may_change_data`, its data may differ from the newest step.

    Raises:
        NotSerializableError, StepConflictError, CheckpointSaveError: as `CheckpointStore.save`.
    """
    run_id = state.run_id
    for _ in range(_TRIES):
        known = log.remembered(run_id)
        try:
            prepared = _prepared(log, [state], may_change_data)
        except NotSerializableError as error:
            error.run_id = run_id
            raise
        except StepConflictError:
            log.is_settled(current.ownership)  # if another call owns the run, that error explains more
            if known is None or not log.is_stale(known[0]):
                raise
            log.forget(run_id)
            continue
        if prepared is not None and log.write(prepared[0]):
            log.remember(prepared[0].run, *prepared[1:])
            return
        log.forget(run_id)  # others have written: compare with the current run
        log.remove_left_over(run_id)
    raise StepConflictError(run_id, f"step {state.step} was not saved: others keep writing to the run")


def save_runs(log: RunLog, runs: Sequence[Saves]) -> list[Exception | None]:
    """Save States of several runs, in one transaction if possible; return an error or None for each run.

    If a run keeps only the newest State, only the newest is saved. If States cannot be saved together, they are saved
    one by one, up to the first State that raises an error.
    """
    prepared = [_prepared_for(log, *saves) for saves in runs]
    outcomes = iter(log.commit([one[0] for one in prepared if one is not None]))
    return [
        _finish(log, saves, one, one is not None and next(outcomes)) for saves, one in zip(runs, prepared, strict=True)
    ]


def _prepared_for(log: RunLog, ownership: Ownership | None, states: Sequence[State]) -> _Prepared | None:
    """Return the batch for States of a run; None if they must be saved one by one."""
    with on_behalf_of(ownership):
        try:
            return _prepared(log, states)
        except Exception:  # noqa: BLE001 - the State at fault raises it again when it is saved alone
            return None


def _finish(log: RunLog, saves: Saves, prepared: _Prepared | None, outcome: bool | Exception) -> Exception | None:
    """Complete a shared save of States, which saves them one by one if it was refused; return the error, if any."""
    ownership, states = saves
    if prepared is not None and outcome is True:
        log.remember(prepared[0].run, *prepared[1:])
        return None
    log.forget(states[0].run_id)
    if type(outcome) is CheckpointSaveError:
        outcome.run_id = outcome.run_id or states[0].run_id
        return outcome
    with on_behalf_of(ownership):
        try:
            if prepared is not None:
                log.check_kept(prepared[0])
            for state in states:
                save(log, state)
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return error
    return None


def _prepared(log: RunLog, states: Sequence[State], may_change_data: bool = False) -> _Prepared | None:
    """Return the batch for States of one run; None if others write to it at the same time.

    Raises:
        NotSerializableError: a State cannot be kept exactly.
        StepConflictError: a State conflicts with a saved one, or the States cannot be written together.
    """
    run_id = states[0].run_id
    known = log.remembered(run_id)
    if len(states) > 1:  # if the run is not remembered, its record has the policy
        states = _kept(states, log.policy_of(run_id, known[0] if known else log.find(run_id)))
    following = _following(log, known, states[0], may_change_data)
    if following is None:
        return None
    old, row, base, before = following
    rows, keeps_all = [row], log.policy_of(run_id, old).keeps_all
    for state in states[1:]:
        if state.step <= base.state.step:  # data matter only if the step is not a later one
            same_data = keeps_all and have_same_data(base.state, state, base.encoded)
            check_step(run_id, base.state.step, state.step, same_data)
            if are_of_one_save(base.state, state):
                continue
        before = base
        row, base = log.encoder.following(base, state, next_place(log, row, state))
        rows.append(row)
    run = log.next_run(old, row, base, rows[0])
    cut = 0 if keeps_all else max((_cut_below(log, run, row) for row in rows if row.is_snapshot), default=0)
    batch = WriteBatch(run, old, tuple(rows), cut_below=cut, outer=log.outer_of(run))
    return batch, base, None if row.is_snapshot else before


def _kept(states: Sequence[State], policy: RetentionPolicy) -> Sequence[State]:
    """Return the States to keep out of several of one run that are saved together."""
    if policy.max_checkpoints == 1:
        return states[-1:]
    if policy.keeps_all:
        return states
    # The completion of a run replaces its last step.
    is_replaced = (one.step == after.step and data_of(one) is data_of(after) for one, after in pairwise(states))
    return [*(one for one, replaced in zip(states, is_replaced, strict=False) if not replaced), states[-1]]


def _following(
    log: RunLog, known: tuple[RunRecord, DeltaBase, DeltaBase | None] | None, state: State, may_change_data: bool
) -> _Following | None:
    """Return how to write a State; None if others write to the run at the same time."""
    if known is None:
        return _following_unknown(log, state, may_change_data)
    run, base, before = known
    if state.step > run.step:
        return run, *log.encoder.following(base, state, next_place(log, run, state)), base
    same_data = have_same_data(base.state, state, base.encoded)
    check_step(state.run_id, run.step, state.step, may_change_data or same_data)
    is_again = same_data and are_of_one_save(base.state, state)
    if log.policy_of(run.run_id, run).keeps_all and not is_again:
        return run, *log.encoder.following(base, state, next_place(log, run, state)), base
    place = run.sequence, run.revision
    if before is None:
        return run, *log.encoder.snapshot(state, run.incarnation, place), None
    return run, *log.encoder.following(before, state, place), before


def _following_unknown(log: RunLog, state: State, may_change_data: bool) -> _Following | None:
    """Return how to write a State of a run that is not remembered; None as `_following`."""
    run_id = state.run_id
    run = log.find(run_id)
    if run is None:
        return None, *log.encoder.snapshot(state, log.incarnation_for(run_id)), None
    log.check_known(run_id, run.incarnation)
    if run.step < state.step:
        return run, *log.encoder.snapshot(state, run.incarnation, next_place(log, run, state)), None
    try:
        load(log, run_id)
    except CheckpointNotFoundError:  # it was deleted at the same time
        return None
    known = log.remembered(run_id)
    if known is None or known[0].incarnation != run.incarnation:
        return None
    return _following(log, known, state, may_change_data)


def next_place(log: RunLog, newest: RunRecord | CheckpointRecord, state: State) -> Place:
    """Return the place of the row after the newest one of a run, without replacing any."""
    ahead = newest.sequence - newest.step
    sequence = newest.sequence + max(1, state.step - newest.step)
    if state.step == newest.step:
        return sequence, newest.revision + 1
    if state.step > newest.step and not (ahead and state.generation):  # steps repeat only after a rollback
        return sequence, 0
    made = log.table.index(state.run_id, state.step, state.step + ahead)
    return sequence, max((row.revision for row in made if row.step == state.step), default=-1) + 1


def _cut_below(log: RunLog, run: RunRecord, snapshot: CheckpointRecord) -> int:
    """Return the sequence number of the first row that is still needed after this snapshot."""
    if run.policy.max_checkpoints == 1:
        return snapshot.sequence
    rows = [*(row for row in log.table.index(run.run_id) if row.sequence < snapshot.sequence), snapshot]
    return min(row.base for row in rows[run.policy.first_kept(rows) :])
