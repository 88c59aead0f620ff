"""The checkpoints of a run: those that retention keeps, those that they build on, and whether all of them exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stategraph.errors import CheckpointCorruptError, FormatError
from stategraph.stores._rows.encoder import CheckpointEncoder
from stategraph.stores._rows.known import KnownRuns
from stategraph.stores._rows.records import CheckpointRecord, RunRecord
from stategraph.stores._rows.table import Table


class Chains:
    """Reads the checkpoints of runs whose records are known, and finds out what is missing.

    A chain is a snapshot and all checkpoints up to one of them that build on it.

    Args:
        table: Holds the records.
        encoder: Checks their seals.
        known: Remembers which of them are checked.
    """

    def __init__(self, table: Table, encoder: CheckpointEncoder, known: KnownRuns) -> None:
        self._table, self._encoder, self._known = table, encoder, known

    def is_stale(self, run: RunRecord) -> bool:
        """Return whether somebody else has written to the run since its record was read."""
        now = self._table.run(run.run_id)
        return now is None or now.version != run.version

    def is_newest(self, run: RunRecord, row: CheckpointRecord) -> bool:
        """Return whether a checkpoint is the newest of a run; False if somebody else has written since.

        Raises:
            CheckpointCorruptError: it stands in the place of the newest one, and nobody has written.
        """
        if row.seal == run.tip:
            return True
        if row.step >= run.step and not self.is_stale(run):
            raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is another than was saved")
        return False

    def check_absent(self, run: RunRecord, step: int | None) -> None:
        """Raise CheckpointCorruptError if a step that is not there was lost, rather than removed or never saved."""
        if step is None or step == run.step:
            if not self.is_stale(run):
                raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing")
            return
        later = next((row for row in self._table.index(run.run_id) if row.step > step), None)
        if later is not None and later.base < step:  # what builds on it shows that it was there
            self._encoder.check(run.run_id, self._table.chain(run.run_id, later.step), run.incarnation)

    def is_visible(self, run: RunRecord, step: int) -> bool:
        """Return whether retention keeps a step."""
        return run.policy.max_checkpoints is None or any(row.step == step for row in self.visible(run))

    def visible(self, run: RunRecord) -> list[CheckpointRecord]:
        """Return the checkpoints of a run that retention keeps. More may be stored, which these build on."""
        rows = self._table.index(run.run_id)
        if not (rows and rows[-1].seal == run.tip) and not self.is_stale(run):
            raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing, or is another")
        return rows[-run.policy.max_checkpoints :] if run.policy.max_checkpoints else rows

    def holding(self, run: RunRecord, rows: Sequence[CheckpointRecord]) -> Iterator[list[CheckpointRecord]]:
        """Return the chains of a run that hold these of its checkpoints."""
        newest_on = {row.base: row.step for row in rows}  # the last one builds on all that have the same base
        return (self._table.chain(run.run_id, step) for step in newest_on.values())

    def cut_below(self, run: RunRecord, snapshot: CheckpointRecord) -> int:
        """Return the step below which no checkpoint is needed any more, now that a snapshot is written."""
        most = run.policy.max_checkpoints
        if most is None:
            return 0
        if most == 1:
            return snapshot.step
        try:
            older = [row for row in self._table.index(run.run_id) if row.step < snapshot.step][-(most - 1) :]
            is_sure = self._are_as_sealed(run, older)
        except (CheckpointCorruptError, FormatError):
            is_sure = False
        # What is damaged stays, with all before it, for whoever loads it to see. The run can go on.
        return min([row.base for row in older], default=snapshot.step) if is_sure else 0

    def _are_as_sealed(self, run: RunRecord, rows: Sequence[CheckpointRecord]) -> bool:
        """Return whether checkpoints of an index have the steps and bases with which they were sealed.

        Raises:
            CheckpointCorruptError: they, or what they build on, are damaged.
            FormatError: likewise, or a newer version wrote them.
        """
        unknown = [row for row in rows if not self._known.is_checked(row)]
        found: set[tuple[int, int, bytes]] = set()
        for chain in self.holding(run, unknown):
            self._encoder.check(run.run_id, chain, run.incarnation)
            self._known.are_checked(chain)
            found.update((row.step, row.base, row.seal) for row in chain)
        return found.issuperset((row.step, row.base, row.seal) for row in unknown)
