"""Connections for threads: how many of them at a time, and in which order they come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
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


class Connections(Generic[_Connection]):
    """Connections for threads, which use them in the order in which they come.

    No thread looks after them, so nothing is missing after a fork.

    Args:
        connect: Makes a connection; called with when to give up.
        most: How many threads use one at the same time.
    """

    def __init__(self, connect: Callable[[float], _Connection], most: int) -> None:
        self._connect, self._most = connect, most
        self._of_parent: list[object] = []
        self.renew()

    def renew(self) -> None:
        """Begin anew, in a forked child: to close the connections of its parent would close them there as well."""
        self._of_parent.append(getattr(self, "_free", None))
        self._free: list[_Connection | None] = [None] * self._most  # None stands for one that is not open
        self._waiting: deque[SimpleQueue[_Connection | None]] = deque()
        self._lock = threading.Lock()
        self._inside = threading.local()

    def is_in_use_here(self) -> bool:
        """Return whether this thread uses a connection."""
        return getattr(self._inside, "is_using", False)

    @contextmanager
    def use(self, give_up: float) -> Iterator[_Connection]:
        """Use a connection until a point in time. Raises `queue.Empty` if all are in use until then."""
        connection = self._take(give_up - time.monotonic())
        try:
            self._inside.is_using = True
            connection = connection or self._connect(give_up)
            connection.give_up = give_up
            yield connection
        except Exception:
            if connection is not None and not connection.is_usable:  # the others most likely lead to the same server
                self.close()
            raise
        finally:
            self._inside.is_using = False
            if connection is not None and not connection.is_usable:
                connection.discard()
                connection = None
            self._give(connection)

    def _take(self, seconds: float) -> _Connection | None:
        with self._lock:
            if self._free:
                return self._free.pop()
            mine = SimpleQueue[_Connection | None]()
            self._waiting.append(mine)
        try:
            return mine.get(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))
        except BaseException:
            with self._lock:
                has_come = mine not in self._waiting
                if not has_come:
                    self._waiting.remove(mine)
            if has_come:
                self._give(mine.get())
            raise

    def _give(self, connection: _Connection | None) -> None:
        """Hand a connection to the thread that has waited for longest: one that comes back at once comes last."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().put(connection)
            else:
                self._free.append(connection)

    def close(self) -> None:
        """Close those that nobody uses."""
        with self._lock:
            free, self._free = self._free, [None] * len(self._free)
        for connection in free:
            if connection is not None:
                connection.close()
