"""The "disk" store: a folder, kept by diskcache (https://grantjenks.com/docs/diskcache/).

What makes a store of a cache is in `stategraph.stores._files.safe_diskcache`.
"""

from __future__ import annotations

import builtins
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import diskcache
from diskcache.core import DBNAME

from stategraph._values.ids import check_stored_id, given_id, ids_within, is_nested_id
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointSaveError,
    FormatError,
    InvalidRunIdError,
)
from stategraph.stores._files.fork_safety import protect_at_fork
from stategraph.stores._files.safe_diskcache import OLDEST, SafeCache, cache_folder, check_database
from stategraph.stores._files.sqlite_connection import BUSY_TIMEOUT, check_version, fetch_damaged_text, is_busy
from stategraph.stores._rows.columns import no_run
from stategraph.stores._rows.packing import pack_head, pack_row, unpack_head, unpack_row
from stategraph.stores._rows.records import Head, Row, Unreadable, Write
from stategraph.stores._rows.store import RowStore


class DiskStore(RowStore):
    """Keeps runs in a folder. Processes and threads may share it.

    Each row has a key of its own and names the row before it; the head of a run names the newest.

    Args:
        path: The folder, with ``~`` for the user's home. It is made if it is not there, for its owner only.
        options: As for RowStore.

    Raises:
        ConfigError: the path cannot be a folder for a store, others can write to it, SQLite is too old, or as RowStore.
        FormatError: what is there is not a store of stategraph.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        check_version("checkpoint.store", "disk", OLDEST)
        super().__init__(**options)
        self.path = cache_folder(path)
        self._closed = False
        check_database(self.path / DBNAME)
        with self._explained("", damaged=FormatError):
            self._cache = SafeCache(str(self.path))
            self._sealer.store_id = self._store_id()
        protect_at_fork(self)

    def _store_id(self) -> bytes:
        """Return what tells this store from all others; a new store gets it here."""
        self._cache.add(_ID_KEY, os.urandom(16))
        found: bytes = self._cache.get(_ID_KEY)
        return found

    def close(self) -> None:
        with self._cache.access.to_change(self):
            self._closed = True
        self._cache.shut()  # it waits for each thread: two that close must not wait for each other

    @property
    def closed(self) -> bool:
        return self._closed

    def at_rest(self) -> AbstractContextManager[object]:
        return self._cache.at_rest()

    def renew(self) -> None:
        super().renew()
        self._cache.renew()

    def __str__(self) -> str:
        return f"disk store at {self.path}"

    # ------------------------------------------------------------------ rows

    def _apply(self, writes: Sequence[Write]) -> Sequence[bool]:
        run_id = writes[0].head.run_id
        with self._explained(run_id, CheckpointSaveError), self._cache.transaction(self):
            made = [self._make(write) for write in writes]
        self._cache.files.check()
        return made

    def _make(self, write: Write) -> bool:
        """Make one write within a transaction -> whether its run had the version for it."""
        run_id = write.head.run_id
        if write.outer is not None:
            outer = self._read_head(given_id(run_id))
            if outer is None or outer.incarnation != write.outer:
                return False
        old = self._read_head(run_id)
        if (old and old.version) != (write.old and write.old.version):
            return False
        number = old.number if old else self._next_number()
        self._cache.set(_head_key(run_id), pack_head(write.head._replace(number=number)))
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
        if write.cut_within:
            self._cache._con.execute(_DELETE_WITHIN, _bounds_within(run_id))
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
        with self._explained(run_id), self._cache.transaction(self):
            if version is not None:
                head = self._read_head(run_id)
                if head is None or head.version != version:
                    return False
            delete = "DELETE FROM Cache WHERE key = ? OR (key > ? AND key < ?)"
            found = self._cache._con.execute(delete, (_head_key(run_id), *_range(_row_key(run_id, "")))).rowcount
            self._cache._con.execute(_DELETE_WITHIN, _bounds_within(run_id))
            return found > 0

    def _remove_damaged(self, run_id: str) -> bool:
        try:
            told, rows = (text.encode(errors="surrogateescape") for text in (run_id, _row_key(run_id, "")))
        except UnicodeEncodeError:  # it is not what `_heads` tells of a text that is no UTF-8
            return False
        with self._explained(run_id), self._cache.transaction(self):
            delete = "DELETE FROM Cache WHERE key > ? AND key < ? AND CAST(substr(key, ?) AS BLOB) = ?"
            bounds = (*_range(_HEAD_PREFIX), len(_HEAD_PREFIX) + 1)
            found = self._cache._con.execute(delete, (*bounds, told)).rowcount
            self._cache._con.execute("DELETE FROM Cache WHERE substr(CAST(key AS BLOB), 1, ?) = ?", (len(rows), rows))
            return found > 0

    def _erase(self) -> None:
        with self._explained(""):
            self._cache.erase(self)

    def _head(self, run_id: str) -> Head | None:
        with self._explained(run_id), self._cache.reading(self):
            return self._read_head(run_id)

    def _read_head(self, run_id: str) -> Head | None:
        kept = self._cache.get(_head_key(run_id))
        return None if kept is None else unpack_head(run_id, kept, self)

    def _heads(
        self, status: str | None, graph: str | None, limit: int, before: int | None
    ) -> builtins.list[Head | Unreadable]:
        found = [self._found_head(*row) for row in self._found_heads(*_range(_HEAD_PREFIX)) if not is_nested_id(row[0])]
        wanted = [
            head
            for head in found
            if isinstance(head, Unreadable)
            or (
                status in (None, head.status)
                and graph in (None, head.graph)
                and (before is None or head.number < before)
            )
        ]
        wanted.sort(key=lambda head: head.number or 0, reverse=True)
        return wanted if limit < 0 else wanted[:limit]

    def _found_heads(self, first: str, last: str) -> builtins.list[tuple[str, Any, Any, Any]]:
        """-> what the cache has under the keys of heads between these, with the ids of their runs."""
        select = "SELECT substr(key, ?), mode, filename, value FROM Cache WHERE key > ? AND key < ? AND raw = 1"
        with self._explained(""), self._cache.reading(self):
            return fetch_damaged_text(self._cache._con, select, (len(_HEAD_PREFIX) + 1, first, last))

    def _found_head(self, run_id: str, mode: Any, filename: Any, value: Any) -> Head | Unreadable:
        try:
            with self._explained(run_id):
                self._check_stored_id(run_id)
                return unpack_head(run_id, self._cache.disk.fetch(mode, filename, value, read=False), self)
        except CheckpointCorruptError as error:
            return Unreadable(run_id, None, error)

    def _check_stored_id(self, run_id: str) -> None:
        try:
            check_stored_id(run_id)
        except InvalidRunIdError as error:
            raise no_run(run_id, f"its key {error}", self) from error

    def _ids_within(self, run_id: str) -> builtins.list[str]:
        first, last = ids_within(run_id)
        return [row[0] for row in self._found_heads(f"{_HEAD_PREFIX}{first}", f"{_HEAD_PREFIX}{last}")]

    def _chain(self, run_id: str, step: int | None) -> builtins.list[Row]:
        rows: builtins.list[Row] = []
        with self._explained(run_id), self._cache.snapshot(self):
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
        with self._explained(run_id), self._cache.snapshot(self):
            head = self._read_head(run_id)
            steps = builtins.list(self._steps(run_id, head.step)) if head else []
            return [_unpacked(run_id, step, self._cache.get(_row_key(run_id, step)))[0] for step in reversed(steps)]

    # ------------------------------------------------------------------ the cache

    def _is_inside(self) -> bool:
        return self._cache.access.is_held_here()

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
                raise self._closed_error(run_id) from cause
            if is_busy(cause):
                raise failed(run_id, f"the {self} was locked by another process for {BUSY_TIMEOUT} s") from cause
            kind = failed if isinstance(cause, sqlite3.OperationalError | OSError) else damaged
            raise kind(run_id, f"the {self} failed: {cause}") from cause


_HEAD_PREFIX = "run:"
_ROW_PREFIX = "row:"
_NUMBER_KEY = "number of runs"
_ID_KEY = "id"


def _head_key(run_id: str) -> str:
    return f"{_HEAD_PREFIX}{run_id}"


def _row_key(run_id: str, step: int | str) -> str:
    return f"{_ROW_PREFIX}{run_id}@{step}"


_DELETE_WITHIN = "DELETE FROM Cache WHERE (key > ? AND key < ?) OR (key > ? AND key < ?)"


def _bounds_within(run_id: str) -> tuple[str, ...]:
    """-> the bounds between which the keys of all that is within a run are: of heads, and of rows."""
    return tuple(f"{prefix}{bound}" for prefix in (_HEAD_PREFIX, _ROW_PREFIX) for bound in ids_within(run_id))


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
