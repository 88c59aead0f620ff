"""Limits of time, and stop signals: they stop a run between two nodes, or cut off a node."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import attrs

from stategraph._protocol import Stopped
from stategraph._util.validators import is_duration
from stategraph._values import clock
from stategraph.errors import ConfigError

MakeError = Callable[[float], BaseException]

_LOOK = 0.05  # seconds between two checks of an event or a clock that does not wake a waiting thread
LOOK_OUT = 0.25
"""Seconds between two looks whether another process has cancelled a run that waits."""


class EitherEvent(threading.Event):
    """An event that also counts as set when another one is set. No caller can wait for it.

    Setting it takes no lock: that of an Event would stay locked if Ctrl-C interrupted `set`.

    Args:
        other: The other one, if there is one.
    """

    def __init__(self, other: threading.Event | None) -> None:
        super().__init__()
        self._other, self._is_set = other, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set or (self._other is not None and self._other.is_set())


class NodeClock:
    """The clock of the limits of nodes. It stands still while the reader of a stream looks at a State."""

    def __init__(self) -> None:
        # When it was stopped, if it stands still, and the time it has skipped: one tuple, because threads read it.
        self._reading: tuple[float | None, float] = None, 0.0

    def now(self) -> float:
        """Return the time, in seconds."""
        stopped_at, skipped = self._reading
        return (time.monotonic() if stopped_at is None else stopped_at) - skipped

    def stop(self) -> None:
        """Stand still."""
        self._reading = time.monotonic(), self._reading[1]

    def go_on(self) -> None:
        """Go on, if it stands still."""
        stopped_at, skipped = self._reading
        if stopped_at is not None:
            self._reading = None, skipped + time.monotonic() - stopped_at


@attrs.frozen
class TimeLimit:
    """A deadline by a clock, and the exception to raise after it."""

    deadline: float
    seconds: float
    error: MakeError
    now: Callable[[], float] = time.monotonic

    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self.deadline - self.now())

    def waits(self) -> Iterator[float]:
        """Yield seconds to wait until the limit has passed: several times if its clock stands still in between."""
        least = 0.0
        while (left := self.left()) > 0:
            yield max(left, least)
            least = _LOOK

    def passed(self) -> BaseException:
        """Return the exception for a limit that has passed."""
        return self.error(self.seconds)


@attrs.frozen
class StopSignal:
    """Stops a run between two nodes.

    Attributes:
        cancel: Stops the run once it is set.
        timeout: The limit of the call.
    """

    cancel: threading.Event | None
    timeout: TimeLimit | None

    @classmethod
    def of(cls, cancel: threading.Event | None, timeout: float | None) -> StopSignal:
        """Return the signal for an event, for a timeout in seconds from now, or for both.

        Raises:
            ConfigError: one of them is invalid.
        """
        if cancel is not None and not callable(getattr(cancel, "is_set", None)):
            raise ConfigError("cancel", cancel, "a threading.Event")
        if timeout is not None and not is_duration(timeout):
            raise ConfigError("timeout", timeout, "a non-negative number of seconds")
        return cls(cancel, None if timeout is None else TimeLimit(time.monotonic() + timeout, timeout, _timed_out))

    def is_due(self) -> bool:
        """Return whether the run should stop."""
        is_cancelled = self.cancel is not None and self.cancel.is_set()
        return is_cancelled or (self.timeout is not None and not self.timeout.left())


def _timed_out(seconds: float) -> Stopped:
    stopped = Stopped(f"its timeout of {seconds} s passed")
    stopped.__cause__ = TimeoutError(f"{seconds} s")
    return stopped


def _too_late(_: float) -> Stopped:
    return Stopped("its deadline passed")


@attrs.frozen
class Limits:
    """All current limits of a run: the signal of the call, and the limits of the active nodes.

    Attributes:
        signal: May stop the run.
        stack: The limits of nodes, the innermost last.
        notifying: Held while an observer receives an event, if several threads may send events.
        clock: The clock of the limits of nodes. Parts of the run share it.
        look: Raises if another process has cancelled the run; None for parts, whose run looks, and if no one can.
    """

    signal: StopSignal | None
    stack: list[TimeLimit] = attrs.field(factory=list)
    notifying: threading.RLock | None = None
    clock: NodeClock = attrs.field(factory=NodeClock)
    look: Callable[[Any], object] | None = None

    def of_part(self, signal: StopSignal | None) -> Limits:
        """Return the limits of a part of the run."""
        return attrs.evolve(self, signal=signal, stack=[*self.stack], look=None)

    def push(self, error: MakeError, seconds: float) -> None:
        """Limit the following commands."""
        self.stack.append(TimeLimit(self.clock.now() + seconds, seconds, error, self.clock.now))

    def pop(self, _: None, __: None) -> None:
        """Remove the newest limit."""
        self.stack.pop()

    def until(self, deadline_ns: int) -> Limits:
        """Return these limits with a signal that also stops the run at a time of clock.now_ns."""
        limit = TimeLimit(deadline_ns / 1e9, 0.0, _too_late, lambda: clock.now_ns() / 1e9)
        cancel, timeout = (None, None) if self.signal is None else (self.signal.cancel, self.signal.timeout)
        first = limit if timeout is None else min(limit, timeout, key=TimeLimit.left)
        return attrs.evolve(self, signal=StopSignal(cancel, first))

    def check(self) -> None:
        """Raise if the run should stop, or if the time of a node is up."""
        if self.signal is None and not self.stack:  # most runs
            return
        if self.cancel is not None and self.cancel.is_set():
            raise Stopped("it was cancelled")
        limit = self.of_all()
        if limit is not None and not limit.left():
            raise limit.passed()

    def of_node(self) -> TimeLimit | None:
        """Return the first limit to expire among those of nodes."""
        return min(self.stack, key=TimeLimit.left) if self.stack else None

    def of_all(self) -> TimeLimit | None:
        """Return the first limit to expire among those of the call and of nodes."""
        timeout = None if self.signal is None else self.signal.timeout
        return self.of_node() if timeout is None else min([timeout, *self.stack], key=TimeLimit.left)

    def until_check(self, seconds: float) -> float:
        """Return how many of these seconds to sleep before the next check."""
        limit = self.of_all()
        seconds = seconds if limit is None else min(seconds, max(limit.left(), 0.001))
        seconds = seconds if self.look is None else min(seconds, LOOK_OUT)
        return seconds if self.cancel is None else min(seconds, _LOOK)

    @property
    def cancel(self) -> threading.Event | None:
        """The event that stops the run."""
        return None if self.signal is None else self.signal.cancel

    def limited(self, awaitable: Awaitable[Any]) -> Awaitable[Any]:
        """Return an awaitable that awaits the result of an async node within the remaining time."""
        limit = self.of_all()
        return awaitable if limit is None else _awaited_within(limit, awaitable)


async def _awaited_within(limit: TimeLimit, awaitable: Awaitable[Any]) -> Any:
    import asyncio  # imported when used: 20 ms

    loop, waits = asyncio.get_running_loop(), limit.waits()
    waiting: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal waiting
        seconds = next(waits, None)
        if seconds is None:
            timer.reschedule(loop.time())
        else:
            waiting = loop.call_later(seconds, look)

    try:
        async with asyncio.timeout(None) as timer:
            look()
            return await awaitable
    except TimeoutError:
        if timer.expired():
            raise limit.passed()  # noqa: B904 - it has its cause
        raise  # the node's own
    finally:
        if waiting is not None:
            waiting.cancel()
