"""Connections to a PostgreSQL server with a limit on every wait, and the meaning of its errors.

Frequent statements are prepared, and sent to libpq without a cursor: a psycopg cursor finds out for each value how to
send it, which takes three times as long as sending it. psycopg also numbers prepared statements. A pooler gives a
session to one client after another, so the same number may be a statement of another client. Here the name is a digest
of the statement, so that equal names mean equal statements.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from hashlib import sha256
from struct import Struct, error
from typing import Any, Self, TypeAlias

import psycopg
from psycopg import errors, generators
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus, TransactionStatus

from stategraph._text.shown import one_line
from stategraph.errors import CheckpointCorruptError, CheckpointError, ConfigError
from stategraph.stores._checks import NO_END
from stategraph.stores._rows.sql_table import Statement
from stategraph.stores._servers import TCP_LIMITS

_TCP = ("keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
_MIN_CONNECT_TIMEOUT = 2  # seconds; libpq does not give up sooner
_LOCK_TIMEOUT = 1.0  # seconds to wait for a locked row before the transaction is repeated
_MAX_SECONDS = 2_147_483  # a limit of PostgreSQL has 31 bits of milliseconds
_WEAK = ("off", "local")  # values of synchronous_commit that may lose acknowledged commits
_UNPREPARED = 2  # how often a statement is sent before it is prepared: a short process sends most of them once
_INT8 = Struct("!q")
_BINARY = 1


class Connection(psycopg.Connection[Any]):
    """A connection that waits only until `give_up`. TCP may notice a dead network only after minutes.

    Attributes:
        give_up, last: As of `Usable`.
        settings: The statement before each transaction; None if the session keeps its settings and prepared statements.
        is_lent: Whether a node has it.
    """

    give_up = last = float("inf")
    settings: Statement | None = None
    is_lent = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._times = Counter[str]()
        self._names: dict[str, bytes] = {}

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Run a generator of psycopg until the server has answered."""
        left = self.give_up - time.monotonic()
        try:
            return super().wait(gen, interval, max(0.001, min(left, _MAX_SECONDS)))
        except psycopg.OperationalError:
            if time.monotonic() < self.give_up:
                raise
            self.pgconn.finish()
            raise psycopg.OperationalError("the server has not answered in time") from None

    def lend(self) -> Connection:
        """Begin a transaction for a node, which cannot end it; return the connection, which is not used for others."""
        self.found([("BEGIN", ())])
        self.give_up, self.cursor_factory, self.is_lent = float("inf"), psycopg.Cursor, True
        return self

    def _refuse(self, *_: object) -> None:
        """Raise an error if a node has the connection: the save of its step commits."""
        if self.is_lent:
            raise psycopg.ProgrammingError(NO_END)

    def commit(self) -> None:
        self._refuse()
        super().commit()

    def rollback(self) -> None:
        self._refuse()
        super().rollback()

    def __enter__(self) -> Self:
        self._refuse()
        return super().__enter__()

    @property
    def is_usable(self) -> bool:
        """Whether it is open and not in a transaction."""
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    def __del__(self, _: Any = None, /) -> None:
        """Do not warn about an abandoned store: libpq closes the connection, except in a forked child."""

    # ------------------------------------------------------------------ statements

    def found(self, statements: Sequence[Statement], *, prepares: bool = True) -> list[list[tuple[Any, ...]]]:
        """Run statements in one transaction and one round trip; return the rows of each.

        Args:
            statements: The statements.
            prepares: Prepare frequent statements. Otherwise the server plans each one for its values.
        """
        before = [] if self.settings is None else [self.settings]
        several = [(_numbered(text), _sent(values)) for text, values in (*before, *statements)]
        prepares = prepares and self.settings is None
        try:
            found = self._found(several, prepares=prepares)
        except errors.InvalidSqlStatementName:  # nothing was run: a pooler has changed the session
            self._names.clear()
            self._times.clear()
            found = self._found(several, prepares=prepares)
        return found[len(before) :]

    def _found(self, several: Sequence[_Sent], *, prepares: bool) -> list[list[tuple[Any, ...]]]:
        if prepares:
            for text, _ in several:
                if text not in self._names:
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
            self.pgconn.finish()
            raise
        return [_rows(result) for result in results]

    def _prepare(self, text: str) -> None:
        """Prepare a statement if it is frequent."""
        self._times[text] += 1
        if self._times[text] <= _UNPREPARED:
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


def _sent(values: Sequence[Any]) -> list[bytes | None]:
    """Return values (texts, numbers, bytes or None) in the binary format of PostgreSQL."""
    try:
        return [
            value.encode() if isinstance(value, str) else _INT8.pack(value) if isinstance(value, int) else value
            for value in values
        ]
    except error as wrong:
        raise OverflowError("a number has more than 64 bits") from wrong


@lru_cache
def _numbered(statement: str) -> str:
    """Return a statement with numbered placeholders, as PostgreSQL expects them."""
    first, *others = statement.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(others, 1))


