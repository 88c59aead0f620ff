"""stategraph, as far as it owns runs: the same run again and again, by one thread."""

from __future__ import annotations

from benchmarks import scratch
from benchmarks.measure import Run
from stategraph import CheckpointStore
from stategraph._owners.base import Ownership, own, release
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore


def owned_in_memory(steps: int) -> Run:
    """Within the process."""
    return _owning(steps, MemoryStore())


def owned_on_sqlite(steps: int) -> Run:
    """Among all processes of the machine."""
    store = SqliteStore(scratch.folder() / "runs.db")
    scratch.at_end(store.close)
    return _owning(steps, store)


def _owning(steps: int, store: CheckpointStore) -> Run:
    def run() -> None:
        for _ in range(steps):
            ownership = Ownership("order-1")
            own(store, ownership)
            release(ownership)

    return run
