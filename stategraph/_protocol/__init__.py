"""The protocol between nodes, engine and drivers."""