def _answers(pgconn: Any, many: int) -> Generator[Any, Any, list[Any]]:
    """Send a pipeline; return the result of each statement once the end of the pipeline has arrived."""
    yield from generators.send(pgconn)
    results = []
    for _ in range(many):
        results += yield from generators.fetch_many(pgconn)
    yield from generators.fetch_many(pgconn)
    return results


def _rows(result: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a result. Without RETURNING, a changed row is an empty tuple.

    Raises:
        psycopg.Error: the statement failed.
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
_FOUND: dict[int, Callable[[bytes], Any]] = {  # by type: bool, int8, int4 and text
    16: b"\1".__eq__,
    20: lambda value: _INT8.unpack(value)[0],
    23: lambda value: int.from_bytes(value, signed=True),
    25: bytes.decode,
}


# --------------------------------------------------------------------------- sessions


def connected(dsn: str, patience: float, give_up: float, *, prepares: bool) -> Connection:
    """Return a connection to a durable server.

    Args:
        dsn: Its address.
        patience: How many seconds a statement may take.
        give_up: When to give up connecting.
        prepares: Whether the server keeps a session from one transaction to the next.

    Raises:
        ConfigError: the server may lose acknowledged commits.
        psycopg.Error: the server does not answer, or refuses the connection.
    """
    timeout = max(_MIN_CONNECT_TIMEOUT, int(min(give_up - time.monotonic(), _MAX_SECONDS) / _places(dsn)))
    given = conninfo_to_dict(dsn)
    connection = Connection.connect(
        dsn,
        **{name: limit for name, limit in zip(_TCP, TCP_LIMITS, strict=True) if name not in given},  # type: ignore[arg-type]
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
        connection.close()
        raise
    return connection


def _places(dsn: str) -> int:
    """Return how many servers a dsn names: the timeout of psycopg is that of each."""
    named = conninfo_to_dict(dsn)
    return max(str(named.get(name) or "").count(",") + 1 for name in ("host", "hostaddr", "port"))


def _settings(connection: Connection, patience: float) -> dict[str, str]:
    """Return the settings of a session, with which the server gives up before the client.

    Raises:
        ConfigError: the server may lose acknowledged commits.
    """
    limits = {
        "lock_timeout": min(_LOCK_TIMEOUT, patience / 2),
        "statement_timeout": patience,
        "idle_in_transaction_session_timeout": patience,  # a frozen client loses its locks
    }
    select = "SELECT name, setting FROM pg_settings WHERE name = ANY(string_to_array(?, ' '))"
    (rows,) = connection.found([(select, (" ".join(["fsync", "synchronous_commit", *limits]),))])
    now = dict(rows)
    if now["fsync"] != "on":
        allowed = "a PostgreSQL server that keeps acknowledged commits: this one runs with fsync = off; turn it on"
        raise ConfigError("checkpoint.options.dsn", "a server without fsync", allowed)
    settings = {}
    for name, seconds in limits.items():
        milliseconds = max(1, int(min(seconds, _MAX_SECONDS) * 1000))
        settings[name] = str(min(milliseconds, int(now[name]) or milliseconds))  # the role may have a lower limit
    settings["default_transaction_isolation"] = "read committed"
    if now["synchronous_commit"] in _WEAK:
        settings["synchronous_commit"] = "on"
    return settings


# --------------------------------------------------------------------------- errors

_PASSING = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "57P05", "25006")
"""Conflicts, deadlocks, locked rows; a server that stops, starts, has ended an idle session, or is still a standby."""
_MISSING = (errors.UndefinedTable, errors.UndefinedColumn, errors.InvalidSchemaName)


_REFUSED = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


def is_passing(error: Exception) -> bool:
    """Return whether a retry may succeed. The request may have been carried out already."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is None:  # the connection was lost or refused
        is_refused = any(reason in str(error) for reason in _REFUSED)
        return isinstance(error, psycopg.OperationalError) and not is_refused
    return error.sqlstate in _PASSING or error.sqlstate.startswith("08")


def explained(error: Exception, run_id: str, store: object, kind: type[CheckpointError]) -> CheckpointError:
    """Translate an error of PostgreSQL to an error of stategraph."""
    if isinstance(error, _MISSING):
        way_out = "put back a copy of it, or open it once with migrate=True"
        return CheckpointCorruptError(run_id, f"the {store} is damaged: {_text(error)}; {way_out}")
    if isinstance(error, errors.InsufficientPrivilege):
        way_out = "GRANT USAGE on its schema, and SELECT, INSERT, UPDATE, DELETE on all tables in it"
        return kind(run_id, f"the {store} failed: {_text(error)}; an administrator can {way_out}")
    return kind(run_id, f"the {store} failed: {_text(error)}")


def _text(error: Exception) -> str:
    """Return the message of an error in one line."""
    message = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return one_line(message or str(error) or type(error).__name__)
