"""Table: the interface to the database of a durable store. Stores of other databases implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias, TypeGuard

import attrs

from stategraph._owners.base import Fence, Owners
from stategraph._values import clock
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows.records import MAX_STEP, CheckpointRecord, EntryRecord, RunRecord, Unreadable, Write

Identify: TypeAlias = Callable[[bytes], None]
"""Called with the id of a store whenever its files are opened."""

Outcome: TypeAlias = bool | Exception
"""True: written. False: refused. An error: unknown."""


@attrs.define(eq=False)
class NodeTransaction:
    """An open transaction in which a node writes to its own tables, until the save of its step commits it.

    Attributes:
        connection: The connection of the database.
        run_id: The run of the node.
        end: Closes the connection, which rolls back what is not committed.
    """

    connection: Any
    run_id: str
    end: Callable[[], None]


class Table(ABC):
    """The records of the runs of one store: read, write and remove them, open and close the database.

    A table returns its contents unchecked. The seals of the records show whether they are as they were written.

    Attributes:
        store: The name of the store, for error messages.
        closed: Whether it is closed.
        is_server: Whether it is on a server, which can answer several threads at once.
    """

    store: str
    closed: bool
    is_server: bool = False

    def __str__(self) -> str:
        return self.store

    # ------------------------------------------------------------------ records

    @abstractmethod
    def apply(self, writes: Sequence[Write]) -> Sequence[Outcome]:
        """Make several writes in one transaction; return which of them were made. These are durable then.

        A table without transactions over several runs makes each write atomically. For several, it may return an error
        for a write of unknown outcome.

        A write is made if its owner has not lost the run (the fence is still the same), if its run has the expected
        version, and if the outer run has the expected incarnation. A table that may lose an answer sends the write
        again, and recognizes an earlier one by its version and its seal.

        Raises:
            CheckpointSaveError: no write is made, and each would fail alone too.
            CheckpointError: no write is made; some would succeed alone.
        """

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        """Make writes of several runs, in one transaction if possible; return the outcome of each.

        If they fail, and not because of the store, each is made alone, so that only the faulty one fails.
        """
        try:
            return [*self.apply(writes)] if writes else []
        except Exception as error:  # noqa: BLE001 - each caller raises it
            if len(writes) == 1:
                return [error]
            if _concerns_all(error):
                return [_copy(error) for _ in writes]
            return [outcome for write in writes for outcome in Table.commit(self, [write])]

    def begin(self, run_id: str) -> NodeTransaction | None:
        """Begin a transaction for a node of a run: the next write of its owner is made in it, and commits it.

        Return None if the database has no tables for nodes.
        """
        return None

    @abstractmethod
    def run(self, run_id: str) -> RunRecord | None:
        """Return the record of a run."""

    @abstractmethod
    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        """Return the records of runs, highest number first. Nested runs are included only if a parent is given.

        Args:
            which: Must leave out runs of another status, graph or parent; may leave out other runs that do not match.
            limit: The most records to return; all if negative.
            before: Only runs with a number below this one, if given.
        """

    def count(self, which: RunFilter) -> int | None:
        """Return how many runs match a filter according to their records, damaged or not; None where each must be
        read."""
        return None

    @abstractmethod
    def due(self, graph: str, limit: int) -> list[tuple[int, str]]:
        """Return the runs of a graph that are due first, without nested ones, and when each is due."""

    @abstractmethod
    def nested_ids(self, *run_ids: str) -> list[str]:
        """Return the ids of all runs that are nested in these runs, at any depth; the order is that of the ids."""

    def short(self, run_ids: Sequence[str]) -> dict[str, list[CheckpointRecord]]:
        """Return all checkpoints of runs that have few, with their payloads.

        Runs that have entries are left out; others may be.
        """
        return {}

    @abstractmethod
    def chain(self, run_id: str, sequence: int | None) -> list[CheckpointRecord]:
        """Return the checkpoint with this sequence number, or the last one, after the checkpoints that it builds on.

        They are in order and consistent. The list is empty if there is no such checkpoint.
        """

    @abstractmethod
    def index(self, run_id: str, first: int = 0, last: int = MAX_STEP) -> list[CheckpointRecord]:
        """Return all checkpoints of a run with sequence numbers from `first` to `last`, inclusive, in order.

        Their payloads may be left out.
        """

    @abstractmethod
    def entries(self, run_id: str, first: int, last: int, after: int = 0) -> list[EntryRecord]:
        """Return the entries of a run from the first to the last step, inclusive, in order.

        Only those whose numbers come after one. The inbox is step 0.
        """

    @abstractmethod
    def entry_named(self, run_id: str, kind: str, name: str) -> EntryRecord | None:
        """Return the entry of the inbox of a run that has a kind and a name."""

    @abstractmethod
    def inbox(self, run_id: str) -> int:
        """Return the number of the newest entry that the inbox of a run has had; 0 if there was none."""

    def problems(self) -> list[str]:
        """Return the defects of the files as a whole, as far as the database can find them."""
        return []

    @abstractmethod
    def change_token(self) -> str:
        """Return a text that is new whenever a run has changed since an earlier call."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds since 1970, by the clock of the server if there is one."""
        return clock.now_ns()

    @abstractmethod
    def remove_damaged(self, run_id: str) -> bool:
        """Remove the contents of an id that no run can have, as `runs` reports it; return whether there were any."""

    def erase(self, *, everywhere: bool = False) -> None:  # noqa: B027 - most have nothing to do
        """Overwrite removed data where this process can, such as in a log. A server does so itself.

        With `everywhere`, also copies of it in unused parts of files, which takes time with the size of the store.
        """

    # ------------------------------------------------------------------ owners

    owners: Owners
    """The owners of runs, which processes that share the table see."""

    @abstractmethod
    def fence(self, run_id: str) -> Fence:
        """Return a number that changes with every takeover of a run, and whether the run is cancelled."""

    @abstractmethod
    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        """Record durably that a run is cancelled or not. Its owner learns it with the next batch that it writes.

        Args:
            run_id: The run.
            is_cancelled: Whether it is cancelled.
            by: The name of the caller, if given. The first one is kept.
        """

    @abstractmethod
    def cancelled_by(self, run_id: str) -> str | None:
        """Return the name of the caller that cancelled a run, if it gave one."""

    @abstractmethod
    def close(self) -> None:
        """Close all files."""


