"""Types whose values have no parts."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from uuid import UUID

ATOMS: frozenset[type] = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, Decimal, UUID}
    | {date, time, datetime, timedelta, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath}
)
"""Immutable types without parts. The types themselves: a subclass may carry more, and is not one of these."""
