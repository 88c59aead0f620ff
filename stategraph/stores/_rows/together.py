"""Saves of several runs that are written in one go, though one thread makes them one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from stategraph.stores._rows.records import WriteBatch
from stategraph.stores._rows.run_log import RunLog

Saved: TypeAlias = bool | BaseException
"""Whether all that a call has saved is durable, False if it has to be made again, or why nothing can be saved now."""


def save_together(log: RunLog, calls: Sequence[Callable[[], object]]) -> list[Saved]:
    """Make calls that save, and write what they save in few transactions.

    A call finds its writes made, but what it asks the table meanwhile, it is told as it was before: if that troubles
    it, or the write is refused after all, nothing of it is written, and it has to be made again on its own.
    """
    gathered = [_gathered(log, call) for call in calls]
    outcomes = iter(log.commits.commit_all([batch for batches in gathered for batch in batches or ()]))
    saved: list[Saved] = []
    for batches in gathered:
        became = [next(outcomes) for _ in batches or ()]
        if batches is None or not all(outcome is True for outcome in became):
            for batch in batches or ():
                log.known.forget(batch.run.run_id)
        saved.append(False if batches is None else next((one for one in became if one is not True), True))
    return saved


def _gathered(log: RunLog, call: Callable[[], object]) -> list[WriteBatch] | None:
    """Return what a call writes; None if it could not be made."""
    batches: list[WriteBatch] = []
    log.gathering.batches = batches
    try:
        call()
    except BaseException:  # noqa: BLE001 - it is made again
        for batch in batches:
            log.known.forget(batch.run.run_id)
        return None
    finally:
        log.gathering.batches = None
    return batches
