"""The work of the rows about a large State: 1 MB of documents that stay, and one counter that every step changes."""

from __future__ import annotations

DOCUMENTS = tuple(f"{number:08d}" * 128 for number in range(1000))


def start() -> dict[str, object]:
    """The State in which the run begins."""
    return {"documents": [*DOCUMENTS], "n": 0, "total": 0}
