"""SharedHolds: who owns which run of a store that others than this process use, too."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar

from stategraph._owners.holds import Hold, Holds
from stategraph._values.provenance import Owner


class Fenced(Protocol):
    """What a store that others share knows of who owns its runs."""

    def fence(self, run_id: str, /) -> tuple[int, bool]:
        """Return what changes whenever a run is taken from its owner, and whether the run is cancelled."""


_Table = TypeVar("_Table", bound=Fenced)


class SharedHolds(Holds, ABC, Generic[_Table]):
    """The runs that are owned in this process, of a store that others may own runs of as well."""

    @abstractmethod
    def own(self, hold: Hold, table: _Table, *, take_over: bool) -> None:
        """Make this the hold on its run. Raises RunBusyError if somebody else owns it, unless it is to be taken."""

    @abstractmethod
    def owner(self, run_id: str, table: _Table) -> Owner | None:
        """Return who owns a run, here or elsewhere."""

    @abstractmethod
    def leave(self) -> None:
        """Let go of what the store needed for this: it is closed."""

    def owned_ids(self, table: _Table) -> Collection[str] | None:
        """Return the ids of all runs that somebody owns; None where each run has to be looked at."""
        return None

    def settle(self, hold: Hold) -> bool:
        """Own a run for good that was only held for a write; return whether there was anything to do."""
        return False

    def orphans(self, graph: str) -> Iterator[Hold] | None:
        """Own one run of a graph after the other that was left unfinished; None where each has to be tried."""
        return None

    def drop_lost(self, run_id: str, table: _Table) -> None:
        """Forget the hold on a run that others have taken over."""
        other = self._by_run.get(run_id)
        if other is not None and other.is_settled and table.fence(run_id)[0] != other.fence:
            other.is_lost = True
            self.release(other)
