"""What a store object remembers of runs: their newest checkpoints, and what is to be kept of them from now on."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from stategraph._util.dropped import reaper
from stategraph._values.ids import is_nested_id, nested_range
from stategraph.stores._rows.encoder import DeltaBase
from stategraph.stores._rows.records import CheckpointRecord, RunRecord
from stategraph.stores.base import RetentionPolicy

_MOST_BASES = 1_000  # runs whose last saved State is remembered; the next save of another one is a snapshot
_MOST_REMEMBERED = 100_000  # of what takes few bytes
_INCARNATION = 8  # bytes: no two runs of one id have the same by chance


class KnownRuns:
    """Runs as they were saved or loaded here last. Others may have written to them since: a save finds out."""

    def __init__(self) -> None:
        self._newest: OrderedDict[str, tuple[RunRecord, DeltaBase]] = OrderedDict()
        self._incarnations: OrderedDict[str, bytes] = OrderedDict()  # of runs that are not nested
        self._promised: dict[str, bytes] = {}  # of runs that have nested runs already, and do not exist yet
        self._policies: OrderedDict[str, RetentionPolicy] = OrderedDict()  # of runs that have not been saved since
        # Steps and bases of rows of windowed runs, by their seals.
        self._checked: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self.get = self._newest.get
        """Returns the newest checkpoint of a run, if it is remembered."""
        self.renew()

    def renew(self) -> None:
        """Take a lock of its own, as in a forked child."""
        self._lock = reaper.known_lock()  # a finaliser may come while it is held, and use the store

    def remember(self, run: RunRecord, base: DeltaBase) -> None:
        """Remember the newest checkpoint of a run."""
        with self._lock:
            self._newest[run.run_id] = run, base
            self._newest.move_to_end(run.run_id)
            if self._incarnations.get(run.run_id) != run.incarnation and not is_nested_id(run.run_id):
                _put_last(self._incarnations, run.run_id, run.incarnation)
            if self._promised:
                self._promised.pop(run.run_id, None)
            if self._policies and self._policies.get(run.run_id) == run.policy:
                del self._policies[run.run_id]  # from now on the store itself knows it
            while len(self._newest) > _MOST_BASES:
                self._newest.popitem(last=False)
            if run.policy.window is not None:
                _put_last(self._checked, base.seal, (run.step, base.base))

    def forget(self, run_id: str) -> None:
        """Forget the newest checkpoint of a run: somebody else has written to it."""
        with self._lock:
            self._newest.pop(run_id, None)

    def forget_removed(self, run_id: str) -> None:
        """Forget a run that does not exist any more, but not what is to be kept of it once it does."""
        if run_id not in self._incarnations and run_id not in self._newest:
            return
        first, last = nested_range(run_id)
        with self._lock:
            for known in [one for one in self._newest if one == run_id or first < one < last]:
                del self._newest[known]
            self._incarnations.pop(run_id, None)

    def forget_all(self, run_id: str) -> None:
        """Forget all of a run that does not exist any more."""
        self.forget_removed(run_id)
        with self._lock:
            self._policies.pop(run_id, None)
            self._promised.pop(run_id, None)

    # ------------------------------------------------------------------ rows that were checked

    def are_checked(self, rows: Iterable[CheckpointRecord]) -> None:
        """Remember of rows that their seals are right."""
        with self._lock:
            for row in rows:
                _put_last(self._checked, row.seal, (row.step, row.base))

    def is_checked(self, row: CheckpointRecord) -> bool:
        """Return whether a row with this seal was saved or checked here, and had this step and base."""
        return self._checked.get(row.seal) == (row.step, row.base)

    # ------------------------------------------------------------------ incarnations

    def incarnation_of(self, run_id: str) -> bytes | None:
        """Return the incarnation of a run as it was saved or loaded here last, if that is remembered."""
        return self._incarnations.get(run_id)

    def promised(self, run_id: str) -> bytes | None:
        """Return the incarnation with which a run is to begin, if it has nested runs already."""
        return self._promised.get(run_id)

    def promise(self, run_id: str) -> bytes:
        """Return the incarnation with which a run is to begin, from now on."""
        return self._promised.setdefault(run_id, new_incarnation())

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


_Key = TypeVar("_Key")
_Known = TypeVar("_Known")


def _put_last(remembered: OrderedDict[_Key, _Known], key: _Key, known: _Known) -> None:
    """Remember something as the newest, and forget the oldest where that is too many."""
    remembered[key] = known
    remembered.move_to_end(key)
    if len(remembered) > _MOST_REMEMBERED:
        remembered.popitem(last=False)  # of a dict, the oldest is looked for behind all that were removed
