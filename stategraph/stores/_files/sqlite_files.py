"""The files of a SQLite database: whether they are safe to open, connections to them, and whether they are in place.

Connections are made durable, wait for others, and erase what was deleted.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stategraph.errors import CheckpointSaveError, ConfigError
from stategraph.stores._files.paths import check_side_files, secure_file, side_files

_Found = TypeVar("_Found")

BUSY_TIMEOUT = 60  # seconds to wait for other processes that write
_MOMENT = 1  # seconds to wait for other processes that still read what is to be erased
_LOG_SIZE = 4 << 20  # bytes that SQLite lets the log grow to before it starts again
_IN_CACHE = 64 << 10  # bytes of what is written to grow it that may never leave the cache

DURABLE = ("synchronous = FULL", "fullfsync = 1", "checkpoint_fullfsync = 1", "secure_delete = ON")
"""Pragmas of each connection: sync every commit, on macOS down to the medium, and overwrite what is deleted."""


def check_version(key: str, value: object, needed: tuple[int, int]) -> None:
    """Check that the SQLite of this Python is new enough.

    Args:
        key: The key path of the config that needs it, for the error.
        value: The value there.
        needed: The oldest version that will do.

    Raises:
        ConfigError: It is older.
    """
    if sqlite3.sqlite_version_info < needed:
        raise ConfigError(
            key,
            value,
            f"it takes SQLite {needed[0]}.{needed[1]} or newer, and this Python has {sqlite3.sqlite_version}: "
            "take a Python that brings its own SQLite, from python.org, uv or conda",
        )


def check_read_only(read_only: object) -> None:
    """Raise ConfigError unless the option is true or false."""
    if type(read_only) is not bool:
        raise ConfigError("checkpoint.options.read_only", read_only, "true opens it to be read only; false is")


def database_file(path: Path, must_exist: bool) -> Path:
    """Return the file to open, with links resolved.

    Raises:
        ConfigError: It cannot be used, or other users can write to it.
    """
    try:
        return secure_file(path, must_exist=must_exist)
    except OSError as error:
        raise _unusable(path, error) from error


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError("checkpoint.options.path", str(path), f"a file that can be used ({error.strerror})")


def check_log(file: Path) -> None:
    """Check that the newest checkpoints are not in a write-ahead log, which cannot be read without its index.

    Raises:
        ConfigError: They are.
    """
    log = side_files(file)[0]
    if log.exists() and log.stat().st_size:
        allowed = f"a file in a folder that can be written to: its newest checkpoints are in {log.name}; copy both"
        raise ConfigError("checkpoint.options.path", str(file), allowed)


class OpenFiles:
    """The files that a connection has open. If they are moved or replaced, what is written to them is lost.

    Args:
        file: The database.
        is_fixed: Whether the database is read as a file that never changes; then a changed file is another one.

    Raises:
        ConfigError: Other users can write to a file that SQLite keeps beside it. These were checked before they were
            opened, but in a folder such as /tmp, others may have made one since.

    Attributes:
        is_log_grown: Whether `grow_log` was called.
    """

    def __init__(self, file: Path, *, is_fixed: bool = False) -> None:
        self._paths = tuple(map(str, (file, *side_files(file)[:2])))
        self._is_fixed = is_fixed
        self._opened = _found(self._paths, is_fixed)
        self._look_at = 0.0
        self.is_log_grown = False
        try:
            check_side_files(file)
        except OSError as error:
            raise _unusable(file, error) from error

    @property
    def are_there(self) -> bool:
        """Return whether they are where they were when they were opened."""
        return _found(self._paths, self._is_fixed) == self._opened

    def _seem_there(self) -> bool:
        """Return whether the files are in place, with the identity of the log checked at most once a second.

        Since Linux 6.13, the first write to a file after a `stat` of it gets a timestamp of its own. The next sync
        saves that as well, and takes up to twice the time. Asking whether the log exists costs nothing.
        """
        file, log, index = self._paths
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + 1
            return self.are_there
        there = _found((file, index), with_content=False)
        return there == self._opened[:2] + self._opened[-2:] and os.access(log, os.F_OK)

    def check(self, table: Any = None) -> None:
        """Check, after a commit, that it can be found by others.

        Args:
            table: Has the connection. If another thread has closed it since the commit, the log is gone with that.

        Raises:
            CheckpointSaveError: It cannot.
        """
        if not self._seem_there() and not (table and table.closed):
            file, *others = map(Path, self._paths)
            left = [] if file.exists() else [other.name for other in others if other.exists()]
            raise CheckpointSaveError(
                "",
                f"{file}, or its log, was moved, removed or replaced while it was open, and what is saved in it is "
                "lost with this process: put it back as it was or, where that cannot be, close the store"
                f"{''.join(f', move {name} away' for name in left)} and make the graph anew: it opens a fresh one, in "
                "which the run begins anew, or goes on by resume once error.state is saved in it",
            )

    def grow_log(self, database: sqlite3.Connection) -> None:
        """Grow the log of a connection that is to write: who only reads need not wait for that."""
        self.is_log_grown = True
        _grow_log(database, Path(self._paths[0]))


def _found(paths: Sequence[str], with_content: bool) -> list[int | None]:
    """Return the identities of the files under these names: others that replace them have other ones."""
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


# --------------------------------------------------------------------------- connections


def connect(file: Path, mode: str) -> sqlite3.Connection:
    """Return a connection to a database that exists; `mode` is "rw", "ro", or "ro&immutable=1"."""
    uri = f"{file.as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)


def execute_patiently(database: sqlite3.Connection, statement: str) -> None:
    """Execute a statement for which SQLite itself does not wait while others use the database."""
    give_up = time.monotonic() + BUSY_TIMEOUT
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
    """Return whether an error means that others use the database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


