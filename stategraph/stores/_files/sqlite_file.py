"""The file of a SQLite database: how stores open it, make it durable, and erase what was deleted."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stategraph.errors import CheckpointSaveError, ConfigError
from stategraph.stores._files.paths import beside, check_beside, log_of, own_file

BUSY = 60  # seconds to wait for other processes that write
_MOMENT = 1  # seconds to wait for those that read, to erase what they may still see
_LOG_SIZE = 4 << 20  # bytes: as far as SQLite lets the log grow before it starts again

DURABLE = ("synchronous = FULL", "fullfsync = 1", "checkpoint_fullfsync = 1", "secure_delete = ON")
"""What each connection is told: to sync every commit, on macOS down to the medium, and to overwrite what is deleted."""


def check_version(key: str, value: object, needed: tuple[int, int]) -> None:
    """Raise ConfigError, for the value at a key path, if the SQLite of this Python is too old for it."""
    if sqlite3.sqlite_version_info < needed:
        raise ConfigError(
            key,
            value,
            f"it takes SQLite {needed[0]}.{needed[1]} or newer, and this Python has {sqlite3.sqlite_version}: "
            "take a Python that brings its own SQLite, from python.org, uv or conda",
        )


def database_file(path: Path, must_exist: bool) -> Path:
    """-> the file to open, which nobody else can write to."""
    try:
        return own_file(path, must_exist=must_exist)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError("checkpoint.options.path", str(path), f"a file that can be used ({error.strerror})")


def check_log(file: Path) -> None:
    """Raise ConfigError if the newest checkpoints are in a log, which cannot be read without its index."""
    log = log_of(file)
    if log.exists() and log.stat().st_size:
        allowed = f"a file in a folder that can be written to: its newest checkpoints are in {log.name}; copy both"
        raise ConfigError("checkpoint.options.path", str(file), allowed)


def connect(file: Path, mode: str) -> sqlite3.Connection:
    """-> a connection to a database that is there; `mode` is "rw", "ro", or "ro&immutable=1"."""
    uri = f"{file.as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY, isolation_level=None, check_same_thread=False)


def execute_patiently(database: sqlite3.Connection, statement: str) -> None:
    """Execute one of the statements for which SQLite itself does not wait until others are done."""
    give_up = time.monotonic() + BUSY
    while True:
        try:
            database.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.001)
        else:
            return


def is_busy(error: BaseException) -> bool:
    """Whether others have the database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def is_unshareable(error: BaseException) -> bool:
    """Whether a database cannot be read together with others, because its folder cannot be written to."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


# --------------------------------------------------------------------------- the log


def grow_log(database: sqlite3.Connection, file: Path) -> None:
    """Grow the write-ahead log once, by a transaction that is too large for the cache, and is rolled back.

    What does not fit into the cache goes to the log before a commit. Later commits then overwrite blocks that the
    file has, and a sync has no metadata to write: it takes two thirds of the time. Nothing of this is ever
    committed, so nothing has to be synced. The log stays that long, until the last connection closes or it is erased.
    """
    log = log_of(file)
    if log.exists() and log.stat().st_size >= _LOG_SIZE:
        return
    (pages,) = database.execute("PRAGMA cache_size").fetchone()
    database.execute("PRAGMA cache_size = 10")
    try:
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE filling (bytes BLOB)")
        database.execute("INSERT INTO filling VALUES (zeroblob(?))", (_LOG_SIZE,))
    except sqlite3.OperationalError:
        pass  # there is no room, or another process is at work: commits take longer then, and that is all
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")
        database.execute(f"PRAGMA cache_size = {pages}")


def erase_log(database: sqlite3.Connection) -> None:
    """Cut off the log, in which everything stands that was written lately, once it is in the database.

    Others who read keep it from being cut off. It is then left as it is: for the next time, or for the last connection
    to close, with which the log goes.
    """
    (patience,) = database.execute("PRAGMA busy_timeout").fetchone()
    database.execute(f"PRAGMA busy_timeout = {_MOMENT * 1000}")
    try:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        database.execute(f"PRAGMA busy_timeout = {patience}")


def rows_with_any_text(database: sqlite3.Connection, statement: str, values: Any) -> list[Any]:
    """Return what a statement finds. Where text is no UTF-8, sqlite3 would give nothing of what stands beside it
    either: then it comes with surrogates, as which it fits nowhere."""
    try:
        return database.execute(statement, values).fetchall()
    except sqlite3.OperationalError as error:
        if not _is_no_text(error):
            raise
    database.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    try:
        return database.execute(statement, values).fetchall()
    finally:
        database.text_factory = str


def _is_no_text(error: sqlite3.Error) -> bool:
    """Return whether sqlite3 has found text that is none: an error of the module itself, without a code."""
    return getattr(error, "sqlite_errorcode", None) is None and "decode to UTF-8" in str(error)


def is_damage(error: Exception) -> bool:
    """Return whether the file is not what SQLite has written."""
    if isinstance(error, UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, sqlite3.OperationalError) and _is_no_text(error)
    no_such_table = sqlite3.SQLITE_ERROR
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, no_such_table)


# --------------------------------------------------------------------------- the files that are open


class OpenFiles:
    """The files that a connection has open. There may be others by now under their names, or none: then nobody finds
    what is written any more.

    Args:
        file: The database.
        is_fixed: It is read as a file that does not change: one that did is another file, too.

    Raises:
        ConfigError: others can write to one of the files beside it. They were looked at before they were opened, but
            in a folder such as /tmp, others may have made one since.
    """

    def __init__(self, file: Path, *, is_fixed: bool = False) -> None:
        self._paths = tuple(map(str, (file, *beside(file)[:2])))
        self._is_fixed = is_fixed
        self._opened = _found(self._paths, is_fixed)
        try:
            check_beside(file)
        except OSError as error:
            raise _unusable(file, error) from error

    @property
    def are_there(self) -> bool:
        """Whether they are found where they were opened."""
        return _found(self._paths, self._is_fixed) == self._opened

    def check(self) -> None:
        """Raise CheckpointSaveError if what was just committed to them cannot be found there."""
        if _found(self._paths, self._is_fixed) != self._opened:
            file, *others = map(Path, self._paths)
            left = [] if file.exists() else [other.name for other in others if other.exists()]
            raise CheckpointSaveError(
                "",
                f"{file}, or its log, was moved, removed or replaced while it was open, and what is saved in it is "
                "lost with this process: put it back as it was or, where that cannot be, close the store"
                f"{''.join(f', move {name} away' for name in left)} and make the graph anew: it opens a fresh one, in "
                "which the run begins anew, or goes on by resume once error.state is saved in it",
            )


def _found(paths: Sequence[str], with_content: bool) -> list[int | None]:
    """Return what tells the files under these names from others that are put in their place."""
    found: list[int | None] = []
    for path in paths:  # after every commit: a loop over os.stat takes a third of the time of path.stat() in a list
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:
            found.append(None)
            continue
        found += (status.st_dev, status.st_ino)
        if with_content:
            found += (status.st_size, status.st_mtime_ns)
    return found
