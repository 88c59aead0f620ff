"""The "disk" store: a folder, kept by diskcache (https://grantjenks.com/docs/diskcache/).

diskcache is a cache, and made for trusted files. Three things make it a store: nothing is ever evicted, every commit is
synced, and rows hold bytes under text keys and nothing else, so that no row is unpickled or names a file to open.
"""

from __future__ import annotations

import builtins
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
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


class _Cache(diskcache.Cache):  # type: ignore[misc]
    """A cache whose connections are known, so that `close` can close those of all threads, and which sets nothing that the
    database asks for."""

    def __init__(self, folder: str) -> None:
        self._opened: list[sqlite3.Connection] = []
        super().__init__(folder, timeout=_TIMEOUT, disk=_BytesDisk, **_SETTINGS)

    @property
    def _con(self) -> sqlite3.Connection:
        """The connection of this thread, in this process: it must not be used on both sides of a fork."""
        if getattr(self._local, "pid", None) != os.getpid():
            self._local.pid, self._local.con = os.getpid(), None
        if getattr(self._local, "con", None) is None:
            file = os.path.join(self._directory, DBNAME)  # noqa: PTH118 - diskcache has it as a str
            connection = sqlite3.connect(file, timeout=self._timeout, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode = wal", "synchronous = FULL", "mmap_size = 0", "trusted_schema = 0"):
                connection.execute(f"PRAGMA {pragma}")
            self._local.con = connection
            self._opened.append(connection)
        return self._local.con  # type: ignore[no-any-return]

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()
        self._local = threading.local()


class DiskStore(RowStore):
    """Keeps runs in a folder. Processes and threads may share it.

    Each row has a key of its own and names the row before it; the head of a run names the newest.

    Args:
        path: The folder. It is made if it is not there, for its owner only.
        sign_with: As for RowStore.

    Raises:
        ConfigError: the path cannot be a folder for a store.
        FormatError: what is there is not a store of stategraph.
    """

    def __init__(self, path: str | os.PathLike[str], *, sign_with: Callable[[], bytes] | None = None) -> None:
        super().__init__(sign_with=sign_with)
        self.path = _folder(path)
        _check_database(self.path / DBNAME)
        with self._explained("", FormatError):
            self._cache = _Cache(str(self.path))
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._cache.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def __str__(self) -> str:
        return f"disk store at {self.path}"

    # ------------------------------------------------------------------ rows

    def _apply(self, writes: Sequence[Write]) -> Sequence[bool]:
        with self._explained(writes[0].head.run_id, CheckpointSaveError), self._transaction():
            return [self._make(write) for write in writes]

    def _make(self, write: Write) -> bool:
        """Make one write within a transaction -> whether its run had the version for it."""
        run_id = write.head.run_id
        old = self._read_head(run_id)
        if (old.version if old else 0) != write.head.version - 1:
            return False
        number = old.number if old else self._next_number()
        self._cache.set(_head_key(run_id), pack_head(attrs.evolve(write.head, number=number)))
        newest = old.step if old else None
        for row in write.put:
            kept = self._cache.get(_row_key(run_id, row.step))
            previous = newest if kept is None else unpack_row(run_id, kept)[1]
            self._cache.set(_row_key(run_id, row.step), pack_row(row, previous))
            newest = row.step
        if write.cut_below:
            self._delete_rows(run_id, [step for step in self._steps(run_id, newest) if step < write.cut_below])
        if write.cut_above is not None:
            self._delete_rows(run_id, [step for step in self._steps(run_id, newest) if step > write.cut_above])
        return True

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
            newest = unpack_row(run_id, kept)[1]

    def _delete_rows(self, run_id: str, steps: Iterable[int]) -> None:
        for step in steps:
            self._cache.delete(_row_key(run_id, step))

    def _remove(self, run_id: str) -> None:
        with self._explained(run_id, CheckpointError), self._transaction():
            head = self._read_head(run_id)
            if head is not None:
                self._delete_rows(run_id, builtins.list(self._steps(run_id, head.step)))
                self._cache.delete(_head_key(run_id))

    def _head(self, run_id: str) -> Head | None:
        with self._explained(run_id, CheckpointCorruptError):
            return self._read_head(run_id)

    def _read_head(self, run_id: str) -> Head | None:
        if self._closed:
            raise CheckpointError(run_id, f"the {self} is closed; get_checkpoint_store opens a fresh one")
        kept = self._cache.get(_head_key(run_id))
        return None if kept is None else unpack_head(run_id, kept)

    def _heads(self, status: str | None, graph: str | None, limit: int, before: int | None) -> builtins.list[Head]:
        with self._explained("", CheckpointCorruptError):
            keys = [key for key in self._cache.iterkeys() if key.startswith(_HEAD_PREFIX)]
            found = [self._read_head(check_run_id(key.removeprefix(_HEAD_PREFIX))) for key in keys]
        wanted = [
            head
            for head in found
            if head is not None  # deleted meanwhile
            and status in (None, head.status)
            and graph in (None, head.graph)
            and (before is None or head.number < before)
        ]
        wanted.sort(key=lambda head: head.number, reverse=True)
        return wanted if limit < 0 else wanted[:limit]

    def _chain(self, run_id: str, step: int | None) -> builtins.list[Row]:
        with self._explained(run_id, CheckpointCorruptError):
            while True:
                head = self._read_head(run_id)
                if head is None:
                    return []
                rows = self._read_chain(run_id, head.step if step is None else step)
                if rows is not None and (rows or step not in (None, head.step)):
                    return rows
                if self._read_head(run_id) == head:  # nobody wrote meanwhile: the row is really missing
                    raise CheckpointCorruptError(run_id, "a row that its checkpoint builds on is missing")

    def _read_chain(self, run_id: str, step: int) -> builtins.list[Row] | None:
        """-> the row of a step and those it builds on, in order; empty if there is no such step, None if one is missing."""
        rows: builtins.list[Row] = []
        wanted: int | None = step
        while wanted is not None and (not rows or wanted >= rows[-1].base):
            kept = self._cache.get(_row_key(run_id, wanted))
            if kept is None:
                return None if rows else []
            row, wanted = unpack_row(run_id, kept)
            rows.append(row)
        rows.reverse()
        return rows

    def _index(self, run_id: str) -> builtins.list[Row]:
        with self._explained(run_id, CheckpointCorruptError), self._transaction():
            head = self._read_head(run_id)
            steps = builtins.list(self._steps(run_id, head.step)) if head else []
            return [unpack_row(run_id, self._cache.get(_row_key(run_id, step)))[0] for step in reversed(steps)]

    # ------------------------------------------------------------------ the cache

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, with the rest of the world kept out.

        An interrupt that comes just after diskcache began a transaction leaves it open, and every later one of the thread
        would be taken for a part of it and never be committed. So an open one is rolled back first.
        """
        if self._cache._con.in_transaction:
            self._cache._con.rollback()
            self._cache._txn_id = None
        with self._cache.transact():
            yield

    @contextmanager
    def _explained(self, run_id: str, kind: type[CheckpointError]) -> Iterator[None]:
        """Errors of SQLite and of the file system, as errors of stategraph."""
        try:
            yield
        except CheckpointError as error:
            error.run_id = error.run_id or run_id
            raise
        except diskcache.Timeout as error:
            raise kind(run_id, f"the {self} was locked by another process for {_TIMEOUT} s") from error
        except (sqlite3.Error, OSError, ValueError) as error:
            raise kind(run_id, f"the {self} failed: {error}") from error


_HEAD_PREFIX = "run:"
_NUMBER_KEY = "number of runs"


def _head_key(run_id: str) -> str:
    return f"{_HEAD_PREFIX}{run_id}"


def _row_key(run_id: str, step: int) -> str:
    return f"row:{run_id}@{step}"


def _folder(path: str | os.PathLike[str]) -> Path:
    """-> the folder, which is there and, if it was made here, is its owner's only."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError("checkpoint.options.path", path, "the path of a folder")
    folder = Path(os.path.abspath(path))
    if os.path.expandvars(os.path.expanduser(folder)) != str(folder):  # diskcache would, and go elsewhere
        raise ConfigError("checkpoint.options.path", str(path), "a path without $ variables")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(folder / DBNAME, os.O_RDWR | os.O_CREAT, 0o600))  # before SQLite makes it readable for all
    except OSError as error:
        allowed = f"a folder that can be made and written to ({error.strerror})"
        raise ConfigError("checkpoint.options.path", str(path), allowed) from error
    return folder


