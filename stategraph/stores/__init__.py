"""Where States are kept: the contract, the registry, and the stores that come with stategraph."""

from stategraph.stores.base import CheckpointStore
from stategraph.stores.policy import Policy
from stategraph.stores.registry import get_checkpoint_store, register_checkpoint_store
from stategraph.stores.summaries import Difference, Pruned, Summary

__all__ = [
    "CheckpointStore",
    "Difference",
    "Policy",
    "Pruned",
    "Summary",
    "get_checkpoint_store",
    "register_checkpoint_store",
]
