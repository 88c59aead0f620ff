"""The schema of a SQLite database: its migrations, its dialect for `sql_table`, and a check for foreign changes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from stategraph.errors import FormatError
from stategraph.stores._files.sqlite_files import DURABLE, execute_patiently
from stategraph.stores._rows.records import ENTRY_COLUMNS
from stategraph.stores._rows.sql_table import Condition, Dialect

APPLICATION_ID = 0x53475248
"""Marks a database of stategraph, also for the ``file`` command."""

SEQUENCE_BITS = 32
LAST_SEQUENCE = (1 << SEQUENCE_BITS) - 1
LAST_RUN = (1 << (63 - SEQUENCE_BITS)) - 1

_FIRST = f"""
CREATE TABLE store (id BLOB NOT NULL);
INSERT INTO store VALUES (randomblob(16));
CREATE TABLE run (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    step INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    kind TEXT NOT NULL,
    checkpoint_node TEXT NOT NULL,
    timestamp_ns INTEGER NOT NULL,
    status TEXT NOT NULL,
    by_whom TEXT,
    graph TEXT,
    error TEXT,
    parent TEXT,
    policy TEXT NOT NULL,
    created_ns INTEGER NOT NULL,
    labels TEXT NOT NULL,
    pause TEXT,
    incarnation BLOB NOT NULL,
    tip BLOB NOT NULL,
    seal BLOB NOT NULL
);
CREATE TABLE fence (run_id TEXT PRIMARY KEY, number INTEGER NOT NULL, cancelled INTEGER NOT NULL, by_whom TEXT);
CREATE INDEX run_by_status ON run (status, number);
CREATE INDEX run_by_graph ON run (graph, number);
CREATE INDEX run_by_created ON run (created_ns);
CREATE INDEX run_by_parent ON run (parent) WHERE parent IS NOT NULL;
CREATE TABLE checkpoint (
    id INTEGER PRIMARY KEY,
    base INTEGER NOT NULL,
    step INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    kind TEXT NOT NULL,
    checkpoint_node TEXT NOT NULL,
    timestamp_ns INTEGER NOT NULL,
    status TEXT NOT NULL,
    error TEXT,
    by_whom TEXT,
    took_ns INTEGER,
    attempts INTEGER NOT NULL,
    owner TEXT,
    pause TEXT,
    format INTEGER NOT NULL,
    encoding TEXT NOT NULL,
    payload BLOB NOT NULL,
    seal BLOB NOT NULL
);
CREATE VIEW checkpoints AS
SELECT run.run_id, checkpoint.step, checkpoint.revision, checkpoint.kind, checkpoint.checkpoint_node,
    checkpoint.status, datetime(checkpoint.timestamp_ns / 1000000000, 'unixepoch') AS timestamp, checkpoint.by_whom,
    checkpoint.error, checkpoint.pause, checkpoint.took_ns / 1000000000.0 AS took, checkpoint.attempts,
    checkpoint.owner, checkpoint.id & {(1 << SEQUENCE_BITS) - 1} AS sequence, checkpoint.base,
    length(CAST(checkpoint.payload AS BLOB)) AS bytes, checkpoint.encoding,
    CASE checkpoint.encoding WHEN 'json' THEN checkpoint.payload END AS json
