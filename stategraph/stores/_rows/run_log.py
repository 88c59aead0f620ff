"""RunLog: the runs of one durable store, for all that saves, loads, copies or prunes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from stategraph._owners.holds import Hold, lost
from stategraph._values.ids import is_nested_id
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    FormatError,
    StepConflictError,
)
from stategraph.state import State
from stategraph.stores._files.fork_safety import protect_at_fork
from stategraph.stores._rows.access import SharedCommits
from stategraph.stores._rows.encoder import CheckpointEncoder, DeltaBase
from stategraph.stores._rows.integrity import Sealer
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, WriteBatch
from stategraph.stores._rows.runs import KnownRuns, Runs
from stategraph.stores._rows.table import Table
from stategraph.stores.summaries import Summary

_READS = 100  # of a run that others write to: reading is over long before the next save is

_Read = TypeVar("_Read")


class RunLog:
    """The runs of a store: what its table holds of them, and what is remembered of them here.

    A chain is a snapshot and all checkpoints up to one of them that build on it.

    Attributes:
        table: Holds the records.
        runs: The records of runs, checked.
        known: What is remembered of runs since they were saved or loaded here.
        encoder: Makes records of States, and States of records.
        sealer: Makes and checks the seals of records.
        commits: Writes batches of several threads in one transaction.
    """

    def __init__(self, table: Table, sealer: Sealer, encoder: CheckpointEncoder) -> None:
        self.table, self.sealer, self.encoder = table, sealer, encoder
        self.known = KnownRuns()
        self.runs = Runs(table, sealer, self.known)
        self.commits = SharedCommits(table.apply, table.is_in_use)
        protect_at_fork(self)

    def at_rest(self) -> AbstractContextManager[object]:
        """Keep other threads out while the process is forked."""
        return self.table.at_rest()

    def renew(self) -> None:
        """Take locks of its own, in a forked child. Threads that committed in the parent are not here."""
        self.commits = SharedCommits(self.table.apply, self.table.is_in_use)
        self.known.renew()
        self.table.renew()

    # ------------------------------------------------------------------ reading

    def read(self, run_id: str, read: Callable[[RunRecord], _Read | None], step: int | None = None) -> _Read:
        """Return what is read of a run, all of it as it was at one time.

        Args:
            run_id: The run.
            read: Called with the record of the run. It returns None, or raises CheckpointCorruptError, if others write
                to the run meanwhile; then it is called again.
            step: The step that is asked for, for the error.

        Raises:
            CheckpointNotFoundError: there is no such run.
        """
        for _ in range(_READS):
            run = self.runs.find(run_id)  # first: a write before the rows are read makes its version an old one
            if run is None:
                self.known.forget_removed(run_id)
                raise CheckpointNotFoundError(run_id, str(self.table.store), step)
            try:
                found = read(run)
            except CheckpointCorruptError:
                if not self.is_stale(run):
                    raise
            else:
                if found is not None:
                    return found
        raise CheckpointError(run_id, f"it was not read from the {self.table.store}: others keep writing to it")

    def load(self, run_id: str, step: int | None = None) -> State:
        """Return the newest State of a run, or the one at a step; raise as `CheckpointStore.load`."""
        return self.read(run_id, partial(self._loaded, step), step)

    def load_with_run(self, run_id: str, step: int | None) -> tuple[RunRecord, State]:
        """Return a State, and the record of its run as it was then."""

        def read(run: RunRecord) -> tuple[RunRecord, State] | None:
            state = self._loaded(step, run)
            return None if state is None or self.is_stale(run) else (run, state)

        return self.read(run_id, read, step)

    def _loaded(self, step: int | None, run: RunRecord) -> State | None:
        """Return the State of a step (None: the newest); None if somebody else writes to the run meanwhile."""
        rows = self.table.chain(run.run_id, step)
        if not rows:
            self.check_absent(run, step)
        if not rows or (step is not None and not self.is_visible(run, step)):
            if self.is_stale(run):
                return None
            raise CheckpointNotFoundError(run.run_id, str(self.table.store), step)
        is_newest = self.is_newest(run, rows[-1])
        if not is_newest and (step is None or step >= run.step):
            return None
        state = self.encoder.state(run.run_id, rows, run.incarnation)
        if is_newest:
            self.known.remember(run, self.encoder.base_of(state, rows, run.incarnation))
        return state

    def history(self, run_id: str) -> list[Summary]:
        """Return the checkpoints of a run without their data; none for a run that does not exist."""
        try:
            return self.read(run_id, self._summaries)
        except CheckpointNotFoundError:
            return []

    def _summaries(self, run: RunRecord) -> list[Summary]:
        rows = self.visible(run)
        if self.sealer.signs:  # which covers the payloads: who signs wants to be sure rather than fast
            for chain in self.holding(run, rows):
                self.encoder.check(run.run_id, chain, run.incarnation)
        return [run.summary_of(row) for row in rows]

    # ------------------------------------------------------------------ checkpoints

    def is_stale(self, run: RunRecord) -> bool:
        """Return whether somebody else has written to the run since its record was read."""
        now = self.table.run(run.run_id)
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
        later = next((row for row in self.table.index(run.run_id) if row.step > step), None)
        if later is not None and later.base < step:  # what builds on it shows that it was there
            self.encoder.check(run.run_id, self.table.chain(run.run_id, later.step), run.incarnation)

    def is_visible(self, run: RunRecord, step: int) -> bool:
        """Return whether retention keeps a step."""
        return run.policy.max_checkpoints is None or any(row.step == step for row in self.visible(run))

    def visible(self, run: RunRecord) -> list[CheckpointRecord]:
        """Return the checkpoints of a run that retention keeps. More may be stored, which these build on."""
        rows = self.table.index(run.run_id)
        if not (rows and rows[-1].seal == run.tip) and not self.is_stale(run):
            raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing, or is another")
        return rows[-run.policy.max_checkpoints :] if run.policy.max_checkpoints else rows

    def holding(self, run: RunRecord, rows: Sequence[CheckpointRecord]) -> Iterator[list[CheckpointRecord]]:
        """Return the chains of a run that together contain these of its checkpoints."""
        newest_on = {row.base: row.step for row in rows}  # the last one builds on all that have the same base
        return (self.table.chain(run.run_id, step) for step in newest_on.values())

    def cut_below(self, run: RunRecord, snapshot: CheckpointRecord) -> int:
        """Return the step below which no checkpoint is needed any more, now that a snapshot is written."""
        most = run.policy.max_checkpoints
        if most is None:
            return 0
        if most == 1:
            return snapshot.step
        try:
            older = [row for row in self.table.index(run.run_id) if row.step < snapshot.step][-(most - 1) :]
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
        unknown = [row for row in rows if not self.known.is_checked(row)]
        found: set[tuple[int, int, bytes]] = set()
        for chain in self.holding(run, unknown):
            self.encoder.check(run.run_id, chain, run.incarnation)
            self.known.are_checked(chain)
            found.update((row.step, row.base, row.seal) for row in chain)
        return found.issuperset((row.step, row.base, row.seal) for row in unknown)

    # ------------------------------------------------------------------ writing

    def next_run(self, old: RunRecord | None, row: CheckpointRecord, base: DeltaBase) -> RunRecord:
        """Return the record of a run from its newest checkpoint on.

        Args:
            old: The record so far; None if the run begins.
            row: The record of the checkpoint.
            base: What the next one builds on, with the State.
        """
        state = base.state
        return self.sealer.sealed_run(
            RunRecord(
                run_id=state.run_id,
                number=old.number if old else 0,
                version=old.version + 1 if old else int.from_bytes(os.urandom(6)),
                step=state.step,
                node=state.checkpoint_node,
                time_ns=row.time_ns,
                status=state.status,
                error=state.error,
                graph=state.graph,
                parent=state.parent,
                policy=self.known.policy_of(state.run_id, old),
                pause=row.pause,
                incarnation=old.incarnation if old else base.incarnation,
                tip=row.seal,
            )
        )

    def write(self, batch: WriteBatch) -> bool:
        """Write a batch, together with those of other threads; return False if others have written to the run.

        Raises:
            RunLostError: it is written on behalf of somebody who does not own the run any more.
        """
        try:
            is_written = self.commits.commit(self.runs.guarded(batch) if is_nested_id(batch.run.run_id) else batch)
        except CheckpointError as error:
            error.run_id = error.run_id or batch.run.run_id
            raise
        if not is_written and batch.hold is not None and self.has_lost(batch.hold):
            raise lost(batch.hold.run_id)
        return is_written

    def has_lost(self, hold: Hold) -> bool:
        """Return whether a run was taken from its owner."""
        hold.is_lost = hold.is_lost or self.table.fence(hold.run_id)[0] != hold.fence
        return hold.is_lost

    def write_or_raise(self, batch: WriteBatch) -> None:
        """Write a batch. Raises StepConflictError if others have written to the run."""
        if not self.write(batch):
            self.known.forget(batch.run.run_id)
            raise StepConflictError(batch.run.run_id, "others wrote to the run at the same time")

    def remove(self, run_id: str, version: int | None = None) -> bool:
        """Remove a run, as `Table.remove`, and forget what is remembered of it."""
        is_removed = self.table.remove(run_id, version)
        if is_removed or version is None:
            self.known.forget_all(run_id)
        return is_removed
