"""The "disk" store: a folder, kept by diskcache (https://grantjenks.com/docs/diskcache/).

diskcache is a cache, and made for trusted files. Three things make it a store: nothing is ever evicted, every commit is
synced, and rows hold bytes under text keys and nothing else, so that no row is unpickled or names a file to open.
"""

from __future__ import annotations

import builtins
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import diskcache
from diskcache.core import DBNAME, DEFAULT_SETTINGS, METADATA, MODE_RAW, UNKNOWN

from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointSaveError,
    ConfigError,
    FormatError,
)
from stategraph.ids import check_run_id
from stategraph.stores.packing import pack_head, pack_row, unpack_head, unpack_row
from stategraph.stores.row_store import RowStore
from stategraph.stores.rows import Head, Row, Write

_SETTINGS: dict[str, Any] = {
    "cull_limit": 0,
    "eviction_policy": "none",
    "size_limit": 2**62,
    "statistics": 0,
    "tag_index": 0,
    "sqlite_journal_mode": "wal",
    "sqlite_synchronous": 2,  # FULL: the default, NORMAL, may lose the newest commits in a power cut
    "sqlite_mmap_size": 0,
    "disk_min_file_size": 2**62,
}
_TIMEOUT = 60  # seconds to wait for other processes that write


class _BytesDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Rows of bytes under text keys; whatever else stands in a row is refused, unread."""

    def put(self, key: Any) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"keys are str, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: Any) -> str:
        if not raw or type(key) is not str:
            raise CheckpointCorruptError("", "a row of the disk store has a key that stategraph does not write")
        return key

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> tuple[int, int, None, memoryview]:
        if read or type(value) is not bytes:
            raise TypeError(f"values are bytes, not {type(value).__name__}")
        return 0, MODE_RAW, None, memoryview(value)

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> bytes:
        if read or mode != MODE_RAW or filename is not None or type(value) is not bytes:
            raise CheckpointCorruptError("", "a row of the disk store holds what stategraph does not write")
        return value

    def filename(self, key: Any = UNKNOWN, value: Any = UNKNOWN) -> tuple[str, str]:
        raise CheckpointCorruptError("", "the disk store has no side files")

    def remove(self, file_path: Any) -> None:
        if file_path is not None:
            raise CheckpointCorruptError("", "a row of the disk store names a file; stategraph has no side files")


class _Connection(sqlite3.Connection):
    """A connection that is closed with a store that nobody closed."""

    def __del__(self) -> None:
        self.close()


class _Cache(diskcache.Cache):  # type: ignore[misc]
    """A cache whose connections are known, so that those of all threads can be closed, and which sets nothing that the
    database asks for."""

    _txn_id: int | None

    def __init__(self, folder: str) -> None:
        self._opened: dict[threading.Thread, _Connection] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_shut = False
        super().__init__(folder, timeout=_TIMEOUT, disk=_BytesDisk, **_SETTINGS)

    @property
    def _con(self) -> sqlite3.Connection:
        """The connection of this thread, in this process: it must not be used on both sides of a fork."""
        if self._is_shut:
            raise sqlite3.ProgrammingError("the store is closed")
        if self._pid != os.getpid():
            self._leave_to_parent()
        if getattr(self._local, "con", None) is None:
            self._local.con = self._connection_for(threading.current_thread())
        return self._local.con  # type: ignore[no-any-return]

    def _connection_for(self, thread: threading.Thread) -> _Connection:
        """-> a new connection, or that of a thread which has ended: an async run has a thread of its own, and a service
        makes any number of them."""
        with self._lock:
            ended = next((other for other in self._opened if not other.is_alive()), None)
            connection = self._connect() if ended is None else self._opened.pop(ended)
            self._opened[thread] = connection
        return connection

    def _connect(self) -> _Connection:
        file = os.path.join(self._directory, DBNAME)  # noqa: PTH118 - diskcache has it as a str
        connection = sqlite3.connect(
            file, timeout=_TIMEOUT, isolation_level=None, check_same_thread=False, factory=_Connection
        )
        for pragma in ("journal_mode = wal", "synchronous = FULL", "mmap_size = 0", "trusted_schema = 0"):
            _execute_patiently(connection, f"PRAGMA {pragma}")
        return connection

    def _leave_to_parent(self) -> None:
        for connection in self._opened.values():
            connection.close()  # or SQLite believes that this process has the locks of its parent
        self._opened, self._lock, self._local = {}, threading.Lock(), threading.local()
        self._txn_id, self._pid = None, os.getpid()

    def close(self) -> None:
        """Close the connections of all threads. The next call opens another one, as diskcache does at the start."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        while self._opened:
            self._opened.popitem()[1].close()
        self._local = threading.local()

    def shut(self) -> None:
        """Close them for good."""
        self._is_shut = True
        self.close()

    def between_transactions(self) -> sqlite3.Connection:
        """-> the connection of this thread, with no transaction open and none believed to be.

        An interrupt that comes just after diskcache began a transaction leaves it open, and every later one of the
        thread would be taken for a part of it and never be committed. A mark of the thread that is left without one
        would have the parts of the next transaction committed one by one.
        """
        connection = self._con
        connection.rollback()
        if self._txn_id == threading.get_ident():
            self._txn_id = None
        return connection


