"""Ownership of runs."""
