"""Which runs may be at work beside each other in this process, so that a crash is counted to the run that caused it."""

from __future__ import annotations

import os
import threading

from stategraph._owners.base import Ownership
from stategraph._values.provenance import Owner


class Company:
    """The recovered runs and turns at work in this process.

    A run is a suspect if an owner crashed while it continued the current step of the run. A suspect runs alone until it
    saves a step: otherwise runs beside one that kills its process would be counted, and failed, with it.
    """

    def __init__(self) -> None:
        self.forget_all()

    def forget_all(self) -> None:
        """Begin again in a forked child: the runs at work are those of the parent."""
        self._lock = threading.Lock()
        self._at_work = set[Ownership]()
        self._suspects = dict[object, None]()  # in the order in which they came

    def at_work(self) -> dict[str, Owner]:
        """Return the owners of the runs at work, with their nodes, by run id."""
        with self._lock:
            return {ownership.run_id: ownership.owner for ownership in self._at_work}

    def admit(self, ownership: Ownership, *, is_suspect: bool, at_once: bool = False) -> bool:
        """Return whether a run may begin now. While a suspect waits or runs, no other run begins, unless `at_once`."""
        with self._lock:
            if is_suspect:
                self._suspects.setdefault(ownership)
            first = next(iter(self._suspects), ownership)
            is_admitted = at_once or (first is ownership and not (is_suspect and self._at_work))
            if is_admitted:
                self._at_work.add(ownership)
            return is_admitted

    def clear(self, ownership: Ownership | None) -> None:
        """Suspect a run no longer: it has saved a step."""
        if self._suspects:
            with self._lock:
                self._suspects.pop(ownership, None)

    def leave(self, ownership: Ownership) -> None:
        """Forget a run that has ended, or waits no longer."""
        with self._lock:
            self._at_work.discard(ownership)
            self._suspects.pop(ownership, None)


company = Company()
if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=company.forget_all)
