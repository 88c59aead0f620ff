"""Whether checkpoints of a run follow each other, or one of them was lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from stategraph.errors import CheckpointCorruptError
from stategraph.stores._rows.records import CheckpointRecord, RunRecord


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
