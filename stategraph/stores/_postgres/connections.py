"""Connections to a PostgreSQL server: none of them waits longer than it may, whatever the network does.

Statements that come again and again are prepared, and sent to libpq without a cursor: a cursor of psycopg finds out
for each value how it is sent, which takes three times as long as to send it. And it numbers what it prepares. A pooler
lends a session to one client after the other, so by the same number another client may have prepared another statement.
Here a name is a digest of the statement: equal names mean equal statements.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct, error
from typing import Any, TypeAlias

import psycopg
from psycopg import errors, generators
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import _WaitTimeout
from psycopg.pq import ExecStatus, TransactionStatus

from stategraph.errors import ConfigError
from stategraph.stores._rows.sql_statements import Statement

_SOONEST_TO_CONNECT = 2  # seconds: no client of PostgreSQL gives up sooner
_STALLED = 1.0  # seconds that a statement waits for a row that somebody else has locked; then it is made again
_MOST = 2_147_483  # seconds: no limit of PostgreSQL has more than 31 bits of milliseconds
_WEAK = ("off", "local")  # values of synchronous_commit with which what was acknowledged may be lost
_OFTEN = 2  # times that a statement comes before it is prepared: most of a short process come once
_INT8 = Struct("!q")
_BINARY = 1


class SilentServerError(psycopg.OperationalError):
    """The server has not answered in time. What it was asked for it may have done, or may yet do."""


class Connection(psycopg.Connection[Any]):
    """Waits no longer than to a point in time: a network may swallow what is sent, and TCP tells nobody for minutes.

    Attributes:
        give_up: When to give up, by the monotonic clock.
        settings: The statement before each transaction; None if the session has its settings, and what it prepares.
    """

    give_up = float("inf")
    settings: Statement | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._times = Counter[str]()
        self._names: dict[str, bytes] = {}

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

    # ------------------------------------------------------------------ statements

    def found(self, statements: Sequence[Statement], *, prepares: bool = True) -> list[list[tuple[Any, ...]]]:
        """Return the rows that each of several statements finds, in one transaction and one round trip.

        What is not to be prepared, the server plans for these values.
        """
        before = [] if self.settings is None else [self.settings]
        several = [(_numbered(text), [*map(_sent, values)]) for text, values in (*before, *statements)]
        prepares = prepares and self.settings is None
        try:
            found = self._found(several, prepares=prepares)
        except errors.InvalidSqlStatementName:  # nothing is done: this is not the session that it was prepared in
            self._names.clear()
            self._times.clear()
            found = self._found(several, prepares=prepares)
        return found[len(before) :]

    def _found(self, several: Sequence[_Sent], *, prepares: bool) -> list[list[tuple[Any, ...]]]:
        if prepares:
            for text in {text for text, _ in several} - self._names.keys():
                self._prepare(text)
        if len(several) == 1:
            self._send(*several[0])
            return [_rows(result) for result in self.wait(generators.execute(self.pgconn))]
        try:
            self.pgconn.enter_pipeline_mode()
            for each in several:
                self._send(*each)
            self.pgconn.pipeline_sync()
            results = self.wait(_answers(self.pgconn, len(several)))
            self.pgconn.exit_pipeline_mode()
        except BaseException:
            self.pgconn.finish()  # it may be in the middle of a pipeline
            raise
        return [_rows(result) for result in results]

    def _prepare(self, text: str) -> None:
        """Prepare a statement if it came often enough."""
        self._times[text] += 1
        if self._times[text] <= _OFTEN:
            return
        name = b"stategraph_" + sha256(text.encode()).hexdigest().encode()[:32]
        self.pgconn.send_prepare(name, text.encode())
        (result,) = self.wait(generators.execute(self.pgconn))
        if result.status != ExecStatus.COMMAND_OK:
            problem = errors.error_from_result(result)
            if not isinstance(problem, errors.DuplicatePreparedStatement):
                raise problem
        self._names[text] = name

    def _send(self, text: str, values: Sequence[bytes | None]) -> None:
        formats, name = [_BINARY] * len(values), self._names.get(text)
        if name is None:
            self.pgconn.send_query_params(text.encode(), values, None, formats, _BINARY)
        else:
            self.pgconn.send_query_prepared(name, values, formats, _BINARY)


def _sent(value: str | int | bytes | None) -> bytes | None:
    """Return an int, a text or bytes as PostgreSQL takes them."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, int):
        try:
            return _INT8.pack(value)
        except error as wrong:
            raise OverflowError("there is no place for a number of more than 64 bits") from wrong
    return value  # bytes, or None


