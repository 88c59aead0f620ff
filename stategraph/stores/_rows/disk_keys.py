"""The keys under which a cache holds what a "disk" store keeps."""

from __future__ import annotations

from stategraph._values.ids import nested_range

RUN_PREFIX = "run:"
ROW_PREFIX = "row:"
FENCE_PREFIX = "fence:"
NUMBER_KEY = "number of runs"
ID_KEY = "id"


def run_key(run_id: str) -> str:
    return f"{RUN_PREFIX}{run_id}"


def row_key(run_id: str, sequence: int | str) -> str:
    return f"{ROW_PREFIX}{run_id}!{sequence}"


def nested_bounds(run_id: str) -> tuple[str, ...]:
    """Return the bounds between which the keys of all nested runs are: those of their records, and of their rows."""
    return tuple(f"{prefix}{bound}" for prefix in (RUN_PREFIX, ROW_PREFIX) for bound in nested_range(run_id))


def key_range(prefix: str) -> tuple[str, str]:
    """Return the bounds between which the keys with a prefix are."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)
