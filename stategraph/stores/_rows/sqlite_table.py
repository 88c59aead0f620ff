"""The records of a "sqlite" store, as the tables of its database hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from stategraph._owners.holds import Hold, acting, lost
from stategraph._values.ids import given_id, nested_range
from stategraph.errors import CheckpointCorruptError, CheckpointSaveError
from stategraph.stores._files.sqlite_connection import fetch_damaged_text
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, Unreadable, WriteBatch
from stategraph.stores._rows.sql_schema import (
    CHAIN,
    FENCE,
    INDEX,
    IS_SHOWN,
    LAST_RUN,
    LAST_STEP,
    NESTED,
    NEW_RUN,
    NEXT_RUN,
    NEXT_STEP,
    PUT_ROWS,
    RAISE_FENCE,
    RUN,
    STEP_BITS,
    TOGETHER,
    lasting_values,
    row_of,
    row_values,
    run_of,
    run_or_unreadable,
    run_values,
    step_values,
)
from stategraph.stores._rows.sqlite_database import SqliteDatabase
from stategraph.stores._rows.table import Table


class SqliteTable(Table):
    """Reads and writes records with the statements of `stategraph.stores._rows.sql_schema`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self.store, self.database = database.store, database
        self.owners = database.owners

    # ------------------------------------------------------------------ writing

    def apply(self, batches: Sequence[WriteBatch]) -> Sequence[bool]:
        write: Callable[[], Sequence[bool]] = partial(list, map(self.write, batches))
        written = self.database.in_transaction(batches[0].run.run_id, write, CheckpointSaveError)
        self.database.files.check()
        return written

    def write(self, batch: WriteBatch) -> bool:
        """Write one batch within a transaction; return whether its run had the version for it."""
        if batch.hold is not None and self._is_lost(batch.hold):
            return False
        if batch.outer is not None and not self._has_outer_run(batch):
            return False
        number = self._put_run(batch.run, batch.old)
        if number is None:
            return False
        first = number << STEP_BITS
        execute = self.database.connection.execute
        # First: what is put then takes the pages that this leaves, which SQLite would write once more to erase them.
        if batch.cut_below:
            execute("DELETE FROM checkpoint WHERE id >= ? AND id < ?", (first, first | batch.cut_below))
        if batch.cut_above is not None:
            execute("DELETE FROM checkpoint WHERE id > ? AND id <= ?", (first | batch.cut_above, first | LAST_STEP))
        if batch.cut_nested:
            self._delete_nested(batch.run.run_id)
        self._put_rows(first, batch.put)
        return True

    def _has_outer_run(self, batch: WriteBatch) -> bool:
        """Return whether the outer run is still the one that a batch of a nested run is written for."""
        select = "SELECT incarnation FROM run WHERE run_id = ?"
        run_id = given_id(batch.run.run_id)
        found: tuple[bytes] | None = self.database.connection.execute(select, (run_id,)).fetchone()
        return found == (batch.outer,)

    def _put_run(self, run: RunRecord, old: RunRecord | None) -> int | None:
        """Write the record of a run; return its number, None if its version is another."""
        execute = self.database.connection.execute
        if old is None:
            found = execute(NEW_RUN, (*run_values(run), run.run_id)).fetchone()
        elif lasting_values(old) == lasting_values(run):
            found = execute(NEXT_STEP, (*step_values(run), run.run_id, old.version)).fetchone()
        else:
            found = execute(NEXT_RUN, (*run_values(run), run.run_id, old.version)).fetchone()
        return None if found is None else int(found[0])

    def _put_rows(self, first: int, rows: Sequence[CheckpointRecord]) -> None:
        """Insert rows, many in a statement: sqlite3 releases the GIL at each, and a busy thread keeps it for 5 ms."""
        execute = self.database.connection.execute
        if len(rows) == 1:
            execute(PUT_ROWS[1], row_values(first, rows[0]))
            return
        start = 0
        for together in TOGETHER:
            while len(rows) - start >= together:
                values = [value for row in rows[start : start + together] for value in row_values(first, row)]
                execute(PUT_ROWS[together], values)
                start += together

    # ------------------------------------------------------------------ owners

    def _is_lost(self, hold: Hold) -> bool:
        """Return, within a transaction, whether the run of a hold was taken from its owner."""
        found = self.database.connection.execute(FENCE, (hold.run_id,)).fetchone()
        return hold.is_lost or (found[0] if found else 0) != hold.fence

    def fence(self, run_id: str) -> int:
        found = self.database.query(run_id, FENCE, (run_id,))
        return found[0][0] if found else 0

    def raise_fence(self, run_id: str) -> int:
        raised: Callable[[], Any] = partial(self._raised_fence, run_id)
        number: int = self.database.in_transaction(run_id, raised)
        return number

    def _raised_fence(self, run_id: str) -> int:
        return int(self.database.connection.execute(RAISE_FENCE, (run_id,)).fetchone()[0])

    # ------------------------------------------------------------------ removing

    def remove(self, run_id: str, version: int | None = None) -> bool:
        return self.database.in_transaction(run_id, partial(self._delete, run_id, version))

    def _delete(self, run_id: str, version: int | None) -> bool:
        """Delete a run within a transaction; return whether it had this version."""
        if acting.hold is not None and self._is_lost(acting.hold):
            raise lost(given_id(run_id))
        delete = "DELETE FROM run WHERE run_id = ? AND version = coalesce(?, version) RETURNING number"
        found = self.database.connection.execute(delete, (run_id, version)).fetchall()
        self._delete_rows(found)
        if found or version is None:
            self._delete_nested(run_id)
        return bool(found)

    def _delete_nested(self, run_id: str) -> None:
        delete = "DELETE FROM run WHERE run_id > ? AND run_id < ? RETURNING number"
        self._delete_rows(self.database.connection.execute(delete, nested_range(run_id)).fetchall())

    def remove_damaged(self, run_id: str) -> bool:
        return self.database.in_transaction(run_id, partial(self._delete_damaged, run_id))

    def _delete_damaged(self, run_id: str) -> bool:
        found = fetch_damaged_text(self.database.connection, "SELECT run_id, number FROM run", ())
        numbers = [(number,) for kept_id, number in found if str(kept_id) == run_id]
        self.database.connection.executemany("DELETE FROM run WHERE number = ?", numbers)
        self._delete_rows(numbers)
        return bool(numbers)

    def _delete_rows(self, numbers: Sequence[tuple[int]]) -> None:
        for (number,) in numbers:
            if not 0 <= number <= LAST_RUN:  # somebody has changed it: there is no room for rows of such a run
                continue
            first, delete = number << STEP_BITS, "DELETE FROM checkpoint WHERE id BETWEEN ? AND ?"
            self.database.connection.execute(delete, (first, first | LAST_STEP))

    def erase(self) -> None:
        self.database.erase()

    # ------------------------------------------------------------------ reading

    def run(self, run_id: str) -> RunRecord | None:
        found = self.database.query(run_id, f"SELECT {RUN} FROM run WHERE run_id = ?", (run_id,))
        return run_of(found[0], self) if found else None

    def runs(
        self, status: str | None, graph: str | None, limit: int, before: int | None
    ) -> list[RunRecord | Unreadable]:
        conditions = [("status = ?", status), ("graph = ?", graph), ("number < ?", before)]
        asked = [(condition, value) for condition, value in conditions if value is not None]
        where = f"WHERE {' AND '.join([*(condition for condition, _ in asked), IS_SHOWN])}"
        values = [*(value for _, value in asked), limit]
        select = f"SELECT {RUN} FROM run {where} ORDER BY number DESC LIMIT ?"
        found = self.database.query("", select, values, fetch_damaged_text)
        return [run_or_unreadable(row, self) for row in found]

    def nested_ids(self, run_id: str) -> list[str]:
        return [str(nested_id) for (nested_id,) in self.database.query(run_id, NESTED, nested_range(run_id))]

    def chain(self, run_id: str, step: int | None) -> list[CheckpointRecord]:
        last = LAST_STEP if step is None else step
        if last > LAST_STEP or last < 0:
            return []
        found = self.database.query(run_id, CHAIN, {"run_id": run_id, "last": last})
        rows = [row_of(run_id, columns) for _, *columns in found]
        if step is None and rows and found[0][0] != rows[-1].step:
            raise CheckpointCorruptError(run_id, f"its newest step {found[0][0]} is missing")
        return rows if rows and step in (None, rows[-1].step) else []

    def index(self, run_id: str) -> list[CheckpointRecord]:
        return [row_of(run_id, found) for found in self.database.query(run_id, INDEX, (run_id,))]

    # ------------------------------------------------------------------ threads and processes

    def is_in_use(self) -> bool:
        return self.database.is_in_use()

    def at_rest(self) -> AbstractContextManager[object]:
        return self.database.at_rest()

    def renew(self) -> None:
        self.database.renew()

    @property
    def closed(self) -> bool:
        return self.database.is_closed

    def close(self) -> None:
        self.database.close()
        if self.owners is not None:
            self.owners.leave()
            self.owners = None
