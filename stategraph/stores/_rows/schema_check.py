"""The schema in a database file: make it, bring it up to date, and check that others have not changed it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from pathlib import Path

from stategraph.errors import FormatError
from stategraph.stores._files.sqlite_connection import DURABLE, execute_patiently
from stategraph.stores._rows.sql_schema import MIGRATIONS, SCHEMA_VERSION

APPLICATION_ID = 0x53475248
"""What marks a database as one of stategraph, to the ``file`` command too."""


def prepare(database: sqlite3.Connection, path: Path) -> None:
    """Make a connection durable, and the tables if they are not there or of an older version."""
    execute_patiently(database, "PRAGMA journal_mode = WAL")
    for pragma in DURABLE:
        database.execute(f"PRAGMA {pragma}")
    if database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,):
        return
    database.execute("BEGIN IMMEDIATE")
    try:
        (version,) = database.execute("PRAGMA user_version").fetchone()  # somebody may have been faster
        _check_schema_version(version, path)
        for statement in (statement for migration in MIGRATIONS[version:] for statement in migration):
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def store_id(database: sqlite3.Connection, path: Path) -> bytes:
    """Return what tells this store from all others.

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
        database.execute("BEGIN")  # all of it as it was at one time
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (encoding,) = database.execute("PRAGMA encoding").fetchone()
        parts = database.execute("SELECT name, type, sql FROM sqlite_master").fetchall()
        strict = {name for (name,) in database.execute(_STRICT_INDEXES)}
        database.execute("COMMIT")
    except sqlite3.OperationalError:
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite3 may show damaged names
        raise FormatError("", f"{path} is damaged or no SQLite database: {error}") from error
    names = [str(name) for name, _, _ in parts]
    if names and application != APPLICATION_ID:
        raise FormatError("", f"{path} is not a database of stategraph (it has {', '.join(names[:5])})")
    if encoding != "UTF-8":
        raise FormatError("", f"{path} was made by others than stategraph: its texts are {encoding}, not UTF-8")
    _check_schema_version(version, path)
    ours = _made_by_us(version)
    foreign = [str(name) for name, kind, sql in parts if _is_foreign(name, kind, sql, ours)]
    foreign += sorted(strict - ours.keys())
    if foreign:  # views and plain indexes for other tools may be added; all else runs something, or refuses rows
        raise FormatError("", f"{path} was changed by others than stategraph ({', '.join(foreign[:5])}): drop that")


def _is_foreign(name: object, kind: object, sql: object, ours: Mapping[str, str]) -> bool:
    """Whether a part of the schema runs something, or is none of ours under a name of ours: in another case, it is the
    same name to SQLite, and so is another case of "trigger" the same kind."""
    if kind not in ("table", "index", "view") or not isinstance(name, str):
        return True
    return ours[name] != sql if name in ours else name.lower() in ours


_STRICT_INDEXES = """
SELECT list.name FROM sqlite_master AS made, pragma_index_list(made.name) AS list
WHERE made.name IN ('run', 'checkpoint', 'fence') AND list.origin = 'c' AND (list."unique" OR list.partial OR EXISTS (
    SELECT 1 FROM pragma_index_xinfo(list.name) AS part
    WHERE part.cid = -2 OR part.coll NOT IN ('BINARY', 'NOCASE', 'RTRIM')))
"""
"""Names the indexes that can keep a row from being written: unique ones, and ones that compute something."""


def _check_schema_version(version: int, path: Path) -> None:
    """Raise FormatError if this version of stategraph is too old for a version of the schema."""
    if version > SCHEMA_VERSION:
        raise FormatError(
            "", f"{path} has schema {version} and this version of stategraph reads up to {SCHEMA_VERSION}; update it"
        )


@cache
def _made_by_us(version: int) -> Mapping[str, str]:
    """Return the statement that made each part of a database of a version of the schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        for statement in (statement for migration in MIGRATIONS[:version] for statement in migration):
            database.execute(statement)
        return dict(database.execute("SELECT name, sql FROM sqlite_master"))