def _check_database(path: Path) -> None:
    """Raise FormatError unless the file is empty or a disk store.

    diskcache would run what the Settings table says as PRAGMA statements, so it is compared before diskcache sees it.
    """
    try:
        with closing(sqlite3.connect(path, timeout=_TIMEOUT, isolation_level=None)) as database:
            database.execute("PRAGMA query_only = 1")
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            settings = dict(database.execute("SELECT key, value FROM Settings")) if "Settings" in names else {}
    except sqlite3.Error as error:
        raise FormatError("", f"{path} is damaged or no disk store of stategraph: {error}") from error
    foreign = sorted(names - _SCHEMA) + sorted(key for key in settings if not _is_ours(key, settings[key]))
    if foreign:
        raise FormatError("", f"{path} is not a disk store of stategraph (it has {', '.join(map(str, foreign[:5]))})")


_SCHEMA = {
    *("Settings", "sqlite_autoindex_Settings_1", "Cache", "Cache_key_raw", "Cache_expire_time"),
    *("Settings_count_insert", "Settings_count_delete"),
    *("Settings_size_insert", "Settings_size_update", "Settings_size_delete"),
}


def _is_ours(key: str, value: object) -> bool:
    if key in METADATA:
        return type(value) is int
    return key in DEFAULT_SETTINGS and value == {**DEFAULT_SETTINGS, **_SETTINGS}[key]
