"""Time and ids that a test decides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from stategraph._values import clock

_BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)


@contextmanager
def fixed(start: datetime = _BEGINNING, tick: timedelta = timedelta(seconds=1)) -> Iterator[None]:
    """Fix time and ids: the clock begins at `start` and goes on by `tick` whenever it is read, steps take no time, and
    new runs are named ``run-1``, ``run-2`` and so on.

    It holds for the whole process, so tests that use it do not run in threads side by side.

    Args:
        start: The first time; aware.
        tick: How far the clock goes on; may be negative.
    """
    times = (clock.to_ns(start + count * tick) for count in itertools.count())
    ids = (f"run-{count}" for count in itertools.count(1))
    before = clock.now_ns, clock.monotonic_ns, clock.new_run_id
    clock.now_ns, clock.monotonic_ns, clock.new_run_id = times.__next__, int, ids.__next__
    try:
        yield
    finally:
        clock.now_ns, clock.monotonic_ns, clock.new_run_id = before
