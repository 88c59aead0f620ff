"""The registry of stores: finds one by its name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from stategraph._values.registry import Registry
from stategraph.errors import ConfigError
from stategraph.stores.base import CheckpointStore


def _memory() -> CheckpointStore:
    from stategraph.stores.memory import MemoryStore

    return MemoryStore()


def _bundled() -> Mapping[str, tuple[Any, Any]]:
    from stategraph.stores._bundled import BUNDLED

    return BUNDLED


_stores: Registry[CheckpointStore] = Registry(
    "checkpoint store",
    "stategraph.stores",
    is_instance=lambda entry: isinstance(entry, CheckpointStore),
    is_usable=lambda store: not store.closed,
    bundled=_bundled,
)
_stores.register("memory", _memory)


def register_checkpoint_store(name: str, store: CheckpointStore | Callable[..., CheckpointStore]) -> None:
    """Make a store known by name: an instance, or a class or function called with the ``options`` of the config.

    A store known by that name before is replaced. An installed package can instead name its stores in the entry-point
    group ``stategraph.stores``.

    Args:
        name: The name.
        store: A CheckpointStore, or a class or function that returns one.

    Raises:
        ConfigError: The name is empty, or `store` is neither.
    """
    _stores.register(name, store)


def get_checkpoint_store(name: str, **options: Any) -> CheckpointStore:
    """Return the store with this name: the same object for the same options, until it is closed.

    Raises:
        UnknownNameError: No store has this name; the message lists those that exist.
        ConfigError: The store does not take these options.
    """
    return _stores.get(name, options)


def is_memory_store(store: object) -> bool:
    """Return whether a store that was given is a memory store; where its module was never imported, none is."""
    memory = sys.modules.get("stategraph.stores.memory")
    return memory is not None and isinstance(store, memory.MemoryStore)


def checked_store(store: object) -> CheckpointStore:
    """Return a store that was given in place of a name. Raises ConfigError if it is none."""
    if isinstance(store, CheckpointStore):
        return store
    allowed = "a CheckpointStore; names go into CheckpointConfig(store=...), classes derive from it"
    raise ConfigError("store", store, allowed)
