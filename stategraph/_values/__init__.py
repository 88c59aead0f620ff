"""Immutable values that a State is made of, or tells of."""
