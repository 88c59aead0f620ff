"""Saving States: how they become a write batch, and what follows if others have written to the run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from stategraph._owners.holds import Hold, acting, on_behalf_of
from stategraph._values.ids import is_nested_id
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    NotSerializableError,
    StepConflictError,
)
from stategraph.state import State, data_of
from stategraph.stores._checks import check_step
from stategraph.stores._codec.delta import are_of_one_save, have_same_data, have_same_provenance
from stategraph.stores._rows.encoder import DeltaBase
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, WriteBatch
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.base import RetentionPolicy

_TRIES = 5  # of a save, while others write to the same run

_Following: TypeAlias = tuple[RunRecord | None, CheckpointRecord, DeltaBase]
"""A State to be written: the record of its run so far, its own record, and what the next builds on."""

_Prepared: TypeAlias = tuple[WriteBatch, DeltaBase]
"""What is to be written, and what the next checkpoint builds on."""

Saves: TypeAlias = tuple[Hold | None, Sequence[State]]
"""States of one run to be saved, in order, and the hold of its owner."""


def save(log: RunLog, state: State, *, may_change_data: bool = False) -> None:
    """Save a State; with `may_change_data` also one with other data than the newest step has.

    Raises:
        NotSerializableError, StepConflictError, CheckpointSaveError: as `CheckpointStore.save`.
    """
    for _ in range(_TRIES):
        known = log.known.get(state.run_id)
        try:
            prepared = _prepared(log, [state], may_change_data)
        except NotSerializableError as error:
            error.run_id = state.run_id
            raise
        except StepConflictError:
            log.is_settled(acting.hold)  # that another call owns the run is the better answer
            if known is None or not log.is_stale(known[0]):
                raise
            log.known.forget(state.run_id)
            continue
        if prepared is not None and log.write(prepared[0]):
            log.known.remember(prepared[0].run, prepared[1])
            return
        log.known.forget(state.run_id)  # others have written: compare with the run as it is now
        log.runs.remove_left_over(state.run_id)
    raise StepConflictError(state.run_id, f"step {state.step} was not saved: others keep writing to the run")


def save_many(log: RunLog, states: Sequence[State]) -> None:
    """Save several States of one run, in one transaction if possible; of a run that keeps the newest only, the newest.

    If they cannot be saved at once, they are saved one by one: what can be kept is kept, and the first State that
    cannot raises its error.
    """
    (error,) = save_runs(log, [(acting.hold, states)])
    if error is not None:
        raise error


def save_runs(log: RunLog, runs: Sequence[Saves]) -> list[Exception | None]:
    """Save States of several runs, in one transaction if possible; return the error of each, None if it is saved."""
    prepared = [_prepared_for(log, *saves) for saves in runs]
    outcomes = iter(log.commit([one[0] for one in prepared if one is not None]))
    return [
        _finish(log, saves, one, one is not None and next(outcomes)) for saves, one in zip(runs, prepared, strict=True)
    ]


def _prepared_for(log: RunLog, hold: Hold | None, states: Sequence[State]) -> _Prepared | None:
    """Return what is to be written of States; None if they have to be saved one by one."""
    with on_behalf_of(hold):
        try:
            return _prepared(log, states)
        except Exception:  # noqa: BLE001 - the State that is to blame raises it, once it is saved alone
            return None


def _finish(log: RunLog, saves: Saves, prepared: _Prepared | None, outcome: bool | Exception) -> Exception | None:
    """Return the error of States that were to be saved together, after saving those alone that were refused."""
    hold, states = saves
    if prepared is not None and outcome is True:
        log.known.remember(prepared[0].run, prepared[1])
        return None
    log.known.forget(states[0].run_id)
    if type(outcome) is CheckpointSaveError:
        outcome.run_id = outcome.run_id or states[0].run_id
        return outcome
    with on_behalf_of(hold):
        try:
            if prepared is not None:
                log.check_kept(prepared[0])
            _save_each(log, states)
        except Exception as error:  # noqa: BLE001 - raised by the caller
            return error
    return None


def _save_each(log: RunLog, states: Sequence[State]) -> None:
    """Save States one by one. An interrupt may hide that a commit was made: then only the States after it are saved."""
    try:
        for state in states:
            save(log, state)
    except StepConflictError:
        left = _after_newest(log, states)
        if left is None:
            raise
        for state in left:
            save(log, state)


def _after_newest(log: RunLog, states: Sequence[State]) -> Sequence[State] | None:
    """Return the States after the one that is the newest of its run already; None if none of them is."""
    run_id = states[0].run_id
    try:
        run = log.runs.find(run_id)
        if run is None:
            return None
        log.runs.check_known(run)
        found = log.load(run_id)
    except (CheckpointNotFoundError, StepConflictError):
        return None
    known = log.known.get(run_id)
    for place, state in enumerate(states):
        if known and are_of_one_save(found, state) and have_same_data(found, state, known[1].encoded):
            return states[place + 1 :]
    return None


def _prepared(log: RunLog, states: Sequence[State], may_change_data: bool = False) -> _Prepared | None:
    """Return what is to be written of States of one run; None if others write to it at the same time.

    Raises:
        NotSerializableError: a State cannot be kept exactly.
        StepConflictError: a State contradicts a saved one, or the States cannot be written at once.
    """
    run_id = states[0].run_id
    known = log.known.get(run_id)
    if len(states) > 1:  # of a run that is not remembered, the record tells the policy
        states = _kept(states, log.known.policy_of(run_id, known[0] if known else log.runs.find(run_id)))
    following = _following(log, known, states[0], may_change_data)
    if following is None:
        return None
    old, row, base = following
    rows, keeps_all = [row], log.keeps_all(old, run_id)
    for state in states[1:]:
        before = base.state
        if state.step <= before.step:  # of a later one, data need not be compared
            same_data = keeps_all and have_same_data(before, state, base.encoded)
            check_step(run_id, before.step, state.step, same_data)
            if are_of_one_save(before, state):
                continue
        row, base = log.encoder.following(base, state, log.next_place(row, state))
        rows.append(row)
    run = log.next_run(old, row, base, rows[0])
    cut = 0 if keeps_all else max((log.cut_below(run, row) for row in rows if row.is_snapshot), default=0)
    return WriteBatch(run, old, tuple(rows), cut_below=cut), base


def _kept(states: Sequence[State], policy: RetentionPolicy) -> Sequence[State]:
    """Return the States of a run that are kept, of several that are saved at once."""
    if policy.max_checkpoints == 1:
        return states[-1:]
    if policy.keeps_all:
        return states
    # The completion of a run takes the place of its last step.
    is_replaced = (one.step == after.step and data_of(one) is data_of(after) for one, after in pairwise(states))
    return [*(one for one, replaced in zip(states, is_replaced, strict=False) if not replaced), states[-1]]


def _following(
    log: RunLog, known: tuple[RunRecord, DeltaBase] | None, state: State, may_change_data: bool
) -> _Following | None:
    """Return how a State is to be written; None if somebody else writes to the run meanwhile."""
    if known is None:
        return _following_unknown(log, state, may_change_data)
    run, base = known
    if state.step > run.step:
        return run, *log.encoder.following(base, state, log.next_place(run, state))
    same_data = have_same_data(base.state, state, base.encoded)
    check_step(state.run_id, run.step, state.step, may_change_data or same_data)
    is_again = same_data and are_of_one_save(base.state, state)
    if log.keeps_all(run) and not is_again:
        place = log.next_place(run, state)
        if log.sealer.takes_former:  # what it would build on may be signed with a former key
            return run, *log.encoder.snapshot(state, run.incarnation, place)
        return run, *log.encoder.following(base, state, place)
    # What a row builds on may be signed with a former key, and a snapshot builds on nothing.
    if same_data and have_same_provenance(base.state, state) and not log.sealer.takes_former:
        saved = log.table.chain(state.run_id, run.sequence)
        if not saved or saved[-1].seal != base.seal:
            if log.is_stale(run):
                return None
            raise CheckpointCorruptError(state.run_id, f"its newest step {run.step} is missing, or is another")
        return run, *log.encoder.again(base, saved[-1], state)
    return run, *log.encoder.snapshot(state, run.incarnation, (run.sequence, run.revision))


def _following_unknown(log: RunLog, state: State, may_change_data: bool) -> _Following | None:
    """Return how a State is to be written whose run is not remembered; None as `_following`."""
    begun = log.runs.incarnation_for(state.run_id)
    row, base = log.encoder.snapshot(state, begun)  # what cannot be kept is found out before the table is asked
    run = log.runs.find(state.run_id)
    if run is None:
        return None, row, base
    if is_nested_id(state.run_id) and run.incarnation != begun:  # the outer run has begun anew meanwhile
        return None
    log.runs.check_known(run)
    if run.step < state.step:
        return run, *log.encoder.snapshot(state, run.incarnation, log.next_place(run, state))
    try:
        log.load(state.run_id)
    except CheckpointNotFoundError:  # it was deleted meanwhile
        return None
    known = log.known.get(state.run_id)
    if known is None or known[0].incarnation != run.incarnation:
        return None
    return _following(log, known, state, may_change_data)
