"""A store that saves only some keys."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from stategraph._progress.origins import persisted
from stategraph._protocol.store import Store
from stategraph.state import State


class SelectiveStore:
    """A store that is given only some keys of each State. All other calls go on to the store that it wraps.

    Args:
        store: The store.
        persist: The keys.
    """

    def __init__(self, store: Store, persist: AbstractSet[str]) -> None:
        self._store, self._persist = store, persist

    def save(self, state: State) -> None:
        """Save the keys that are saved."""
        self._store.save(persisted(state, self._persist))

    def save_many(self, states: Sequence[State]) -> None:
        """Save the same keys of several States."""
        self._store.save_many([persisted(state, self._persist) for state in states])

    def amend(self, state: State) -> None:
        """Save the same keys in place of the newest State."""
        self._store.amend(persisted(state, self._persist))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __str__(self) -> str:
        return str(self._store)
