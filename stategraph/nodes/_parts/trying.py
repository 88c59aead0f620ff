"""How items are tried: how often, for how long, and how many of them begin in a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._util.validators import is_seconds
from stategraph.nodes._parts.jobs import Job, Outcome
from stategraph.policies import RetryPolicy, check_policies


@attrs.frozen
class ItemPolicies:
    """What is said of each item.

    Attributes:
        retry: When and how often an item that failed is tried again.
        timeout: Seconds that one attempt may take.
        rate: How many attempts begin in a second, at most.
    """

    retry: RetryPolicy | None = None
    timeout: float | None = None
    rate: float | None = None

    def __attrs_post_init__(self) -> None:
        check_policies(self.retry, None)
        if self.timeout is not None and not is_seconds(self.timeout):
            raise ValueError(f"timeout: {shorten(self.timeout)} is not allowed; a number of seconds above 0 is")
        if self.rate is not None and not (is_seconds(self.rate) and self.rate >= 1e-9):
            raise ValueError(f"rate: {shorten(self.rate)} is not allowed; a number of items in a second, above 0, is")


class Trying:
    """What the workers of a pool ask before and after each attempt. Any thread may ask."""

    def __init__(self, policies: ItemPolicies) -> None:
        self.timeout = policies.timeout
        self._retry, self._interval = policies.retry, 0.0 if policies.rate is None else 1.0 / policies.rate
        self._next, self._lock = 0.0, threading.Lock()

    def begins_in(self) -> float:
        """Return the seconds until one more attempt may begin, which the caller makes then."""
        if not self._interval:
            return 0.0
        with self._lock:
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + self._interval
        return at - now

    def again(self, job: Job, outcome: Outcome) -> tuple[Job, Outcome] | None:
        """Return the job as it is to be tried again, and what is told of the attempt that failed; None to give up."""
        error = outcome.error or outcome.collected
        if self._retry is None or not isinstance(error, Exception):
            return None
        attempts = job.attempts + 1
        delay = self._retry.delay_after(attempts, error)
        if delay is None:
            return None
        told = Outcome(job.label, error=error, took=outcome.took, attempts=attempts, delay=delay)
        return job.tried(attempts), told

    def too_late(self) -> TimeoutError:
        """Return the error of an attempt that took too long."""
        return TimeoutError(f"it took longer than its timeout of {self.timeout} s")

    def in_time(self, do: Callable[[], Outcome], fail: Callable[[Exception], Outcome]) -> Outcome:
        """Do something that blocks, in a thread that is left to itself if it takes too long."""
        if self.timeout is None:
            return do()
        done: SimpleQueue[Outcome] = SimpleQueue()
        thread = threading.Thread(target=lambda: done.put(do()), name="stategraph part", daemon=True)
        thread.start()
        try:
            return done.get(timeout=min(self.timeout, threading.TIMEOUT_MAX))
        except Empty:
            error = self.too_late()
            error.add_note("its thread cannot be stopped, and goes on by itself")
            return fail(error)


def trying(policies: ItemPolicies | None) -> Trying | None:
    """Return what is asked of how items are tried; None if each is tried once, at once."""
    return None if policies is None or policies == ItemPolicies() else Trying(policies)


def kept_attempts(found: Any) -> int:
    """Return how many attempts had failed that were kept of an item."""
    return found if type(found) is int else 0
