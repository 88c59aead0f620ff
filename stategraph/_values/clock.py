"""The sources of time and of new run ids, in one place, so that `stategraph.testing.fixed` can replace them.

Call them as ``clock.now_ns()``: a name imported from here would not be replaced.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AS_FLOAT = 2**32 * 1_000_000  # microseconds until 2106: up to then, floats of seconds are exact


def _random_run_id() -> str:
    return str(uuid4())


now_ns: Callable[[], int] = time.time_ns
"""Returns the time in nanoseconds since 1970, UTC."""

pause: Callable[[float], float] = float
"""Returns how long to sleep for a delay in seconds. A fixed clock passes the time instead."""

monotonic_ns: Callable[[], int] = time.monotonic_ns
"""Returns the time of a monotonic clock in nanoseconds, for durations."""

new_run_id: Callable[[], str] = _random_run_id
"""Returns a new run id."""


def to_datetime(ns: int) -> datetime:
    """Return a time from `now_ns` as an aware datetime in UTC, with microseconds."""
    microseconds = ns // 1000
    if 0 <= microseconds < _AS_FLOAT:  # three times as fast
        return datetime.fromtimestamp(microseconds / 1e6, UTC)
    return _EPOCH + timedelta(microseconds=microseconds)


def to_ns(time: datetime) -> int:
    """Return an aware datetime as nanoseconds since 1970; `to_datetime` returns the same time."""
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000