def _execute_patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Execute one of the statements for which SQLite itself does not wait until others are done."""
    give_up = time.monotonic() + _TIMEOUT
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as error:
            if not _is_busy(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.001)
        else:
            return


class DiskStore(RowStore):
    """Keeps runs in a folder. Processes and threads may share it.

    Each row has a key of its own and names the row before it; the head of a run names the newest.

    Args:
        path: The folder. It is made if it is not there, for its owner only.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a folder for a store, or as RowStore.
        FormatError: what is there is not a store of stategraph.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(**options)
        self.path = _folder(path)
        self._closed = False
        _check_database(self.path / DBNAME)
        with self._explained("", damaged=FormatError):
            self._cache = _Cache(str(self.path))

    def close(self) -> None:
        self._closed = True
        self._cache.shut()

    @property
    def closed(self) -> bool:
        return self._closed

    def __str__(self) -> str:
        return f"disk store at {self.path}"

    # ------------------------------------------------------------------ rows

    def _apply(self, writes: Sequence[Write]) -> Sequence[bool]:
        run_id = writes[0].head.run_id
        with self._explained(run_id, CheckpointSaveError, CheckpointSaveError), self._transaction():
            return [self._make(write) for write in writes]

    def _make(self, write: Write) -> bool:
        """Make one write within a transaction -> whether its run had the version for it."""
        run_id = write.head.run_id
        old = self._read_head(run_id)
        if (old.version if old else None) != write.expected:
            return False
        number = old.number if old else self._next_number()
        self._cache.set(_head_key(run_id), pack_head(attrs.evolve(write.head, number=number)))
        newest = old.step if old else None
        highest = write.cut_above
        if highest is not None:
            newest = self._cut_rows(run_id, newest, lambda step: step > highest)
        for row in write.put:
            kept = self._cache.get(_row_key(run_id, row.step))
            previous = newest if kept is None else _unpacked(run_id, row.step, kept)[1]
            self._cache.set(_row_key(run_id, row.step), pack_row(row, previous))
            newest = row.step
        if write.cut_below:
            self._cut_rows(run_id, newest, lambda step: step < write.cut_below)
        return True

    def _cut_rows(self, run_id: str, newest: int | None, is_over: Callable[[int], bool]) -> int | None:
        """Delete some of the rows of a run -> the newest step that is left."""
        steps = builtins.list(self._steps(run_id, newest))
        for step in filter(is_over, steps):
            self._cache.delete(_row_key(run_id, step))
        return next((step for step in steps if not is_over(step)), None)

    def _next_number(self) -> int:
        number = int(self._cache.get(_NUMBER_KEY, b"0")) + 1
        self._cache.set(_NUMBER_KEY, b"%d" % number)
        return number

    def _steps(self, run_id: str, newest: int | None) -> Iterator[int]:
        """-> the steps of the rows of a run, from the newest back."""
        while newest is not None:
            kept = self._cache.get(_row_key(run_id, newest))
            if kept is None:
                return
            yield newest
            newest = _unpacked(run_id, newest, kept)[1]

    def _remove(self, run_id: str, version: int | None = None) -> bool:
        """By their keys: this is the way out when what stands in the rows is damaged."""
        with self._explained(run_id), self._transaction():
            if version is not None:
                head = self._read_head(run_id)
                if head is None or head.version != version:
                    return False
            delete = "DELETE FROM Cache WHERE key = ? OR (key > ? AND key < ?)"
            return self._cache._con.execute(delete, (_head_key(run_id), *_range(_row_key(run_id, "")))).rowcount > 0

    def _head(self, run_id: str) -> Head | None:
        with self._explained(run_id):
            return self._read_head(run_id)

    def _read_head(self, run_id: str) -> Head | None:
        kept = self._cache.get(_head_key(run_id))
        return None if kept is None else unpack_head(run_id, kept)

    def _heads(self, status: str | None, graph: str | None, limit: int, before: int | None) -> builtins.list[Head]:
        select = "SELECT key, mode, filename, value FROM Cache WHERE key > ? AND key < ?"
        with self._explained(""):
            rows = self._cache._con.execute(select, _range(_HEAD_PREFIX)).fetchall()
            found = [self._found_head(*row) for row in rows]
        wanted = [
            head
            for head in found
            if status in (None, head.status)
            and graph in (None, head.graph)
            and (before is None or head.number < before)
        ]
        wanted.sort(key=lambda head: head.number, reverse=True)
        return wanted if limit < 0 else wanted[:limit]

    def _found_head(self, key: str, mode: Any, filename: Any, value: Any) -> Head:
        run_id = check_run_id(key.removeprefix(_HEAD_PREFIX))
        return unpack_head(run_id, self._cache.disk.fetch(mode, filename, value, read=False))

    def _chain(self, run_id: str, step: int | None) -> builtins.list[Row]:
        rows: builtins.list[Row] = []
        with self._explained(run_id), self._snapshot():
            head = self._read_head(run_id)
            if head is None:
                return []
            wanted: int | None = head.step if step is None else step
            while wanted is not None and (not rows or rows[-1].base <= wanted < rows[-1].step):
                kept = self._cache.get(_row_key(run_id, wanted))
                if kept is None and not rows and wanted != head.step:
                    return []
                row, wanted = _unpacked(run_id, wanted, kept)
                rows.append(row)
        rows.reverse()
        return rows

    def _index(self, run_id: str) -> builtins.list[Row]:
        with self._explained(run_id), self._snapshot():
            head = self._read_head(run_id)
            steps = builtins.list(self._steps(run_id, head.step)) if head else []
            return [_unpacked(run_id, step, self._cache.get(_row_key(run_id, step)))[0] for step in reversed(steps)]

    # ------------------------------------------------------------------ the cache

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, with the rest of the world kept out."""
        self._cache.between_transactions()
        try:
            with self._cache.transact():
                yield
        except BaseException:
            self._cache.between_transactions()  # it may be the end itself that failed, or was interrupted
            raise

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Everything is read as it was at one time, whoever writes meanwhile."""
        connection = self._cache.between_transactions()
        connection.execute("BEGIN")
        try:
            yield
        finally:
            connection.rollback()

    @contextmanager
    def _explained(
        self,
        run_id: str,
        failed: type[CheckpointError] = CheckpointError,
        damaged: type[CheckpointError] = CheckpointCorruptError,
    ) -> Iterator[None]:
        """Errors of SQLite and of the file system, as errors of stategraph."""
        try:
            yield
        except CheckpointError as error:
            error.run_id = error.run_id or run_id
            raise
        except (sqlite3.Error, OSError, ValueError, diskcache.Timeout) as error:
            cause = error.__context__ if isinstance(error, diskcache.Timeout) and error.__context__ else error
            if self._closed:
                reason = f"the {self} is closed; get_checkpoint_store opens a fresh one"
                raise CheckpointError(run_id, reason) from cause
            if _is_busy(cause):
                raise failed(run_id, f"the {self} was locked by another process for {_TIMEOUT} s") from cause
            kind = failed if isinstance(cause, sqlite3.OperationalError | OSError) else damaged
            raise kind(run_id, f"the {self} failed: {cause}") from cause


