"""The "sqlite" store: one database file, with only the standard library.

Other tools can read the file: the tables ``run`` and ``checkpoint`` have descriptive columns, and the view
``checkpoints`` joins them for the sqlite3 shell.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeAlias, TypeVar, Unpack

import attrs

from stategraph._owners.base import Fence, Ownership
from stategraph._owners.locks import LockOwners
from stategraph._util.callables import is_loop_running
from stategraph.errors import CheckpointCorruptError, CheckpointError, CheckpointSaveError
from stategraph.stores._checks import RunFilter, check_flags
from stategraph.stores._files.fork_safety import ForkSafe, reentered_error
from stategraph.stores._files.paths import absolute_path
from stategraph.stores._files.sqlite_files import (
    BUSY_TIMEOUT,
    Database,
    NodeConnection,
    ReadDatabase,
    check_version,
    database_file,
    erase_log,
    fetch_damaged_text,
    is_damage,
)
from stategraph.stores._rows import sql_schema as sql
from stategraph.stores._rows.records import Appended, Removal, RunRecord, Unreadable, Write, run_or_unreadable
from stategraph.stores._rows.sql_table import SqlTable, Statement, select_runs
from stategraph.stores._rows.store import RowOptions, RowStore
from stategraph.stores._rows.table import (
    Identify,
    NodeTransaction,
    Outcome,
    closed_error,
    ended_error,
    read_only_error,
    transaction_of,
)

__all__ = ["SqliteStore"]

OLDEST = (3, 35)
"""The oldest SQLite that these tables support: earlier ones have no RETURNING."""

_Found = TypeVar("_Found")
_Kind: TypeAlias = type[CheckpointError]
_Work: TypeAlias = Callable[[sqlite3.Connection], _Found]
_FAILURES = (sqlite3.Error, OverflowError, UnicodeDecodeError)  # errors of a query


class SqliteStore(RowStore):
    """Keeps runs in a SQLite database, with a write-ahead log and a sync for every commit. Threads that save at the
    same time share a commit, and processes may share the file.

    Args:
        path: The file; ``~`` is the home of the user. If it is missing, it is created with access for this user only.
        read_only: Inspect a database that others write to, without changing it; it may be of an older version. This
            creates no file, unless the newest checkpoints are in a log whose index is missing.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a database, others can write to it, SQLite is too old, or as RowStore.
        FormatError: the file is not a database of stategraph, or is from a newer version.
    """

    kind = "sqlite"

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, **options: Unpack[RowOptions]) -> None:
        check_version("checkpoint.store", "sqlite", OLDEST)
        check_flags(read_only=read_only)

        def open_table(identify: Identify) -> SqliteTable:
            self.path = Path(absolute_path(path, "checkpoint.options.path", "a file"))
            return SqliteTable(str(self), self.path, identify, read_only=read_only)

        super().__init__(open_table, **options)


# --------------------------------------------------------------------------- its table

_MOST_IN_BATCH = 256  # writes in one transaction, for steady progress
_FEW_PAGES = 1_000  # 4 MB, which are written again in 0.1 s
_LOOKS = 0.002  # seconds between two looks whether the transaction of a node has ended
_LOOP_WAITS = 1.0  # seconds that an event loop waits for a node, which may need this loop to end


def _is_of_chunks(write: Write) -> bool:
    """Return whether a write is of chunks alone, which are no loss worth a sync each."""
    return isinstance(write, Appended) and bool(write.put) and all(entry.kind == "chunk" for entry in write.put)


@attrs.define(eq=False)
class _Waiting:
    """A write of a thread, and its outcome."""

    write: Write
    outcome: Outcome | None = None


class SqliteTable(SqlTable, ForkSafe):
    """Records in a SQLite database. All threads share one connection; a forked child opens its own.

    Args:
        store: The name of the store, for error messages.
        path: The file.
        identify: Called with the id of the store whenever the file is opened.
        read_only: Whether writes are refused.
        owners: The name of the file with the locks of the owners, next to the database.
        fill: Copies the runs of an older store into a new database.

    Attributes:
        database: The connection. Use it only in `_use`.
    """

    store: str
    owners: LockOwners
    closed: bool
    database: Database

    def __init__(
        self,
        store: str,
        path: Path,
        identify: Identify,
        *,
        read_only: bool,
        owners: str = "",
        fill: sql.Fill | None = None,
    ) -> None:
        super().__init__(sql.DIALECT)
        self.store, self._path, self._identify, self._read_only, self._fill = store, path, identify, read_only, fill
        self._file = database_file(path, must_exist=read_only)
        locks = self._file.with_name(owners or f"{self._file.name}-owners")
        self.owners = LockOwners(locks, read_only=True) if read_only else LockOwners.at(locks)
        self.closed = False
        self._at_node: NodeTransaction | None = None
        ForkSafe.__init__(self)
        try:
            self._open()
        except sqlite3.Error as error:
            raise self.explained(error, "") from error

    def _open(self) -> None:
        """Connect to the file."""
        kind = ReadDatabase if self._read_only else Database
        self.database, self._pid = kind(self._file, self._prepare), os.getpid()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        sql.check(connection, self._path)
        if self._read_only:
            sql.supplement(connection, self._path)
            connection.execute("PRAGMA query_only = 1")
        else:
            sql.prepare(connection, self._path, self._fill)
        self._identify(sql.store_id(connection, self._path))

    def close(self) -> None:
        with self.alone():
            self.closed = True
            self.database.connection.close()
        self.owners.leave()

    # ------------------------------------------------------------------ transactions

    def commit(self, writes: Sequence[Write]) -> list[Outcome]:
        """Make writes, in one transaction and one sync with those of other threads (group commit).

        The first thread commits at once, in its own thread: a hand-over would take as long as the sync. Threads that
        arrive during that commit wait, and one of them commits for all.
        """
        if writes and transaction_of(writes) is not None:  # it has the write lock, for which others may wait below
            return super().commit(writes)
        if self._committing._is_owned():  # type: ignore[attr-defined]  # as threading.Condition does
            raise reentered_error(self, writes[0].run_id, CheckpointSaveError)
        waiting = [*map(_Waiting, writes)]
        self._waiting.extend(waiting)
        with self._committing:
            while waiting and waiting[-1].outcome is None:
                batch = self._waiting[:_MOST_IN_BATCH]
                outcomes = super().commit([each.write for each in batch])
                for each, outcome in zip(batch, outcomes, strict=True):
                    each.outcome = outcome
                # After an interrupt they stay: the next thread makes them, and those already made are refused.
                del self._waiting[: len(batch)]
        return [each.outcome or False for each in waiting]

    def _use(self, run_id: str, work: _Work[_Found], kind: _Kind = CheckpointError) -> _Found:
        """Return the result of some work with the connection, in turn with other threads; raise `kind` if it fails."""
        try:
            with self.alone(run_id, kind):  # Ctrl-C could leave it locked if a @contextmanager held it
                self._check_process()
                return self.database.use(work)
        except _FAILURES as error:
            raise self.explained(error, run_id, kind) from error

    def query(self, run_id: str, statement: str, values: Sequence[Any]) -> list[Any]:
        return self._use(run_id, lambda connection: fetch_damaged_text(connection, statement, values))

    def _transact(
        self, run_id: str, work: _Work[_Found], kind: _Kind = CheckpointError, *, syncs: bool = True
    ) -> _Found:
        """Return the result of some work in a transaction; raise `kind` if it fails.

        Without `syncs`, a power cut may undo it until the next transaction; a killed process does not.
        """
        if self._read_only:
            raise read_only_error(self.store, run_id, kind)

        def transact(connection: sqlite3.Connection) -> _Found:
            files = self.database.files
            if not files.is_log_grown:
                files.grow_log(connection)
            if not syncs:
                connection.execute("PRAGMA synchronous = NORMAL")
            try:
                with connection:  # commits, or rolls back
                    connection.execute("BEGIN IMMEDIATE")
                    found = work(connection)
            finally:
                if not syncs:
                    connection.execute("PRAGMA synchronous = FULL")
            files.check()
            return found

        return self._alone(run_id, kind, lambda: self._use(run_id, transact, kind))

    def change(self, run_id: str, statement: str, values: Sequence[Any]) -> list[Any]:
        """Run a statement that writes, and return its rows."""
        return self._transact(run_id, lambda connection: connection.execute(statement, values).fetchall())

    def erase(self, *, everywhere: bool = False) -> None:
        ((pages,),) = self.query("", "PRAGMA page_count", ())
        if everywhere or pages <= _FEW_PAGES:  # pages may have copies of rows that were moved to others
            vacuum: _Work[Any] = lambda connection: connection.execute("VACUUM")  # noqa: E731 - it is typed so
            self._alone("", CheckpointError, lambda: self._use("", vacuum))
        self._use("", erase_log)

    # ------------------------------------------------------------------ transactions of nodes

    def begin(self, run_id: str) -> NodeTransaction:
        if self._read_only:
            raise read_only_error(self.store, run_id, CheckpointError)
        return self._alone(run_id, CheckpointError, partial(self._begun, run_id))

    def _begun(self, run_id: str) -> NodeTransaction:
        self._use(run_id, lambda _: self.database.files.check())
        try:
            connection = NodeConnection.begin(self._file)
        except sqlite3.Error as error:
            raise self.explained(error, run_id) from error

        def end() -> None:
            connection.close()
            self._at_node = None

        self._at_node = NodeTransaction(connection, run_id, end)
        return self._at_node

    def _alone(self, run_id: str, kind: _Kind, work: Callable[[], _Found]) -> _Found:
        """Do some work once the transaction of a node, and other writes, have ended; others wait for it.

        SQLite itself would let readers of this process wait as well, for its lock and that of the connection. The
        `with` releases the lock even after Ctrl-C.
        """
        give_up = monotonic() + (_LOOP_WAITS if is_loop_running() else BUSY_TIMEOUT)
        while True:
            with self._writing:
                at_node = self._at_node
                if at_node is None:
                    return work()
            if monotonic() > give_up:
                reason = f"a node of run {at_node.run_id!r} is writing to its own tables in the {self.store}"
                way_out = (
                    "it should return soon after its first use of context.connection; an async node, whose event loop "
                    "cannot wait, uses it in asyncio.to_thread"
                )
                raise kind(run_id, f"{reason}; {way_out}")
            sleep(_LOOKS)

    def _finish(self, transaction: NodeTransaction, write: Write, work: _Work[_Found]) -> _Found:
        """Make a write in the transaction of a node, which commits it; if it is refused, the transaction stays open."""
        if isinstance(write, Appended):
            way_out = "use context.connection last, after effect, spend and status"
            raise CheckpointSaveError(write.run_id, f"nothing is kept while its node writes to own tables: {way_out}")
        connection: NodeConnection = transaction.connection
        if not connection.in_transaction:
            raise ended_error(write.run_id)
        try:
            found = work(connection)
            if found == [True]:
                connection.save()
        except _FAILURES as error:
            raise self.explained(error, write.run_id, CheckpointSaveError) from error
        if found == [True] and write.ownership is not None:
            write.ownership.roll_back()  # closes the connection
            self.database.files.check()
        return found

    def explained(self, error: Exception, run_id: str, kind: _Kind = CheckpointError) -> CheckpointError:
        """Translate an error of SQLite to an error of stategraph."""
        if is_damage(error):
            way_out = (
                "put back a copy of it, without the current -wal, or recover it with '.recover' of the sqlite3 shell"
            )
            return CheckpointCorruptError(run_id, f"the {self.store} is damaged: {error}; {way_out}")
        return kind(run_id, f"the {self.store} failed: {error}")

    # ------------------------------------------------------------------ threads and processes

    def _check_process(self) -> None:
        """Open another connection in a forked child: a connection must not be used on both sides of a fork."""
        if self.closed:
            raise closed_error(self.store)
        if self._pid != os.getpid():
            self.database.connection.close()  # otherwise SQLite believes it has the locks of its parent
            if self._at_node is not None:
                self._at_node.end()
            self._open()

    def renew(self) -> None:
        super().renew()
        self._committing = threading.RLock()
        self._writing = threading.Lock()
        self._waiting: list[_Waiting] = []

    # ------------------------------------------------------------------ writing

    def _write(self, writes: Sequence[Write], statements: Sequence[Sequence[Statement]]) -> list[bool]:
        def execute(connection: sqlite3.Connection) -> list[bool]:
            return [sum([connection.execute(*statement).rowcount for statement in each]) > 0 for each in statements]

        transaction = transaction_of(writes)
        if transaction is not None:
            return self._finish(transaction, writes[0], execute)
        syncs = type(writes[0]) is not Appended or not all(map(_is_of_chunks, writes))
        return self._transact(writes[0].run_id, execute, CheckpointSaveError, syncs=syncs)

    def _removing(self, removal: Removal) -> list[Statement]:
        return [*super()._removing(removal), *((forget, (removal.run_id,)) for forget in sql.FORGET)]

    def _guard(self, run_id: str, ownership: Ownership | None, *, is_new: bool) -> Statement:
        return ("", ()) if ownership is None else (sql.OWNED, (2 * ownership.fence + ownership.is_cancelled, run_id))

    # ------------------------------------------------------------------ owners

    def fence(self, run_id: str) -> Fence:
        return _fence_of(self.query(run_id, sql.FENCE, (run_id,)))

    def all_fences(self) -> Iterator[tuple[str, int]]:
        before = sql.LAST_RUN + 1
        while found := self.query("", sql.ALL_FENCES, (before,)):
            yield from ((str(run_id), fence) for _, run_id, fence in found)
            before = found[-1][0]

    def raise_fence(self, run_id: str) -> Fence:
        return _fence_of(self.change(run_id, sql.RAISE_FENCE, (run_id,)))

    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        if is_cancelled:
            self.change(run_id, sql.SET_CANCELLED, (run_id, by))
        else:
            self._transact(run_id, lambda connection: [connection.execute(each, (run_id,)) for each in sql.TAKE_UP])

    def cancelled_by(self, run_id: str) -> str | None:
        ((by,),) = self.query(run_id, sql.CANCELLED_BY, (run_id,)) or [(None,)]
        return None if by is None else str(by)

    # ------------------------------------------------------------------ reading

    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        found = self._query_many(*select_runs(which, limit, before, self._dialect, self._query_many))
        return [*map(run_or_unreadable, found)]

    def problems(self) -> list[str]:
        found = [str(text) for (text,) in self.query("", "PRAGMA integrity_check(10)", ())]
        return [] if found == ["ok"] else found

    def change_token(self) -> str:
        ((version,),) = self.query("", "PRAGMA data_version", ())  # changes with writes of other connections
        return f"{self.database.opened}-{version}-{self.database.connection.total_changes}"


def _fence_of(found: Sequence[Any]) -> Fence:
    """Return the fence in a row; 0 if there is none."""
    ((number, cancelled),) = found or [(0, 0)]
    return number, bool(cancelled)
