"""Decide how a run begins, continues, pauses and ends, without I/O."""
