"""RunLog: the records of one durable store, and what this process remembers of its runs."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias
from weakref import WeakValueDictionary

import attrs

from stategraph._owners.base import Ownership, current, lost, new_incarnation
from stategraph._values.entries import Entry
from stategraph._values.ids import given_id, is_nested_id
from stategraph.errors import CheckpointError, StepConflictError
from stategraph.state import State, due_ns_of, is_changed_while_paused
from stategraph.stores._files.fork_safety import ForkSafe
from stategraph.stores._rows.encoder import CheckpointEncoder, DeltaBase
from stategraph.stores._rows.records import CheckpointRecord, Removal, RunRecord, Write, of_newest
from stategraph.stores._rows.seals import Sealer
from stategraph.stores._rows.table import Table
from stategraph.stores.base import RetentionPolicy

_MOST_KNOWN = 1_000  # runs whose last saved State is remembered; the next save of another run is a snapshot
_MOST_REPORTED = 10_000  # damaged runs that are remembered as reported


@attrs.define(eq=False)
class Journal:
    """What is known of the journal of a step, which only the owner of the run writes.

    Attributes:
        step: The step.
        newest: The number of its newest entry.
        places: The numbers of its entries with names.
    """

    step: int
    newest: int = 0
    places: dict[tuple[int, str, str, str], int] = attrs.field(factory=dict)

    def add(self, entries: Iterable[Entry]) -> None:
        """Note entries that are written."""
        for entry in entries:
            self.newest = max(self.newest, entry.seq)
            if entry.name:
                self.places[entry.identity] = entry.seq

    def numbered(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return new entries with their numbers, and note them: an entry replaces an earlier one of its name."""
        found = []
        for entry in entries:
            seq = self.places.get(entry.identity) if entry.name else None
            found.append(entry.numbered(self.newest + 1 if seq is None else seq))
            if seq is None:
                self.add(found[-1:])
        return found


EMPTY = Journal(0)
"""The journal of the step after a State that this process has saved."""

Known: TypeAlias = tuple[RunRecord, DeltaBase, DeltaBase | None, Journal | None]
"""The record of a run; its newest checkpoint and, if that is no snapshot, the one before it; and the journal of the
step under way, None if it may have entries that are not known."""