def _is_busy(error: BaseException) -> bool:
    """Whether others have the database: diskcache calls it a timeout whatever keeps a transaction from beginning."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


_HEAD_PREFIX = "run:"
_NUMBER_KEY = "number of runs"


def _head_key(run_id: str) -> str:
    return f"{_HEAD_PREFIX}{run_id}"


def _row_key(run_id: str, step: int | str) -> str:
    return f"row:{run_id}@{step}"


def _range(prefix: str) -> tuple[str, str]:
    """-> the bounds between which the keys with a prefix are."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _unpacked(run_id: str, step: int, kept: bytes | None) -> tuple[Row, int | None]:
    """-> the row of a step, and the step of the row before it."""
    if kept is None:
        raise CheckpointCorruptError(run_id, f"its step {step} is missing")
    row, previous = unpack_row(run_id, kept)
    if row.step != step or not (previous is None or (type(previous) is int and 0 <= previous < step)):
        raise CheckpointCorruptError(run_id, f"what the store holds for its step {step} is no checkpoint of it")
    return row, previous


def _folder(path: str | os.PathLike[str]) -> Path:
    """-> the folder, which is there and, if it was made here, is its owner's only."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError("checkpoint.options.path", path, "the path of a folder")
    folder = Path(os.path.abspath(path))
    if os.path.expandvars(os.path.expanduser(folder)) != str(folder):  # noqa: PTH111 - what diskcache does
        raise ConfigError("checkpoint.options.path", str(path), "a path without $ variables")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(folder / DBNAME, os.O_RDWR | os.O_CREAT, 0o600))  # before SQLite makes it readable for all
    except (OSError, ValueError) as error:  # a path with a NUL in it is a ValueError
        allowed = f"a folder that can be made and written to ({getattr(error, 'strerror', error)})"
        raise ConfigError("checkpoint.options.path", str(path), allowed) from error
    return folder


def _check_database(path: Path) -> None:
    """Raise FormatError unless the file is empty or a disk store.

    A database runs what its triggers say, and diskcache what the Settings table says as PRAGMA statements. So all of it
    is compared, before diskcache sees it, with what diskcache makes of its own accord.
    """
    try:
        with closing(sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None)) as database:
            database.execute("PRAGMA query_only = 1")
            database.execute("PRAGMA trusted_schema = 0")
            ours = _schema()
            foreign = [name for name, sql in _schema_of(database).items() if ours.get(name, "none") != sql]
            if not foreign and "Settings" in _schema_of(database):
                settings = database.execute("SELECT key, value FROM Settings")
                foreign = [key for key, value in settings if not _is_ours(key, value)]
    except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite3 may show damaged names
        raise FormatError("", f"{path} is damaged or no disk store of stategraph: {error}") from error
    if foreign:
        raise FormatError("", f"{path} is not a disk store of stategraph (it has {', '.join(map(str, foreign[:5]))})")


def _schema_of(database: sqlite3.Connection) -> Mapping[str, str | None]:
    """-> the statements that made the parts of a database, by name; None for what comes by itself."""
    parts = database.execute("SELECT name, sql FROM sqlite_master")
    return {name: None if sql is None else " ".join(sql.split()) for name, sql in parts}


@cache
def _schema() -> Mapping[str, str | None]:
    """-> what diskcache makes, from a database in memory that it is given to set up."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        _Blank(database)
        return _schema_of(database)


class _Blank(diskcache.Cache):  # type: ignore[misc]
    """A cache in a database that is given."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        super().__init__(os.curdir, disk=_BytesDisk, **_SETTINGS)

    @property
    def _con(self) -> sqlite3.Connection:
        return self._database

    def close(self) -> None:
        """It is whoever opened it who closes it."""


def _is_ours(key: object, value: object) -> bool:
    if key in METADATA:
        return type(value) is int
    return key in DEFAULT_SETTINGS and value == {**DEFAULT_SETTINGS, **_SETTINGS}[key]
