"""Checkpoint stores: their interface, and the registry that finds one by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stategraph.stores.base import CheckpointStore, Policy, RetentionPolicy
from stategraph.stores.registry import get_checkpoint_store, register_checkpoint_store

if TYPE_CHECKING:
    from stategraph._values.provenance import Kind
    from stategraph.stores._codec.type_codecs import Opaque
    from stategraph.stores.disk import DiskStore
    from stategraph.stores.memory import MemoryStore
    from stategraph.stores.postgres import PostgresStore
    from stategraph.stores.redis import RedisStore
    from stategraph.stores.serializers import Serializer, register_serializer
    from stategraph.stores.sqlite import SqliteStore
    from stategraph.stores.summaries import Damage, Difference, Pruned, Rekeyed, Replayed, Summary, UnderWay, Verified

__all__ = [
    "CheckpointStore",
    "Damage",
    "Difference",
    "DiskStore",
    "Kind",
    "MemoryStore",
    "Opaque",
    "Policy",
    "PostgresStore",
    "Pruned",
    "RedisStore",
    "Rekeyed",
    "Replayed",
    "RetentionPolicy",
    "Serializer",
    "SqliteStore",
    "Summary",
    "UnderWay",
    "Verified",
    "get_checkpoint_store",
    "register_checkpoint_store",
    "register_serializer",
]


_LAZY = {"DiskStore": "disk", "MemoryStore": "memory", "SqliteStore": "sqlite"}
_LAZY |= {"PostgresStore": "postgres", "RedisStore": "redis"}
_LAZY |= {"Opaque": "_codec.type_codecs"}
_LAZY |= dict.fromkeys(("Serializer", "register_serializer"), "serializers")
_LAZY |= dict.fromkeys(
    ("Damage", "Difference", "Kind", "Pruned", "Rekeyed", "Replayed", "Summary", "UnderWay", "Verified"), "summaries"
)


def __getattr__(name: str) -> Any:
    """Import names on first use that not every run needs."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