FROM checkpoint JOIN run ON run.number = checkpoint.id >> {SEQUENCE_BITS};
"""


def _labels_of(run: str, labels: str) -> str:
    """Return the query for the labels of one row, or of all rows, of the table of runs."""
    return (
        f"SELECT {run}.number AS number, one.value AS name, next.value AS value "
        f"FROM {'run JOIN ' if run == 'run' else ''}json_each({labels}) AS one "
        f"JOIN json_each({labels}) AS next ON next.key = one.key + 1 WHERE one.key % 2 = 0"
    )


_ALL_LABELS = _labels_of("run", "iif(json_valid(run.labels), run.labels, '[]')")
# A trigger may not call json_valid. A label that was damaged by hand is found when it is read, not here.
_NEW_LABELS = _labels_of("NEW", """iif(NEW.labels LIKE '["%"]', NEW.labels, '[]')""")
# By triggers, so that an older version of stategraph that has the database open maintains the index too.
_SECOND = f"""
CREATE TABLE label (number INTEGER NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (number, name))
WITHOUT ROWID;
CREATE INDEX label_by_value ON label (name, value);
INSERT OR IGNORE INTO label {_ALL_LABELS};
CREATE TRIGGER label_new AFTER INSERT ON run WHEN NEW.labels <> '[]' BEGIN
INSERT OR IGNORE INTO label {_NEW_LABELS}; END;
CREATE TRIGGER label_changed AFTER UPDATE OF labels ON run WHEN NEW.labels <> OLD.labels BEGIN
DELETE FROM label WHERE number = OLD.number; INSERT OR IGNORE INTO label {_NEW_LABELS}; END;
CREATE TRIGGER label_gone AFTER DELETE ON run WHEN OLD.labels <> '[]' BEGIN
DELETE FROM label WHERE number = OLD.number; END;
"""
_THIRD = """
ALTER TABLE run ADD COLUMN due_ns INTEGER;
ALTER TABLE run ADD COLUMN inbox INTEGER NOT NULL DEFAULT 0;
ALTER TABLE checkpoint ADD COLUMN effects TEXT;
CREATE INDEX run_by_due ON run (due_ns) WHERE due_ns IS NOT NULL;
CREATE TABLE entry (
    number INTEGER NOT NULL,
    step INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    kind TEXT NOT NULL,
    place TEXT NOT NULL,
    name TEXT NOT NULL,
    made_of TEXT NOT NULL,
    at_ns INTEGER NOT NULL,
    by_whom TEXT,
    format INTEGER NOT NULL,
    encoding TEXT NOT NULL,
    payload BLOB NOT NULL,
    seal BLOB NOT NULL,
    PRIMARY KEY (number, step, seq)
) WITHOUT ROWID;
CREATE INDEX entry_by_name ON entry (number, name) WHERE step = 0 AND name <> '';
"""
MIGRATIONS = tuple(tuple(part for part in script.strip().split(";\n") if part) for script in (_FIRST, _SECOND, _THIRD))
"""The statements that migrate the schema to each version from the one before."""
SCHEMA_VERSION = len(MIGRATIONS)

_NO_ENTRIES = (
    "CREATE TEMP VIEW run AS SELECT *, NULL AS due_ns, 0 AS inbox FROM main.run",
    "CREATE TEMP VIEW checkpoint AS SELECT *, NULL AS effects FROM main.checkpoint",
    f"CREATE TEMP TABLE entry (number, {', '.join(ENTRY_COLUMNS)})",
)
SUPPLEMENTS: dict[int, tuple[str, ...]] = {
    1: (*_NO_ENTRIES, f"CREATE TEMP VIEW label AS {_ALL_LABELS}"),
    2: _NO_ENTRIES,
}
"""Statements that make temporary views, for each older version, so that it looks like the newest."""

# No seal covers a number: a forged one above the range must not be the one to count on from.
_NEXT_NUMBER = f"(SELECT coalesce(max(number), 0) + 1 FROM run WHERE number BETWEEN 0 AND {LAST_RUN - 1})"


def _labelled(name: str, value: str) -> Condition:
    pair = json.dumps([name, value])  # SQLite decodes it like the stored labels, lone surrogates included
    label = "name = json_extract(?, '$[0]') AND value = json_extract(?, '$[1]')"
    has_label = f"EXISTS (SELECT 1 FROM label WHERE {label} AND label.number = run.number)"
    entries = f"label WHERE {label}"
    return Condition(f"number IN (SELECT number FROM {entries})", (pair, pair), entries, has_label)


DIALECT = Dialect(
    key=("id",),
    key_of=f"number << {SEQUENCE_BITS} | ?",
    sequence=f"checkpoint.id & {LAST_SEQUENCE}",
    # A number that was changed by hand may leave no room for the rows of its run.
    within=f"run.number BETWEEN 0 AND {LAST_RUN} AND checkpoint.id "
    f"BETWEEN run.number << {SEQUENCE_BITS} | {{first}} AND run.number << {SEQUENCE_BITS} | {{last}}",
    bytes="BLOB",
    row_counts=(256, 32, 4, 1),  # few statements: sqlite3 releases the GIL at each, and a busy thread keeps it for 5 ms
    new=("number", _NEXT_NUMBER),
    among="run_id IN (SELECT value FROM json_each(?))",
    labelled=_labelled,
    removes_rows=False,
    json_as_text=True,  # for other tools to read
)
"""The dialect of SQLite."""

# Compares 2 * fence + cancelled: one value tests both.
OWNED = " AND ? = coalesce((SELECT 2 * number + (cancelled <> 0) FROM fence WHERE run_id = ?), 0)"
FENCE = "SELECT CAST(number AS INTEGER), cancelled FROM fence WHERE run_id = ?"
RAISE_FENCE = (
    "INSERT INTO fence VALUES (?, 1, 0, NULL) "
    "ON CONFLICT (run_id) DO UPDATE SET number = number + 1 RETURNING number, cancelled"
)
SET_CANCELLED = (
    "INSERT INTO fence VALUES (?, 0, 1, ?) ON CONFLICT (run_id) DO UPDATE SET cancelled = 1, "
    "by_whom = iif(cancelled, by_whom, excluded.by_whom)"
)
TAKE_UP = (
    "DELETE FROM fence WHERE run_id = ? AND number = 0",  # as good as no row
    "UPDATE fence SET cancelled = 0, by_whom = NULL WHERE run_id = ?",
)
FORGET = tuple(f"{each} AND NOT EXISTS (SELECT 1 FROM run WHERE run_id = fence.run_id)" for each in TAKE_UP)
"""They follow the removal of a run. A number stays: otherwise an owner that lost the run could begin it again."""
ALL_FENCES = (
    "SELECT run.number, run_id, CAST(coalesce(fence.number, 0) AS INTEGER) FROM run LEFT JOIN fence USING (run_id) "
    "WHERE run.number < ? ORDER BY run.number DESC LIMIT 10000"
)
CANCELLED_BY = "SELECT by_whom FROM fence WHERE run_id = ?"


# --------------------------------------------------------------------------- a database that is opened


Fill: TypeAlias = Callable[[sqlite3.Connection], None]
"""Copies the runs of an older store into new tables, in the transaction that makes them."""


def prepare(database: sqlite3.Connection, path: Path, fill: Fill | None = None) -> None:
    """Make a connection durable; create the tables if they are missing, or migrate older ones."""
    execute_patiently(database, "PRAGMA journal_mode = WAL")
    for pragma in DURABLE:
        database.execute(f"PRAGMA {pragma}")
    if database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,):
        return
    with database:
        database.execute("BEGIN IMMEDIATE")
        (version,) = database.execute("PRAGMA user_version").fetchone()  # another process may have been faster
        _check_schema_version(version, path)
        for statement in chain.from_iterable(MIGRATIONS[version:]):
            database.execute(statement)
        if version == 0 and fill is not None:
            fill(database)
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def store_id(database: sqlite3.Connection, path: Path) -> bytes:
    """Return the id of the store.

    Raises:
        FormatError: it is missing, or there are several.
    """
    found = database.execute("SELECT id FROM store LIMIT 2").fetchall()
    if len(found) != 1 or type(found[0][0]) is not bytes:
        raise FormatError("", f"{path} is damaged: its table store does not have one id")
    return bytes(found[0][0])


def check(database: sqlite3.Connection, path: Path) -> None:
    """Raise FormatError unless the database is empty or one of stategraph that this version can read."""
    try:
        database.execute("PRAGMA trusted_schema = 0")
        database.execute("BEGIN")  # one consistent view
        pragmas = ("application_id", "user_version", "encoding")
        application, version, encoding = (database.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas)
        parts = database.execute("SELECT name, type, sql FROM sqlite_master").fetchall()
        strict = {name for (name,) in database.execute(_STRICT_INDEXES)}
        database.execute("COMMIT")
    except sqlite3.OperationalError:
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:  # of damaged names
        raise FormatError("", f"{path} is damaged, or is not a SQLite database: {error}") from error
    names = [str(name) for name, _, _ in parts]
    if names and application != APPLICATION_ID:
        raise FormatError("", f"{path} is not a database of stategraph (it has {', '.join(names[:5])})")
    if encoding != "UTF-8":
        raise FormatError("", f"{path} was made by others than stategraph: its texts are {encoding}, not UTF-8")
    _check_schema_version(version, path)
    ours = _made_by_us(version)
    foreign = [str(name) for name, kind, sql in parts if _is_foreign(name, kind, sql, ours)]
    foreign += sorted(strict - ours.keys())
    if foreign:  # others may add views and plain indexes; all else runs code, or refuses rows
        raise FormatError("", f"{path} was changed by others than stategraph ({', '.join(foreign[:5])}): remove these")


def _is_foreign(name: object, kind: object, sql: object, ours: Mapping[str, str]) -> bool:
    """Return whether a part of the schema runs code, or takes a name of ours. SQLite ignores the case of names and of
    kinds."""
    if not isinstance(name, str):
        return True
    if name in ours:
        return ours[name] != sql
    return kind not in ("table", "index", "view") or name.lower() in ours


_STRICT_INDEXES = """
SELECT list.name FROM sqlite_master AS made, pragma_index_list(made.name) AS list
WHERE made.name IN ('run', 'checkpoint', 'fence', 'label', 'entry') AND list.origin = 'c' AND (
    list."unique" OR list.partial OR EXISTS (
    SELECT 1 FROM pragma_index_xinfo(list.name) AS part
    WHERE part.cid = -2 OR part.coll NOT IN ('BINARY', 'NOCASE', 'RTRIM')))
"""
"""Finds the indexes that can refuse a row: unique ones, and ones that compute something."""


def _check_schema_version(version: int, path: Path) -> None:
    """Raise FormatError if this version of stategraph is too old for a version of the schema."""
    if version > SCHEMA_VERSION:
        raise FormatError(
            "", f"{path} has schema {version} and this version of stategraph reads up to {SCHEMA_VERSION}; update it"
        )


@cache
def _made_by_us(version: int) -> Mapping[str, str]:
    """Return the statement for each part of a version of the schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        for statement in chain.from_iterable(MIGRATIONS[:version]):
            database.execute(statement)
        return dict(database.execute("SELECT name, sql FROM sqlite_master"))


def supplement(database: sqlite3.Connection, path: Path) -> None:
    """Let this connection see an older version of the schema as if it were the newest.

    A temporary view hides a table of its name, also after another process has migrated the database.

    Raises:
        FormatError: there are no tables yet.
    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == 0:
        raise FormatError("", f"{path} is empty; open it once without read_only=True, to create the store in it")
    database.execute("PRAGMA temp_store = MEMORY")
    for statement in SUPPLEMENTS.get(version, ()):
        database.execute(statement)
