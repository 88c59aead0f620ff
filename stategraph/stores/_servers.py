"""What stores on servers share: connections for threads, a table that waits and retries, and checks of options."""

from __future__ import annotations

import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from stategraph._owners.leases import LeaseOwners
from stategraph._text.shown import Hidden, unreadable
from stategraph._util.validators import is_seconds
from stategraph.errors import CheckpointError, ConfigError
from stategraph.stores._files.fork_safety import ForkSafe, reentered_error
from stategraph.stores._rows.table import Table, closed_error

SHORT_PATIENCE = 5.0
"""Seconds to wait for requests that are repeated later, or sent when a process ends."""

_RETRY_AFTER = 0.05  # seconds
_DOUBT = 0.5  # of the patience: how long to wait for a connection that was idle before a new one is tried

TCP_LIMITS = 30, 10, 3, 15_000
"""Seconds of silence before TCP probes the connection, seconds between probes, and their number;
milliseconds after which a connection is lost whose other side has not confirmed what was sent."""


class Usable(Protocol):
    """A connection to a server.

    Attributes:
        give_up: When to stop waiting, by the monotonic clock.
        last: The same once the server has shown that the connection works.
    """

    give_up: float
    last: float

    @property
    def is_usable(self) -> bool:
        """Whether it is open and ready for the next request."""

    def close(self) -> None:
        """Close it, even in the middle of a request."""


_Connection = TypeVar("_Connection", bound=Usable)
_Answer = TypeVar("_Answer")


