"""Table: the records of a durable store, as a database keeps them. A store of another database implements this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from stategraph._owners.holds import Fence, Owners
from stategraph.errors import CheckpointError
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows.records import MAX_STEP, CheckpointRecord, RunRecord, Unreadable, Write

Identify: TypeAlias = Callable[[bytes], None]
"""Is called with the id of a store whenever its files are opened."""


class Table(ABC):
    """The records of the runs of one store: reading, writing and removing them, opening and closing.

    A table returns what is there. Whether that is what was written, the checksums tell.

    Attributes:
        store: The store whose records these are; errors name it, and runs that were dropped know it.
        closed: Whether it was closed.
        is_server: Whether it is on a server, which answers several threads at the same time.
    """

    store: object
    closed: bool
    is_server: bool = False

    def __str__(self) -> str:
        return str(self.store)

    # ------------------------------------------------------------------ records

    @abstractmethod
    def apply(self, writes: Sequence[Write]) -> Sequence[bool | Exception]:
        """Make several writes in one transaction; return which of them are made. They are durable then.

        A table that has no transaction over several runs makes each as a whole, and of several may return an error in
        the place of one of which it is not known.

        A write is made if its hold is not lost (the fence is still the one that is in it), and if its run has the
        version, and the outer run the incarnation, that it expects. A table whose answers may be lost asks again, and
        tells what was written before by its version and its seal.

        Raises:
            CheckpointSaveError: none is made, and none would be without the others either.
            CheckpointError: none is made; without one of them the others may be.
        """

    @abstractmethod
    def run(self, run_id: str) -> RunRecord | None:
        """Return the record of a run."""

    @abstractmethod
    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        """Return the records of runs, the highest number first; nested ones only if those of a parent are asked for.

        Args:
            which: Runs that are none of these may be left out; those of another status, graph or parent are.
            limit: At most so many; all if it is negative.
            before: Only runs with a number below this one, if given.
        """

    def count(self, which: RunFilter) -> int | None:
        """Return how many runs there are of a filter, as far as their records say, damaged or not; None where each has
        to be read."""
        return None

    @abstractmethod
    def nested_ids(self, run_id: str) -> list[str]:
        """Return the ids of all runs that are nested in a run, at any depth."""

    @abstractmethod
    def chain(self, run_id: str, sequence: int) -> list[CheckpointRecord]:
        """Return the checkpoint with this sequence number after those that it builds on.

        They are in order, and as they were at one time. The list is empty if there is no such checkpoint.
        """

    @abstractmethod
    def index(self, run_id: str, first: int = 0, last: int = MAX_STEP) -> list[CheckpointRecord]:
        """Return all checkpoints of a run with sequence numbers from the first to the last of these, in order.

        Their payloads may be left out.
        """

    def undisturbed(self, run_id: str) -> AbstractContextManager[object]:
        """Read the record of a run, its newest checkpoint and its index as they were at one time, or keep out those who
        write faster than this thread reads, as far as the table can."""
        return nullcontext()

    def problems(self) -> list[str]:
        """Return what is wrong with the files as a whole, as far as the database can tell."""
        return []

    @abstractmethod
    def change_token(self) -> str:
        """Return a text that differs from all that were returned before whenever a run has changed since."""

    @abstractmethod
    def remove_damaged(self, run_id: str) -> bool:
        """Remove what stands under an id that no run can have, as `runs` reports it; return whether anything did."""

    def erase(self) -> None:  # noqa: B027 - most have nothing to do
        """Overwrite what was removed where this process can, such as in a log. A server does so itself."""

    # ------------------------------------------------------------------ owners

    owners: Owners | None = None
    """Who owns which run, where processes that share the table know that of each other; None once it is closed."""

    @abstractmethod
    def fence(self, run_id: str) -> Fence:
        """Return what changes whenever a run is taken from its owner, and whether the run is cancelled."""

    def all_fences(self) -> Iterable[tuple[str, int]] | None:
        """Yield each run, the newest first, and its fence; None where each takes as long to find as its record."""
        return None

    @abstractmethod
    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        """Note that a run is cancelled or not, durably. Its owner is told with the next batch that it writes.

        Args:
            run_id: The run.
            is_cancelled: Whether it is.
            by: Who cancels it, if that is said. It is the first one who has.
        """

    @abstractmethod
    def cancelled_by(self, run_id: str) -> str | None:
        """Return who has cancelled a run, if that was said."""

    # ------------------------------------------------------------------ threads and processes

    def at_rest(self) -> AbstractContextManager[object]:
        """Keep other threads out while the process is forked (see `stategraph.stores._files.fork_safety`)."""
        return nullcontext()

    @abstractmethod
    def renew(self) -> None:
        """Take locks of its own, in a forked child."""

    @abstractmethod
    def close(self) -> None:
        """Close all files."""


def read_only_error(store: object, run_id: str, kind: type[CheckpointError]) -> CheckpointError:
    """Return the error for a write to a store that is only read."""
    reason = "was opened with read_only=True, to be looked into only; open it without, to change it"
    return kind(run_id, f"the {store} {reason}")


def closed_error(store: object, run_id: str = "") -> CheckpointError:
    """Return the error for a store that is used after it was closed."""
    way_out = "get_checkpoint_store opens a fresh one; a graph keeps the store that it was made with: make it anew"
    return CheckpointError(run_id, f"the {store} is closed; {way_out}")


def used_below(store: object, run_id: str = "", kind: type[CheckpointError] = CheckpointError) -> CheckpointError:
    """Return the error for a store that is called while this thread is inside of it."""
    reason = (
        f"this thread is inside of the {store} already: a finaliser, a signal handler or a method of a value has "
        "called it, where it would wait for itself; call it from another thread, or later"
    )
    return kind(run_id, reason)
