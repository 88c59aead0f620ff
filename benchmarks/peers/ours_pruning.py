"""stategraph, removing many runs at once."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks import scratch
from benchmarks.measure import Run
from stategraph import RunStatus, State
from stategraph.stores import DiskStore, SqliteStore
from stategraph.stores._rows.store import RowStore
from stategraph.stores.base import RetentionPolicy

_OVER = RetentionPolicy(ttl=1.0)
_LONG_AGO = datetime(2024, 1, 1, tzinfo=UTC)
_THREADS = 32


def pruned_on_sqlite(steps: int) -> Run:
    """The runs of a "sqlite" store."""
    return _copy(SqliteStore, _sqlite(steps)).prune


def pruned_on_disk(steps: int) -> Run:
    """The runs of a "disk" store."""
    return _copy(DiskStore, _disk(steps)).prune


def longest_wait(steps: int) -> Callable[[], float]:
    """-> seconds that another connection waited at most to write, while the runs were removed."""
    store = _copy(SqliteStore, _sqlite(steps))

    def run() -> float:
        is_over = threading.Event()
        longest = [0.0]
        other = threading.Thread(target=_write, args=(store.path, is_over, longest))
        other.start()
        store.prune()
        is_over.set()
        other.join()
        return longest[0]

    return run


def _write(path: Path, is_over: threading.Event, longest: list[float]) -> None:
    database = sqlite3.connect(path, isolation_level=None, timeout=60)
    while not is_over.wait(0.001):
        started = perf_counter()
        database.execute("BEGIN IMMEDIATE")
        longest[0] = max(longest[0], perf_counter() - started)
        database.execute("ROLLBACK")
    database.close()


def _copy(kind: type[SqliteStore | DiskStore], prepared: Path) -> RowStore:
    folder = scratch.folder() / "runs"
    shutil.copytree(prepared, folder)
    store = kind(folder / "store")
    scratch.at_end(store.close)
    return store


def _fill(kind: type[SqliteStore | DiskStore], folder: Path, steps: int) -> None:
    store = kind(folder / "store")
    with ThreadPoolExecutor(_THREADS) as threads:  # which share commits
        threads.map(partial(_save, store), range(steps))
    store.close()


def _save(store: RowStore, number: int) -> None:
    run_id = f"run-{number}"
    store.retain(run_id, _OVER)
    store.save(State({"n": number}, run_id=run_id, step=3, status=RunStatus.COMPLETED, timestamp=_LONG_AGO))


_sqlite = scratch.prepared(lambda folder, steps: _fill(SqliteStore, folder, steps))
_disk = scratch.prepared(lambda folder, steps: _fill(DiskStore, folder, steps))
