"""The rows of a store as SQLite has them: read, told apart by runs, and changed by somebody without the store.

What columns there are is asked of SQLite: a column that is new is changed as all others are.
"""

# ruff: noqa: S608 - names of tables and columns are what SQLite says

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs

FILES = {"sqlite": "runs.db"}
STEP_BITS = 32

Key: TypeAlias = tuple[str, int]
"""A table, and the rowid in it."""
Rows: TypeAlias = Mapping[Key, Mapping[str, Any]]
"""All rows of all tables, with the values of their columns."""


class RawText(bytes):
    """A text that may be no UTF-8."""

    __slots__ = ()


@contextmanager
def connected(file: Path) -> Iterator[sqlite3.Connection]:
    """Let a plain connection to a database be used, each statement a transaction."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=5)) as database:
        database.text_factory = lambda text: text.decode(errors="surrogateescape")
        yield database


def read(file: Path) -> Rows:
    """Return all rows of a database."""
    rows: dict[Key, Mapping[str, Any]] = {}
    with connected(file) as database:
        for table in tables(database):
            columns = [column for _, column, *_ in database.execute(f'PRAGMA table_info("{table}")')]
            for rowid, *values in database.execute(f'SELECT rowid, * FROM "{table}"'):
                rows[table, rowid] = dict(zip(columns, values, strict=True))
    return rows


def tables(database: sqlite3.Connection) -> list[str]:
    """Return the tables of a database with rows of a store: not those of SQLite itself, nor the index of labels."""
    found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return [name for (name,) in found if name != "label"]


# --------------------------------------------------------------------------- whose they are


@attrs.frozen
class Place:
    """What a row is: of which run ("" for rows of the whole store), the head of it or of which of its steps."""

    run: str
    step: int | None = None
    is_head: bool = False


def places(rows: Rows, before: Rows | None = None) -> dict[Key, Place]:
    """Return what each row is; where the head of a run is missing now, `before` may know it."""
    runs = {**_numbers(before or {}), **_numbers(rows)}
    return {key: _place(key, row, runs) for key, row in rows.items()}


def _numbers(rows: Rows) -> dict[Any, str]:
    return {row["number"]: row["run_id"] for (table, _), row in rows.items() if table == "run"}


def _place(key: Key, row: Mapping[str, Any], runs: Mapping[Any, str]) -> Place:
    table, rowid = key
    if table == "run":
        return Place(row["run_id"], None, is_head=True) if isinstance(row["run_id"], str) else Place("")
    if table == "checkpoint":
        return Place(str(runs.get(rowid >> STEP_BITS, f"(number {rowid >> STEP_BITS})")), rowid & (1 << STEP_BITS) - 1)
    return Place("")


def of_run(rows: Rows, run: str) -> dict[Key, Mapping[str, Any]]:
    """Return the rows of one run."""
    return {key: rows[key] for key, place in places(rows).items() if place.run == run}


def outermost(run: str, runs: Mapping[str, object]) -> str:
    """Return which of these runs is this one, or has it within; else the run itself."""
    return next((top for top in runs if run == top or run.startswith(f"{top}/")), run)


# --------------------------------------------------------------------------- cells


def cells(key: Key, row: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the cells of a row: the column, its name for people, and the value."""
    table, _ = key
    for column, value in row.items():
        yield column, f"{table}.{column}", value


class UnchangeableError(BaseException):
    """What cannot be changed so, whoever tries. No node that is under way takes it for its own failure."""


def set_cell(database: sqlite3.Connection, key: Key, column: str, value: Any) -> None:
    """Give a cell another value, whatever SQLite thinks of it; rows that are in the way go."""
    table, rowid = key
    text = isinstance(value, RawText)
    given = bytes(value) if text else value
    target = "CAST(? AS TEXT)" if text else "?"
    try:
        database.execute(f'UPDATE OR REPLACE "{table}" SET "{column}" = {target} WHERE rowid = ?', (given, rowid))
    except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
        raise UnchangeableError(str(error)) from error


def insert(database: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    """Put in a row; rows that are in the way go."""
    columns = ", ".join(f'"{column}"' for column in row)
    marks = ", ".join("?" * len(row))
    try:
        database.execute(f'INSERT OR REPLACE INTO "{table}" ({columns}) VALUES ({marks})', list(row.values()))
    except (sqlite3.Error, OverflowError, UnicodeEncodeError) as error:
        raise UnchangeableError(str(error)) from error


def remove(database: sqlite3.Connection, key: Key) -> None:
    """Take out a row."""
    database.execute(f'DELETE FROM "{key[0]}" WHERE rowid = ?', (key[1],))


# --------------------------------------------------------------------------- what SQLite itself would refuse


_CONSTRAINTS = re.compile(r"\bNOT NULL\b|\b(?:TEXT|BLOB|REAL|INTEGER)\b(?! PRIMARY KEY)|\bCHECK ?\([^)]*\)|\bSTRICT\b")


@contextmanager
def unconstrained(file: Path) -> Iterator[sqlite3.Connection]:
    """Let a connection be used for which columns take values of any type, and NULL, as an editor of bytes could do."""
    with connected(file) as database:
        kept = database.execute(
            "SELECT rowid, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        ).fetchall()
        _set_statements(database, [(rowid, _CONSTRAINTS.sub("", sql)) for rowid, sql in kept])
    try:
        with connected(file) as database:
            yield database
    finally:
        with connected(file) as database:
            _set_statements(database, kept)


def _set_statements(database: sqlite3.Connection, statements: list[tuple[int, str]]) -> None:
    database.execute("PRAGMA writable_schema = 1")
    database.execute("BEGIN")
    for rowid, sql in statements:
        database.execute("UPDATE sqlite_master SET sql = ? WHERE rowid = ?", (sql, rowid))
    database.execute("COMMIT")


@contextmanager
def without_index(file: Path, index: str) -> Iterator[sqlite3.Connection]:
    """Let a connection be used that changes tables and does not take one index along; then it is back, as it was."""
    with connected(file) as database:
        columns = "type, name, tbl_name, rootpage, sql"
        kept = database.execute(f"SELECT {columns} FROM sqlite_master WHERE name = ?", (index,)).fetchone()
        table = database.execute("SELECT rowid, sql FROM sqlite_master WHERE name = ?", (kept[2],)).fetchone()
        database.execute("PRAGMA writable_schema = 1")
        database.execute("BEGIN")
        database.execute("DELETE FROM sqlite_master WHERE name = ?", (index,))
        if kept[4] is None:  # it comes of a constraint
            bare = table[1].replace(" UNIQUE", "")
            database.execute("UPDATE sqlite_master SET sql = ? WHERE rowid = ?", (bare, table[0]))
        database.execute("COMMIT")
    try:
        with connected(file) as database:
            yield database
    finally:
        with connected(file) as database:
            database.execute("PRAGMA writable_schema = 1")
            database.execute("BEGIN")
            database.execute("UPDATE sqlite_master SET sql = ? WHERE rowid = ?", (table[1], table[0]))
            database.execute(f"INSERT INTO sqlite_master ({columns}) VALUES (?, ?, ?, ?, ?)", kept)
            database.execute("COMMIT")


def indices(database: sqlite3.Connection) -> list[tuple[str, str, list[str]]]:
    """Return the indices of a database, with their tables and columns."""
    found = []
    for table in tables(database):
        for _, name, *_ in database.execute(f'PRAGMA index_list("{table}")').fetchall():
            columns = [column for _, _, column in database.execute(f'PRAGMA index_info("{name}")')]
            found.append((name, table, columns))
    return found