class RunLog(ForkSafe):
    """The runs of a store: the records in its table, and what this process remembers of them.

    A nested run has the incarnation of its outer run. So the remains of a deleted run are never mistaken for a part of
    a new run with its id. A nested run that is saved before its outer run has the incarnation of their owner.

    Attributes:
        table: Holds the records.
        encoder: Converts States to records and back.
        sealer: Makes and checks the seals of records.
        known: The last saved or loaded state of each run. Others may have written since: a save finds out.
        in_use: The journals to which threads append now.
        lock: Held while entries of a journal are numbered.
    """

    def __init__(self, table: Table, sealer: Sealer, encoder: CheckpointEncoder) -> None:
        super().__init__()
        self.table, self.sealer, self.encoder = table, sealer, encoder
        self.known: OrderedDict[str, Known] = OrderedDict()
        self.in_use: WeakValueDictionary[tuple[bytes, str, int], Journal] = WeakValueDictionary()
        self._policies: dict[str, RetentionPolicy] = {}  # of runs that have not been saved since
        self._reported: set[str] = set()

    # ------------------------------------------------------------------ memory

    def remember(self, known: Known) -> None:
        """Remember the newest checkpoint of a run."""
        run = known[0]
        self.known[run.run_id] = known
        try:  # noqa: SIM105 - every save does this, and suppress takes longer than the rest
            self.known.move_to_end(run.run_id)
        except KeyError:  # another thread has removed it
            pass
        if len(self.known) > _MOST_KNOWN:
            self.known.popitem(last=False)
        if self._policies and self._policies.get(run.run_id) == run.policy:
            self._policies.pop(run.run_id, None)  # the store itself keeps it from now on

    def journal_of(self, run_id: str, step: int) -> Journal | None:
        """Return what is known of the journal of a step; None if its entries must be read."""
        known = self.known.get(run_id)
        journal = None if known is None else known[3]
        if journal is EMPTY and known is not None and known[0].step + 1 == step:
            return Journal(step)
        return journal if journal is not None and journal.step == step else None

    def note_journal(self, run: RunRecord, journal: Journal) -> None:
        """Remember the journal of the step under way, if the run is remembered."""
        known = self.known.get(run.run_id)
        if known is not None and known[0].step + 1 == journal.step:
            self.known[run.run_id] = (*known[:3], journal)

    def forget(self, run_id: str) -> None:
        """Forget the newest checkpoint of a run, because others have written to it."""
        self.known.pop(run_id, None)

    def forget_changed(self, run_id: str) -> None:
        """Forget the newest checkpoint of a run that others have written to, unless that makes saves impossible.

        Raises:
            StepConflictError: others have deleted the run and begun it again, or the store has lost checkpoints of it.
        """
        known, now = self.known.get(run_id), self.table.run(run_id)
        if known is not None and now is not None:
            self.check_known(run_id, now.incarnation)
        self.forget(run_id)
        if known is not None and now is not None and now.version < known[0].version:
            reason = (
                f"the {self.table.store} has lost saved checkpoints: step {known[0].step} was saved, and the newest is "
                f"{now.step}; another server has taken over, or a copy was put back; load the run to go on from there"
            )
            raise StepConflictError(run_id, reason)
        self.remove_left_over(run_id)

    def forget_all(self, run_id: str) -> None:
        """Forget everything about a run that no longer exists."""
        self.forget(run_id)
        self._policies.pop(run_id, None)

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:
        """Remember the retention policy of a run until it is saved."""
        self._policies[run_id] = policy

    def policy_of(self, run_id: str, run: RunRecord | None) -> RetentionPolicy:
        """Return the retention policy of a run with this record."""
        return self._policies.get(run_id) or (run.policy if run else RetentionPolicy())

    # ------------------------------------------------------------------ records

    def find(self, run_id: str) -> RunRecord | None:
        """Return the record of a run, None if there is none.

        Raises:
            CheckpointCorruptError: the record is damaged.
        """
        run = self.table.run(run_id)
        if run is None:
            return None
        run = self.sealer.check_run(run, run_id)
        return run if not is_nested_id(run_id) or self.is_of_its_run(run) else None

    def is_of_its_run(self, nested: RunRecord) -> bool:
        """Return whether a nested run is of the current life of its outer run."""
        outer = self.find(given_id(nested.run_id))
        return nested.incarnation == (_incarnation_of_owner() if outer is None else outer.incarnation)

    def is_stale(self, run: RunRecord) -> bool:
        """Return whether others have written to the run since its record was read."""
        now = self.table.run(run.run_id)
        return now is None or now.version != run.version

    # ------------------------------------------------------------------ incarnations

    def incarnation_for(self, run_id: str) -> bytes:
        """Return the incarnation for a run that begins.

        Raises:
            StepConflictError: its outer run is not the run that was saved or loaded here.
        """
        outer = self.find(given_id(run_id)) if is_nested_id(run_id) else None
        incarnation = _incarnation_of_owner() if outer is None else outer.incarnation
        if is_nested_id(run_id):
            self.check_known(given_id(run_id), incarnation)
        return incarnation

    def check_known(self, run_id: str, incarnation: bytes) -> None:
        """Raise StepConflictError if a run with this incarnation is not the run that was saved or loaded here."""
        known = self.known.get(run_id)
        if known is not None and known[0].incarnation != incarnation:
            reason = (
                "others have deleted it since it was saved or loaded here, so nothing more of it and its nested runs "
                "is saved; load the run, if they have begun it again, or execute it again"
            )
            raise StepConflictError(given_id(run_id), reason)

    def outer_of(self, run: RunRecord) -> bytes | None:
        """Return the incarnation that the outer run must have when a nested run is written.

        Return None for other runs, and if the outer run begins, or began, under the same owner.
        """
        is_free = not is_nested_id(run.run_id) or run.incarnation == _incarnation_of_owner()
        return None if is_free else run.incarnation

    def remove_left_over(self, run_id: str) -> None:
        """Remove a nested run that remains of a deleted run, so that another one can take its place."""
        run = self.table.run(run_id) if is_nested_id(run_id) else None
        if run is not None and not self.is_of_its_run(run):
            self.table.apply([Removal(run_id, run.version)])

    def report(self, run_id: str, error: CheckpointError) -> None:
        """Log that a damaged run is left out, once for each run."""
        if run_id not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(run_id)
            way_out = f"store.delete({run_id!r})"
            is_said = way_out in error.reason or "_with" in error.reason  # with the right key it may be intact
            logging.getLogger("stategraph").warning(
                "run %r in the %s is left out (logged once): %s%s",
                run_id,
                self.table,
                error.reason,
                "" if is_said else f"; {way_out} removes it",
            )

    # ------------------------------------------------------------------ writing

    def next_run(
        self,
        old: RunRecord | None,
        row: CheckpointRecord,
        state: State,
        incarnation: bytes,
        *,
        first: CheckpointRecord | None = None,
        policy: RetentionPolicy | None = None,
    ) -> RunRecord:
        """Return the record of a run with a new newest checkpoint.

        Args:
            old: The current record; None if the run begins.
            row: The row of the checkpoint.
            state: Its State.
            incarnation: The incarnation of the run.
            first: The first checkpoint of a run that begins with several.
            policy: The retention policy, if it is known.
        """
        row = self.sealer.shown(state.run_id, row, incarnation)
        due_ns = due_ns_of(state) if state.progress or state.pause else None
        if old is not None and is_changed_while_paused(state):
            due_ns = old.due_ns  # a stored answer may have made it due
        version = old.version + 1 if old else int.from_bytes(os.urandom(6))
        created_ns = old.created_ns if old else (first or row).time_ns
        labels = tuple(sorted(state.labels.items())) if state.labels else ()
        fields = (
            *(state.run_id, old.number if old else 0, version, *of_newest(row), state.graph, state.parent),
            *(policy or self.policy_of(state.run_id, old), created_ns, labels, row.pause),
            *(incarnation, row.seal, b"", due_ns),
        )
        return self.sealer.sealed_run(tuple.__new__(RunRecord, fields))  # skips the constructor, for speed

    def write(self, write: Write) -> bool:
        """Make a write, in one transaction with those of other threads; return False if others have written to the run.

        Raises:
            RunLostError: the owner that makes it has lost the run.
        """
        (outcome,) = self.table.commit([write])
        if outcome is False and self.lease_if_missing(write.ownership):
            (outcome,) = self.table.commit([write])
        if isinstance(outcome, Exception):
            if isinstance(outcome, CheckpointError):
                outcome.run_id = outcome.run_id or write.run_id
            raise outcome
        if not outcome and write.ownership is not None and self.has_lost(write.ownership):
            raise lost(write.ownership.run_id)
        return outcome

    def lease_if_missing(self, ownership: Ownership | None) -> bool:
        """Acquire the lease that a direct write had skipped; return whether it was missing.

        Raises:
            RunBusyError: another call owns it.
        """
        return ownership is not None and self.table.owners.lease_if_missing(ownership)

    def has_lost(self, ownership: Ownership) -> bool:
        """Return whether another call took the run from this owner."""
        if not ownership.is_lost and self.table.fence(ownership.run_id)[0] != ownership.fence:
            ownership.is_lost = True  # never set to false: another thread may take the run over in the meantime
        return ownership.is_lost

    def remove(self, run_id: str) -> None:
        """Remove a run with its nested runs from the store and from memory."""
        self.write(Removal(run_id))
        self.forget_all(run_id)


def _incarnation_of_owner() -> bytes:
    """Return the incarnation of runs that begin under the owner for whom this thread writes or reads."""
    return new_incarnation() if current.ownership is None else current.ownership.incarnation
