"""Stores whose runs can be written as lines, and read again."""

from __future__ import annotations

from stategraph.cli._exits import Exit, Failure
from stategraph.stores._rows.store import RowStore
from stategraph.stores.base import CheckpointStore


def row_store(store: CheckpointStore) -> RowStore:
    """Return the store, if it is one of these."""
    if not isinstance(store, RowStore):
        raise Failure(
            Exit.USAGE, f"the {store} keeps its runs in a way of its own: they cannot be exported or imported"
        )
    return store
