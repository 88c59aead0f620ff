"""The work of the rows about a large State: much that stays, and one counter that every step changes."""

from __future__ import annotations

DOCUMENTS = tuple(f"{number:08d}" * 128 for number in range(1000))


KEYS = 100_000


def of_many_keys() -> dict[str, int]:
    """A State of 100,000 keys, in which the run begins: all stay as they are, but for a counter."""
    return {**dict.fromkeys(map("key-{}".format, range(KEYS)), 0), "n": 0, "total": 0}


def start() -> dict[str, object]:
    """The State in which the run begins."""
    return {"documents": [*DOCUMENTS], "n": 0, "total": 0}