_DATA_ERROR = "DataError"  # the name of errors in the data alone, in all drivers (PEP 249, Python's database API)
_name_of = attrgetter("__name__")


def _concerns_all(error: Exception) -> TypeGuard[CheckpointSaveError]:
    """Return whether the store failed, rather than one write, such as one with a value that is too large."""
    cause = error.__cause__
    is_of_one = isinstance(cause, OverflowError | ValueError) or _DATA_ERROR in map(_name_of, type(cause).__mro__)
    return isinstance(error, CheckpointSaveError) and not is_of_one


def _copy(error: CheckpointSaveError) -> Exception:
    """Return a copy of a shared error for one caller, who adds its run: threads must not share an exception."""
    copy = CheckpointSaveError("", error.reason)
    copy.__cause__ = error
    return copy


def read_only_error(store: str, run_id: str, kind: type[CheckpointError]) -> CheckpointError:
    """Return the error for a write to a read-only store."""
    reason = "was opened with read_only=True; open it without that to change it"
    return kind(run_id, f"the {store} {reason}")


def ended_error(run_id: str) -> CheckpointSaveError:
    """Return the error for a node that has ended the transaction of its own tables itself."""
    reason = "its node has ended the transaction of context.connection; the save of the step commits it"
    return CheckpointSaveError(run_id, reason)


def transaction_of(writes: Sequence[Write]) -> NodeTransaction | None:
    """Return the transaction of a node that a write is made in, if there is one."""
    ownership = writes[0].ownership
    transaction: NodeTransaction | None = None if ownership is None else ownership.transaction
    return transaction


def closed_error(store: str, run_id: str = "") -> CheckpointError:
    """Return the error for the use of a closed store."""
    way_out = "get_checkpoint_store opens a fresh one; a graph keeps its store: make a new graph"
    return CheckpointError(run_id, f"the {store} is closed; {way_out}")
