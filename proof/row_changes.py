"""The rows of a store as SQLite keeps them, and the changes that anyone with write access to the file can make.

SQLite lists the columns, so that new ones are changed as well.
"""

# ruff: noqa: S608 - names of tables and columns are what SQLite says

from __future__ import annotations

import random
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import attrs

Key: TypeAlias = tuple[str, Any]
"""A table and a rowid; of an entry, which has none, the columns of its key."""
Rows: TypeAlias = Mapping[Key, Mapping[str, Any]]
"""All rows of all tables, with the values of their columns."""

_STEP_BITS = 32
_IDENTITY = {
    "run": {"run_id", "number"},
    "checkpoint": {"id"},
    "entry": {"number", "step", "seq"},
}  # columns that tell where a row belongs
_UNSEALED = {"number"}  # of a run: in which order it is listed, and where its rows are
_CONSTRAINTS = re.compile(r"\bNOT NULL\b|\b(?:TEXT|BLOB|REAL|INTEGER)\b(?! PRIMARY KEY)|\bCHECK ?\([^)]*\)|\bSTRICT\b")


class UnchangeableError(Exception):
    """SQLite itself refuses the change."""


@contextmanager
def connected(file: Path) -> Iterator[sqlite3.Connection]:
    """Yield a plain connection to a database in autocommit mode."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=5)) as database:
        database.text_factory = lambda text: text.decode(errors="surrogateescape")
        yield database


def read(file: Path) -> Rows:
    """Return all rows of the tables of a store: not those of SQLite itself, nor of the index of labels."""
    rows: dict[Key, Mapping[str, Any]] = {}
    with connected(file) as database:
        found = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        for (table,) in found.fetchall():
            columns = [column for _, column, *_ in database.execute(f'PRAGMA table_info("{table}")')]
            rowid = "NULL" if table == "entry" else "rowid"
            for at, *values in database.execute(f'SELECT {rowid}, * FROM "{table}"') if table != "label" else ():
                rows[table, tuple(values[:3]) if at is None else at] = dict(zip(columns, values, strict=True))
    return rows


def by_run(rows: Rows) -> dict[str, dict[Key, Mapping[str, Any]]]:
    """Return the rows of each run, and under "" those of the whole store."""
    runs = {row["number"]: row["run_id"] for (table, _), row in rows.items() if table == "run"}
    found: dict[str, dict[Key, Mapping[str, Any]]] = {}
    for key, row in rows.items():
        table, rowid = key
        number = rowid if table == "run" else rowid >> _STEP_BITS if table == "checkpoint" else row.get("number")
        found.setdefault("" if number is None else str(runs.get(number, number)), {})[key] = row
    return found


@attrs.frozen
class Material:
    """Rows to tamper with: the current and earlier rows of a store, and the rows of another store with the same key.

    Attributes:
        now: The current rows.
        earlier: The rows after each earlier write.
        others: The rows of the other store.
    """

    now: Rows
    earlier: Sequence[Rows]
    others: Rows

    def any_rows(self, randomness: random.Random) -> Rows:
        """Return the rows of the store now, at some earlier moment, or of the other store."""
        return randomness.choice([self.now, self.now, self.others, randomness.choice(self.earlier)])


Change: TypeAlias = Callable[[sqlite3.Connection, Material, random.Random], object]


@contextmanager
def _unconstrained(file: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection without constraints of columns, as an editor of bytes could write any value."""

    def set_statements(statements: Sequence[tuple[int, str]]) -> None:
        with connected(file) as database:
            database.execute("PRAGMA writable_schema = 1")
            for rowid, sql in statements:
                database.execute("UPDATE sqlite_master SET sql = ? WHERE rowid = ?", (sql, rowid))

    with connected(file) as database:
        tables = "SELECT rowid, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        kept = database.execute(tables).fetchall()
    set_statements([(rowid, _CONSTRAINTS.sub("", sql)) for rowid, sql in kept])
    try:
        with connected(file) as database:
            yield database
    finally:
        set_statements(kept)


def apply(change: Change, file: Path, material: Material, seed: object) -> None:
    """Make a change that a seed decides.

    Raises:
        UnchangeableError: SQLite does not let anybody do that.
    """
    try:
        if change is change_schema:
            with connected(file) as database:
                change(database, material, random.Random(str(seed)))  # noqa: S311 - no secret
        else:
            with _unconstrained(file) as database:
                change(database, material, random.Random(str(seed)))  # noqa: S311 - no secret
    except (sqlite3.Error, OverflowError, UnicodeEncodeError, IndexError) as error:
        raise UnchangeableError(str(error)) from error


