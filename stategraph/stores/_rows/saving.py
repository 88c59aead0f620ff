"""Saving States: one at a time, or several of a run in few transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from stategraph._owners.holds import acting
from stategraph._values.ids import is_nested_id
from stategraph.errors import CheckpointCorruptError, CheckpointNotFoundError, NotSerializableError, StepConflictError
from stategraph.state import State
from stategraph.stores._checks import check_step
from stategraph.stores._codec.delta import are_of_one_save, have_same_data, have_same_provenance
from stategraph.stores._rows.encoder import DeltaBase, ascending_groups
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, WriteBatch
from stategraph.stores._rows.run_log import RunLog

_TRIES = 5  # of a save, while others write to the same run

_Following: TypeAlias = tuple[RunRecord | None, CheckpointRecord, DeltaBase]
"""A State to be written: the record of its run so far, its own record, and what the next builds on."""


def save(log: RunLog, state: State, *, may_change_data: bool = False) -> None:
    """Save a State; with `may_change_data` also one with other data than the newest step has.

    Raises:
        NotSerializableError, StepConflictError, CheckpointSaveError: as `CheckpointStore.save`.
    """
    for _ in range(_TRIES):
        known = log.known.get(state.run_id)
        try:
            following = _following(log, known, state, may_change_data)
        except NotSerializableError as error:
            error.run_id = state.run_id
            raise
        except StepConflictError:
            log.is_settled(acting.hold)  # somebody else who owns the run is the better answer
            if known is None or not log.is_stale(known[0]):
                raise
            log.known.forget(state.run_id)
            continue
        if following is not None and _is_written(log, following):
            return
        log.known.forget(state.run_id)  # somebody else has written: compare with what there is now
        log.runs.remove_left_over(state.run_id)
    raise StepConflictError(state.run_id, f"step {state.step} was not saved: others keep writing to the run")


def _is_written(log: RunLog, following: _Following) -> bool:
    """Write a State; return False if somebody else has written to the run."""
    old, row, base = following
    run = log.next_run(old, row, base)
    cut = log.cut_below(run, row) if row.base == row.sequence else 0  # it is a snapshot
    is_written = log.write(WriteBatch(run, old, (row,), cut_below=cut))
    if is_written:
        log.known.remember(run, base)
    return is_written


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


# --------------------------------------------------------------------------- several States


def save_many(log: RunLog, states: Sequence[State]) -> None:
    """Save several States of one run in few transactions; of a run that keeps the newest only, the newest."""
    if not states or _is_newest_written(log, states[-1]):
        return
    run_id = states[0].run_id
    known = log.known.get(run_id)
    is_saved = known is not None and are_of_one_save(known[1].state, states[-1]) and _is_there(log, states[-1])
    if is_saved or _are_all_written(log, states):
        return
    for ascending in ascending_groups(states):
        first, *others = ascending
        known = log.known.get(run_id)
        if known is None or first.step <= known[0].step:
            save(log, first)
            known = log.known.get(run_id)
        else:
            others = ascending
        if others and (known is None or not _are_written(log, *known, others)):
            for state in others:
                save(log, state)


def _is_newest_written(log: RunLog, newest: State) -> bool:
    """Write the newest of several States if its run is known to keep no other; return whether it was written.

    What is remembered of the run may be out of date: another handle may have said that all of it is to be kept. The
    write finds out, for it is refused if anybody else has written to the run.
    """
    known = log.known.get(newest.run_id)
    if log.known.policy_of(newest.run_id, known and known[0]).max_checkpoints != 1:
        return False
    try:
        following = _following(log, known, newest, may_change_data=False)
    except (NotSerializableError, StepConflictError):  # one by one: what came before it can be kept, and is
        return False
    if following is None or (known is None and following[0] is not None):  # which policy it has, others have said
        return False
    return _is_written(log, following)


def _are_all_written(log: RunLog, states: Sequence[State]) -> bool:
    """Write several States of a run that keeps them all, in one transaction; return whether that was done.

    If it is not, they are written one by one, and whatever is in the way of one of them is raised there.
    """
    run_id = states[0].run_id
    known = log.known.get(run_id)
    if not log.keeps_all(known[0] if known else None, run_id):
        return False
    rows: list[CheckpointRecord] = []
    try:
        following = _following(log, known, states[0], may_change_data=False)
        if following is None:
            return False
        old, row, base = following
        rows.append(row)
        for state in states[1:]:
            before = base.state
            if state.step <= before.step:  # of a later one, data need not be compared
                same_data = have_same_data(before, state, base.encoded)
                check_step(run_id, before.step, state.step, same_data)
                if same_data and are_of_one_save(before, state):
                    continue
            row, base = log.encoder.following(base, state, log.next_place(row, state))
            rows.append(row)
    except (NotSerializableError, StepConflictError):
        return False
    run = log.next_run(old, row, base, rows[0])
    is_written = log.write(WriteBatch(run, old, tuple(rows)))
    if is_written:
        log.known.remember(run, base)
    else:
        log.known.forget(run_id)
    return is_written or _is_there(log, states[-1])


def _is_there(log: RunLog, newest: State) -> bool:
    """Return whether a State is the newest of its run, after a write was refused that ends with it.

    An interrupt may come between a write and its answer: then it is made once more, and refused because it was made.
    """
    try:
        found = log.load(newest.run_id)
    except CheckpointNotFoundError:
        return False
    known = log.known.get(newest.run_id)
    if known is None or not are_of_one_save(found, newest):
        return False
    base = known[1]
    return have_same_data(base.state, newest, base.encoded)


def _are_written(log: RunLog, run: RunRecord, base: DeltaBase, states: Sequence[State]) -> bool:
    """Write later States of a run in one transaction; return False if somebody else has written to the run."""
    rows: list[CheckpointRecord] = []
    refused: NotSerializableError | None = None
    try:
        for state in states:
            row, base = log.encoder.following(base, state, log.next_place(rows[-1] if rows else run, state))
            rows.append(row)
    except NotSerializableError as error:  # what came before it can be kept, and is
        error.run_id = run.run_id
        refused = error
    if rows:
        new = log.next_run(run, rows[-1], base)
        cut = max((log.cut_below(new, row) for row in rows if row.is_snapshot), default=0)
        if not log.write(WriteBatch(new, run, tuple(rows), cut_below=cut)):
            log.known.forget(run.run_id)
            return refused is None and _is_there(log, states[-1])
        log.known.remember(new, base)
    if refused is not None:
        raise refused
    return True
