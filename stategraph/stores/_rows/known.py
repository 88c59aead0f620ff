"""What a store object remembers of runs: their newest checkpoints, and what is to be kept of them from now on."""

from __future__ import annotations

from collections import OrderedDict

from stategraph._util.dropped import reaper
from stategraph.stores._rows.encoder import Tail
from stategraph.stores._rows.records import Head
from stategraph.stores.retention import Policy

_MOST_TAILS = 1_000  # runs whose last saved State is remembered; the next save of another one is a snapshot


class KnownRuns:
    """Runs as they were saved or loaded here last. Others may have written to them since: a save finds out."""

    def __init__(self) -> None:
        self._tails: OrderedDict[str, tuple[Head, Tail]] = OrderedDict()
        self._policies: dict[str, Policy] = {}  # of runs that have not been saved since
        self._lock = reaper.known_lock()  # a finaliser may come while it is held, and use the store
        self.get = self._tails.get
        """Returns the newest checkpoint of a run, if it is remembered."""

    def renew(self) -> None:
        """In a forked child: have a lock of its own."""
        self._lock = reaper.known_lock()  # a finaliser may come while it is held, and use the store

    def remember(self, head: Head, tail: Tail) -> None:
        """Remember the newest checkpoint of a run."""
        with self._lock:
            self._tails[head.run_id] = head, tail
            self._tails.move_to_end(head.run_id)
            if self._policies and self._policies.get(head.run_id) == head.policy:
                del self._policies[head.run_id]  # from now on the store itself knows it
            while len(self._tails) > _MOST_TAILS:
                self._tails.popitem(last=False)

    def forget(self, run_id: str) -> None:
        """Forget the newest checkpoint of a run: somebody else has written to it."""
        with self._lock:
            self._tails.pop(run_id, None)

    def forget_all(self, run_id: str) -> None:
        """Forget a run that is not there any more."""
        self.forget(run_id)
        self._policies.pop(run_id, None)

    def retain(self, run_id: str, policy: Policy) -> None:
        """Remember what is to be kept of a run, until it is saved."""
        self._policies[run_id] = policy

    def policy_of(self, run_id: str, head: Head | None) -> Policy:
        """Return what is to be kept of a run that has this head."""
        return self._policies.get(run_id) or (head.policy if head else Policy())
