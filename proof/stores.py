"""The stores that proofs try."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stategraph.stores import CheckpointStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.postgres_server import postgres_at
from tests.redis_server import redis_at

STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "memory": lambda folder: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "runs.db"),
    "postgres": postgres_at,
    "redis": redis_at,
}
"""Functions that open a store in a folder."""
REMOTE = ("postgres", "redis")
"""The stores on servers, which are slower: proofs try less on them."""
