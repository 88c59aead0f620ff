"""The files of a SQLite database: checks before they are opened and after each commit, connections, and the log."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from stategraph.errors import CheckpointSaveError, ConfigError
from stategraph.stores._checks import NO_END
from stategraph.stores._files.paths import secure_file, side_files

_Found = TypeVar("_Found")

BUSY_TIMEOUT = 60  # seconds to wait for other processes that write
_ERASE_TIMEOUT = 1  # seconds to wait for other processes that read erased data
_LOG_SIZE = 4 << 20  # bytes of the log after which SQLite starts again at its beginning
_IN_CACHE = 64 << 10  # bytes that may stay in the cache when the log is grown

DURABLE = ("synchronous = FULL", "fullfsync = 1", "checkpoint_fullfsync = 1", "secure_delete = ON")
"""Pragmas of each connection: sync every commit (on macOS down to the medium), and overwrite deleted data."""


def check_version(key: str, value: object, needed: tuple[int, int]) -> None:
    """Raise ConfigError if the SQLite of this Python is older than `needed`; the error names a key and its value."""
    if sqlite3.sqlite_version_info < needed:
        allowed = (
            f"SQLite {needed[0]}.{needed[1]} or newer, and this Python has {sqlite3.sqlite_version}: "
            "use a Python with its own SQLite, from python.org, uv or conda"
        )
        raise ConfigError(key, value, allowed)


def database_file(path: Path, must_exist: bool) -> Path:
    """Return the file to open, with links resolved. Raises ConfigError if it is unusable, or others can write to it."""
    try:
        return secure_file(path, must_exist=must_exist)
    except OSError as error:
        allowed = f"a file that can be used ({error.strerror})"
        raise ConfigError("checkpoint.options.path", str(path), allowed) from error


class OpenFiles:
    """The files of an open connection. If they are moved or replaced, later writes are lost.

    Args:
        file: The database.
        is_fixed: Whether the database is read as a file that never changes. Then a changed file counts as replaced.

    Attributes:
        is_log_grown: Whether `grow_log` was called.
    """

    def __init__(self, file: Path, *, is_fixed: bool = False) -> None:
        log, index, _ = side_files(file)
        self._paths = (str(file), str(index), str(log))
        self.is_fixed = is_fixed
        self._opened = self._identities(self._paths)
        self._check_log_at = 0.0
        self.is_log_grown: bool = False

    def _identities(self, paths: Sequence[str]) -> list[tuple[int, ...]]:
        """Return what identifies the files with these names; an empty tuple for a missing file."""
        found: list[tuple[int, ...]] = []
        for path in paths:  # after every commit: os.stat takes a third of the time of Path.stat
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError:
                found.append(())
                continue
            content = (status.st_size, status.st_mtime_ns) if self.is_fixed else ()
            found.append((status.st_dev, status.st_ino, *content))
        return found

    @property
    def are_there(self) -> bool:
        """Whether they are still those that were opened."""
        return self._identities(self._paths) == self._opened

    def _seem_there(self) -> bool:
        """Return whether the files are in place. The identity of the log is checked at most once a second.

        Since Linux 6.13, the first write to a file after a `stat` of it gets a timestamp of its own. The next sync
        saves that as well, which takes up to twice the time. Checking that the log exists costs nothing.
        """
        now = time.monotonic()
        if now >= self._check_log_at:
            self._check_log_at = now + 1
            return self.are_there
        return self._identities(self._paths[:2]) == self._opened[:2] and os.access(self._paths[2], os.F_OK)

    def check(self) -> None:
        """Raise CheckpointSaveError if the files were moved or replaced: commits to them are lost with this process."""
        if not self._seem_there():
            file, *others = map(Path, self._paths)
            left = [] if file.exists() else [other.name for other in others if other.exists()]
            raise CheckpointSaveError(
                "",
                f"{file}, or its log, was moved, removed or replaced while it was open, so what is saved in it is lost "
                "with this process: put it back or, if that is impossible, close the store"
                f"{''.join(f', move {name} away' for name in left)} and make the graph again: it opens a new file, in "
                "which the run begins again, or continues by resume once error.state is saved in it",
            )

    def grow_log(self, database: sqlite3.Connection) -> None:
        """Grow the write-ahead log once, by a transaction that is too large for the cache and is rolled back.

        SQLite writes a transaction that exceeds the cache to the log before it commits. Later commits then overwrite
        blocks that the file already has. Their syncs write no metadata, and take two thirds of the time. Nothing is
        committed or synced here. The log keeps its size until the last connection closes or it is erased.
        """
        self.is_log_grown = True
        log = Path(self._paths[2])
        if log.exists() and log.stat().st_size >= _LOG_SIZE:
            return
        (pages,) = database.execute("PRAGMA cache_size").fetchone()
        database.execute("PRAGMA cache_size = 10")
        try:
            database.execute("BEGIN IMMEDIATE")
            database.execute("CREATE TABLE filling (bytes BLOB)")
            database.execute("INSERT INTO filling VALUES (zeroblob(?))", (_LOG_SIZE + _IN_CACHE,))
        except sqlite3.OperationalError:
            pass  # the disk is full, or another process writes: then commits take longer
        finally:
            if database.in_transaction:
                database.execute("ROLLBACK")
            database.execute(f"PRAGMA cache_size = {pages}")


# --------------------------------------------------------------------------- connections


def connect(file: Path, mode: str, kind: type[sqlite3.Connection] = sqlite3.Connection) -> sqlite3.Connection:
    """Return a connection to an existing database; `mode` is "rw", "ro", or "ro&immutable=1"."""
    options: dict[str, Any] = {"timeout": BUSY_TIMEOUT, "isolation_level": None, "check_same_thread": False}
    return sqlite3.connect(f"{file.as_uri()}?mode={mode}", uri=True, factory=kind, **options)


def execute_patiently(database: sqlite3.Connection, statement: str) -> None:
    """Execute a statement, and retry while other processes use the database, where SQLite itself does not wait."""
    give_up = time.monotonic() + BUSY_TIMEOUT
    while True:
        try:
            database.execute(statement).fetchall()
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.001)
        else:
            return


def _code(error: Exception) -> int | None:
    """Return the primary code of an error of SQLite; None for an error of the module sqlite3 itself."""
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


class NodeConnection(sqlite3.Connection):
    """A connection for a node, with an open transaction that the node cannot end."""

    @classmethod
    def begin(cls, file: Path) -> NodeConnection:
        """Connect to a database and begin a transaction that writes."""
        connection = connect(file, "rw", cls)
        try:
            # Nothing reaches the log before the commit: a forked child could disturb it when it closes its copy.
            for pragma in (*DURABLE, "trusted_schema = 0", "cache_spill = 0"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("BEGIN IMMEDIATE")
            connection.set_authorizer(_refuse_ends)
        except BaseException:
            connection.close()
            raise
        return cast(NodeConnection, connection)

    def commit(self) -> None:
        """Raise an error: the save of the step commits."""
        raise sqlite3.ProgrammingError(NO_END)

    rollback = commit

    def __enter__(self) -> Self:
        raise sqlite3.ProgrammingError(NO_END)

    def save(self) -> None:
        """Commit, for the store."""
        self.set_authorizer(None)
        super().commit()


def _refuse_ends(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


# --------------------------------------------------------------------------- the log


def erase_log(database: sqlite3.Connection) -> None:
    """Copy the log to the database and truncate it, because it still contains erased data.

    This fails while other processes read. Then the next call does it, or SQLite when the last connection closes.
    """
    (patience,) = database.execute("PRAGMA busy_timeout").fetchone()
    database.execute(f"PRAGMA busy_timeout = {_ERASE_TIMEOUT * 1000}")
    try:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        database.execute(f"PRAGMA busy_timeout = {patience}")


def fetch_damaged_text(database: sqlite3.Connection, statement: str, values: Any) -> list[Any]:
    """Return the rows of a statement, with surrogates for text that is not UTF-8; sqlite3 would return no row."""
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
    """Return whether sqlite3 has found text that is not UTF-8."""
    return _code(error) is None and "decode to UTF-8" in str(error)


def is_damage(error: Exception) -> bool:
    """Return whether an error means that the file is damaged, or not a database of a store."""
    no_such_table = sqlite3.SQLITE_ERROR
    is_text = isinstance(error, sqlite3.OperationalError) and _is_no_text(error)
    is_database = _code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, no_such_table)
    return isinstance(error, UnicodeDecodeError) or is_text or is_database


# --------------------------------------------------------------------------- a database that is open


class Database:
    """A connection to a database.

    Args:
        file: The database.
        prepare: Called with each new connection; raises an error if the database is unusable.

    Attributes:
        connection: The current connection.
        files: The files that it has open.
        opened: A text that is new whenever the file is opened: counters of different connections cannot be compared.
    """

    connection: sqlite3.Connection
    files: OpenFiles
    opened: str

    def __init__(self, file: Path, prepare: Callable[[sqlite3.Connection], None]) -> None:
        self._file, self._prepare = file, prepare
        self._open()

    def _open(self) -> None:
        self._connect("rw")

    def _connect(self, mode: str, *, is_fixed: bool = False) -> None:
        files = OpenFiles(self._file, is_fixed=True) if is_fixed else None  # first, to notice all later changes
        connection = connect(self._file, mode)
        try:
            self._prepare(connection)
            files = files or OpenFiles(self._file)
        except BaseException:
            connection.close()
            raise
        self.connection, self.files, self.opened = connection, files, os.urandom(4).hex()

    def use(self, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        """Return the result of some work with the connection."""
        return work(self.connection)


class ReadDatabase(Database):
    """A connection that only reads a database.

    If no process has the database open, it is read as a file that never changes, because SQLite would leave an index of
    the log next to it. If it does change, it is opened again.
    """

    def _open(self) -> None:
        log, index, _ = side_files(self._file)
        if not log.exists() or (not index.exists() and not log.stat().st_size):
            self._connect_fixed()
            return
        try:
            self._connect("ro")
        except sqlite3.OperationalError as error:
            if _code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
            # The folder is read-only, so SQLite cannot create the index that it needs to read a log.
            if log.exists() and log.stat().st_size:
                allowed = f"a file in a writable folder: its newest checkpoints are in {log.name}; copy both"
                raise ConfigError("checkpoint.options.path", str(self._file), allowed) from error
            self._connect_fixed()

    def _connect_fixed(self) -> None:
        self._connect("ro&immutable=1", is_fixed=True)

    def _has_changed(self) -> bool:
        return self.files.is_fixed and not self.files.are_there

    def use(self, work: Callable[[sqlite3.Connection], _Found]) -> _Found:
        """Return the result of some work; repeat it if a file that should never change has changed."""
        while True:
            if self._has_changed():
                self.connection.close()
                self._open()
            try:
                found = work(self.connection)
            except (sqlite3.Error, UnicodeDecodeError):
                if not self._has_changed():
                    raise
            else:
                if not self._has_changed():
                    return found
