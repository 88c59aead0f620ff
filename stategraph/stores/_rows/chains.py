"""The checkpoints of a run: those that can be seen, those that they build on, and whether all of them are there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stategraph.errors import CheckpointCorruptError, FormatError
from stategraph.stores._rows.encoder import Rows
from stategraph.stores._rows.known import KnownRuns
from stategraph.stores._rows.operations import RowOperations
from stategraph.stores._rows.records import Head, Row


class Chains:
    """ReadSet the rows of runs whose heads are known, and knows what is missing.

    Args:
        store: Has the rows.
        rows: Tells whether they are as they were written.
        known: Knows of some already that they are.
    """

    def __init__(self, store: RowOperations, rows: Rows, known: KnownRuns) -> None:
        self._store, self._rows, self._known = store, rows, known

    def is_stale(self, head: Head) -> bool:
        """Whether somebody else has written to the run since."""
        now = self._store._head(head.run_id)
        return now is None or now.version != head.version

    def is_newest(self, head: Head, row: Row) -> bool:
        """Whether a row is the newest of a run -> False if somebody else has written since the head was read.

        Raises:
            CheckpointCorruptError: it stands in the place of the newest one, and nobody has.
        """
        if row.seal == head.tip:
            return True
        if row.step >= head.step and not self.is_stale(head):
            raise CheckpointCorruptError(head.run_id, f"its newest step {head.step} is another than was saved")
        return False

    def check_absent(self, head: Head, step: int | None) -> None:
        """Raise CheckpointCorruptError if a step that is not there was not removed, but lost."""
        if step is None or step == head.step:
            if not self.is_stale(head):
                raise CheckpointCorruptError(head.run_id, f"its newest step {head.step} is missing")
            return
        later = next((row for row in self._store._index(head.run_id) if row.step > step), None)
        if later is not None and later.base < step:  # what builds on it shows that it was there
            self._rows.check(head.run_id, self._store._chain(head.run_id, later.step), head.incarnation)

    def is_visible(self, head: Head, step: int) -> bool:
        """Whether retention keeps a step."""
        return head.policy.visible is None or any(row.step == step for row in self.visible(head))

    def visible(self, head: Head) -> list[Row]:
        """-> the checkpoints of a run that retention keeps; more rows may be there, which these build on."""
        rows = self._store._index(head.run_id)
        if not (rows and rows[-1].seal == head.tip) and not self.is_stale(head):
            raise CheckpointCorruptError(head.run_id, f"its newest step {head.step} is missing, or is another")
        return rows[-head.policy.visible :] if head.policy.visible else rows

    def groups(self, head: Head, visible: Sequence[Row]) -> Iterator[list[Row]]:
        """-> snapshots with all that builds on them, which together hold these checkpoints of a run."""
        newest_on = {row.base: row.step for row in visible}  # the last one builds on all that have the same base
        return (self._store._chain(head.run_id, step) for step in newest_on.values())

    def cut_below(self, head: Head, snapshot: Row) -> int:
        """-> the step below which rows go, now that a snapshot is written: those no visible checkpoint builds on."""
        visible = head.policy.visible
        if visible is None:
            return 0
        if visible == 1:
            return snapshot.step
        try:
            older = [row for row in self._store._index(head.run_id) if row.step < snapshot.step][-(visible - 1) :]
            is_sure = self._are_as_sealed(head, older)
        except (CheckpointCorruptError, FormatError):
            is_sure = False
        # What is damaged stays, with all before it, for whoever loads it to see. The run can go on.
        return min([row.base for row in older], default=snapshot.step) if is_sure else 0

    def _are_as_sealed(self, head: Head, rows: Sequence[Row]) -> bool:
        """Whether rows of an index have the steps and bases with which they were sealed.

        Raises:
            CheckpointCorruptError: what they build on, or their bodies, are not as they were sealed.
            FormatError: likewise, or a newer version wrote it.
        """
        unknown = [row for row in rows if not self._known.is_checked(row)]
        found: set[tuple[int, int, bytes]] = set()
        for chain in self.groups(head, unknown):
            self._rows.check(head.run_id, chain, head.incarnation)
            self._known.are_checked(chain)
            found.update((row.step, row.base, row.seal) for row in chain)
        return found.issuperset((row.step, row.base, row.seal) for row in unknown)
