"""Where States are kept: the contract, the registry, and the stores that come with stategraph."""

from stategraph.stores.base import CheckpointStore
from stategraph.stores.registry import get_checkpoint_store, register_checkpoint_store

__all__ = ["CheckpointStore", "get_checkpoint_store", "register_checkpoint_store"]
