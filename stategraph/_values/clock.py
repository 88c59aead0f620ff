"""Where time and new ids come from: one place, so that both can be replaced.

`stategraph.testing.fixed` replaces them; nothing else should. They are called as ``clock.now_ns()``, never imported by
name, so that a replacement is seen.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AS_FLOAT = 2**32 * 1_000_000  # microseconds, until 2106: until then, floats of seconds are exact


def _random_run_id() -> str:
    return str(uuid4())


now_ns: Callable[[], int] = time.time_ns
"""The time in nanoseconds since 1970, UTC: an int, because every step takes it and few programs read it."""

monotonic_ns: Callable[[], int] = time.monotonic_ns
"""A clock that never goes back, in nanoseconds, for how long something takes."""

new_run_id: Callable[[], str] = _random_run_id
"""A new run id."""


def to_datetime(ns: int) -> datetime:
    """Return a time from `now_ns` as an aware datetime in UTC, down to the microsecond."""
    microseconds = ns // 1000
    if 0 <= microseconds < _AS_FLOAT:  # in a third of the time
        return datetime.fromtimestamp(microseconds / 1e6, UTC)
    return _EPOCH + timedelta(microseconds=microseconds)


def to_ns(time: datetime) -> int:
    """Return an aware datetime as nanoseconds since 1970; `to_datetime` gives the same time back."""
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000
