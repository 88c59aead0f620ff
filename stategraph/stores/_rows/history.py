"""Histories of runs: whether checkpoints follow each other, or one of them was lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from stategraph.errors import CheckpointCorruptError
from stategraph.stores._rows.records import CheckpointRecord, RunRecord
from stategraph.stores._rows.table import Table

_PAGE = 1_000  # sequence numbers


def checked_pages(table: Table, run: RunRecord) -> Iterator[list[CheckpointRecord]]:
    """Yield the checkpoints of a run that keeps all, up to its newest one, a page at a time.

    Raises:
        CheckpointCorruptError: one of them was lost, or others write to the run meanwhile.
    """
    newest: CheckpointRecord | None = None
    for first in range(0, run.sequence + 1, _PAGE):
        rows = table.index(run.run_id, first, min(first + _PAGE - 1, run.sequence))
        if rows:
            if newest is None:
                check_all(run, rows)
            else:
                check_gapless(run, [newest, *rows])
            yield rows
            newest = rows[-1]
    if newest is None or newest.seal != run.tip:
        raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing, or is another")


def check_all(run: RunRecord, rows: Sequence[CheckpointRecord]) -> None:
    """Raise CheckpointCorruptError if one of the checkpoints of a run that keeps all was lost, up to the last of
    these."""
    if not rows[0].is_snapshot:
        raise CheckpointCorruptError(run.run_id, f"a checkpoint before step {rows[0].step} is missing")
    check_gapless(run, rows)


def check_gapless(run: RunRecord, rows: Sequence[CheckpointRecord]) -> None:
    """Raise CheckpointCorruptError if a checkpoint between two others was lost, as far as their numbers show it."""
    for row, after in pairwise(rows):
        if after.sequence != row.sequence + max(1, after.step - row.step):
            raise CheckpointCorruptError(run.run_id, f"a checkpoint that was saved after step {row.step} is missing")