# --------------------------------------------------------------------------- cells


def _set(database: sqlite3.Connection, key: Key, column: str, value: Any) -> None:
    """Give a cell another value; rows that are in the way go."""
    where, place = _where(key)
    database.execute(f'UPDATE OR REPLACE "{key[0]}" SET "{column}" = ? WHERE {where}', (value, *place))


def _where(key: Key) -> tuple[str, Sequence[Any]]:
    """Return the condition that finds a row, and its values."""
    return ("(number, step, seq) = (?, ?, ?)", key[1]) if key[0] == "entry" else ("rowid = ?", (key[1],))


def _insert(database: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    columns = ", ".join(f'"{column}"' for column in row)
    marks = ", ".join("?" * len(row))
    database.execute(f'INSERT OR REPLACE INTO "{table}" ({columns}) VALUES ({marks})', list(row.values()))


def _remove(database: sqlite3.Connection, key: Key) -> None:
    where, place = _where(key)
    database.execute(f'DELETE FROM "{key[0]}" WHERE {where}', place)


def _made_up(value: Any, randomness: random.Random) -> Any:
    """Return a value that was never written."""
    flipped = value
    if isinstance(value, str | bytes) and value:
        data = bytearray(value.encode(errors="surrogateescape") if isinstance(value, str) else value)
        data[randomness.randrange(len(data))] ^= 1 << randomness.randrange(8)
        flipped = bytes(data) if isinstance(value, bytes) else data.decode(errors="surrogateescape")
    elif isinstance(value, int):
        flipped = randomness.choice([value ^ 1 << randomness.randrange(40), value + 1, value - 1])
    numbers = [0, 1, -1, 2**53 + 1, 2**63 - 1, 1.5, float("inf")]
    boundaries = [None, *numbers, "", "\0", "x" * 100_000, "-1", b"", bytes(32)]
    made: list[Any] = ["text", '["E", "m", "n"]', "done!3", randomness.randbytes(randomness.randint(1, 80))]
    return randomness.choice([flipped, flipped, flipped, randomness.choice(boundaries), randomness.choice(made)])


def change_cell(database: sqlite3.Connection, material: Material, randomness: random.Random) -> None:
    """Put an invented value into a cell, or the value of another row."""
    key = randomness.choice(list(material.now))
    column = randomness.choice(sorted(material.now[key].keys() - _UNSEALED))
    others = [row[column] for (table, _), row in material.any_rows(randomness).items() if table == key[0]]
    value = material.now[key][column]
    _set(database, key, column, randomness.choice([_made_up(value, randomness), randomness.choice(others)]))


def change_cells(database: sqlite3.Connection, material: Material, randomness: random.Random) -> None:
    """Change some cells of one run."""
    rows = randomness.choice([rows for run, rows in by_run(material.now).items() if run])
    for _ in range(randomness.randint(2, 4)):
        change_cell(database, attrs.evolve(material, now=rows), randomness)


# --------------------------------------------------------------------------- rows, runs, tables


def take_content(database: sqlite3.Connection, material: Material, randomness: random.Random) -> None:
    """Give a row the content of another one, which may be of another store or an earlier time."""
    key, other = _two_rows(material, material.any_rows(randomness), randomness, ["checkpoint", "checkpoint", "entry"])
    for column in other.keys() - _IDENTITY[key[0]]:
        _set(database, key, column, other[column])


def exchange_rows(database: sqlite3.Connection, material: Material, randomness: random.Random) -> None:
    """Let two rows of a table exchange all but their keys."""
    table = randomness.choice(["run", "checkpoint", "checkpoint", "entry"])
    a, b = randomness.sample([key for key in material.now if key[0] == table], 2)
    for column in material.now[a].keys() - _IDENTITY[table]:
        _set(database, a, column, material.now[b][column])
        _set(database, b, column, material.now[a][column])


def copy_row(database: sqlite3.Connection, material: Material, randomness: random.Random) -> None:
    """Copy a checkpoint to where there is none: after the newest of a run, or of the next run to begin; or move it."""
    key, _ = _two_rows(material, material.now, randomness, ["checkpoint"])
    taken = [rowid for table, rowid in material.now if table == "checkpoint"]
    _insert(database, "checkpoint", {**material.now[key], "id": randomness.choice(taken) + randomness.choice([1, 2])})
    numbers = max(rowid for table, rowid in material.now if table == "run")
    _insert(database, "checkpoint", {**material.now[key], "id": (numbers + 1) << _STEP_BITS | 1})
    if randomness.random() < 0.5:
        _remove(database, key)


def copy_entry(database: sqlite3.Connection, material: Material, randomness: random.Random) -> None:
    """Copy an entry, which may be of another store or an earlier time, to another run, step or place in its order."""
    _, entry = _two_rows(material, material.any_rows(randomness), randomness, ["entry"])
    run = randomness.choice([rowid for table, rowid in material.now if table == "run"])
    place = {"number": run, "step": randomness.choice([0, 3, 4]), "seq": randomness.choice([1, 2, 3, 4])}
    _insert(database, "entry", {**entry, **dict(randomness.sample([*place.items()], randomness.randint(1, 3)))})


def remove_rows(database: sqlite3.Connection, material: Material, randomness: random.Random) -> None:
    """Remove a row of a run, or all of its checkpoints but the newest."""
    rows = sorted(randomness.choice([rows for run, rows in by_run(material.now).items() if run]))
    checkpoints = [key for key in rows if key[0] == "checkpoint"]
    for key in randomness.choice([[randomness.choice(rows)], checkpoints[:-1], checkpoints[-1:]]):
        _remove(database, key)


def put_back(database: sqlite3.Connection, material: Material, randomness: random.Random) -> None:
    """Replace a run, or a part of it, by its earlier rows or by those of another store."""
    now = by_run(material.now)
    earlier = by_run(randomness.choice([material.others, *[randomness.choice(material.earlier)] * 2]))
    run = randomness.choice(sorted(run for run in earlier if run))
    parts = randomness.choice(
        [("run", "checkpoint", "entry"), ("run", "checkpoint"), ("run",), ("checkpoint",), ("entry",)]
    )
    numbers = {rowid: row["run_id"] for (table, rowid), row in material.now.items() if table == "run"}
    free = max(numbers) + 1
    number = next((number for number, run_id in numbers.items() if run_id == run), free)
    for key in now.get(run, {}):
        if key[0] in parts:
            _remove(database, key)
    for (table, rowid), row in earlier[run].items():
        is_row = table == "checkpoint"
        place = {"id": number << _STEP_BITS | rowid & (1 << _STEP_BITS) - 1} if is_row else {"number": number}
        if table in parts:
            _insert(database, table, {**row, **place})


def _two_rows(
    material: Material, others: Rows, randomness: random.Random, tables: Sequence[str]
) -> tuple[Key, Mapping[str, Any]]:
    """Return a row of one of some tables of the store, and a row of another store."""
    kind = randomness.choice(tables)
    key = randomness.choice([key for key in material.now if key[0] == kind])
    return key, randomness.choice([row for (table, _), row in others.items() if table == kind])


_TRIGGER = "CREATE TRIGGER added AFTER UPDATE ON run BEGIN DELETE FROM run; END"
_SCHEMA = (
    "CREATE VIEW added AS SELECT * FROM run",
    "CREATE TABLE added (a, b);; INSERT INTO added VALUES (1, 2)",
    "CREATE INDEX added ON run (CAST(graph AS TEXT))",
    "ALTER TABLE run ADD COLUMN added DEFAULT 5",
    _TRIGGER,
    f"{_TRIGGER};; PRAGMA writable_schema = 1;; UPDATE sqlite_master SET type = 'TRIGGER' WHERE name = 'added'",
    "DROP INDEX IF EXISTS run_by_status",
    "ALTER TABLE run RENAME TO other;; CREATE VIEW run AS SELECT * FROM other",
)


def change_schema(database: sqlite3.Connection, material: Material, randomness: random.Random) -> None:
    """Add, change or remove tables, views, indexes and triggers."""
    for statement in randomness.choice(_SCHEMA).split(";;"):
        database.execute(statement)


CHANGES: dict[Change, int] = {
    change_cell: 12,
    change_cells: 3,
    take_content: 3,
    exchange_rows: 2,
    copy_row: 2,
    copy_entry: 2,
    remove_rows: 2,
    put_back: 4,
    change_schema: 1,
}
"""The changes with their relative frequencies."""
