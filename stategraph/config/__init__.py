"""How a graph is configured: GraphConfig and CheckpointConfig, from code, a mapping or a file."""

from stategraph.config.checkpoint import CheckpointConfig, Durability, Retention
from stategraph.config.graph import GraphConfig

__all__ = ["CheckpointConfig", "Durability", "GraphConfig", "Retention"]
