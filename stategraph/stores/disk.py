"""The "disk" store: a folder with a SQLite database in it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Unpack

from stategraph.errors import CheckpointCorruptError, ConfigError, FormatError
from stategraph.stores._checks import check_flags
from stategraph.stores._files.paths import absolute_path, secure_folder, side_files
from stategraph.stores._files.sqlite_files import (
    DURABLE,
    check_version,
    connect,
    database_file,
    is_damage,
)
from stategraph.stores._rows import sql_schema as sql
from stategraph.stores._rows.records import (
    COLUMNS,
    MAX_STEP,
    ROW_COLUMNS,
    RUN_COLUMNS,
    RunRecord,
    unpack_row,
    unpack_run,
)
from stategraph.stores._rows.sql_table import row_values
from stategraph.stores._rows.store import RowOptions, RowStore
from stategraph.stores._rows.table import Identify
from stategraph.stores.sqlite import OLDEST, SqliteTable

# Finds the id of a store: a cache that evicts nothing.
_ID = """
SELECT value FROM Cache WHERE key = 'id' AND raw = 1 AND typeof(value) = 'blob' AND length(value) = 16
AND (SELECT value FROM Settings WHERE key = 'eviction_policy') = 'none'
"""
_ENTRIES = (
    "SELECT substr(key, ?), value, mode = 1 AND filename IS NULL FROM Cache WHERE key > ? AND key < ? AND raw = 1"
)
_PUT_RUN = f"INSERT INTO run ({', '.join(RUN_COLUMNS)}) VALUES ({', '.join('?' * len(RUN_COLUMNS))})"
_PUT_ROW = f"INSERT INTO checkpoint (id, {', '.join(ROW_COLUMNS[1:])}) VALUES ({', '.join('?' * len(ROW_COLUMNS))})"
_DAMAGED = "damaged"  # in the columns of entries that cannot be read: reading them remains an error


class DiskStore(RowStore):
    """Keeps runs in a folder. Processes and threads may share it.

    The runs of a folder from an older version are copied into a new database, all or none, when it is first opened for
    writing. Stop the processes of that version first: their next save fails.

    Args:
        path: The folder; ``~`` is the home of the user. If it is missing, it is created with access for this user only.
        read_only: Inspect a folder that others write to, without creating or changing a file in it.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a folder for a store, others can write to it, SQLite is too old, or as RowStore.
        FormatError: the folder is not a store of stategraph, or it is from an older version and read_only is true.
    """

    kind = "disk"

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, **options: Unpack[RowOptions]) -> None:
        check_version("checkpoint.store", "disk", OLDEST)
        check_flags(read_only=read_only)

        def open_table(identify: Identify) -> SqliteTable:
            self.path = _folder(path, must_exist=read_only)
            return _table_in(self.path, str(self), identify, read_only=read_only)

        super().__init__(open_table, **options)


def _folder(path: str | os.PathLike[str], *, must_exist: bool) -> Path:
    folder = Path(absolute_path(path, "checkpoint.options.path", "a folder"))
    try:
        return folder if must_exist else secure_folder(folder)
    except OSError as error:
        allowed = f"a folder that can be made and written to ({error.strerror})"
        raise ConfigError("checkpoint.options.path", str(path), allowed) from error


def _table_in(folder: Path, store: str, identify: Identify, *, read_only: bool) -> SqliteTable:
    file, old = folder / "disk-store.db", folder / "cache.db"
    is_older = old.is_file() and old.stat().st_size > 0
    if is_older and read_only and not file.exists():
        way_out = "open it once without read_only=True, which copies its runs into disk-store.db"
        raise FormatError("", f"{folder} was written by an older version of stategraph: {way_out}")
    open_table = partial(SqliteTable, store, file, identify, read_only=read_only, owners="owners")
    if read_only or not is_older:
        return open_table()
    table = open_table(fill=partial(_copy_runs, old))
    ((store_id,),) = table.query("", "SELECT id FROM store", ())
    _remove_copied(old, store_id)
    return table


# --------------------------------------------------------------------------- runs of an older version

# An older version kept its runs as entries of diskcache's cache. They are copied into new tables, in the transaction
# that creates these, so an interrupted copy starts again. Nothing is unpickled, and no file is opened because an entry
# names it.


def _copy_runs(old: Path, database: sqlite3.Connection) -> None:
    """Copy all runs of a cache, with their rows and fences, in the order of their numbers.

    Args:
        old: The file of the cache.
        database: The new database, in a transaction.

    Raises:
        FormatError: the file is damaged, or no cache.
    """
    try:
        with closing(connect(database_file(old, must_exist=True), "rw")) as cache:
            cache.text_factory = lambda text: text.decode(errors="replace")
            cache.execute("PRAGMA trusted_schema = 0")
            cache.execute("BEGIN")  # one consistent view
            store_id = cache.execute(_ID).fetchone()
            if store_id is not None:
                database.execute("UPDATE store SET id = ?", store_id)
                _copy_rows(cache, database, _copy_heads(cache, database))
                _copy_fences(cache, database)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):  # it is locked, or the disk is full
            raise
        raise FormatError("", f"{old} is damaged, or no store of stategraph: {error}") from error


def _entries(cache: sqlite3.Connection, kind: str) -> Iterator[tuple[str, bytes]]:
    """Yield the rest of each key that begins with a kind, and its bytes; no bytes if they are damaged."""
    for key, value, is_bytes in cache.execute(_ENTRIES, (len(kind) + 2, f"{kind}:", f"{kind};")):
        yield key, value if is_bytes and type(value) is bytes else b""


def _copy_heads(cache: sqlite3.Connection, database: sqlite3.Connection) -> dict[str, int]:
    """Copy the records of the runs; return their numbers. No seal covers a number, so only their order matters."""
    heads = [(run_id, value, _head(run_id, value)) for run_id, value in _entries(cache, "run")]
    heads.sort(key=lambda head: head[2].number if head[2] else float("inf"))
    numbers: dict[str, int] = {}
    number = 0
    for run_id, value, run in heads:
        number = run.number if run and number < run.number < sql.LAST_RUN else number + 1
        _, _, *values = COLUMNS.of_run(run) if run else (*[_DAMAGED] * 20, value, None)
        database.execute(_PUT_RUN, (run_id, number, *values))
        numbers[run_id] = number
    return numbers


def _head(run_id: str, value: bytes) -> RunRecord | None:
    try:
        return unpack_run(run_id, value)
    except CheckpointCorruptError:
        return None


def _copy_rows(cache: sqlite3.Connection, database: sqlite3.Connection, numbers: dict[str, int]) -> None:
    for key, value in _entries(cache, "row"):
        run_id, _, sequence = key.rpartition("!")
        if run_id in numbers and sequence.isdecimal() and int(sequence) <= MAX_STEP:
            place = numbers[run_id] << sql.SEQUENCE_BITS | int(sequence)
            try:
                row = unpack_row(run_id, value)
                _, *values = row_values(row, sql.DIALECT)
            except (CheckpointCorruptError, UnicodeDecodeError):
                values = [*[_DAMAGED] * 14, value, *[_DAMAGED] * (len(ROW_COLUMNS) - 16)]
            database.execute(_PUT_ROW, (place, *values))


def _copy_fences(cache: sqlite3.Connection, database: sqlite3.Connection) -> None:
    for run_id, value in _entries(cache, "fence"):
        number, *cancelled = value.decode(errors="replace").split(" ", 2)
        if number.isdecimal():
            by = cancelled[1] if len(cancelled) == 2 else None
            database.execute("INSERT INTO fence VALUES (?, ?, ?, ?)", (run_id, int(number), bool(cancelled), by))


def _remove_copied(old: Path, store_id: bytes) -> None:
    """Overwrite and remove a cache after its copy, so that data deleted later does not remain in it.

    A process of an older version that has it open can no longer save, because it checks that its files are in place.
    """
    with suppress(sqlite3.DatabaseError, OSError):  # of another program, or in use: leave it
        with closing(connect(old, "rw")) as cache:
            for pragma in ("trusted_schema = 0", *DURABLE):
                cache.execute(f"PRAGMA {pragma}")
            if cache.execute(_ID).fetchone() != (store_id,):
                return
            cache.execute("DELETE FROM Cache")
        for file in (old, *side_files(old)):
            file.unlink(missing_ok=True)
