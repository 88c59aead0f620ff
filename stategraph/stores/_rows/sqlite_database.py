"""The database file of a "sqlite" store: its connection, its transactions, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from stategraph._owners.file_holds import FileHolds
from stategraph.errors import CheckpointCorruptError, CheckpointError
from stategraph.stores._files.database_files import OpenFiles, check_log, database_file
from stategraph.stores._files.sqlite_connection import connect, erase_log, grow_log, is_damage, is_unshareable
from stategraph.stores._rows.reentrance import Access
from stategraph.stores._rows.schema_check import check, prepare, store_id
from stategraph.stores._rows.sql_schema import supplement
from stategraph.stores._rows.table import Identify, closed_error

_Result = TypeVar("_Result")

_Ask: TypeAlias = Callable[[sqlite3.Connection, str, Any], list[Any]]


def _rows(database: sqlite3.Connection, statement: str, values: Any) -> list[Any]:
    return database.execute(statement, values).fetchall()


class SqliteDatabase:
    """The database of a store. All threads share one connection; a forked child opens its own.

    Args:
        store: The store, as errors name it.
        path: The file.
        identify: Called with the id of the store whenever it is opened.
        read_only: Whether nothing may be written.

    Attributes:
        connection: The connection. It is only used within `query`, `in_transaction` and `erase`.
        files: What the connection has open.
        owners: Who owns which run; None in a database that is only read.
    """

    def __init__(self, store: object, path: Path, identify: Identify, *, read_only: bool) -> None:
        self.store, self._path, self._identify, self._read_only = store, path, identify, read_only
        self._file = database_file(path, must_exist=read_only)
        self.owners = None if read_only else FileHolds.at(self._file.with_name(f"{self._file.name}-owners"))
        self.is_closed = False
        self._access = Access()  # the connection is one, its callers are many
        self.is_in_use = self._access.is_held_here
        try:
            self._open()
        except sqlite3.Error as error:
            raise self.explained(error, "") from error

    def _open(self) -> None:
        """Connect to the file. Where a reader may write nothing beside it, it is read as a file that nobody changes."""
        is_fixed = False
        try:
            connection = self._connected("ro" if self._read_only else "rw")
        except sqlite3.OperationalError as error:
            if not (self._read_only and is_unshareable(error)):
                raise
            is_fixed = True
            check_log(self._file)
            connection = self._connected("ro&immutable=1")
        try:
            files = OpenFiles(self._file, is_fixed=is_fixed)
        except BaseException:
            connection.close()
            raise
        self.connection, self._pid = connection, os.getpid()
        self._is_fixed, self.files = is_fixed, files

    def _connected(self, mode: str) -> sqlite3.Connection:
        connection = connect(self._file, mode)
        try:
            check(connection, self._path)
            if self._read_only:
                supplement(connection, self._path)
                connection.execute("PRAGMA query_only = 1")
            else:
                prepare(connection, self._path)
                grow_log(connection, self._file)
            self._identify(store_id(connection, self._path))
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close the connection for good."""
        with self._access.to_change(self.store):
            self.is_closed = True
            self.connection.close()

    # ------------------------------------------------------------------ reading and writing

    def query(self, run_id: str, statement: str, values: Any, ask: _Ask = _rows) -> list[Any]:
        """Return all rows that a statement finds.

        Raises:
            CheckpointError: it cannot be asked, or the database is damaged.
        """
        try:
            with self._access.to_read(self.store, run_id):
                self._check_process()
                if self._is_fixed and not self.files.are_there:  # it was changed nevertheless
                    self.connection.close()
                    self._open()
                return ask(self.connection, statement, values)
        except _FAILURES as error:
            raise self.explained(error, run_id) from error

    def in_transaction(
        self, run_id: str, work: Callable[[], _Result], kind: type[CheckpointError] = CheckpointError
    ) -> _Result:
        """Return the result of some work, which is done as a whole or not at all; raise `kind` if it fails."""
        if self._read_only:
            reason = "was opened with read_only=True, to be looked into only; open it without, to change it"
            raise kind(run_id, f"the {self.store} {reason}")
        try:
            with self._access.to_write(self.store, run_id, kind), self._access.transaction:
                self._check_process()
                if self.connection.in_transaction:  # an interrupt came just after it was begun
                    self.connection.execute("ROLLBACK")
                try:
                    self.connection.execute("BEGIN IMMEDIATE")
                    result = work()
                    self.connection.execute("COMMIT")
                except BaseException as first:
                    self._roll_back(first)
                    raise
                return result
        except _FAILURES as error:
            raise self.explained(error, run_id, kind) from error

    def _roll_back(self, first: BaseException) -> None:
        """Undo an open transaction; where that fails, the first failure is the one to hear of."""
        try:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
        except sqlite3.Error as second:
            first.add_note(f"and the transaction could not be rolled back: {second}")

    def erase(self) -> None:
        """Cut off the log, in which what was removed still stands."""
        try:
            with self._access.to_write(self.store):
                self._check_process()
                erase_log(self.connection)
        except sqlite3.Error as error:
            raise self.explained(error, "") from error

    def explained(
        self, error: Exception, run_id: str, kind: type[CheckpointError] = CheckpointError
    ) -> CheckpointError:
        """Return an error of SQLite as one of stategraph."""
        if is_damage(error):
            way_out = "put back a copy of it, or get out what can be read with '.recover' of the sqlite3 shell"
            return CheckpointCorruptError(run_id, f"the {self.store} is damaged: {error}; {way_out}")
        return kind(run_id, f"the {self.store} failed: {error}")

    # ------------------------------------------------------------------ threads and processes

    def _check_process(self) -> None:
        """Open another connection in a forked child: one must not be used on both sides of a fork."""
        if self.is_closed:
            raise closed_error(self.store)
        if self._pid != os.getpid():
            self.connection.close()  # or SQLite believes that this process has the locks of its parent
            self._open()

    def at_rest(self) -> AbstractContextManager[object]:
        """Keep other threads out while the process is forked."""
        return self._access.guard

    def renew(self) -> None:
        """Take a lock of its own, in a forked child."""
        self._access = Access()
        self.is_in_use = self._access.is_held_here


_FAILURES = (sqlite3.Error, OverflowError, UnicodeDecodeError)  # what comes of asking SQLite
