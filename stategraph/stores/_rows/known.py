"""What a store object remembers of runs: their newest checkpoints, and what is to be kept of them from now on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeVar

from stategraph._util.dropped import reaper
from stategraph._values.ids import ids_within, is_nested_id
from stategraph.stores._rows.encoder import Tail
from stategraph.stores._rows.records import Head, Row
from stategraph.stores.retention import Policy

_MOST_TAILS = 1_000  # runs whose last saved State is remembered; the next save of another one is a snapshot
_MOST_REMEMBERED = 100_000  # of what takes few bytes


class KnownRuns:
    """Runs as they were saved or loaded here last. Others may have written to them since: a save finds out."""

    def __init__(self) -> None:
        self._tails: OrderedDict[str, tuple[Head, Tail]] = OrderedDict()
        self._incarnations: OrderedDict[str, bytes] = OrderedDict()  # of runs that are not within others
        self._policies: OrderedDict[str, Policy] = OrderedDict()  # of runs that have not been saved since
        # Steps and bases of rows of windowed runs, by their seals.
        self._checked: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self.get = self._tails.get
        """Returns the newest checkpoint of a run, if it is remembered."""
        self.renew()

    def renew(self) -> None:
        """Have a lock of its own, as in a forked child."""
        self._lock = reaper.known_lock()  # a finaliser may come while it is held, and use the store

    def remember(self, head: Head, tail: Tail) -> None:
        """Remember the newest checkpoint of a run."""
        with self._lock:
            self._tails[head.run_id] = head, tail
            self._tails.move_to_end(head.run_id)
            if self._incarnations.get(head.run_id) != head.incarnation and not is_nested_id(head.run_id):
                _put_last(self._incarnations, head.run_id, head.incarnation)
            if self._policies and self._policies.get(head.run_id) == head.policy:
                del self._policies[head.run_id]  # from now on the store itself knows it
            while len(self._tails) > _MOST_TAILS:
                self._tails.popitem(last=False)
            if head.policy.window is not None:
                _put_last(self._checked, tail.seal, (head.step, tail.base))

    def are_checked(self, rows: Iterable[Row]) -> None:
        """Remember of rows that they are as they were sealed."""
        with self._lock:
            for row in rows:
                _put_last(self._checked, row.seal, (row.step, row.base))

    def is_checked(self, row: Row) -> bool:
        """Whether a row with this seal was saved or checked here, and had this step and base."""
        return self._checked.get(row.seal) == (row.step, row.base)

    def forget(self, run_id: str) -> None:
        """Forget the newest checkpoint of a run: somebody else has written to it."""
        with self._lock:
            self._tails.pop(run_id, None)

    def forget_removed(self, run_id: str) -> None:
        """Forget a run that is not there any more, but not what is to be kept of it once it is."""
        if run_id not in self._incarnations and run_id not in self._tails:
            return
        first, last = ids_within(run_id)
        with self._lock:
            for known in [one for one in self._tails if one == run_id or first < one < last]:
                del self._tails[known]
            self._incarnations.pop(run_id, None)

    def forget_all(self, run_id: str) -> None:
        """Forget all of a run that is not there any more."""
        self.forget_removed(run_id)
        with self._lock:
            self._policies.pop(run_id, None)

    def incarnation_of(self, run_id: str) -> bytes | None:
        """Return the incarnation of a run as it was saved or loaded here last, if that is remembered."""
        return self._incarnations.get(run_id)

    def retain(self, run_id: str, policy: Policy) -> None:
        """Remember what is to be kept of a run, until it is saved."""
        with self._lock:
            _put_last(self._policies, run_id, policy)

    def policy_of(self, run_id: str, head: Head | None) -> Policy:
        """Return what is to be kept of a run that has this head."""
        return self._policies.get(run_id) or (head.policy if head else Policy())


_Key = TypeVar("_Key")
_Known = TypeVar("_Known")


def _put_last(remembered: OrderedDict[_Key, _Known], key: _Key, known: _Known) -> None:
    """Remember something as the newest, and forget the oldest where that is too many."""
    remembered[key] = known
    remembered.move_to_end(key)
    if len(remembered) > _MOST_REMEMBERED:
        remembered.popitem(last=False)  # of a dict, the oldest is looked for behind all that were removed
