"""The "disk" store: a folder, kept by diskcache (https://grantjenks.com/docs/diskcache/).

diskcache is a cache, and made for trusted files. Three things make it a store: nothing is ever evicted, every commit is
synced, and rows hold bytes under text keys and nothing else, so that no row is unpickled or names a file to open.
"""

from __future__ import annotations

import builtins
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import diskcache
from diskcache.core import DBNAME, DEFAULT_SETTINGS, METADATA, MODE_RAW, UNKNOWN

from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    ConfigError,
    FormatError,
)
from stategraph.ids import check_run_id
from stategraph.state import State
from stategraph.stores.base import CheckpointStore, check_follows
from stategraph.stores.records import Record

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


class DiskStore(CheckpointStore):
    """Keeps the newest State of each run in a folder. Processes and threads may share it.

    Args:
        path: The folder. It is made if it is not there, for its owner only.

    Raises:
        ConfigError: the path cannot be a folder for a store.
        FormatError: what is there is not a store of stategraph.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _folder(path)
        _check_database(self.path / DBNAME)
        with self._explained("", FormatError):
            self._cache = diskcache.Cache(str(self.path), timeout=_TIMEOUT, disk=_BytesDisk, **_SETTINGS)
        self._closed = False

    def save(self, state: State) -> None:
        self._keep(Record.of(state))

    def amend(self, state: State) -> None:
        self._keep(Record.of(state), may_change_data=True)

    def load(self, run_id: str, step: int | None = None) -> State:
        check_run_id(run_id)
        with self._explained(run_id, CheckpointCorruptError):
            saved = self._read(run_id)
        if saved is None or step not in (None, saved.step):
            raise CheckpointNotFoundError(run_id, str(self), step)
        return saved.state()

    def delete(self, run_id: str) -> None:
        check_run_id(run_id)
        with self._explained(run_id, CheckpointError), self._transaction():
            self._cache.delete(run_id)

    def list(self) -> builtins.list[str]:
        with self._explained("", CheckpointCorruptError):
            return sorted(map(check_run_id, self._cache.iterkeys()))

    def close(self) -> None:
        self._closed = True
        self._cache.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def __str__(self) -> str:
        return f"disk store at {self.path}"

    def _keep(self, record: Record, may_change_data: bool = False) -> None:
        kept = record.to_bytes()
        with self._explained(record.run_id, CheckpointSaveError), self._transaction():
            saved = self._read(record.run_id)
            if saved is not None:
                same_data = may_change_data or saved.data == record.data
                check_follows(record.run_id, saved.step, record.step, same_data)
            self._cache.set(record.run_id, kept)

    def _read(self, run_id: str) -> Record | None:
        if self._closed:
            raise CheckpointError(run_id, f"the {self} is closed; get_checkpoint_store opens a fresh one")
        kept = self._cache.get(run_id)
        return None if kept is None else Record.from_bytes(run_id, kept)

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
