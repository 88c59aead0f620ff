"""Connections to a PostgreSQL server: none of them waits longer than it may, whatever the network does."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import psycopg
from psycopg.errors import _WaitTimeout
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from stategraph._util.dropped import reaper
from stategraph.errors import ConfigError
from stategraph.stores._postgres.prepared import Prepared

_SOONEST_TO_CONNECT = 2  # seconds: no client of PostgreSQL gives up sooner
_STALLED = 1.0  # seconds that a statement waits for a row that somebody else has locked; then it is made again
_WEAK = ("off", "local")  # values of synchronous_commit with which what was acknowledged may be lost

Server: TypeAlias = "Connection"


class SilentServerError(psycopg.OperationalError):
    """The server has not answered in time. What it was asked for it may have done, or may yet do."""


class Connection(psycopg.Connection[Any]):
    """Waits no longer than to a point in time: a network may swallow what is sent, and TCP tells nobody for minutes.

    Attributes:
        give_up: When to give up, by the monotonic clock.
        prepared: The statements that are prepared in the session, if it is known to be the same the next time.
    """

    give_up = float("inf")
    prepared: Prepared | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Carry on until the server has answered."""
        left = self.give_up - time.monotonic()
        try:
            return super().wait(gen, interval, left if 0.001 < left < threading.TIMEOUT_MAX else 0.001)
        except _WaitTimeout:
            self.pgconn.finish()
            raise SilentServerError("the server has not answered in time") from None

    def __del__(self, _: Any = None, /) -> None:
        """Say nothing of a store that was dropped: what libpq holds closes itself, unless it is a parent's."""


class _Turns:
    """Lets so many threads go on at a time, in the order in which they came: one that asks again and again would keep
    the others waiting for ever.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._lock = reaper.known_lock()  # a finaliser may come while it is held, and use the store
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


class Connections:
    """Connections for threads, made in the thread that asks.

    There is no thread that looks after them, so nothing is missing after a fork; and a thread that asks once more while
    it uses one, further down its stack, is given another, and never waits for itself.

    Args:
        connect: Makes one; called with when to give up.
        most: How many threads have one at the same time.
    """

    def __init__(self, connect: Callable[[float], Connection], most: int) -> None:
        self._connect, self._most = connect, most
        self._idle: list[Connection] = []
        self._of_parent: list[Connection] = []
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
    def use(self, give_up: float) -> Iterator[Connection]:
        """Use a connection until a point in time."""
        depth = getattr(self._inside, "depth", 0)
        if not depth and not self._turns.take(give_up - time.monotonic()):
            raise SilentServerError(f"all {self._most} connections are in use; more of them take the option pool")
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
    def _lent(self, give_up: float) -> Iterator[Connection]:
        connection = self._pop() or self._connect(give_up)
        connection.give_up = give_up
        try:
            yield connection
        except psycopg.Error:
            if connection.closed:  # the others most likely lead to the same server
                self.close()
            raise
        finally:
            if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
                connection.pgconn.finish()
                connection.close()
            elif len(self._idle) < self._most:
                self._idle.append(connection)
            else:
                connection.close()

    def _pop(self) -> Connection | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def close(self) -> None:
        """Close those that nobody uses."""
        while connection := self._pop():
            connection.close()


# --------------------------------------------------------------------------- sessions


Setting: TypeAlias = tuple[str, str]


def connected(dsn: str, patience: float, give_up: float, *, prepares: bool) -> Connection:
    """Return a connection to a server that keeps what it acknowledges.

    Args:
        dsn: Where it is.
        patience: How many seconds a statement may take.
        give_up: When to give up connecting.
        prepares: Whether the server knows the session from one transaction to the next, so that it can be prepared.

    Raises:
        ConfigError: it would lose what it acknowledges.
        psycopg.Error: nobody answers there, or the server refuses.
    """
    timeout = max(_SOONEST_TO_CONNECT, round(give_up - time.monotonic()))
    connection = Connection.connect(
        dsn,
        autocommit=True,
        prepare_threshold=2 if prepares else None,
        cursor_factory=psycopg.RawCursor,
        connect_timeout=timeout,
        fallback_application_name="stategraph",
        client_encoding="utf8",
    )
    try:
        connection.give_up = max(give_up, time.monotonic() + 1)
        # Every int has the same type: else a statement would be prepared anew for every size of a number.
        connection.adapters.register_dumper(int, Int8Dumper)
        _check(connection)
        if prepares:
            _set(connection, patience)
            connection.prepared = Prepared(connection)
    except BaseException:
        connection.pgconn.finish()
        connection.close()
        raise
    return connection


def _check(connection: Connection) -> None:
    """Raise ConfigError if the server would lose what it acknowledges."""
    found = connection.execute("SELECT current_setting('fsync')").fetchone()
    if found is None or found[0] != "on":
        allowed = "a PostgreSQL server that keeps what it acknowledges: this one runs with fsync = off; turn that on"
        raise ConfigError("checkpoint.options.dsn", "a server without fsync", allowed)


def _set(connection: Connection, patience: float) -> None:
    """Give the session what it needs, unless it asks for more, or for less patience, itself."""
    names = [name for name, _ in _of_all(patience)]
    found = connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY($1)", (names,)).fetchall()
    now = dict(found)
    wanted = [(name, value) for name, value in _of_all(patience) if not _is_stricter(now.get(name), value)]
    if now["synchronous_commit"] not in _WEAK:
        wanted = [one for one in wanted if one[0] != "synchronous_commit"]
    for name, value in wanted:
        connection.execute("SELECT set_config($1, $2, false)", (name, value))


def _is_stricter(now: str | None, value: str) -> bool:
    """Return whether a limit of time is set already, and not above this one."""
    return now is not None and now.isdecimal() and value.isdecimal() and 0 < int(now) <= int(value)


def of_transaction(patience: float) -> list[Setting]:
    """Return what holds for every transaction: the server is to give up before the client, and to say so."""
    milliseconds = max(1, int(patience * 1000))
    return [
        ("synchronous_commit", "on"),
        ("lock_timeout", str(max(1, int(min(_STALLED, patience / 2) * 1000)))),
        ("statement_timeout", str(milliseconds)),
    ]


def _of_all(patience: float) -> list[Setting]:
    """Return what holds for a session: also that it lets go of what it has locked if its client is frozen."""
    idle = ("idle_in_transaction_session_timeout", str(max(1, int(patience * 1000))))
    return [*of_transaction(patience), idle, ("default_transaction_isolation", "read committed")]


def set_here(name: str, value: str) -> tuple[str, Setting]:
    """Return the statement that makes a setting until the transaction ends."""
    return "SELECT set_config($1, $2, true)", (name, value)