def is_unshareable(error: BaseException) -> bool:
    """Return whether an error means that SQLite cannot write its index: the folder of the database is read-only."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


# --------------------------------------------------------------------------- the log


def _grow_log(database: sqlite3.Connection, file: Path) -> None:
    """Grow the write-ahead log once, by a transaction that is too large for the cache and is rolled back.

    SQLite writes what does not fit into the cache to the log before a commit. Later commits then overwrite blocks that
    the file has already, so that a sync has no metadata to write: it takes two thirds of the time. Nothing of this is
    committed or synced. The log keeps its size until the last connection closes or it is erased.
    """
    log = side_files(file)[0]
    if log.exists() and log.stat().st_size >= _LOG_SIZE:
        return
    (pages,) = database.execute("PRAGMA cache_size").fetchone()
    database.execute("PRAGMA cache_size = 10")
    try:
        database.execute("BEGIN IMMEDIATE")
        database.execute("CREATE TABLE filling (bytes BLOB)")
        database.execute("INSERT INTO filling VALUES (zeroblob(?))", (_LOG_SIZE + _IN_CACHE,))
    except sqlite3.OperationalError:
        pass  # there is no room, or another process is at work: commits take longer then, and that is all
    finally:
        if database.in_transaction:
            database.execute("ROLLBACK")
        database.execute(f"PRAGMA cache_size = {pages}")


def erase_log(database: sqlite3.Connection) -> None:
    """Truncate the log, which still has what was written lately, once all of it is in the database.

    While others read, it cannot be truncated. Then it is left for the next time, or for the last connection to close,
    with which SQLite removes the log.
    """
    (patience,) = database.execute("PRAGMA busy_timeout").fetchone()
    database.execute(f"PRAGMA busy_timeout = {_MOMENT * 1000}")
    try:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        database.execute(f"PRAGMA busy_timeout = {patience}")


def fetch_damaged_text(database: sqlite3.Connection, statement: str, values: Any) -> list[Any]:
    """Return the rows of a statement, with surrogates where text is damaged: not UTF-8.

    sqlite3 would raise, and return nothing of the rows that are not damaged.
    """
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
    """Return whether sqlite3 has found text that is not UTF-8: an error of the module itself, without a code."""
    return getattr(error, "sqlite_errorcode", None) is None and "decode to UTF-8" in str(error)


def is_damage(error: Exception) -> bool:
    """Return whether an error means that the file is damaged, or no database of a store."""
    if isinstance(error, UnicodeDecodeError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return isinstance(error, sqlite3.OperationalError) and _is_no_text(error)
    no_such_table = sqlite3.SQLITE_ERROR
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, no_such_table)


# --------------------------------------------------------------------------- a database that is only read


class ReadFile:
    """A connection that reads a database.

    A database that no process has open is read as a file that never changes: SQLite would leave an index of its log
    there otherwise. If it does change, it is opened again.

    Args:
        file: The database.
        prepare: Is called with each connection before it is used; it raises what is wrong with the database.

    Attributes:
        connection: The connection, as it was used last.
        opened: Differs each time that the file is opened.
    """

    def __init__(self, file: Path, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self._file, self._prepare = file, prepare
        self.open()

    def open(self) -> None:
        """Connect to the file as it is now."""
        if _is_at_rest(self._file):
            self._connect(is_fixed=True)
            return
        try:
            self._connect(is_fixed=False)
        except sqlite3.OperationalError as error:
            if not is_unshareable(error):
                raise
            check_log(self._file)
            self._connect(is_fixed=True)

    def _connect(self, *, is_fixed: bool) -> None:
        files = OpenFiles(self._file, is_fixed=is_fixed)  # first: whatever is changed from now on is noticed
        connection = connect(self._file, "ro&immutable=1" if is_fixed else "ro")
        try:
            self._prepare(connection)
            connection.execute("PRAGMA query_only = 1")
            if not is_fixed:
                files = OpenFiles(self._file)
        except BaseException:
            connection.close()
            raise
        self.connection, self._files, self.is_fixed = connection, files, is_fixed
        self.opened = os.urandom(4).hex()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @property
    def has_changed(self) -> bool:
        """Whether a file that was read as one that never changes has changed."""
        return self.is_fixed and not self._files.are_there

    def current(self) -> sqlite3.Connection:
        """Return the connection; another one, if the file has changed."""
        if self.has_changed:
            self.connection.close()
            self.open()
        return self.connection

    def ask(self, question: Callable[[sqlite3.Connection], _Found]) -> _Found:
        """Return the answer to a question; ask again if the file has changed since."""
        while True:
            try:
                found = question(self.current())
            except (sqlite3.Error, UnicodeDecodeError):
                if self.has_changed:
                    continue
                raise
            if not self.has_changed:
                return found


def _is_at_rest(file: Path) -> bool:
    """Return whether no process has a database open, and its log is empty."""
    log, index, _ = side_files(file)
    return not log.exists() or (not index.exists() and not log.stat().st_size)
