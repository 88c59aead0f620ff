"""Checkpoint stores: what a store promises, and the registry that finds one by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stategraph.stores.base import CheckpointStore
from stategraph.stores.registry import get_checkpoint_store, register_checkpoint_store
from stategraph.stores.retention import Policy
from stategraph.stores.summaries import Difference, Pruned, Summary

if TYPE_CHECKING:
    from stategraph.stores.serializers import Serializer, register_serializer

__all__ = [
    "CheckpointStore",
    "Difference",
    "Policy",
    "Pruned",
    "Serializer",
    "Summary",
    "get_checkpoint_store",
    "register_checkpoint_store",
    "register_serializer",
]


def __getattr__(name: str) -> Any:
    """Import serializers when they are used first: they take 20 ms."""
    if name not in ("Serializer", "register_serializer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stategraph.stores import serializers

    return getattr(serializers, name)
