"""Nodes that are generators."""
