"""RunLog: the runs of one durable store, for all that saves, loads, copies or prunes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from stategraph._owners.holds import Hold, lost
from stategraph._values.ids import NESTED
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    FormatError,
    StepConflictError,
)
from stategraph.state import State
from stategraph.stores._files.fork_safety import protect_at_fork
from stategraph.stores._rows.committer import Committer, Outcome
from stategraph.stores._rows.encoder import CheckpointEncoder, DeltaBase, Place
from stategraph.stores._rows.history import check_all, check_gapless, checked_pages
from stategraph.stores._rows.integrity import Sealer
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, WriteBatch
from stategraph.stores._rows.runs import KnownRuns, Runs
from stategraph.stores._rows.table import Table
from stategraph.stores.summaries import Summary

_NOWHERE = -1  # the sequence number of a checkpoint that is not there
_READS = 100  # of a run that others write to: reading is over long before the next save is

_DISTURBED = 3  # times that others may write meanwhile before it is read undisturbed

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
        committer: Writes batches of several threads in one transaction.
    """

    def __init__(self, table: Table, sealer: Sealer, encoder: CheckpointEncoder) -> None:
        self.table, self.sealer, self.encoder = table, sealer, encoder
        self.known = KnownRuns()
        self.runs = Runs(table, sealer, self.known)
        self.committer = self._new_committer()
        protect_at_fork(self)

    def at_rest(self) -> AbstractContextManager[object]:
        """Keep other threads out while the process is forked."""
        return self.table.at_rest()

    def renew(self) -> None:
        """Take locks of its own, in a forked child. Threads that committed in the parent are not here."""
        self.committer = self._new_committer()
        self.known.renew()
        self.table.renew()

    def _new_committer(self) -> Committer:
        return Committer(self.table.apply, is_shared=not self.table.is_server)

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
        for again in range(_READS):
            with self.table.undisturbed(run_id) if again > _DISTURBED else nullcontext():
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

    def load(self, run_id: str, step: int | None = None, revision: int | None = None) -> State:
        """Return the newest State of a run, or the one at a step; raise as `CheckpointStore.load`."""
        return self.read(run_id, lambda run: (self._loaded(step, revision, run) or (None,))[0], step)

    def load_with_run(
        self, run_id: str, step: int | None, revision: int | None = None
    ) -> tuple[RunRecord, CheckpointRecord, State]:
        """Return a State, its row, and the record of its run as it was then."""

        def read(run: RunRecord) -> tuple[RunRecord, CheckpointRecord, State] | None:
            state, row = self._loaded(step, revision, run) or (None, None)
            if state is None or row is None:
                return None
            return (run, row, state) if self.is_newest(run, row) or not self.is_stale(run) else None

        return self.read(run_id, read, step)

    def _loaded(self, step: int | None, revision: int | None, run: RunRecord) -> tuple[State, CheckpointRecord] | None:
        """Return the State of a step (None: the newest), and its row; None if others write to the run meanwhile."""
        if step is None and revision is not None:
            step = run.step
        at = None if step is None else self._find(run, step, revision)
        rows, after = self._read(run, at, revision)
        if at is None and rows and not self.is_newest(run, rows[-1]):  # or one that is saved fast is never read
            rows = self.table.chain(run.run_id, run.sequence)
        if not rows and (step, at) != (run.sequence, _NOWHERE):  # else the newest step has no such revision
            self.check_absent(run, step if at == _NOWHERE else at)
        if not rows or (at is not None and not self._is_visible(run, at)):
            if self.is_stale(run):
                return None
            raise CheckpointNotFoundError(run.run_id, str(self.table.store), step, revision)
        is_newest = self.is_newest(run, rows[-1])
        if not is_newest and (at is None or at >= run.sequence):
            return None
        if not is_newest and revision is None and run.sequence > run.step:
            self._check_followed(run, rows[-1], after)
        state = self.encoder.state(run.run_id, rows, run.incarnation)
        if is_newest:
            self.known.remember(run, self.encoder.base_of(state, rows, run.incarnation))
        return state, rows[-1]

    def _read(
        self, run: RunRecord, at: int | None, revision: int | None
    ) -> tuple[list[CheckpointRecord], CheckpointRecord | None]:
        """Return the chain of a State and, where another revision may follow, the next row if that builds on it."""
        if at is not None and revision is None and run.step < run.sequence > at > _NOWHERE:
            longer = self.table.chain(run.run_id, at + 1)
            if len(longer) > 1 and longer[-2].sequence == at:
                return longer[:-1], longer[-1]
        return [] if at == _NOWHERE else self.table.chain(run.run_id, at), None

    def keeps_all(self, run: RunRecord | None, run_id: str = "") -> bool:
        """Return whether nothing that was saved of a run is ever replaced."""
        return self.known.policy_of(run.run_id if run else run_id, run).keeps_all

    def _find(self, run: RunRecord, step: int, revision: int | None) -> int:
        """Return the sequence number of the newest revision of a step, or of this one."""
        ahead = run.sequence - run.step
        if not ahead:  # as in most runs: there is one checkpoint of each step
            return _NOWHERE if revision else step
        found = self.table.find(run.run_id, step, min(step + ahead, run.sequence), revision)
        return _NOWHERE if found is None else found

    def next_place(self, at: RunRecord | CheckpointRecord, state: State) -> Place:
        """Return the place of the row that comes after the newest one of a run, of which nothing is replaced."""
        if state.step > at.step:
            # Steps that are made again after a rollback have been made before.
            ahead = at.sequence - at.step if state.generation else 0
            before = self._newest_revision(at, state, ahead) if ahead else -1
            return at.sequence + state.step - at.step, before + 1
        if state.step == at.step:
            return at.sequence + 1, at.revision + 1
        return at.sequence + 1, self._newest_revision(at, state, at.sequence - at.step) + 1

    def _newest_revision(self, newest: RunRecord | CheckpointRecord, state: State, ahead: int) -> int:
        """Return the newest revision of the step of a State; -1 if it was never made."""
        run_id, known = state.run_id, self.known.get(state.run_id)
        at = self.table.find(run_id, state.step, state.step + ahead, None)
        chain = [] if at is None else self.table.chain(run_id, at)
        run = newest if isinstance(newest, RunRecord) else known and known[0]
        if run:
            self.encoder.check(run_id, chain, run.incarnation)
        return chain[-1].revision if chain else -1

    def history(self, run_id: str) -> list[Summary]:
        """Return the checkpoints of a run without their data; none for a run that does not exist."""
        try:
            return self.read(run_id, self.summaries)
        except CheckpointNotFoundError:
            return []

    def iter_history(self, run_id: str) -> Iterator[Summary]:
        """Yield the checkpoints of a run as it stands now, without their data, as `CheckpointStore.iter_history`.

        If nothing of a run is ever replaced, they are read a page at a time. Otherwise there are few; and a signature
        covers their data. These are read at once.
        """
        run = self.runs.find(run_id)
        if run is None or not run.policy.keeps_all or self.sealer.signs:
            yield from self.history(run_id)
            return
        try:
            for rows in checked_pages(self.table, run):
                yield from run.summaries_of(rows)
        except CheckpointCorruptError as error:
            now = self.table.run(run_id)
            if now is not None and now.incarnation == run.incarnation and now.policy.keeps_all:
                raise
            reason = "while its history was read, others have deleted it, or some of its checkpoints"
            raise CheckpointError(run_id, reason) from error

    def summaries(self, run: RunRecord) -> list[Summary]:
        """Return the checkpoints of a run that retention keeps, without their data."""
        if run.policy.keeps_all and not self.sealer.signs:
            return [one for rows in checked_pages(self.table, run) for one in run.summaries_of(rows)]
        rows = self.visible(run)
        if run.policy.keeps_all:
            check_all(run, rows)
        if self.sealer.signs:  # which covers the payloads: who signs wants to be sure rather than fast
            for chain in self.holding(run, rows):
                self.encoder.check(run.run_id, chain, run.incarnation)
        return [*run.summaries_of(rows)]

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
        if row.sequence >= run.sequence and not self.is_stale(run):
            raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is another than was saved")
        return False

    def check_absent(self, run: RunRecord, at: int | None) -> None:
        """Raise CheckpointCorruptError if a checkpoint that is not there was lost, rather than removed or never saved.

        It is looked for from this sequence number on, to as far above it as one of the step can be.
        """
        if at is None or at == run.sequence:
            if not self.is_stale(run):
                raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing")
            return
        last = at + run.sequence - run.step
        rows = self.table.index(run.run_id)
        after = next((row.sequence for row in rows if row.sequence > last), last)
        # What builds on it shows that it was there, and what has its number may be what became of it.
        shown = [row for row in rows if at <= row.sequence <= after and (row.base < last or row.sequence <= last)]
        found = set[int]()
        for chain in self.holding(run, shown):
            self.encoder.check(run.run_id, chain, run.incarnation)
            found.update(row.sequence for row in chain)
        if not found.issuperset(row.sequence for row in shown):  # one of them says that it builds on another row
            raise CheckpointCorruptError(run.run_id, "its checkpoints do not build on those that they name")

    def _check_followed(self, run: RunRecord, row: CheckpointRecord, after: CheckpointRecord | None) -> None:
        """Raise CheckpointCorruptError if a newer revision of a step than this one was lost."""
        if after is not None:
            self.sealer.check(run.run_id, [after], run.incarnation, row.seal)
            check_gapless(run, (row, after))
            return
        after = next((one for one in self.table.index(run.run_id) if one.sequence > row.sequence), None)
        if after is None:  # the newest is none of the index
            raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing")
        self.encoder.check(run.run_id, self.table.chain(run.run_id, after.sequence), run.incarnation)
        check_gapless(run, (row, after))

    def _is_visible(self, run: RunRecord, at: int) -> bool:
        """Return whether retention keeps a checkpoint."""
        return run.policy.max_checkpoints is None or any(row.sequence == at for row in self.visible(run))

    def visible(self, run: RunRecord) -> list[CheckpointRecord]:
        """Return the checkpoints of a run that retention keeps. More may be stored, which these build on."""
        rows = self.table.index(run.run_id)
        if not (rows and rows[-1].seal == run.tip) and not self.is_stale(run):
            raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing, or is another")
        return rows[run.policy.first_kept(rows) :]

    def holding(self, run: RunRecord, rows: Sequence[CheckpointRecord]) -> Iterator[list[CheckpointRecord]]:
        """Return the chains of a run that together contain these of its checkpoints."""
        newest_on = {row.base: row.sequence for row in rows}  # the last one builds on all that have the same base
        return (self.table.chain(run.run_id, sequence) for sequence in newest_on.values())

    def cut_below(self, run: RunRecord, snapshot: CheckpointRecord) -> int:
        """Return the sequence number below which nothing is needed any more, now that a snapshot is written."""
        most = run.policy.max_checkpoints
        if most is None:
            return 0
        if most == 1:
            return snapshot.sequence
        try:
            rows = [row for row in self.table.index(run.run_id) if row.sequence < snapshot.sequence]
            older = rows[run.policy.first_kept([*rows, snapshot]) :]
            is_sure = self._are_as_sealed(run, older)
        except (CheckpointCorruptError, FormatError):
            is_sure = False
        # What is damaged stays, with all before it, for whoever loads it to see. The run can go on.
        return min([row.base for row in older], default=snapshot.sequence) if is_sure else 0

    def _are_as_sealed(self, run: RunRecord, rows: Sequence[CheckpointRecord]) -> bool:
        """Return whether checkpoints of an index stand where they did when they were sealed, with the same bases.

        Raises:
            CheckpointCorruptError: they, or what they build on, are damaged.
            FormatError: likewise, or a newer version wrote them.
        """
        unknown = [row for row in rows if not self.known.is_checked(row)]
        found: set[tuple[int, int, bytes]] = set()
        for chain in self.holding(run, unknown):
            self.encoder.check(run.run_id, chain, run.incarnation)
            self.known.are_checked(chain)
            found.update((row.sequence, row.base, row.seal) for row in chain)
        return found.issuperset((row.sequence, row.base, row.seal) for row in unknown)

    # ------------------------------------------------------------------ writing

    def next_run(
        self, old: RunRecord | None, row: CheckpointRecord, base: DeltaBase, first: CheckpointRecord | None = None
    ) -> RunRecord:
        """Return the record of a run from its newest checkpoint on.

        Args:
            old: The record so far; None if the run begins.
            row: The record of the checkpoint.
            base: What the next one builds on, with the State.
            first: The first checkpoint of a run that begins, if it is another.
        """
        state = base.state
        version = old.version + 1 if old else int.from_bytes(os.urandom(6))
        created_ns = old.created_ns if old else (first or row).time_ns
        labels = tuple(sorted(state.labels.items())) if state.labels else ()
        incarnation = old.incarnation if old else base.incarnation
        fields = (
            *(state.run_id, old.number if old else 0, version, row.sequence, state.step, row.revision, row.kind),
            *(state.checkpoint_node, row.time_ns, state.status, state.error, row.by, state.graph, state.parent),
            *(self.known.policy_of(state.run_id, old), created_ns, labels, row.pause, incarnation, row.seal, b""),
        )
        return self.sealer.sealed_run(tuple.__new__(RunRecord, fields))  # as its constructor does, at every save

    def write(self, batch: WriteBatch) -> bool:
        """Write a batch, together with those of other threads; return False if others have written to the run.

        Raises:
            RunLostError: it is written on behalf of somebody who does not own the run any more.
            StepConflictError: the store has lost what it had of the run.
        """
        try:
            is_written = self._is_written(batch) or (self.is_settled(batch.hold) and self._is_written(batch))
        except CheckpointError as error:
            error.run_id = error.run_id or batch.run.run_id
            raise
        if is_written:
            return True
        if batch.hold is not None and self.has_lost(batch.hold):
            raise lost(batch.hold.run_id)
        self.check_kept(batch)
        return False

    def _is_written(self, batch: WriteBatch) -> bool:
        (outcome,) = self.commit([batch])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def commit(self, batches: Sequence[WriteBatch]) -> list[Outcome]:
        """Write batches of several runs; return the outcome of each."""
        guarded = [self.runs.guarded(batch) if NESTED in batch.run.run_id else batch for batch in batches]
        return self.committer.commit(guarded) if guarded else []

    def check_kept(self, refused: WriteBatch) -> None:
        """Raise StepConflictError if the store has lost what it had of a run, which others have not deleted."""
        run = refused.old
        now = None if run is None else self.table.run(run.run_id)
        if run is not None and now is not None and now.incarnation == run.incarnation and now.version < run.version:
            self.known.forget(run.run_id)
            reason = (
                f"the {self.table.store} has lost what was saved: step {run.step} was, and its newest is {now.step} "
                "now; another server has taken over, or a copy was put back; load the run to go on from there"
            )
            raise StepConflictError(run.run_id, reason)

    def is_settled(self, hold: Hold | None) -> bool:
        """Own a run for good that is only held for a write by hand; return whether there was anything to do.

        Raises:
            RunBusyError: somebody else owns it.
        """
        return hold is not None and self.table.owners is not None and self.table.owners.settle(hold)

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
