"""Tracebacks that begin where the users' code does."""

from __future__ import annotations

import sys
from types import TracebackType

_OURS = __name__.partition(".")[0]


def begin_with_users(error: BaseException) -> None:
    """Leave out of a traceback, and out of those of the exceptions in a group, the calls before the users' first one.

    They are ours, and those of the standard library that we make. Of an error that is all ours, the last call stays.
    """
    error.__traceback__ = users_part(error.__traceback__)
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            begin_with_users(part)


def users_part(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback from the users' first call on; of one that is all ours, its end."""
    at = behind_ours = traceback
    while at is not None:
        room = _room_of(at)
        if room != _OURS and room not in sys.stdlib_module_names:
            return at
        if room == _OURS:
            behind_ours = at.tb_next or at
        at = at.tb_next
    return behind_ours


def is_ours(traceback: TracebackType) -> bool:
    """Return whether the first call of a traceback is one of stategraph."""
    return _room_of(traceback) == _OURS


def _room_of(traceback: TracebackType) -> str:
    return str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
