"""Connections for threads: how many of them at a time, and in which order they come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Usable(Protocol):
    """A connection to a server.

    Attributes:
        give_up: When to give up waiting, by the monotonic clock.
    """

    give_up: float

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and waits for the next question."""

    def discard(self) -> None:
        """Close it, whatever it is in the middle of."""

    def close(self) -> None:
        """Close it in order."""


_Connection = TypeVar("_Connection", bound=Usable)


class _Turns:
    """Lets so many threads go on at a time, in the order in which they came: one that asks again and again would keep
    the others waiting for ever.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def take(self, seconds: float) -> bool:
        """Wait for a turn; return whether it came in time."""
        with self._lock:
            if self._free and not self._waiting:
                self._free -= 1
                return True
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            if turn.acquire(timeout=max(0.0, min(seconds, threading.TIMEOUT_MAX))):
                return True
        except BaseException:
            if not self._leave(turn):
                self.give()
            raise
        return not self._leave(turn)

    def _leave(self, turn: threading.Lock) -> bool:
        """Wait no longer; return False if the turn has come meanwhile."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            return True

    def give(self) -> None:
        """Let the next one go on."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


class Connections(Generic[_Connection]):
    """Connections for threads, made in the thread that asks.

    There is no thread that looks after them, so nothing is missing after a fork; and a thread that asks once more while
    it uses one, further down its stack, is given another, and never waits for itself.

    Args:
        connect: Makes one; called with when to give up.
        most: How many threads have one at the same time.
        busy: Makes the error for a thread that has waited for one in vain.
    """

    def __init__(self, connect: Callable[[float], _Connection], most: int, busy: Callable[[str], Exception]) -> None:
        self._connect, self._most, self._busy = connect, most, busy
        self._idle: list[_Connection] = []
        self._of_parent: list[_Connection] = []
        self.renew()

    def renew(self) -> None:
        """Begin anew, in a forked child: to close what the parent has open would close it there as well."""
        self._of_parent += self._idle
        self._idle.clear()
        self._turns = _Turns(self._most)
        self._inside = threading.local()

    def is_in_use_here(self) -> bool:
        """Return whether this thread uses one, further down its stack."""
        return bool(getattr(self._inside, "depth", 0))

    @contextmanager
    def use(self, give_up: float) -> Iterator[_Connection]:
        """Use a connection until a point in time."""
        depth = getattr(self._inside, "depth", 0)
        if not depth and not self._turns.take(give_up - time.monotonic()):
            raise self._busy(f"all {self._most} connections are in use")
        try:
            self._inside.depth = depth + 1
            with self._lent(give_up) as connection:
                yield connection
        finally:
            self._inside.depth = depth
            if not depth:
                self._turns.give()

    @contextmanager
    def alone(self, seconds: float) -> Iterator[None]:
        """Have a turn for whatever is asked within, if one comes in so many seconds: where they are few, the others
        wait."""
        depth = getattr(self._inside, "depth", 0)
        has_turn = not depth and self._turns.take(seconds)
        try:
            self._inside.depth = depth + has_turn
            yield
        finally:
            self._inside.depth = depth
            if has_turn:
                self._turns.give()

    @contextmanager
    def _lent(self, give_up: float) -> Iterator[_Connection]:
        connection = self._pop() or self._connect(give_up)
        connection.give_up = give_up
        try:
            yield connection
        except Exception:
            if not connection.is_usable:  # the others most likely lead to the same server
                self.close()
            raise
        finally:
            if not connection.is_usable:
                connection.discard()
            elif len(self._idle) < self._most:
                self._idle.append(connection)
            else:
                connection.close()

    def _pop(self) -> _Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def close(self) -> None:
        """Close those that nobody uses."""
        while connection := self._pop():
            connection.close()
