"""stategraph, removing many runs at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter

from benchmarks import scratch
from benchmarks.measure import Run
from stategraph import RunStatus, State
from stategraph.stores import DiskStore, SqliteStore
from stategraph.stores._rows.records import Write
from stategraph.stores._rows.store import RowStore
from stategraph.stores._rows.table import Outcome
from stategraph.stores.base import RetentionPolicy

_OVER = RetentionPolicy(ttl=1.0)
_LONG_AGO = datetime(2024, 1, 1, tzinfo=UTC)
_THREADS = 32


def pruned_on_sqlite(steps: int) -> Run:
    """The runs of a "sqlite" store."""
    return _copy(SqliteStore, many_runs(steps)).prune


def pruned_on_disk(steps: int) -> Run:
    """The runs of a "disk" store."""
    return _copy(DiskStore, _disk(steps)).prune


def longest_transaction(steps: int) -> Callable[[], float]:
    """Return seconds that the store was locked for others at most, while the runs were removed; commits included."""
    store = _copy(SqliteStore, many_runs(steps))
    table, longest = store._log.table, [0.0]
    commit = table.commit

    def noting(writes: Sequence[Write]) -> list[Outcome]:
        started = perf_counter()
        outcomes = commit(writes)
        longest[0] = max(longest[0], perf_counter() - started)
        return outcomes

    table.commit = noting  # type: ignore[method-assign]

    def run() -> float:
        store.prune()
        return longest[0]

    return run


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


many_runs = scratch.prepared(lambda folder, steps: _fill(SqliteStore, folder, steps))
_disk = scratch.prepared(lambda folder, steps: _fill(DiskStore, folder, steps))
