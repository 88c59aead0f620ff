"""RunLog: the runs of one durable store, as all know them that save, load, copy or prune: records, memory, commits."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TypeVar

from stategraph._owners.holds import Hold, lost
from stategraph._values.ids import given_id, is_nested_id, nested_range
from stategraph.errors import CheckpointCorruptError, CheckpointError, StepConflictError
from stategraph.stores._checks import RunFilter
from stategraph.stores._files.fork_safety import protect_at_fork
from stategraph.stores._rows.committer import Committer, Outcome
from stategraph.stores._rows.encoder import CheckpointEncoder, DeltaBase, Sealer
from stategraph.stores._rows.records import (
    CheckpointRecord,
    Removal,
    RunRecord,
    Unreadable,
    Write,
    WriteBatch,
    of_newest,
)
from stategraph.stores._rows.table import Table
from stategraph.stores.base import RetentionPolicy

_MOST_BASES = 1_000  # runs whose last saved State is remembered; the next save of another one is a snapshot
_MOST_REMEMBERED = 100_000  # of what takes few bytes
_MOST_REPORTED = 10_000  # damaged runs that are remembered as reported
_INCARNATION = 8  # bytes: no two runs of one id have the same by chance

_PAGE = 100  # runs that are looked at at least, where few of them may match a filter
_ALL = RunFilter()

_Read = TypeVar("_Read")
_Value = TypeVar("_Value")


class RunLog:
    """The runs of a store: what its table holds of them, and what is remembered of them here.

    A nested run has the incarnation of the run that it is nested in. So what a deleted run has left is never taken for
    a part of one that has begun again with its id.

    Attributes:
        table: Holds the records.
        encoder: Makes records of States, and States of records.
        sealer: Makes and checks the seals of records.
        committer: Writes batches of several threads in one transaction.
    """

    def __init__(self, table: Table, sealer: Sealer, encoder: CheckpointEncoder) -> None:
        self.table, self.sealer, self.encoder = table, sealer, encoder
        self.committer = self._new_committer()
        # Runs as they were saved or loaded here last. Others may have written since: a save finds out.
        self._newest: OrderedDict[str, tuple[RunRecord, DeltaBase, DeltaBase | None]] = OrderedDict()
        self._policies: OrderedDict[str, RetentionPolicy] = OrderedDict()  # of runs that have not been saved since
        # Those of runs that are not nested, and whether they have begun: nested runs may be saved before.
        self._incarnations: OrderedDict[str, tuple[bytes, bool]] = OrderedDict()
        self._reported: set[str] = set()
        protect_at_fork(self)

    def at_rest(self) -> AbstractContextManager[object]:
        """Keep other threads out while the process is forked."""
        return self.table.at_rest()

    def renew(self) -> None:
        """Take locks of its own, in a forked child. Threads that committed in the parent are not here."""
        self.committer = self._new_committer()
        self.table.renew()

    def _new_committer(self) -> Committer:
        return Committer(self._apply, is_shared=not self.table.is_server)

    def _apply(self, batches: Sequence[Write]) -> Sequence[Outcome]:
        return self.table.apply(batches)

    # ------------------------------------------------------------------ what is remembered

    def remembered(self, run_id: str) -> tuple[RunRecord, DeltaBase, DeltaBase | None] | None:
        """Return the record of a run, its newest checkpoint and, if that is no snapshot, the one before it."""
        return self._newest.get(run_id)

    def remember(self, run: RunRecord, base: DeltaBase, before: DeltaBase | None = None) -> None:
        """Remember the newest checkpoint of a run and, if that is no snapshot, the one before it."""
        run_id = run.run_id
        _put_last(self._newest, run_id, (run, base, before), _MOST_BASES)
        if not is_nested_id(run_id):
            _put_last(self._incarnations, run_id, (run.incarnation, True))
        if self._policies and self._policies.get(run_id) == run.policy:
            self._policies.pop(run_id, None)  # from now on the store itself knows it

    def forget(self, run_id: str) -> None:
        """Forget the newest checkpoint of a run: others have written to it."""
        self._newest.pop(run_id, None)

    def forget_removed(self, run_id: str) -> None:
        """Forget a run that does not exist any more, but not what is to be kept of it once it does."""
        self.forget(run_id)
        if run_id not in self._incarnations:  # nor is anything known that is nested in it
            return
        first, last = nested_range(run_id)
        for nested_id in [known for known in [*self._newest] if first < known < last]:
            self.forget(nested_id)
        if self._incarnations.get(run_id, (b"", False))[1]:
            self._incarnations.pop(run_id, None)

    def forget_all(self, run_id: str) -> None:
        """Forget all of a run that does not exist any more."""
        self.forget_removed(run_id)
        self._incarnations.pop(run_id, None)
        self._policies.pop(run_id, None)

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:
        """Remember what is to be kept of a run, until it is saved."""
        _put_last(self._policies, run_id, policy)

    def policy_of(self, run_id: str, run: RunRecord | None) -> RetentionPolicy:
        """Return what is to be kept of a run that has this record."""
        return self._policies.get(run_id) or (run.policy if run else RetentionPolicy())

    # ------------------------------------------------------------------ records

    def find(self, run_id: str) -> RunRecord | None:
        """Return the record of a run, None if there is none.

        Raises:
            CheckpointCorruptError: it is not as it was written.
        """
        run = self.table.run(run_id)
        if run is None:
            return None
        self.sealer.check_run(run, run_id)
        return run if not is_nested_id(run_id) or self._is_of_its_run(run) else None

    def _is_of_its_run(self, nested: RunRecord) -> bool:
        outer_id = given_id(nested.run_id)
        known = self._incarnations.get(outer_id)  # before the outer run is looked for: it may begin in between
        outer = self.find(outer_id)
        if outer is not None:
            return nested.incarnation == outer.incarnation
        return known == (nested.incarnation, False)

    def is_stale(self, run: RunRecord) -> bool:
        """Return whether others have written to the run since its record was read."""
        now = self.table.run(run.run_id)
        return now is None or now.version != run.version

    def is_newest(self, run: RunRecord, row: CheckpointRecord) -> bool:
        """Return whether a checkpoint is the newest of a run; False if others have written since.

        Raises:
            CheckpointCorruptError: it stands in the place of the newest one, and no other process has written.
        """
        if row.seal == run.tip:
            return True
        if row.sequence >= run.sequence and not self.is_stale(run):
            raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is another than was saved")
        return False

    # ------------------------------------------------------------------ incarnations

    def incarnation_for(self, run_id: str) -> bytes:
        """Return the incarnation with which a run begins.

        Raises:
            StepConflictError: it is nested in another run than the one that was saved or loaded here.
        """
        outer_id = given_id(run_id)
        known = self._incarnations.get(outer_id)  # before the outer run is looked for: it may begin in between
        outer = self.find(outer_id) if is_nested_id(run_id) else None
        if outer is not None:
            self.check_known(run_id, outer.incarnation)
            return outer.incarnation
        if known is not None and known[1]:
            if is_nested_id(run_id):
                raise _deleted(outer_id)
            self._incarnations.pop(outer_id, None)
        # In one step: threads that begin nested runs at the same time get the same incarnation.
        return self._incarnations.setdefault(outer_id, (new_incarnation(), False))[0]

    def check_known(self, run_id: str, incarnation: bytes) -> None:
        """Raise StepConflictError if a run is another than the one that was saved or loaded here, or is nested in
        another."""
        outer_id = given_id(run_id)
        known, has_begun = self._incarnations.get(outer_id, (incarnation, True))
        if known != incarnation and (has_begun or is_nested_id(run_id)):
            raise _deleted(outer_id)

    def outer_of(self, run: RunRecord) -> bytes | None:
        """Return the incarnation that the outer run must have when a nested run is written.

        None of other runs, and where it is this handle that has yet to begin the outer run.
        """
        if not is_nested_id(run.run_id) or self._incarnations.get(given_id(run.run_id)) == (run.incarnation, False):
            return None
        return run.incarnation

    def remove_left_over(self, run_id: str) -> None:
        """Remove a nested run that a deleted run has left, so that another one can take its place."""
        run = self.table.run(run_id) if is_nested_id(run_id) else None
        if run is not None and not self._is_of_its_run(run):
            self.table.apply([Removal(run_id, run.version)])

    # ------------------------------------------------------------------ lists

    def listing(
        self,
        read: Callable[[RunRecord], _Read],
        which: RunFilter = _ALL,
        limit: int = -1,
        before: int | None = None,
        owner_of: Callable[[str], object] = str,
    ) -> tuple[list[_Read], list[str]]:
        """Return what is read of runs, the newest first, and the ids of damaged runs, which are left out and logged.

        Args:
            read: Called with the record of each run; raises a CheckpointError if it is damaged.
            which: Only these runs.
            limit: At most so many runs; all if it is negative.
            before: Only runs with a number below this one.
            owner_of: Returns who owns a run.
        """
        found: list[_Read] = []
        damaged: dict[str, None] = {}  # where its number cannot be read, it is on every page
        if which.owned and which.owned_ids is not None and not which.owned_ids:
            return found, []
        while True:
            left = limit if limit < 0 else limit - len(found)
            size = left if limit < 0 or not which.is_narrow else max(left, _PAGE)
            page = self.table.runs(which, size, before)
            for run in page:
                try:
                    if isinstance(run, Unreadable):
                        raise run.error
                    if len(found) != limit and self._is_wanted(run, which, owner_of):
                        found.append(read(run))
                except CheckpointError as error:
                    damaged[run.run_id] = None
                    self.report(run.run_id, error)
            numbers = [run.number for run in page if run.number is not None]
            if size < 0 or len(page) < size or len(found) == limit or not numbers:
                return found, [*damaged]
            before = min(numbers)

    def _is_wanted(self, run: RunRecord, which: RunFilter, owner_of: Callable[[str], object]) -> bool:
        """Return whether a run is one of these. Raises CheckpointCorruptError if it is damaged."""
        is_nested = is_nested_id(run.run_id)
        if is_nested and not which.takes_id(run.run_id):  # it is parts of a step
            return False
        self.sealer.check_run(run)
        is_taken = which is _ALL or which.takes(run.summary(), owner_of)
        return is_taken and (not is_nested or self._is_of_its_run(run))

    def report(self, run_id: str, error: CheckpointError) -> None:
        """Log that a damaged run is left out, once for each run."""
        if run_id not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(run_id)
            way_out = f"store.delete({run_id!r})"
            is_said = way_out in error.reason or "sign_with" in error.reason  # with the right key, it may be as it was
            logging.getLogger("stategraph").warning(
                "run %r in the %s is left out (logged once): %s%s",
                run_id,
                self.table,
                error.reason,
                "" if is_said else f"; {way_out} removes it",
            )

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
            *(state.run_id, old.number if old else 0, version, *of_newest(row), state.graph, state.parent),
            *(self.policy_of(state.run_id, old), created_ns, labels, row.pause, incarnation, row.seal, b""),
        )
        return self.sealer.sealed_run(tuple.__new__(RunRecord, fields))  # as its constructor does, at every save

    def write(self, write: Write) -> bool:
        """Make a write, together with those of other threads; return False if others have written to the run.

        Raises:
            RunLostError: it is written on behalf of a former owner of the run.
            StepConflictError: the store has lost what it had of the run.
        """
        (outcome,) = self.commit([write])
        if outcome is False and self.is_settled(write.hold):
            (outcome,) = self.commit([write])
        if isinstance(outcome, CheckpointError):
            outcome.run_id = outcome.run_id or write.run_id
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            return True
        if write.hold is not None and self.has_lost(write.hold):
            raise lost(write.hold.run_id)
        self.check_kept(write)
        return False

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        """Make writes of several runs; return the outcome of each."""
        return self.committer.commit(writes) if writes else []

    def check_kept(self, refused: Write) -> None:
        """Raise StepConflictError if the store has lost what it had of a run, which others have not deleted."""
        run = refused.old if isinstance(refused, WriteBatch) else None
        now = None if run is None else self.table.run(run.run_id)
        if run is not None and now is not None and now.incarnation == run.incarnation and now.version < run.version:
            self.forget(run.run_id)
            reason = (
                f"the {self.table.store} has lost what was saved: step {run.step} was, and its newest is {now.step} "
                "now; another server has taken over, or a copy was put back; load the run to go on from there"
            )
            raise StepConflictError(run.run_id, reason)

    def is_settled(self, hold: Hold | None) -> bool:
        """Own a run for good that is only owned for a write by hand; return whether there was anything to do.

        Raises:
            RunBusyError: another call owns it.
        """
        return hold is not None and self.table.owners is not None and self.table.owners.settle(hold)

    def has_lost(self, hold: Hold) -> bool:
        """Return whether a run was taken from its owner."""
        hold.is_lost = hold.is_lost or self.table.fence(hold.run_id)[0] != hold.fence
        return hold.is_lost

    def remove(self, run_id: str) -> None:
        """Remove a run and all that is nested in it, and forget what is remembered of it."""
        self.write(Removal(run_id))
        self.forget_all(run_id)


def new_incarnation() -> bytes:
    """Return an incarnation that no run has."""
    return os.urandom(_INCARNATION)


def _put_last(kept: OrderedDict[str, _Value], run_id: str, value: _Value, most: int | None = None) -> None:
    """Remember something as the newest, and forget the oldest where that is too many.

    Each line is one step for other threads. Of a dict, the oldest is looked for behind all that were removed.
    """
    kept[run_id] = value  # never absent in between: another thread would draw an incarnation of its own
    with suppress(KeyError):
        kept.move_to_end(run_id)
    if len(kept) > (most or _MOST_REMEMBERED):
        kept.popitem(last=False)


def _deleted(outer_id: str) -> StepConflictError:
    reason = (
        "others have deleted it since it was saved or loaded here, so neither it nor what is made within it is saved "
        "any more; load the run, if they have begun it anew, or execute it anew"
    )
    return StepConflictError(outer_id, reason)