class Connections(ForkSafe, Generic[_Connection]):
    """A pool of connections for threads, first come, first served. It has no thread of its own.

    Args:
        connect: Opens a connection; takes the time at which to give up.
        size: How many threads use a connection at the same time.

    Attributes:
        is_over: Whether a connection is closed after its use.
    """

    is_over = False

    def __init__(self, connect: Callable[[float], _Connection], size: int) -> None:
        self._connect, self._size = connect, size
        self._of_parent: list[_Connection] = []
        self._idle: list[_Connection] = []
        super().__init__()

    def renew(self) -> None:
        """Start empty, in a forked child. To close the connections of the parent would end its sessions."""
        super().renew()
        self._of_parent += self._idle
        self._idle = []
        self._turn = threading.RLock()
        self._free = SimpleQueue[None]()
        for _ in range(self._size):
            self._free.put(None)
        self._users: set[int] = set()

    def is_in_use_here(self) -> bool:
        """Return whether this thread uses a connection."""
        return threading.get_ident() in self._users

    def use(self, work: Callable[[_Connection], _Answer], give_up: float) -> _Answer:
        """Return the result of some work with a connection. Raises `queue.Empty` if none is free until `give_up`.

        A network may have dropped an idle connection silently. So the work fails while there is time for a new one.
        Work that returns the connection itself keeps it.
        """
        user, connection = threading.get_ident(), None
        self._wait(give_up)
        try:
            self._users.add(user)
            now = time.monotonic()
            try:
                connection = self._idle.pop()
                connection.give_up = now + _DOUBT * (give_up - now)
            except IndexError:
                connection = self._connect(give_up)
                connection.give_up = give_up
            connection.last = give_up
            answer = work(connection)
            if answer is connection:
                connection = None
            return answer
        finally:
            self._users.discard(user)
            if connection is not None and connection.is_usable:
                self._idle.append(connection)
            elif connection is not None:
                connection.close()
                self.close()  # the idle connections probably lead to the same failed server
            if self.is_over:
                self.close()
            self._free.put(None)

    def _wait(self, give_up: float) -> None:
        """Wait until a connection is free. One thread waits for it and the others for their turn: otherwise a thread
        that has just returned a connection would take it again before a waiting thread wakes up."""
        try:
            if not self._turn.acquire(timeout=_left(give_up)):
                raise Empty
            self._free.get(timeout=_left(give_up))
        finally:
            with suppress(RuntimeError):  # its turn has not come
                self._turn.release()

    def close(self) -> None:
        """Close all connections that are not in use."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()


def _left(give_up: float) -> float:
    """Return how many seconds to wait for a lock."""
    return max(0.0, min(give_up - time.monotonic(), threading.TIMEOUT_MAX))


class ServerTable(Table, Generic[_Connection]):
    """A table on a server that many machines share.

    A request whose answer is lost is sent again: its records show whether the first one was carried out.

    Attributes:
        owners: The owners of runs, by leases.
        failures: The errors that a server, or its client library, raises.
        way_to_connections: How to get more connections, for the error.
    """

    is_server = True
    closed = False
    owners: LeaseOwners
    failures: tuple[type[Exception], ...]
    way_to_connections: str = ""

    _connections: Connections[_Connection]
    _patience: float

    def close(self) -> None:
        self.owners.leave()
        self.closed = self._connections.is_over = True
        self._connections.close()

    @abstractmethod
    def _is_passing(self, error: Exception) -> bool:
        """Return whether a retry may succeed after an error. The request may have been carried out already."""

    @abstractmethod
    def _explained(self, error: Exception, run_id: str, kind: type[CheckpointError]) -> Exception:
        """Translate an error of the server: to `kind`, unless the records are damaged."""

    def _ask(
        self,
        run_id: str,
        work: Callable[[_Connection], _Answer],
        kind: type[CheckpointError] = CheckpointError,
        patience: float = inf,
    ) -> _Answer:
        """Return the result of some work with a connection. Repeat the work if it fails and a retry may succeed.

        Raises:
            CheckpointError: `kind`, unless the records are damaged.
        """
        if self._connections.is_in_use_here():
            raise reentered_error(self.store, run_id, kind)
        give_up = time.monotonic() + min(self._patience, patience)
        while True:
            if self.closed:
                raise closed_error(self.store, run_id)
            try:
                return self._connections.use(work, give_up)
            except Empty:
                reason = f"all of its connections are in use, and none was free in time{self.way_to_connections}"
                raise kind(run_id, f"the {self.store} failed: {reason}") from None
            except self.failures as error:
                is_passing = self._is_passing(error)
                if not is_passing or time.monotonic() + 2 * _RETRY_AFTER > give_up:
                    explained = self._explained(error, run_id, kind)
                    if isinstance(explained, CheckpointError):
                        explained.is_lasting = not is_passing
                    raise explained from error
            time.sleep(_RETRY_AFTER)


# --------------------------------------------------------------------------- options


def check_seconds(**options: object) -> None:
    """Raise ConfigError unless all options are seconds, more than 0."""
    for name, value in options.items():
        if not is_seconds(value):
            raise ConfigError(f"checkpoint.options.{name}", value, "seconds, more than 0")


def address_of(store: str, option: str, given: object, schemes: Sequence[str], parse: Callable[[str], object]) -> str:
    """Return the address of a server: the given text, or that in the environment variable with this name.

    Args:
        store: The name of the store, which is also that of its extra.
        option: The option of the address.
        given: Its value.
        schemes: The schemes of its URLs.
        parse: Imports the client library, and raises an error for a text that it cannot read.

    Raises:
        ConfigError: there is no address, it cannot be read, or the library is not installed.
    """
    key = f"checkpoint.options.{option}"
    allowed = f"an address such as {schemes[0]}://host, or the name of an environment variable that holds one"
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(key, Hidden.of(given), allowed)
    address = os.environ.get(given, "") if given.isidentifier() else given
    if not address:
        raise ConfigError(key, given, f"{allowed}: no environment variable is named {given}")
    try:
        parse(address)
    except ImportError as error:
        way_out = f"pip install 'durable-stategraph[{store}]'"
        raise ConfigError("checkpoint.store", store, f"a store whose client library is installed: {way_out}") from error
    except Exception:  # noqa: BLE001 - libraries raise different errors, which may show parts of a secret
        raise ConfigError(key, Hidden.of(given), f"{allowed}: {unreadable(address, *schemes)}") from None
    return address
