"""Connections to a PostgreSQL server: none of them waits longer than it may, whatever the network does."""

from __future__ import annotations

import time
from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import _WaitTimeout
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from stategraph.errors import ConfigError
from stategraph.stores._postgres.prepared import Prepared

_SOONEST_TO_CONNECT = 2  # seconds: no client of PostgreSQL gives up sooner
_STALLED = 1.0  # seconds that a statement waits for a row that somebody else has locked; then it is made again
_MOST = 2_147_483  # seconds: no limit of PostgreSQL has more than 31 bits of milliseconds
_WEAK = ("off", "local")  # values of synchronous_commit with which what was acknowledged may be lost

Server: TypeAlias = "Connection"


class SilentServerError(psycopg.OperationalError):
    """The server has not answered in time. What it was asked for it may have done, or may yet do."""


class Connection(psycopg.Connection[Any]):
    """Waits no longer than to a point in time: a network may swallow what is sent, and TCP tells nobody for minutes.

    Attributes:
        give_up: When to give up, by the monotonic clock.
        prepared: Asks statements of the session.
    """

    give_up = float("inf")
    prepared: Prepared

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Carry on until the server has answered."""
        left = self.give_up - time.monotonic()
        try:
            return super().wait(gen, interval, max(0.001, min(left, _MOST)))
        except _WaitTimeout:
            self.pgconn.finish()
            raise SilentServerError("the server has not answered in time") from None

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and in no transaction."""
        return not self.closed and self.info.transaction_status == TransactionStatus.IDLE

    def discard(self) -> None:
        """Close it, whatever it is in the middle of."""
        self.pgconn.finish()
        self.close()

    def __del__(self, _: Any = None, /) -> None:
        """Say nothing of a store that was dropped: what libpq holds closes itself, unless it is a parent's."""


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
    timeout = max(_SOONEST_TO_CONNECT, int(min(give_up - time.monotonic(), _MOST) / _places(dsn)))
    connection = Connection.connect(
        dsn,
        autocommit=True,
        prepare_threshold=None,  # see `Prepared`
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
        connection.prepared = Prepared(connection, prepares=prepares)
        if prepares:
            _set(connection, patience)
    except BaseException:
        connection.discard()
        raise
    return connection


def _places(dsn: str) -> int:
    """Return how many servers a dsn names: psycopg tries one after the other, each for as long as it may."""
    named = conninfo_to_dict(dsn)
    return max(str(named.get(name) or "").count(",") + 1 for name in ("host", "hostaddr", "port"))


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
    return [
        ("synchronous_commit", "on"),
        ("lock_timeout", _milliseconds(min(_STALLED, patience / 2))),
        ("statement_timeout", _milliseconds(patience)),
    ]


def _of_all(patience: float) -> list[Setting]:
    """Return what holds for a session: also that it lets go of what it has locked if its client is frozen."""
    idle = ("idle_in_transaction_session_timeout", _milliseconds(patience))
    return [*of_transaction(patience), idle, ("default_transaction_isolation", "read committed")]


def _milliseconds(seconds: float) -> str:
    """Return a limit of time as the server takes it."""
    return str(max(1, int(min(seconds, _MOST) * 1000)))


def set_here(name: str, value: str) -> tuple[str, Setting]:
    """Return the statement that makes a setting until the transaction ends."""
    return "SELECT set_config($1, $2, true)", (name, value)
