"""The records of a "sqlite" store: the tables of a database file, its connection, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain as chained
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from stategraph._owners.holds import Fence, Hold, acting, lost
from stategraph._owners.locks import LockHolds
from stategraph._values.ids import PARTS, given_id, nested_range
from stategraph.errors import CheckpointCorruptError, CheckpointError, CheckpointSaveError
from stategraph.stores._checks import RunFilter
from stategraph.stores._files.sqlite_files import (
    OpenFiles,
    ReadFile,
    connect,
    database_file,
    erase_log,
    fetch_damaged_text,
    is_damage,
)
from stategraph.stores._rows import sql_schema as sql
from stategraph.stores._rows.access import Access
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, Unreadable, WriteBatch
from stategraph.stores._rows.sql_columns import (
    COLUMNS,
    lasting_values,
    row_values,
    run_of,
    run_or_unreadable,
    run_values,
    step_values,
)
from stategraph.stores._rows.sql_schema import LAST_SEQUENCE, SEQUENCE_BITS
from stategraph.stores._rows.table import MANY, Held, Identify, Table, closed_error, read_only_error, while_short

OLDEST = (3, 35)
"""The SQLite that these tables take: older ones have no RETURNING."""

_Result = TypeVar("_Result")

_Ask: TypeAlias = Callable[[sqlite3.Connection, str, Any], list[Any]]
_NO_FENCE = (0, 0)
_FAILURES = (sqlite3.Error, OverflowError, UnicodeDecodeError)  # what comes of asking SQLite


def _rows(database: sqlite3.Connection, statement: str, values: Any) -> list[Any]:
    return database.execute(statement, values).fetchall()


class SqliteTable(Table):
    """Records in a SQLite database. All threads share one connection; a forked child opens its own.

    Args:
        store: The store, as errors name it.
        path: The file.
        identify: Called with the id of the store whenever it is opened.
        read_only: Whether nothing may be written.
        owners: The name of the file with the locks of the owners, beside the database.
        fill: Copies the runs of an older store into a new database.

    Attributes:
        connection: The connection. It is only used within `query`, `in_transaction` and `erase`.
        files: What the connection has open.
    """

    removed_together = MANY

    def __init__(
        self,
        store: object,
        path: Path,
        identify: Identify,
        *,
        read_only: bool,
        owners: str = "",
        fill: sql.Fill | None = None,
    ) -> None:
        self.store, self._path, self._identify, self._read_only, self._fill = store, path, identify, read_only, fill
        self._file = database_file(path, must_exist=read_only)
        locks = self._file.with_name(owners or f"{self._file.name}-owners")
        self.owners = LockHolds(locks, read_only=True) if read_only else LockHolds.at(locks)
        self._reader: ReadFile | None = None
        self.closed = False
        self._access = Access()  # the connection is one, its callers are many
        try:
            self._open()
        except sqlite3.Error as error:
            raise self.explained(error, "") from error

    def _open(self) -> None:
        """Connect to the file."""
        if self._read_only:
            self._reader = ReadFile(self._file, self._prepare)
            self.connection, self._pid = self._reader.connection, os.getpid()
            return
        connection = connect(self._file, "rw")
        try:
            self._prepare(connection)
            files = OpenFiles(self._file)
        except BaseException:
            connection.close()
            raise
        self.connection, self._pid, self.files = connection, os.getpid(), files
        self._opened = os.urandom(4).hex()  # no number of one connection says anything to another

    def _prepare(self, connection: sqlite3.Connection) -> None:
        sql.check(connection, self._path)
        if self._read_only:
            sql.supplement(connection, self._path)
        else:
            sql.prepare(connection, self._path, self._fill)
        self._identify(sql.store_id(connection, self._path))

    def _disconnect(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self.connection.close()

    def close(self) -> None:
        with self._access.to_write(self.store):
            self.closed = True
            self._disconnect()
        if self.owners is not None:
            self.owners.leave()
            self.owners = None

    # ------------------------------------------------------------------ transactions

    def query(self, run_id: str, statement: str, values: Any, ask: _Ask = _rows) -> list[Any]:
        """Return all rows that a statement finds.

        Raises:
            CheckpointError: it cannot be asked, or the database is damaged.
        """
        try:
            with self._access.to_read(self.store, run_id):
                self._check_process()
                if self._reader is not None:
                    return self._reader.ask(lambda connection: ask(connection, statement, values))
                return ask(self.connection, statement, values)
        except _FAILURES as error:
            raise self.explained(error, run_id) from error

    def in_transaction(
        self, run_id: str, work: Callable[[], _Result], kind: type[CheckpointError] = CheckpointError
    ) -> _Result:
        """Return the result of some work, which is done as a whole or not at all; raise `kind` if it fails."""
        if self._read_only:
            raise read_only_error(self.store, run_id, kind)
        try:
            with self._access.to_write(self.store, run_id, kind), self._access.transaction:
                self._check_process()
                if self.connection.in_transaction:  # an interrupt came just after it was begun
                    self.connection.execute("ROLLBACK")
                if not self.files.is_log_grown:
                    self.files.grow_log(self.connection)
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
            recovered = "get out what can be read with '.recover' of the sqlite3 shell"
            way_out = f"put back a copy of it, without the -wal that is there now, or {recovered}"
            return CheckpointCorruptError(run_id, f"the {self.store} is damaged: {error}; {way_out}")
        return kind(run_id, f"the {self.store} failed: {error}")

    # ------------------------------------------------------------------ threads and processes

    def _check_process(self) -> None:
        """Open another connection in a forked child: one must not be used on both sides of a fork."""
        if self.closed:
            raise closed_error(self.store)
        if self._pid != os.getpid():
            self._disconnect()  # or SQLite believes that this process has the locks of its parent
            self._open()

    def is_in_use(self) -> bool:
        return self._access.is_held_here()

    def at_rest(self) -> AbstractContextManager[object]:
        return self._access.guard

    def renew(self) -> None:
        self._access = Access()

    # ------------------------------------------------------------------ writing

    def apply(self, batches: Sequence[WriteBatch]) -> Sequence[bool]:
        write: Callable[[], Sequence[bool]] = partial(list, map(self.write, batches))
        written = self.in_transaction(batches[0].run.run_id, write, CheckpointSaveError)
        self.files.check(self)
        return written

    def write(self, batch: WriteBatch) -> bool:
        """Write one batch within a transaction; return whether its run had the version for it."""
        if batch.outer is not None and not self._has_outer_run(batch):
            return False
        if not self._put_run(batch.run, batch.old, batch.hold):
            return False
        execute, run_id = self.connection.execute, batch.run.run_id
        is_step = not (batch.cut_below or batch.cut_above is not None or batch.cut_nested or batch.cut_parts)
        if is_step and len(batch.put) == 1:  # the most frequent case by far
            execute(sql.PUT_ROW, (run_id, *row_values(batch.put[0].sequence, batch.put[0], json_as_text=True)))
            return True
        number = execute(sql.NUMBER, (run_id,)).fetchone()
        if number is None:  # somebody's trigger has removed the run
            return False
        first = number[0] << SEQUENCE_BITS
        # First: what is put then takes the pages that this leaves, which SQLite would write once more to erase them.
        if batch.cut_below:
            execute("DELETE FROM checkpoint WHERE id >= ? AND id < ?", (first, first | batch.cut_below))
        if batch.cut_above is not None:
            execute("DELETE FROM checkpoint WHERE id > ? AND id <= ?", (first | batch.cut_above, first | LAST_SEQUENCE))
        if batch.cut_nested:
            self._delete_nested(run_id)
        elif batch.cut_parts:
            delete = "DELETE FROM run WHERE run_id > ? AND run_id < ? AND run_id GLOB ? RETURNING number"
            self._delete_rows(execute(delete, (*nested_range(run_id), PARTS)).fetchall())
        self._put_rows(first, batch.put)
        return True

    def _has_outer_run(self, batch: WriteBatch) -> bool:
        """Return whether the outer run is still the one that a batch of a nested run is written for."""
        select = "SELECT incarnation FROM run WHERE run_id = ?"
        run_id = given_id(batch.run.run_id)
        found: tuple[bytes] | None = self.connection.execute(select, (run_id,)).fetchone()
        return found == (batch.outer,)

    def _put_run(self, run: RunRecord, old: RunRecord | None, hold: Hold | None) -> bool:
        """Write the record of a run; return False if it has another version, or another owner."""
        execute = self.connection.execute
        if old is None:
            is_lost = hold is not None and self._is_lost(hold)
            return not is_lost and execute(sql.NEW_RUN, (*run_values(run), run.run_id)).fetchone() is not None
        is_step = lasting_values(old) == lasting_values(run)
        update, values = (sql.NEXT_STEP, step_values(run)) if is_step else (sql.NEXT_RUN, run_values(run))
        if hold is None:
            return execute(update, (*values, run.run_id, old.version, -1, "")).rowcount == 1
        expected = run.run_id, old.version, 2 * hold.fence + hold.is_cancelled, hold.run_id
        if not hold.is_lost and execute(update, (*values, *expected)).rowcount == 1:
            return True
        if self._is_lost(hold):  # or it was cancelled, which its owner learns here
            return False
        expected = run.run_id, old.version, 2 * hold.fence + hold.is_cancelled, hold.run_id
        return execute(update, (*values, *expected)).rowcount == 1

    def _put_rows(self, first: int, rows: Sequence[CheckpointRecord]) -> None:
        """Insert rows, many in a statement: sqlite3 releases the GIL at each, and a busy thread keeps it for 5 ms."""
        execute = self.connection.execute
        if len(rows) == 1:
            execute(sql.PUT_ROWS[1], row_values(first | rows[0].sequence, rows[0], json_as_text=True))
            return
        start = 0
        for together in sql.TOGETHER:
            while len(rows) - start >= together:
                part = [row_values(first | row.sequence, row, json_as_text=True) for row in rows[start:][:together]]
                execute(sql.PUT_ROWS[together], [*chained.from_iterable(part)])
                start += together

    # ------------------------------------------------------------------ owners

    def _is_lost(self, hold: Hold) -> bool:
        """Return, within a transaction, whether the run of a hold was taken from it; tell it of a cancellation."""
        number, cancelled = self.connection.execute(sql.FENCE, (hold.run_id,)).fetchone() or _NO_FENCE
        if cancelled:
            hold.is_cancelled = True
        return hold.is_lost or number != hold.fence

    def fence(self, run_id: str) -> Fence:
        ((number, cancelled),) = self.query(run_id, sql.FENCE, (run_id,)) or [_NO_FENCE]
        return number, bool(cancelled)

    def all_fences(self) -> Iterator[tuple[str, int]]:
        before = sql.LAST_RUN + 1
        while found := self.query("", sql.ALL_FENCES, (before,), fetch_damaged_text):
            yield from ((str(run_id), fence) for _, run_id, fence in found)
            before = found[-1][0]

    def raise_fence(self, run_id: str) -> Fence:
        return self.in_transaction(run_id, partial(self._raised_fence, run_id))

    def _raised_fence(self, run_id: str) -> Fence:
        number, cancelled = self.connection.execute(sql.RAISE_FENCE, (run_id,)).fetchone()
        return number, bool(cancelled)

    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        values = run_id, int(is_cancelled), by
        self.in_transaction(run_id, lambda: self.connection.execute(sql.SET_CANCELLED, values))

    def cancelled_by(self, run_id: str) -> str | None:
        ((by,),) = self.query(run_id, sql.CANCELLED_BY, (run_id,)) or [(None,)]
        return None if by is None else str(by)

    # ------------------------------------------------------------------ removing

    def remove(self, run_id: str, version: int | None = None) -> bool:
        return self.in_transaction(run_id, partial(self._delete, run_id, version))

    def _delete(self, run_id: str, version: int | None) -> bool:
        """Delete a run within a transaction; return whether it had this version."""
        if acting.hold is not None and self._is_lost(acting.hold):
            raise lost(given_id(run_id))
        delete = "DELETE FROM run WHERE run_id = ? AND version = coalesce(?, version) RETURNING number"
        found = self.connection.execute(delete, (run_id, version)).fetchall()
        self._delete_rows(found)
        if found or version is None:
            self._delete_nested(run_id)
        return bool(found)

    def remove_all(self, runs: Sequence[Held]) -> Sequence[bool]:
        return self.in_transaction("", lambda: while_short(runs, self._delete_some))

    def _delete_some(self, runs: Sequence[Held]) -> list[bool]:
        """Delete runs within a transaction; return which of them had their versions, and are not lost."""
        fences = dict(self._find_some(sql.FENCES, [(hold.run_id,) for _, hold in runs]))
        held = [run for run, hold in runs if not hold.is_lost and hold.fence == fences.get(hold.run_id, 0)]
        found = dict(self._find_some(sql.DELETE_RUNS, [(run.run_id, run.version) for run in held]))
        nested = self._find_some(sql.DELETE_NESTED, [nested_range(run_id) for run_id in found])
        self._delete_rows([*zip(found.values()), *nested])
        return [run.run_id in found for run, _ in runs]

    def _find_some(self, statement: str, values: Sequence[Sequence[Any]]) -> list[Any]:
        """Return what a statement finds for several times its values."""
        if not values:
            return []
        places = ", ".join([f"({', '.join('?' * len(values[0]))})"] * len(values))
        return self.connection.execute(statement % places, [*chained.from_iterable(values)]).fetchall()

    def _delete_nested(self, run_id: str) -> None:
        delete = "DELETE FROM run WHERE run_id > ? AND run_id < ? RETURNING number"
        self._delete_rows(self.connection.execute(delete, nested_range(run_id)).fetchall())

    def remove_damaged(self, run_id: str) -> bool:
        return self.in_transaction(run_id, partial(self._delete_damaged, run_id))

    def _delete_damaged(self, run_id: str) -> bool:
        found = fetch_damaged_text(self.connection, "SELECT run_id, number FROM run", ())
        numbers = [(number,) for kept_id, number in found if str(kept_id) == run_id]
        self.connection.executemany("DELETE FROM run WHERE number = ?", numbers)
        self._delete_rows(numbers)
        return bool(numbers)

    def _delete_rows(self, numbers: Sequence[tuple[int]]) -> None:
        # Where somebody has changed a number, there may be no room for rows of such a run.
        firsts = [number << SEQUENCE_BITS for (number,) in numbers if 0 <= number <= sql.LAST_RUN]
        bounds = [(first, first | LAST_SEQUENCE) for first in firsts]
        self.connection.executemany("DELETE FROM checkpoint WHERE id BETWEEN ? AND ?", bounds)

    # ------------------------------------------------------------------ reading

    def run(self, run_id: str) -> RunRecord | None:
        found = self.query(run_id, f"SELECT {sql.RUN} FROM run WHERE run_id = ?", (run_id,))
        return run_of(found[0], self) if found else None

    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        from stategraph.stores._rows.sql_filters import select_runs  # imported when used: a run asks for no list

        select, values = select_runs(which, limit, before, partial(self.query, ""))
        return [run_or_unreadable(row, self) for row in self.query("", select, values, fetch_damaged_text)]

    def count(self, which: RunFilter) -> int:
        from stategraph.stores._rows.sql_filters import count_runs  # imported when used: a run asks for no number

        ((count,),) = self.query("", *count_runs(which))
        return int(count)

    def problems(self) -> list[str]:
        found = [str(text) for (text,) in self.query("", "PRAGMA integrity_check(10)", ())]
        return [] if found == ["ok"] else found

    def change_token(self) -> str:
        ((version,),) = self.query("", "PRAGMA data_version", ())  # of what others have written
        opened, made = (self._reader.opened, 0) if self._reader else (self._opened, self.connection.total_changes)
        return f"{opened}-{version}-{made}"

    def nested_ids(self, run_id: str) -> list[str]:
        return [str(nested_id) for (nested_id,) in self.query(run_id, sql.NESTED, nested_range(run_id))]

    def chain(self, run_id: str, sequence: int | None) -> list[CheckpointRecord]:
        last = LAST_SEQUENCE if sequence is None else sequence
        if last > LAST_SEQUENCE or last < 0:
            return []
        found = self.query(run_id, sql.CHAIN, {"run_id": run_id, "last": last})
        rows = [COLUMNS.row(run_id, columns) for _, _, *columns in found]
        if sequence is None and rows and found[0][0] != rows[-1].sequence:
            raise CheckpointCorruptError(run_id, f"its newest step {found[0][1]} is missing")
        return rows if rows and sequence in (None, rows[-1].sequence) else []

    def find(self, run_id: str, step: int, last: int, revision: int | None) -> int | None:
        if step > LAST_SEQUENCE or (revision or 0) > LAST_SEQUENCE:
            return None
        bounds = {"first": step, "last": min(last, LAST_SEQUENCE)}
        found = self.query(run_id, sql.FIND, {"run_id": run_id, "step": step, "revision": revision, **bounds})
        return int(found[0][0]) if found else None

    def index(self, run_id: str, first: int = 0, last: int = LAST_SEQUENCE) -> list[CheckpointRecord]:
        which = {"run_id": run_id, "first": first, "last": last}
        return [COLUMNS.row(run_id, found) for found in self.query(run_id, sql.INDEX, which)]