@lru_cache
def _numbered(statement: str) -> str:
    """Return a statement with the numbers of its values, as PostgreSQL takes it."""
    first, *others = statement.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))


def _answers(pgconn: Any, many: int) -> Generator[Any, Any, list[Any]]:
    """Send what is in a pipeline; return the result of each statement, once all have come and the mark of its end."""
    yield from generators.send(pgconn)
    results = []
    for _ in range(many):
        results += yield from generators.fetch_many(pgconn)
    yield from generators.fetch_many(pgconn)
    return results


def _rows(result: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a result, an empty one for each that was changed.

    Raises:
        psycopg.Error: the statement has failed.
    """
    if result.status == ExecStatus.COMMAND_OK:
        return [()] * (result.command_tuples or 0)
    if result.status != ExecStatus.TUPLES_OK:
        raise errors.error_from_result(result)
    read = [_FOUND.get(result.ftype(number), bytes) for number in range(result.nfields)]
    return [
        tuple(
            None if (value := result.get_value(row, number)) is None else of_type(value)
            for number, of_type in enumerate(read)
        )
        for row in range(result.ntuples)
    ]


_Sent: TypeAlias = tuple[str, Sequence[bytes | None]]
_FOUND: dict[int, Callable[[bytes], Any]] = {  # by the numbers of the types bool, int8, int4 and text
    16: b"\1".__eq__,
    20: lambda value: _INT8.unpack(value)[0],
    23: lambda value: int.from_bytes(value, signed=True),
    25: bytes.decode,
}


# --------------------------------------------------------------------------- sessions


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
        prepare_threshold=None,  # see `Connection.found`
        cursor_factory=psycopg.RawCursor,
        connect_timeout=timeout,
        fallback_application_name="stategraph",
        client_encoding="utf8",
    )
    try:
        connection.give_up = max(give_up, time.monotonic() + 1)
        settings = _settings(connection, patience)
        statement = "SELECT " + ", ".join([f"set_config(?, ?, {'false' if prepares else 'true'})"] * len(settings))
        values = [text for setting in settings.items() for text in setting]
        if prepares:
            connection.found([(statement, values)])
        else:
            connection.settings = statement, values
    except BaseException:
        connection.discard()
        raise
    return connection


def _places(dsn: str) -> int:
    """Return how many servers a dsn names: psycopg tries one after the other, each for as long as it may."""
    named = conninfo_to_dict(dsn)
    return max(str(named.get(name) or "").count(",") + 1 for name in ("host", "hostaddr", "port"))


def _settings(connection: Connection, patience: float) -> dict[str, str]:
    """Return the settings that a session needs, unless it has stricter ones: the server gives up before the client.

    Raises:
        ConfigError: the server would lose what it acknowledges.
    """
    limits = {
        "lock_timeout": min(_STALLED, patience / 2),
        "statement_timeout": patience,
        "idle_in_transaction_session_timeout": patience,  # a client that is frozen lets go of what it has locked
    }
    names = json.dumps(["fsync", "synchronous_commit", *limits])
    select = "SELECT name, setting FROM pg_settings WHERE name IN (SELECT json_array_elements_text(?::json))"
    now = dict(connection.found([(select, (names,))])[0])
    if now["fsync"] != "on":
        allowed = "a PostgreSQL server that keeps what it acknowledges: this one runs with fsync = off; turn that on"
        raise ConfigError("checkpoint.options.dsn", "a server without fsync", allowed)
    settings = {"default_transaction_isolation": "read committed"}
    if now["synchronous_commit"] in _WEAK:
        settings["synchronous_commit"] = "on"
    for name, seconds in limits.items():
        most = max(1, int(min(seconds, _MOST) * 1000))
        if not 0 < int(now[name]) <= most:
            settings[name] = str(most)
    return settings
