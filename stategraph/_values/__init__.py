"""Immutable values that States consist of, or refer to."""
