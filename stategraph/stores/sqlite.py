"""The "sqlite" store: one database file, with nothing but the standard library.

A file that others understand: the tables ``run`` and ``checkpoint`` say what they are, and the view ``checkpoints``
puts them together for the sqlite3 shell.
"""

from __future__ import annotations

import builtins
import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from stategraph._values.ids import given_id, ids_within
from stategraph.errors import CheckpointCorruptError, CheckpointError, CheckpointSaveError
from stategraph.stores._files.config_paths import absolute_path
from stategraph.stores._files.database_files import OpenFiles, check_log, database_file
from stategraph.stores._files.fork_safety import protect_at_fork
from stategraph.stores._files.sqlite_connection import (
    check_version,
    connect,
    erase_log,
    fetch_damaged_text,
    grow_log,
    is_damage,
    is_unshareable,
)
from stategraph.stores._rows.records import Head, Row, Unreadable, Write
from stategraph.stores._rows.reentrance import Access
from stategraph.stores._rows.sql_schema import (
    CHAIN,
    HEAD,
    INDEX,
    IS_SHOWN,
    LAST_RUN,
    LAST_STEP,
    NEW_RUN,
    NEXT_RUN,
    NEXT_STEP,
    PUT_ROWS,
    STEP_BITS,
    TOGETHER,
    WITHIN,
    head_of,
    head_or_unreadable,
    head_values,
    lasting_values,
    row_of,
    row_values,
    step_values,
    supplement,
)
from stategraph.stores._rows.sqlite_tables import check, prepare, store_id
from stategraph.stores._rows.store import RowStore

_Result = TypeVar("_Result")

_OLDEST = (3, 35)  # RETURNING

_Ask: TypeAlias = Callable[[sqlite3.Connection, str, Any], builtins.list[Any]]


def _rows(database: sqlite3.Connection, statement: str, values: Any) -> builtins.list[Any]:
    return database.execute(statement, values).fetchall()


