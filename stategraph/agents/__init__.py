"""Agents of other libraries inside of nodes: each module makes those of one library durable, and imports it."""
