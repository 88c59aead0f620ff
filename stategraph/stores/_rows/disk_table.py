"""The records of a "disk" store, as keys and values of a cache.

Each row has a key of its own and names the row before it; the record of a run names the newest.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import diskcache
from diskcache.core import DBNAME

from stategraph._owners.file_holds import Fence, FileHolds, SeenHolds
from stategraph._owners.holds import Hold, acting, lost
from stategraph._values.ids import PARTS, check_stored_id, given_id, is_nested_id, nested_range
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointSaveError,
    FormatError,
    InvalidRunIdError,
)
from stategraph.stores._checks import RunFilter
from stategraph.stores._files.read_cache import ReadCache
from stategraph.stores._files.safe_diskcache import SafeCache, check_database
from stategraph.stores._files.sqlite_files import BUSY_TIMEOUT, fetch_damaged_text, is_busy, is_damage
from stategraph.stores._rows.columns import no_run, pack_row, pack_run, unpack_row, unpack_run
from stategraph.stores._rows.disk_keys import (
    FENCE_PREFIX,
    ID_KEY,
    NUMBER_KEY,
    RUN_PREFIX,
    key_range,
    nested_bounds,
    row_key,
    run_key,
)
from stategraph.stores._rows.records import MAX_STEP, CheckpointRecord, RunRecord, Unreadable, WriteBatch
from stategraph.stores._rows.table import MANY, Held, Identify, Table, closed_error, read_only_error, while_short


class DiskTable(Table):
    """Keeps records in a cache.

    Args:
        store: The store, as errors name it.
        path: The folder of the cache.
        identify: Called with the id of the store.
        read_only: Whether nothing may be written.

    Attributes:
        cache: The cache.
    """

    removed_together = MANY

    def __init__(self, store: object, path: Path, identify: Identify, *, read_only: bool = False) -> None:
        self.store, self._read_only = store, read_only
        self.closed = False
        if not read_only:
            check_database(path / DBNAME)
        with self._explained("", damaged=FormatError):
            # One that is only read has what reading takes; nothing else is asked of it.
            self.cache = cast(SafeCache, ReadCache(path / DBNAME)) if read_only else SafeCache(str(path))
            identify(self._store_id(path))
        self.owners = SeenHolds(path / "owners") if read_only else FileHolds.at(path / "owners")

    def _store_id(self, path: Path) -> bytes:
        """Return what tells this store from all others; a new store gets it here."""
        if not self._read_only:
            self.cache.add(ID_KEY, os.urandom(16))
        found: bytes | None = self.cache.get(ID_KEY)
        if found is None:
            raise FormatError("", f"{path} is empty: no store was made in it yet; one that is not read-only makes it")
        return found

    def close(self) -> None:
        with self.cache.access.to_write(self.store):
            self.closed = True
        if self.owners is not None:
            self.owners.leave()
            self.owners = None
        self.cache.shut()  # it waits for each thread: two that close must not wait for each other

    def is_in_use(self) -> bool:
        return self.cache.access.is_held_here()

    def at_rest(self) -> AbstractContextManager[object]:
        return self.cache.at_rest()

    def renew(self) -> None:
        self.cache.renew()

    @contextmanager
    def _writing(self, run_id: str, failed: type[CheckpointError] = CheckpointError) -> Iterator[None]:
        """Do what follows in a transaction; raise `failed` if that fails."""
        if self._read_only:
            raise read_only_error(self.store, run_id, failed)
        with self._explained(run_id, failed), self.cache.transaction(self.store):
            yield

    # ------------------------------------------------------------------ rows

    def apply(self, batches: Sequence[WriteBatch]) -> Sequence[bool]:
        run_id = batches[0].run.run_id
        with self._writing(run_id, CheckpointSaveError):
            written = [self.write(batch) for batch in batches]
        self.cache.files.check(self)
        return written

    def write(self, batch: WriteBatch) -> bool:
        """Write one batch within a transaction; return whether its run had the version for it."""
        run_id = batch.run.run_id
        if batch.hold is not None and self._is_lost(batch.hold):
            return False
        if batch.outer is not None:
            outer = self._read_run(given_id(run_id))
            if outer is None or outer.incarnation != batch.outer:
                return False
        old = self._read_run(run_id)
        if (old and old.version) != (batch.old and batch.old.version):
            return False
        number = old.number if old else self._next_number()
        self.cache.set(run_key(run_id), pack_run(batch.run._replace(number=number)))
        newest = old.sequence if old else None
        highest = batch.cut_above
        if highest is not None:
            newest = self._cut_rows(run_id, lambda sequence: sequence > highest)
        for row in batch.put:
            kept = self.cache.get(row_key(run_id, row.sequence))
            previous = newest if kept is None else _unpacked(run_id, row.sequence, kept)[1]
            self.cache.set(row_key(run_id, row.sequence), pack_row(row, previous))
            newest = row.sequence
        if batch.cut_below:
            self._cut_rows(run_id, lambda sequence: sequence < batch.cut_below)
        if batch.cut_nested:
            self.cache.connection.execute(_DELETE_NESTED, nested_bounds(run_id))
        elif batch.cut_parts:
            self.cache.connection.execute(_DELETE_PARTS, (*nested_bounds(run_id), PARTS))
        return True

    def _cut_rows(self, run_id: str, is_over: Callable[[int], bool]) -> int | None:
        """Delete some of the rows of a run; return the sequence number of the newest that is left."""
        sequences = self._sequences(run_id)
        for sequence in filter(is_over, sequences):
            self.cache.delete(row_key(run_id, sequence))
        return next((sequence for sequence in reversed(sequences) if not is_over(sequence)), None)

    def _next_number(self) -> int:
        number = int(self.cache.get(NUMBER_KEY, b"0")) + 1
        self.cache.set(NUMBER_KEY, b"%d" % number)
        return number

    def _sequences(self, run_id: str, last: int = MAX_STEP) -> list[int]:
        """Return the sequence numbers of the rows of a run up to the last, in order.

        By their keys: where a row is lost, those before it are still there, and show that it was.
        """
        select = "SELECT substr(key, ?) FROM Cache WHERE key > ? AND key < ? AND raw = 1"
        prefix = row_key(run_id, "")
        found = fetch_damaged_text(self.cache.connection, select, (len(prefix) + 1, *key_range(prefix)))
        return sorted(int(sequence) for (sequence,) in found if sequence.isdecimal() and int(sequence) <= last)

    # ------------------------------------------------------------------ owners

    def _is_lost(self, hold: Hold) -> bool:
        """Return, within a transaction, whether the run of a hold was taken from it; tell it of a cancellation."""
        number, is_cancelled = self._read_fence(hold.run_id)
        if is_cancelled:
            hold.is_cancelled = True
        return hold.is_lost or number != hold.fence

    def _read_fence(self, run_id: str) -> Fence:
        number, _, cancelled = self._fence_entry(run_id).partition(b" ")
        return int(number), bool(cancelled)

    def _fence_entry(self, run_id: str) -> bytes:
        """Return the number of the fence of a run, and of one that is cancelled also that, and by whom."""
        entry: bytes = self.cache.get(f"{FENCE_PREFIX}{run_id}", b"0")
        return entry

    def fence(self, run_id: str) -> Fence:
        with self._explained(run_id), self.cache.reading(self.store):
            return self._read_fence(run_id)

    def raise_fence(self, run_id: str) -> Fence:
        with self._writing(run_id):
            number, *cancelled = self._fence_entry(run_id).split(b" ", 1)
            self.cache.set(f"{FENCE_PREFIX}{run_id}", b" ".join((b"%d" % (int(number) + 1), *cancelled)))
            return int(number) + 1, bool(cancelled)

    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        with self._writing(run_id):
            number, was_cancelled = self._read_fence(run_id)
            if not (was_cancelled and is_cancelled):
                entry = b"%d" % number
                if is_cancelled:
                    entry += b" cancelled" if by is None else b" cancelled " + by.encode()
                self.cache.set(f"{FENCE_PREFIX}{run_id}", entry)

    def cancelled_by(self, run_id: str) -> str | None:
        with self._explained(run_id), self.cache.reading(self.store):
            _, _, *by = self._fence_entry(run_id).split(b" ", 2)
        return by[0].decode() if by else None

    # ------------------------------------------------------------------ removing

    def remove(self, run_id: str, version: int | None = None) -> bool:
        # By their keys: this is the way out when what stands in the rows is damaged.
        with self._writing(run_id):
            if acting.hold is not None and self._is_lost(acting.hold):
                raise lost(given_id(run_id))
            return self._is_deleted(run_id, version)

    def remove_all(self, runs: Sequence[Held]) -> Sequence[bool]:
        def remove(some: Sequence[Held]) -> list[bool]:
            return [not self._is_lost(hold) and self._is_deleted(run.run_id, run.version) for run, hold in some]

        with self._writing(""):
            return while_short(runs, remove)

    def _is_deleted(self, run_id: str, version: int | None) -> bool:
        """Delete a run within a transaction; return whether it had this version."""
        if version is not None:
            run = self._read_run(run_id)
            if run is None or run.version != version:
                return False
        delete = "DELETE FROM Cache WHERE key = ? OR (key > ? AND key < ?)"
        found = self.cache.connection.execute(delete, (run_key(run_id), *key_range(row_key(run_id, "")))).rowcount
        self.cache.connection.execute(_DELETE_NESTED, nested_bounds(run_id))
        return found > 0

    def remove_damaged(self, run_id: str) -> bool:
        try:
            told, rows = (text.encode(errors="surrogateescape") for text in (run_id, row_key(run_id, "")))
        except UnicodeEncodeError:  # it is not what `runs` reports of a text that is no UTF-8
            return False
        with self._writing(run_id):
            delete = "DELETE FROM Cache WHERE key > ? AND key < ? AND CAST(substr(key, ?) AS BLOB) = ?"
            bounds = (*key_range(RUN_PREFIX), len(RUN_PREFIX) + 1)
            found = self.cache.connection.execute(delete, (*bounds, told)).rowcount
            self.cache.connection.execute(
                "DELETE FROM Cache WHERE substr(CAST(key AS BLOB), 1, ?) = ?", (len(rows), rows)
            )
            return found > 0

    def erase(self) -> None:
        if not self._read_only:
            with self._explained(""):
                self.cache.erase(self.store)

    def run(self, run_id: str) -> RunRecord | None:
        with self._explained(run_id), self.cache.reading(self.store):
            return self._read_run(run_id)

    def _read_run(self, run_id: str) -> RunRecord | None:
        kept = self.cache.get(run_key(run_id))
        return None if kept is None else unpack_run(run_id, kept, self)

    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        shown = which.parent is None
        found = [
            self._found_run(*row)
            for row in self._found_runs(*key_range(RUN_PREFIX))
            if not (shown and is_nested_id(row[0]))
        ]
        wanted = [
            run
            for run in found
            if isinstance(run, Unreadable)
            or (
                which.status in (None, run.status)
                and which.graph in (None, run.graph)
                and (shown or (run.parent is not None and run.parent.run_id == which.parent))
                and (before is None or run.number < before)
            )
        ]
        wanted.sort(key=lambda run: run.number or 0, reverse=True)
        return wanted if limit < 0 else wanted[:limit]

    def some_runs(self, limit: int) -> list[RunRecord | Unreadable]:
        return [self._found_run(*row) for row in self._found_runs(*key_range(RUN_PREFIX), limit)]

    def _found_runs(self, first: str, last: str, limit: int = -1) -> list[tuple[str, Any, Any, Any]]:
        """Return what the cache has under the keys of runs between these, after the ids of the runs."""
        select = "SELECT substr(key, ?), mode, filename, value FROM Cache WHERE key > ? AND key < ? AND raw = 1 LIMIT ?"
        with self._explained(""), self.cache.reading(self.store):
            return fetch_damaged_text(self.cache.connection, select, (len(RUN_PREFIX) + 1, first, last, limit))

    def _found_run(self, run_id: str, mode: Any, filename: Any, value: Any) -> RunRecord | Unreadable:
        try:
            with self._explained(run_id):
                self._check_stored_id(run_id)
                return unpack_run(run_id, self.cache.disk.fetch(mode, filename, value, read=False), self)
        except CheckpointCorruptError as error:
            return Unreadable(run_id, None, error)

    def _check_stored_id(self, run_id: str) -> None:
        try:
            check_stored_id(run_id)
        except InvalidRunIdError as error:
            raise no_run(run_id, f"its key {error}", self) from error

    def problems(self) -> list[str]:
        with self._explained(""), self.cache.reading(self.store):
            found = [str(text) for (text,) in self.cache.connection.execute("PRAGMA integrity_check(10)")]
        return [] if found == ["ok"] else found

    def change_token(self) -> str:
        with self._explained(""):
            return str(self.cache.change_token(self.store))

    def nested_ids(self, run_id: str) -> list[str]:
        first, last = nested_range(run_id)
        return [row[0] for row in self._found_runs(f"{RUN_PREFIX}{first}", f"{RUN_PREFIX}{last}")]

    def chain(self, run_id: str, sequence: int | None) -> list[CheckpointRecord]:
        rows: list[CheckpointRecord] = []
        with self._explained(run_id), self.cache.snapshot(self.store):
            run = self._read_run(run_id)
            if run is None:
                return []
            wanted: int | None = run.sequence if sequence is None else sequence
            while wanted is not None and (not rows or rows[-1].base <= wanted < rows[-1].sequence):
                kept = self.cache.get(row_key(run_id, wanted))
                if kept is None and not rows and wanted != run.sequence:
                    return []
                if kept is None and wanted == run.sequence:
                    raise CheckpointCorruptError(run_id, f"its newest step {run.step} is missing")
                row, wanted = _unpacked(run_id, wanted, kept)
                rows.append(row)
        rows.reverse()
        return rows

    def index(self, run_id: str, first: int = 0, last: int = MAX_STEP) -> list[CheckpointRecord]:
        with self._explained(run_id), self.cache.snapshot(self.store):
            run = self._read_run(run_id)
            found = self._sequences(run_id, min(last, run.sequence)) if run else []
            sequences = (at for at in found if at >= first)
            return [_unpacked(run_id, at, self.cache.get(row_key(run_id, at)))[0] for at in sequences]

    def find(self, run_id: str, step: int, last: int, revision: int | None) -> int | None:
        with self._explained(run_id), self.cache.snapshot(self.store):
            if last - step < _MOST_TRIED:
                sequences: Iterable[int] = range(last, step - 1, -1)
            else:  # the run was taken back a long way
                sequences = reversed(self._sequences(run_id, last))
            for sequence in sequences:
                kept = self.cache.get(row_key(run_id, sequence))
                row = None if kept is None else _unpacked(run_id, sequence, kept)[0]
                if row is not None and row.step == step and revision in (None, row.revision):
                    return sequence
        return None

    # ------------------------------------------------------------------ the cache

    @contextmanager
    def _explained(
        self,
        run_id: str,
        failed: type[CheckpointError] = CheckpointError,
        damaged: type[CheckpointError] = CheckpointCorruptError,
    ) -> Iterator[None]:
        """Raise errors of SQLite and of the file system as errors of stategraph."""
        try:
            yield
        except CheckpointError as error:
            error.run_id = error.run_id or run_id
            raise
        except _FAILURES as error:
            cause = error.__context__ if isinstance(error, diskcache.Timeout) and error.__context__ else error
            if self.closed:
                raise closed_error(self.store, run_id) from cause
            if is_busy(cause):
                raise failed(run_id, f"the {self} was locked by another process for {BUSY_TIMEOUT} s") from cause
            kind = failed if isinstance(cause, sqlite3.OperationalError | OSError) and not is_damage(cause) else damaged
            raise kind(run_id, f"the {self} failed: {cause}") from cause


_FAILURES = (sqlite3.Error, OSError, ValueError, TypeError, diskcache.Timeout)  # also of what others have written
_MOST_TRIED = 1_000  # keys that are looked for without knowing whether there is such a row
_DELETE_PARTS = "DELETE FROM Cache WHERE ((key > ? AND key < ?) OR (key > ? AND key < ?)) AND key GLOB ?"
_DELETE_NESTED = "DELETE FROM Cache WHERE (key > ? AND key < ?) OR (key > ? AND key < ?)"


def _unpacked(run_id: str, sequence: int, kept: bytes | None) -> tuple[CheckpointRecord, int | None]:
    """Return the row with a sequence number, and the number of the row before it."""
    if kept is None:
        raise CheckpointCorruptError(run_id, f"its checkpoint number {sequence} is missing")
    row, previous = unpack_row(run_id, kept)
    if row.sequence != sequence or not (previous is None or (type(previous) is int and 0 <= previous < sequence)):
        raise CheckpointCorruptError(run_id, f"what the store holds for its number {sequence} is no checkpoint of it")
    return row, previous
