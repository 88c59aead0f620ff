"""Decisions: how a run begins, goes on, pauses and ends. No I/O."""
