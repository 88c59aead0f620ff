"""What may be asked of a list of runs: a status, a limit, and the cursor where it goes on."""

from __future__ import annotations

from stategraph._values.provenance import RunStatus
from stategraph.errors import shorten


def check_status(status: str | None) -> None:
    """Raise ValueError unless a run can have this status, or it is None."""
    if status is not None and status not in list(RunStatus):
        raise ValueError(f"status: {shorten(status)} is not allowed; {', '.join(RunStatus)} are")


def check_limit(limit: int) -> int:
    """Return a limit. Raises ValueError unless it is one."""
    if type(limit) is not int or not 1 <= limit <= _LARGEST:
        raise ValueError(f"limit: {shorten(limit)} is not allowed; a whole number from 1 to {_LARGEST} is")
    return limit


def from_cursor(cursor: str | None) -> int | None:
    """Return the number that a cursor stands for. Raises ValueError unless it is a cursor."""
    if cursor is None:
        return None
    is_number = isinstance(cursor, str) and cursor.isdecimal() and cursor.isascii()
    if is_number and len(cursor) <= len(str(_LARGEST)) and int(cursor) <= _LARGEST:
        return int(cursor)
    raise ValueError(f"after: {shorten(cursor)} is not allowed; the cursor of a summary is, from runs() of this store")


_LARGEST = 2**63 - 1
"""The largest number that stores count to."""