class SqliteStore(RowStore):
    """Keeps runs in a SQLite database: write-ahead log, a sync for every commit, threads that save at the same time
    share one. Processes may share the file.

    Args:
        path: The file, with ``~`` for the user's home. It is made if it is not there, for its owner only.
        read_only: Look into a database that others write to, and change nothing; it may be of an older version.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a database, others can write to it, SQLite is too old, or as RowStore.
        FormatError: what is there is not a database of stategraph, or one of a newer version.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, **options: Any) -> None:
        check_version("checkpoint.store", "sqlite", _OLDEST)
        super().__init__(**options)
        self.path = Path(absolute_path(path, "checkpoint.options.path", "a file"))
        self._file = database_file(self.path, must_exist=read_only)
        self._read_only = read_only
        self._closed = False
        self._access = Access()  # the connection is one, its callers are many
        try:
            self._open()
        except sqlite3.Error as error:
            raise self._explained(error, "") from error
        protect_at_fork(self)

    def _open(self) -> None:
        """Connect to the file. Where a reader may write nothing beside it, it is read as a file that nobody changes."""
        is_fixed = False
        try:
            database = self._connected("ro" if self._read_only else "rw")
        except sqlite3.OperationalError as error:
            if not (self._read_only and is_unshareable(error)):
                raise
            is_fixed = True
            check_log(self._file)
            database = self._connected("ro&immutable=1")
        self._database, self._pid = database, os.getpid()
        self._is_fixed, self._files = is_fixed, OpenFiles(self._file, is_fixed=is_fixed)

    def _connected(self, mode: str) -> sqlite3.Connection:
        database = connect(self._file, mode)
        try:
            check(database, self.path)
            if self._read_only:
                supplement(database, self.path)
                database.execute("PRAGMA query_only = 1")
            else:
                prepare(database, self.path)
                grow_log(database, self._file)
            self._sealer.store_id = store_id(database, self.path)
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        with self._access.to_change(self):
            self._closed = True
            self._database.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def __str__(self) -> str:
        return f"sqlite store at {self.path}"

    # ------------------------------------------------------------------ rows

    def _apply(self, writes: Sequence[Write]) -> Sequence[bool]:
        make: Callable[[], Sequence[bool]] = partial(builtins.list, map(self._make, writes))
        made = self._in_transaction(writes[0].head.run_id, make, CheckpointSaveError)
        self._files.check()
        return made

    def _make(self, write: Write) -> bool:
        """Make one write within a transaction -> whether its run had the version for it."""
        if write.outer is not None and not self._is_around(write):
            return False
        number = self._put_head(write.head, write.old)
        if number is None:
            return False
        first = number << STEP_BITS
        execute = self._database.execute
        # First: what is put then takes the pages that this leaves, which SQLite would write once more to erase them.
        if write.cut_below:
            execute("DELETE FROM checkpoint WHERE id >= ? AND id < ?", (first, first | write.cut_below))
        if write.cut_above is not None:
            execute("DELETE FROM checkpoint WHERE id > ? AND id <= ?", (first | write.cut_above, first | LAST_STEP))
        if write.cut_within:
            self._take_out_within(write.head.run_id)
        self._put_rows(first, write.put)
        return True

    def _is_around(self, write: Write) -> bool:
        """Whether the run around that of a write is still the one that it is written for."""
        select = "SELECT incarnation FROM run WHERE run_id = ?"
        found: tuple[bytes] | None = self._database.execute(select, (given_id(write.head.run_id),)).fetchone()
        return found == (write.outer,)

    def _put_rows(self, first: int, rows: Sequence[Row]) -> None:
        """Many rows a statement: sqlite3 lets go of the GIL at every statement, and a busy run keeps it for 5 ms."""
        if len(rows) == 1:
            self._database.execute(PUT_ROWS[1], row_values(first, rows[0]))
            return
        start = 0
        for together in TOGETHER:
            while len(rows) - start >= together:
                values = [value for row in rows[start : start + together] for value in row_values(first, row)]
                self._database.execute(PUT_ROWS[together], values)
                start += together

    def _put_head(self, head: Head, old: Head | None) -> int | None:
        """-> the number of the run; None if its version is another."""
        execute = self._database.execute
        if old is None:
            found = execute(NEW_RUN, (*head_values(head), head.run_id)).fetchone()
        elif lasting_values(old) == lasting_values(head):
            found = execute(NEXT_STEP, (*step_values(head), head.run_id, old.version)).fetchone()
        else:
            found = execute(NEXT_RUN, (*head_values(head), head.run_id, old.version)).fetchone()
        return None if found is None else int(found[0])

    def _remove(self, run_id: str, version: int | None = None) -> bool:
        return self._in_transaction(run_id, partial(self._take_out, run_id, version))

    def _take_out(self, run_id: str, version: int | None) -> bool:
        """Remove a run within a transaction -> whether it had this version."""
        delete = "DELETE FROM run WHERE run_id = ? AND version = coalesce(?, version) RETURNING number"
        found = self._database.execute(delete, (run_id, version)).fetchall()
        self._take_out_rows(found)
        if found or version is None:
            self._take_out_within(run_id)
        return bool(found)

    def _remove_damaged(self, run_id: str) -> bool:
        return self._in_transaction(run_id, partial(self._take_out_damaged, run_id))

    def _take_out_damaged(self, run_id: str) -> bool:
        found = fetch_damaged_text(self._database, "SELECT run_id, number FROM run", ())
        numbers = [(number,) for kept_id, number in found if str(kept_id) == run_id]
        self._database.executemany("DELETE FROM run WHERE number = ?", numbers)
        self._take_out_rows(numbers)
        return bool(numbers)

    def _take_out_within(self, run_id: str) -> None:
        delete = "DELETE FROM run WHERE run_id > ? AND run_id < ? RETURNING number"
        self._take_out_rows(self._database.execute(delete, ids_within(run_id)).fetchall())

    def _take_out_rows(self, numbers: Sequence[tuple[int]]) -> None:
        for (number,) in numbers:
            if not 0 <= number <= LAST_RUN:  # somebody has changed it: there is no room for rows of such a run
                continue
            first = number << STEP_BITS
            self._database.execute("DELETE FROM checkpoint WHERE id BETWEEN ? AND ?", (first, first | LAST_STEP))

    def _erase(self) -> None:
        try:
            with self._access.to_write(self):
                self._check_process()
                erase_log(self._database)
        except sqlite3.Error as error:
            raise self._explained(error, "") from error

    def _head(self, run_id: str) -> Head | None:
        found = self._query(run_id, f"SELECT {HEAD} FROM run WHERE run_id = ?", (run_id,))
        return head_of(found[0], self) if found else None

    def _heads(
        self, status: str | None, graph: str | None, limit: int, before: int | None
    ) -> builtins.list[Head | Unreadable]:
        conditions = [("status = ?", status), ("graph = ?", graph), ("number < ?", before)]
        asked = [(condition, value) for condition, value in conditions if value is not None]
        where = f"WHERE {' AND '.join([*(condition for condition, _ in asked), IS_SHOWN])}"
        values = [*(value for _, value in asked), limit]
        select = f"SELECT {HEAD} FROM run {where} ORDER BY number DESC LIMIT ?"
        found = self._query("", select, values, fetch_damaged_text)
        return [head_or_unreadable(row, self) for row in found]

    def _ids_within(self, run_id: str) -> builtins.list[str]:
        return [str(inner_id) for (inner_id,) in self._query(run_id, WITHIN, ids_within(run_id))]

    def _chain(self, run_id: str, step: int | None) -> builtins.list[Row]:
        last = LAST_STEP if step is None else step
        if last > LAST_STEP or last < 0:
            return []
        found = self._query(run_id, CHAIN, {"run_id": run_id, "last": last})
        rows = [row_of(run_id, columns) for _, *columns in found]
        if step is None and rows and found[0][0] != rows[-1].step:
            raise CheckpointCorruptError(run_id, f"its newest step {found[0][0]} is missing")
        return rows if rows and step in (None, rows[-1].step) else []

    def _index(self, run_id: str) -> builtins.list[Row]:
        return [row_of(run_id, found) for found in self._query(run_id, INDEX, (run_id,))]

    # ------------------------------------------------------------------ the connection

    def _query(self, run_id: str, statement: str, values: Any, ask: _Ask = _rows) -> builtins.list[Any]:
        try:
            with self._access.to_read(self, run_id):
                self._check_process()
                if self._is_fixed and not self._files.are_there:  # it was changed nevertheless
                    self._database.close()
                    self._open()
                return ask(self._database, statement, values)
        except _FAILURES as error:
            raise self._explained(error, run_id) from error

    def _in_transaction(
        self, run_id: str, work: Callable[[], _Result], kind: type[CheckpointError] = CheckpointError
    ) -> _Result:
        """-> what the work gives; it is done as a whole, or not at all."""
        if self._read_only:
            reason = f"the {self} was opened with read_only=True, to be looked into only; open it without, to change it"
            raise kind(run_id, reason)
        try:
            with self._access.to_write(self, run_id, kind), self._access.transaction:
                self._check_process()
                if self._database.in_transaction:  # an interrupt came just after it was begun
                    self._database.execute("ROLLBACK")
                try:
                    self._database.execute("BEGIN IMMEDIATE")
                    result = work()
                    self._database.execute("COMMIT")
                except BaseException as first:
                    self._roll_back(first)
                    raise
                return result
        except _FAILURES as error:
            raise self._explained(error, run_id, kind) from error

    def _is_inside(self) -> bool:
        return self._access.is_held_here()

    def _roll_back(self, first: BaseException) -> None:
        """Undo an open transaction; where that fails, the first failure is the one to hear of."""
        try:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
        except sqlite3.Error as second:
            first.add_note(f"and the transaction could not be rolled back: {second}")

    def _check_process(self) -> None:
        """A connection must not be used on both sides of a fork."""
        if self._closed:
            raise self._closed_error("")
        if self._pid != os.getpid():
            self._database.close()  # or SQLite believes that this process has the locks of its parent
            self._open()

    def at_rest(self) -> AbstractContextManager[object]:
        return self._access.guard

    def renew(self) -> None:
        super().renew()
        self._access = Access()

    def _explained(
        self, error: Exception, run_id: str, kind: type[CheckpointError] = CheckpointError
    ) -> CheckpointError:
        """-> an error of SQLite as one of stategraph."""
        if is_damage(error):
            way_out = "put back a copy of it, or get out what can be read with '.recover' of the sqlite3 shell"
            return CheckpointCorruptError(run_id, f"the {self} is damaged: {error}; {way_out}")
        return kind(run_id, f"the {self} failed: {error}")


_FAILURES = (sqlite3.Error, OverflowError, UnicodeDecodeError)  # what comes of asking SQLite
