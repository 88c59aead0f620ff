"""RunLog: the runs of one durable store, for everything that saves, loads, copies or prunes them."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from stategraph._values.ids import is_nested_id
from stategraph.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError, StepConflictError
from stategraph.state import State
from stategraph.stores._files.fork_safety import take_care_of
from stategraph.stores._rows.chains import Chains
from stategraph.stores._rows.encoder import CheckpointEncoder
from stategraph.stores._rows.group_commit import SharedCommits
from stategraph.stores._rows.integrity import Sealer
from stategraph.stores._rows.known import KnownRuns
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, WriteBatch
from stategraph.stores._rows.runs import Runs
from stategraph.stores._rows.table import Table

_READS = 100  # of a run that others write to: reading is over long before the next save is

_Read = TypeVar("_Read")


class RunLog:
    """The runs of a store: what its table holds of them, and what is remembered of them here.

    Attributes:
        table: Holds the records.
        runs: The records of runs, checked.
        chains: The records of checkpoints, checked against those of their runs.
        known: What is remembered of runs since they were saved or loaded here.
        encoder: Makes records of States, and States of records.
        sealer: Makes and checks the seals of records.
        commits: Writes batches of several threads in one transaction.
    """

    def __init__(self, table: Table, sealer: Sealer, encoder: CheckpointEncoder) -> None:
        self.table, self.sealer, self.encoder = table, sealer, encoder
        self.known = KnownRuns()
        self.runs, self.chains = Runs(table, sealer, self.known), Chains(table, encoder, self.known)
        self.commits = SharedCommits(table.apply, table.is_in_use)
        take_care_of(self)

    def at_rest(self) -> AbstractContextManager[object]:
        """Keep other threads out while the process is forked."""
        return self.table.at_rest()

    def renew(self) -> None:
        """Take locks of its own, in a forked child. Threads that committed in the parent are not here."""
        self.commits = SharedCommits(self.table.apply, self.table.is_in_use)
        self.known.renew()
        self.table.renew()

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
                raise CheckpointNotFoundError(run_id, str(self.table), step)
            try:
                found = read(run)
            except CheckpointCorruptError:
                if not self.chains.is_stale(run):
                    raise
            else:
                if found is not None:
                    return found
        raise CheckpointError(run_id, f"it was not read from the {self.table}: others keep writing to it")

    def next_run(
        self, old: RunRecord | None, state: State, row: CheckpointRecord, incarnation: bytes = b""
    ) -> RunRecord:
        """Return the record of a run whose newest State is this one.

        Args:
            old: The record so far; None if the run begins.
            state: The State.
            row: Its record.
            incarnation: That of a run which begins.
        """
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
                incarnation=old.incarnation if old else incarnation,
                tip=row.seal,
            )
        )

    def write(self, batch: WriteBatch) -> bool:
        """WriteBatch a batch, together with those of other threads; return False if others have written to the run."""
        try:
            return self.commits.commit(self.runs.guarded(batch) if is_nested_id(batch.run.run_id) else batch)
        except CheckpointError as error:
            error.run_id = error.run_id or batch.run.run_id
            raise

    def write_or_raise(self, batch: WriteBatch) -> None:
        """WriteBatch a batch. Raises StepConflictError if others have written to the run."""
        if not self.write(batch):
            self.known.forget(batch.run.run_id)
            raise StepConflictError(batch.run.run_id, "others wrote to the run at the same time")

    def remove(self, run_id: str, version: int | None = None) -> bool:
        """Remove a run, as `Table.remove`, and forget what is remembered of it."""
        is_removed = self.table.remove(run_id, version)
        if is_removed or version is None:
            self.known.forget_all(run_id)
        return is_removed
