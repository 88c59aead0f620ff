"""The runs of a store: their records, whether these are as they were written, and what is remembered of them here."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import attrs

from stategraph._values.ids import given_id, is_nested_id, nested_range
from stategraph.errors import CheckpointError, StepConflictError
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows.encoder import DeltaBase
from stategraph.stores._rows.integrity import Sealer
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, Unreadable, WriteBatch
from stategraph.stores._rows.table import Table
from stategraph.stores.base import RetentionPolicy

_MOST_BASES = 1_000  # runs whose last saved State is remembered; the next save of another one is a snapshot
_MOST_REMEMBERED = 100_000  # of what takes few bytes
_INCARNATION = 8  # bytes: no two runs of one id have the same by chance
_MOST_REPORTED = 10_000  # damaged runs that are remembered as reported

_PAGE = 100  # runs that are looked at at least, where few of them may be asked for
_ALL = RunFilter()

_Read = TypeVar("_Read")
_Key = TypeVar("_Key")
_Known = TypeVar("_Known")


class KnownRuns:
    """Runs as they were saved or loaded here last. Others may have written to them since: a save finds out.

    Attributes:
        incarnations: Those of runs that are not nested, as far as they are remembered.
        promised: Those with which runs are to begin that do not exist yet: they have nested runs already, or their
            first States wait to be committed.
    """

    def __init__(self) -> None:
        self._newest: OrderedDict[str, tuple[RunRecord, DeltaBase]] = OrderedDict()
        self.incarnations: OrderedDict[str, bytes] = OrderedDict()
        self.promised: dict[str, bytes] = {}
        self._policies: OrderedDict[str, RetentionPolicy] = OrderedDict()  # of runs that have not been saved since
        # Sequence numbers and bases of rows of windowed runs, by their seals.
        self._checked: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self.get = self._newest.get
        """Returns the newest checkpoint of a run, if it is remembered."""
        self.renew()

    def renew(self) -> None:
        """Take a lock of its own, as in a forked child."""
        self._lock = threading.Lock()

    def remember(self, run: RunRecord, base: DeltaBase) -> None:
        """Remember the newest checkpoint of a run."""
        with self._lock:
            self._newest[run.run_id] = run, base
            self._newest.move_to_end(run.run_id)
            if self.incarnations.get(run.run_id) != run.incarnation and not is_nested_id(run.run_id):
                _put_last(self.incarnations, run.run_id, run.incarnation)
            if self.promised:
                self.promised.pop(run.run_id, None)
            if self._policies and self._policies.get(run.run_id) == run.policy:
                del self._policies[run.run_id]  # from now on the store itself knows it
            while len(self._newest) > _MOST_BASES:
                self._newest.popitem(last=False)
            if run.policy.window is not None:
                _put_last(self._checked, base.seal, (run.sequence, base.base))

    def forget(self, run_id: str) -> None:
        """Forget the newest checkpoint of a run: somebody else has written to it."""
        with self._lock:
            self._newest.pop(run_id, None)

    def forget_removed(self, run_id: str) -> None:
        """Forget a run that does not exist any more, but not what is to be kept of it once it does."""
        if run_id not in self.incarnations and run_id not in self._newest:
            return
        first, last = nested_range(run_id)
        with self._lock:
            for known in [one for one in list(self._newest) if one == run_id or first < one < last]:
                self._newest.pop(known, None)
            self.incarnations.pop(run_id, None)

    def forget_all(self, run_id: str) -> None:
        """Forget all of a run that does not exist any more."""
        self.forget_removed(run_id)
        with self._lock:
            self._policies.pop(run_id, None)
            self.promised.pop(run_id, None)

    # ------------------------------------------------------------------ rows that were checked

    def are_checked(self, rows: Iterable[CheckpointRecord]) -> None:
        """Remember of rows that their seals are right."""
        with self._lock:
            for row in rows:
                _put_last(self._checked, row.seal, (row.sequence, row.base))

    def is_checked(self, row: CheckpointRecord) -> bool:
        """Return whether a row with this seal was saved or checked here, and had this number and base."""
        return self._checked.get(row.seal) == (row.sequence, row.base)

    # ------------------------------------------------------------------ incarnations

    def promise(self, run_id: str) -> bytes:
        """Return the incarnation with which a run is to begin, from now on."""
        if len(self.promised) > _MOST_REMEMBERED:  # of runs whose first saves have failed
            self.promised.clear()
        return self.promised.setdefault(run_id, new_incarnation())

    # ------------------------------------------------------------------ retention

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:
        """Remember what is to be kept of a run, until it is saved."""
        with self._lock:
            _put_last(self._policies, run_id, policy)

    def policy_of(self, run_id: str, run: RunRecord | None) -> RetentionPolicy:
        """Return what is to be kept of a run that has this record."""
        return self._policies.get(run_id) or (run.policy if run else RetentionPolicy())


def new_incarnation() -> bytes:
    """Return an incarnation that no run has."""
    return os.urandom(_INCARNATION)


def _put_last(remembered: OrderedDict[_Key, _Known], key: _Key, known: _Known) -> None:
    """Remember something as the newest, and forget the oldest where that is too many."""
    remembered[key] = known
    remembered.move_to_end(key)
    if len(remembered) > _MOST_REMEMBERED:
        remembered.popitem(last=False)  # of a dict, the oldest is looked for behind all that were removed


@attrs.frozen
class Listing(Generic[_Read]):
    """What was read of the runs of a store, and the ids of those that are damaged."""

    found: list[_Read]
    damaged: list[str]


class Runs:
    """Reads the records of runs, and refuses those whose seals are wrong.

    A nested run has the incarnation of the run that it is nested in. So what a deleted run has left is never taken for
    a part of one that has begun anew with its id.

    Args:
        table: Holds the records.
        sealer: Checks their seals.
        known: Remembers the incarnations of runs that were saved or loaded here.
    """

    def __init__(self, table: Table, sealer: Sealer, known: KnownRuns) -> None:
        self._table, self._sealer, self._known = table, sealer, known
        self._reported: set[str] = set()

    def find(self, run_id: str) -> RunRecord | None:
        """Return the record of a run, None if there is none.

        Raises:
            CheckpointCorruptError: it is not as it was written.
        """
        run = self._table.run(run_id)
        if run is None:
            return None
        self._sealer.check_run(run, run_id)
        return run if not is_nested_id(run_id) or self._is_of_its_run(run) else None

    def _is_of_its_run(self, nested: RunRecord) -> bool:
        outer_id = given_id(nested.run_id)
        outer = self.find(outer_id)
        return nested.incarnation == (self._known.promised.get(outer_id) if outer is None else outer.incarnation)

    def remove_left_over(self, run_id: str) -> None:
        """Remove a nested run that a deleted run has left, so that another one can take its place."""
        run = self._table.run(run_id) if is_nested_id(run_id) else None
        if run is not None and not self._is_of_its_run(run):
            self._table.remove(run_id, run.version)

    # ------------------------------------------------------------------ incarnations

    def incarnation_for(self, run_id: str) -> bytes:
        """Return the incarnation with which a run begins.

        Raises:
            StepConflictError: it is nested in another run than the one that was saved or loaded here.
        """
        if not is_nested_id(run_id):
            return self._known.promise(run_id)
        outer_id = given_id(run_id)
        outer = self.find(outer_id)
        if outer is not None:
            return self._as_known(outer_id, outer.incarnation)
        if outer_id not in self._known.promised and self._known.incarnations.get(outer_id) is not None:
            raise _deleted(outer_id)
        # Durability "exit" saves nested runs before the run itself.
        return self._known.promise(outer_id)

    def incarnation_of(self, nested: RunRecord) -> bytes:
        """Return the incarnation of a nested run, for what is to be added to it; raise as `incarnation_for`."""
        return self._as_known(given_id(nested.run_id), nested.incarnation)

    def check_known(self, run: RunRecord) -> None:
        """Raise StepConflictError if a run is another than the one of its id that was saved or loaded here."""
        if self._known.incarnations.get(run.run_id) not in (None, run.incarnation):
            raise _deleted(run.run_id)

    def _as_known(self, outer_id: str, incarnation: bytes) -> bytes:
        known = self._known.incarnations.get(outer_id) or self._known.promised.get(outer_id)
        if known not in (None, incarnation):
            raise _deleted(outer_id)
        return incarnation

    def guarded(self, nested: WriteBatch) -> WriteBatch:
        """Return a batch of a nested run as one that is written only if the outer run exists.

        Where it is this handle that has yet to begin the outer run, the batch stays as it is.
        """
        incarnation = nested.run.incarnation
        if self._known.promised.get(given_id(nested.run.run_id)) == incarnation:
            return nested
        changes = nested.put, nested.cut_below, nested.cut_above, nested.cut_nested
        return WriteBatch(nested.run, nested.old, *changes, incarnation)

    # ------------------------------------------------------------------ all of them

    def listing(
        self,
        read: Callable[[RunRecord], _Read],
        which: RunFilter = _ALL,
        limit: int = -1,
        before: int | None = None,
        owner_of: Callable[[str], object] = str,
    ) -> Listing[_Read]:
        """Return what is read of runs, the newest first. A damaged run is left out, and logged.

        Args:
            read: Called with the record of each run; raises a CheckpointError if it is damaged.
            which: Only these runs.
            limit: At most so many runs; all if it is negative.
            before: Only runs with a number below this one.
            owner_of: Returns who owns a run.
        """
        listing: Listing[_Read] = Listing([], [])
        if which.owned and which.owned_ids is not None and not which.owned_ids:
            return listing

        def wanted(run: RunRecord) -> bool:
            return which is _ALL or which.takes(run.summary(), owner_of)

        while True:
            left = limit if limit < 0 else limit - len(listing.found)
            asked = left if limit < 0 or not which.is_narrow else max(left, _PAGE)
            page = self._table.runs(which, asked, before)
            for one in page:
                if len(listing.found) != limit:
                    self._add(listing, one, read, wanted)
            numbers = [one.number for one in page if one.number is not None]
            if asked < 0 or len(page) < asked or len(listing.found) == limit or not numbers:
                return listing
            before = min(numbers)

    def _add(
        self,
        listing: Listing[_Read],
        run: RunRecord | Unreadable,
        read: Callable[[RunRecord], _Read],
        wanted: Callable[[RunRecord], bool],
    ) -> None:
        try:
            if isinstance(run, Unreadable):
                raise run.error
            if is_nested_id(run.run_id) and not wanted(run):  # it is parts of a step
                return
            self._sealer.check_run(run)
            if wanted(run) and (not is_nested_id(run.run_id) or self._is_of_its_run(run)):
                listing.found.append(read(run))
        except CheckpointError as error:
            if run.run_id not in listing.damaged:  # where its number cannot be read, it is on every page
                listing.damaged.append(run.run_id)
            self.report(run.run_id, error)

    def report(self, run_id: str, error: CheckpointError) -> None:
        """Log that a damaged run is left out, once for each run."""
        if run_id not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(run_id)
            way_out = f"store.delete({run_id!r})"
            is_said = way_out in error.reason or "sign_with" in error.reason  # with the right key, it may be as it was
            logging.getLogger("stategraph").warning(
                "run %r in the %s is left out (logged once): %s%s",
                run_id,
                self._table,
                error.reason,
                "" if is_said else f"; {way_out} removes it",
            )


def _deleted(outer_id: str) -> StepConflictError:
    reason = (
        "others have deleted it since it was saved or loaded here, so neither it nor what is made within it is saved "
        "any more; load the run, if they have begun it anew, or execute it anew"
    )
    return StepConflictError(outer_id, reason)
