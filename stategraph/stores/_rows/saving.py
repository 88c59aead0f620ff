"""Saving States: build a write batch, and resolve conflicts with other writers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from stategraph._owners.base import Ownership, current, on_behalf_of
from stategraph._values.entries import lasting_kinds
from stategraph._values.ids import given_id, range_of_step
from stategraph._values.provenance import RunStatus
from stategraph.errors import (
    CheckpointNotFoundError,
    CheckpointSaveError,
    NotSerializableError,
    StepConflictError,
)
from stategraph.state import State, check_successor, taken_of
from stategraph.stores._checks import begins_again, steps_under_way
from stategraph.stores._codec.states import are_of_one_save, have_same_data
from stategraph.stores._rows.encoder import DeltaBase, Place
from stategraph.stores._rows.loading import load
from stategraph.stores._rows.records import CheckpointRecord, EntryRecord, RunRecord, WriteBatch
from stategraph.stores._rows.run_log import EMPTY, Known, RunLog
from stategraph.stores.base import RetentionPolicy

_TRIES = 5  # attempts at a save while others write to the same run

_Prepared: TypeAlias = tuple[WriteBatch, Known]
"""A batch, and what is known of the run once it is written."""

Saves: TypeAlias = tuple[Ownership | None, Sequence[State]]
"""States of one run to save, in order, and its owner."""


def save(log: RunLog, state: State, *, may_change_data: bool = False) -> None:
    """Save a State; with `may_change_data`, its data may differ from the newest step.

    Raises:
        NotSerializableError, StepConflictError, CheckpointSaveError: as `CheckpointStore.save`.
    """
    run_id = state.run_id
    for _ in range(_TRIES):
        try:
            prepared = _prepared(log, [state], may_change_data)
        except NotSerializableError as error:
            error.run_id = run_id
            raise
        except StepConflictError:
            log.lease_if_missing(current.ownership)  # if another call owns the run, that error explains more
            known = log.known.get(run_id)
            if known is None or not log.is_stale(known[0]):
                raise
        else:
            if prepared is not None and log.write(prepared[0]):
                log.remember(prepared[1])
                return
        log.forget_changed(run_id)  # compare with the current run
    raise StepConflictError(run_id, f"step {state.step} was not saved: others keep writing to the run")


def save_runs(log: RunLog, runs: Sequence[Saves]) -> list[Exception | None]:
    """Save States of several runs, in one transaction if possible; return an error or None for each run.

    If a run keeps only the newest State, only the newest is saved. If the States of a run cannot be saved in one batch,
    they are saved one by one, up to the first State that raises an error.
    """
    prepared = [_prepared_for(log, *saves) for saves in runs]
    outcomes = iter(log.table.commit([each[0] for each in prepared if each is not None]))
    return [
        _finish(log, saves, each, each is not None and next(outcomes))
        for saves, each in zip(runs, prepared, strict=True)
    ]


def _prepared_for(log: RunLog, ownership: Ownership | None, states: Sequence[State]) -> _Prepared | None:
    """Return the batch for States of a run; None if they must be saved one by one."""
    with on_behalf_of(ownership):
        try:
            return _prepared(log, states)
        except Exception:  # noqa: BLE001 - the State at fault raises it again when it is saved alone
            return None


def _finish(log: RunLog, saves: Saves, prepared: _Prepared | None, outcome: bool | Exception) -> Exception | None:
    """Finish the save of a batch. If it was refused, save its States one by one; return the error, if any."""
    ownership, states = saves
    if prepared is not None and outcome is True:
        log.remember(prepared[1])
        return None
    if type(outcome) is CheckpointSaveError:
        outcome.run_id = outcome.run_id or states[0].run_id
        return outcome
    with on_behalf_of(ownership):
        try:
            for state in states:
                save(log, state)
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return error
    return None


def _prepared(log: RunLog, states: Sequence[State], may_change_data: bool = False) -> _Prepared | None:
    """Return the batch for States of one run; None if others write to the run at the same time.

    Raises:
        NotSerializableError: a State cannot be kept exactly.
        StepConflictError: a State conflicts with a saved one.
    """
    run_id = states[0].run_id
    old, base, before, journal = log.known.get(run_id) or (log.find(run_id), None, None, None)
    policy = log.policy_of(run_id, old)
    if policy.max_checkpoints == 1:
        states = states[-1:]
    if old is not None and base is None:
        log.check_known(given_id(run_id), old.incarnation)
        # It is compared with the newest State, which is a later one if the run may have been rolled back.
        if states[0].step <= old.step or old.step < old.sequence:
            return _prepared(log, states, may_change_data) if _is_loaded(log, run_id) else None
    incarnation, first = old.incarnation if old else log.incarnation_for(run_id), base
    rows: list[CheckpointRecord] = []
    newest: RunRecord | CheckpointRecord | None = old
    for state in states:
        if newest and base and _replaces(newest, base, state, policy, may_change_data):
            place, previous = (newest.sequence, newest.revision), before
            del rows[-1:]
        else:
            place, previous = next_place(log, newest, state), base
        row, following = log.encoder.encode(state, incarnation, place, previous)
        # A State that replaces this one builds on the checkpoint before it.
        newest, base, before = row, following, None if row.is_snapshot else previous
        rows.append(row)
    run = log.next_run(old, row, state, incarnation, first=rows[0], policy=policy)
    cut = 0 if policy.keeps_all else _cut_below(log, run, rows)
    is_next = old is None or run.step > old.step  # otherwise the step under way is still the same
    over, taken = (run.step, 0) if state.progress is None else (_last_over(state), _newly_taken(first, state))
    cuts: dict[str, Any] = {}
    if old is not None and may_change_data and first is not None and begins_again(first.state, state):
        over = state.step + 1
        cuts = {"cut_nested": range_of_step(run_id, over, state.generation), "cut_parts": True}
        cuts["entries"] = () if journal is EMPTY else _lasting(log, old, over)
    batch = WriteBatch(
        run,
        old,
        tuple(rows),
        cut_below=cut,
        outer=log.outer_of(run),
        cut_journal=over if (is_next or cuts) and old is not None and journal is not EMPTY else 0,
        taken=taken,
        **({"entries": _brought(log, run)} if old is None else cuts),
    )
    if cuts:
        journal = EMPTY if journal is EMPTY else None
    elif is_next:
        journal = None if over < run.step else EMPTY
    return batch, (run, following, before, journal)


def _last_over(state: State) -> int:
    """Return the last step whose journal is over; see `steps_under_way`."""
    return min(state.step, *(step - 1 for step in steps_under_way(state)))


def _brought(log: RunLog, run: RunRecord) -> tuple[EntryRecord, ...]:
    """Return the entries with which a run begins."""
    owner = current.ownership
    if owner is None or not owner.brings or owner.run_id != run.run_id:
        return ()
    from stategraph.stores._rows.entries import record_of  # imported when used: few runs begin with entries

    return tuple(record_of(log, run.run_id, entry, run.incarnation) for entry in owner.brings)


def _lasting(log: RunLog, run: RunRecord, step: int) -> tuple[EntryRecord, ...]:
    """Return the entries that stay in the journal of a step under way that is given up."""
    from stategraph.stores._rows.entries import lasting  # imported when used: few runs begin again

    return lasting(log, run, step, lasting_kinds(False))[1]


def _newly_taken(base: DeltaBase | None, state: State) -> int:
    """Return the number of the newest entry of the inbox that a State has taken in; 0 if it has taken no more.

    A State that completes its run must have taken in all of them.
    """
    taken = taken_of(state)
    is_same = base is not None and taken_of(base.state) == taken and state.status is not RunStatus.COMPLETED
    return 0 if is_same else taken


def _replaces(
    newest: RunRecord | CheckpointRecord, base: DeltaBase, state: State, policy: RetentionPolicy, may_change_data: bool
) -> bool:
    """Return whether a State replaces the newest checkpoint; raise StepConflictError if it conflicts with it."""
    if state.step > newest.step and state.generation >= base.state.generation:
        return False
    same_data = have_same_data(base.state, state, base.encoded)
    check_successor(base.state, state, may_change_data or same_data)
    return not policy.keeps_all or (same_data and are_of_one_save(base.state, state))


def _is_loaded(log: RunLog, run_id: str) -> bool:
    """Load a run; return whether its newest State is known now. It is not if others write to the run."""
    with suppress(CheckpointNotFoundError):
        load(log, run_id)
    return run_id in log.known


def next_place(log: RunLog, newest: RunRecord | CheckpointRecord | None, state: State) -> Place:
    """Return the place of the row after the newest one of a run, without replacing any."""
    if newest is None:
        return state.step, 0
    ahead = newest.sequence - newest.step
    sequence = newest.sequence + max(1, state.step - newest.step)
    if state.step == newest.step:
        return sequence, newest.revision + 1
    if state.step > newest.step and not (ahead and state.generation):  # steps repeat only after a rollback
        return sequence, 0
    rows = log.table.index(state.run_id, state.step, state.step + ahead)
    return sequence, max((row.revision for row in rows if row.step == state.step), default=-1) + 1


def _cut_below(log: RunLog, run: RunRecord, rows: Sequence[CheckpointRecord]) -> int:
    """Return the sequence number of the first row that is still needed after these; 0 without a snapshot among them."""
    if rows[-1].base < rows[0].sequence:
        return 0
    if run.policy.max_checkpoints == 1:
        return rows[-1].base
    kept = [*(row for row in log.table.index(run.run_id) if row.sequence < rows[0].sequence), *rows]
    return min(row.base for row in kept[run.policy.first_kept(kept) :])
