"""On whose behalf something is written: what a server compares, in the write itself."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from stategraph._owners.holds import Hold, acting
from stategraph.stores._rows.access import used_below
from stategraph.stores._rows.records import WriteBatch
from stategraph.stores._rows.table import Table


class Guard(IntEnum):
    """What a save compares besides the version: whether it is on behalf of the owner, by hand, or neither."""

    NONE = 0
    OWNED = 1
    BY_HAND = 2


def fence_of(hold: Hold | None) -> tuple[Guard, int]:
    """Return what is compared for whoever writes."""
    if hold is None:
        return Guard.NONE, 0
    return (Guard.OWNED, hold.fence) if hold.fence else (Guard.BY_HAND, 0)


def is_kept_from(batch: WriteBatch) -> bool:
    """Return whether whoever writes is known to have lost the run."""
    return batch.hold is not None and batch.hold.is_lost


def tell(batches: Sequence[WriteBatch], cancelled: Sequence[bool]) -> None:
    """Tell whoever writes which of the runs are cancelled."""
    for batch, is_cancelled in zip(batches, cancelled, strict=True):
        if is_cancelled and batch.hold is not None:
            batch.hold.is_cancelled = True


def hold_to_remove(table: Table, run_id: str) -> Hold | None:
    """Return on whose behalf a run is to be removed, once it is sure that nobody else owns it.

    Raises:
        RunBusyError: somebody else does.
        RunLostError: whoever this thread acts for has lost it.
        CheckpointError: this thread uses the table, further down its stack.
    """
    if table.is_in_use():
        raise used_below(table.store, run_id)
    hold = acting.hold
    if hold is not None and table.owners is not None:
        table.owners.settle(hold)
        hold.check()
    return hold
