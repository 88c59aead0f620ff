"""Saves of several runs that are written in one go, though one thread makes them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from stategraph.errors import CheckpointError, CheckpointSaveError, StepConflictError
from stategraph.stores._rows.records import WriteBatch
from stategraph.stores._rows.run_log import RunLog

Saved: TypeAlias = bool | BaseException
"""Whether all that a call has saved is durable, False if it has to be made again, or why it cannot be saved now."""


Saving: TypeAlias = tuple[Collection[str], Callable[[], object]]
"""The ids of runs, and a call that saves States of them."""


def save_together(log: RunLog, calls: Sequence[Saving]) -> list[Saved]:
    """Make calls that save, and write what they save in few transactions.

    A call finds its writes made, but what it asks the table meanwhile, it is told as it was before: if that troubles
    it, or the write is refused after all, nothing of it is written, and it has to be made again on its own.
    """
    gathered = [_gathered(log, *call) for call in calls]
    outcomes = iter(log.commits.commit_all([batch for batches in gathered for batch in batches or ()]))
    saved: list[Saved] = []
    for batches in gathered:
        became = [(batch, next(outcomes)) for batch in batches or ()]
        for batch, outcome in became:
            if batch.old is None and outcome is True:
                log.known.promised.pop(batch.run.run_id, None)
        unsaved = next((one for one in became if one[1] is not True), None)
        if unsaved is not None:
            for batch, _ in became:
                log.known.forget(batch.run.run_id)
        saved.append(batches is not None and (unsaved is None or _unsaved(log, *unsaved)))
    return saved


def _unsaved(log: RunLog, batch: WriteBatch, outcome: Saved) -> Saved:
    """Return what becomes of a call, as `Saved`, one of whose batches was not written."""
    if type(outcome) is CheckpointSaveError:  # no StalledError, which is told to go on alone
        outcome.run_id = outcome.run_id or batch.run.run_id
        return outcome
    try:
        log.check_kept(batch)
    except StepConflictError as lost:  # which nobody would find once the run is read anew
        return lost
    except CheckpointError:  # whoever goes on alone meets it
        return False
    return False


def _gathered(log: RunLog, run_ids: Collection[str], call: Callable[[], object]) -> list[WriteBatch] | None:
    """Return what a call writes of these runs; None if it could not be made."""
    batches: list[WriteBatch] = []
    gathering = log.gathering
    before, (gathering.batches, gathering.run_ids) = (gathering.batches, gathering.run_ids), (batches, run_ids)
    try:
        call()
    except BaseException:  # noqa: BLE001 - it is made again
        for batch in batches:
            log.known.forget(batch.run.run_id)
        return None
    finally:
        gathering.batches, gathering.run_ids = before
    return batches
