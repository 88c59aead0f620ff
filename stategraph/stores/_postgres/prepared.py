"""Statements that come again and again: prepared once for a session, and sent to libpq without a cursor.

A cursor of psycopg finds out for each value how it is sent, which takes three times as long as to send it. And it
numbers what it prepares. A pooler lends a session to one client after the other, so by the same number another client
may have prepared another statement. Here a name is a digest of the statement: equal names mean equal statements.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from hashlib import sha256
from struct import Struct, error
from typing import Any, TypeAlias

import psycopg
from psycopg import errors, generators
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus

_OFTEN = 2  # times that a statement comes before it is prepared: most of a short process come once
_INT8 = Struct("!q")
_BINARY = 1

Asked: TypeAlias = tuple[str, Sequence[Any]]
"""A statement and its values."""


class Prepared:
    """Asks statements of a session, and prepares those that come often.

    Args:
        connection: The connection to it.
        prepares: Whether to prepare any.
    """

    def __init__(self, connection: psycopg.Connection[Any], *, prepares: bool) -> None:
        self._connection, self._prepares = connection, prepares
        self._times: dict[str, int] = {}
        self._names: dict[str, bytes] = {}

    def found(self, several: Sequence[Asked]) -> list[list[tuple[Any, ...]]]:
        """Return what each of several statements finds, which are made in one transaction and one round trip."""
        values = [self._sent(each) for _, each in several]
        try:
            return self._found(several, values)
        except errors.InvalidSqlStatementName:  # nothing is done: this is not the session that it was prepared in
            self._names.clear()
            self._times.clear()
            return self._found(several, values)

    def _found(self, several: Sequence[Asked], values: Sequence[_Sent]) -> list[list[tuple[Any, ...]]]:
        if self._prepares:
            for statement in {statement for statement, _ in several} - self._names.keys():
                self._prepare(statement)
        pgconn = self._connection.pgconn
        if len(several) == 1:
            self._send(several[0][0], *values[0])
            return [_rows(result) for result in self._connection.wait(generators.execute(pgconn))]
        try:
            pgconn.enter_pipeline_mode()
            for (statement, _), sent in zip(several, values, strict=True):
                self._send(statement, *sent)
            pgconn.pipeline_sync()
            results = self._connection.wait(_answers(pgconn, len(several)))
            pgconn.exit_pipeline_mode()
        except BaseException:
            pgconn.finish()  # it may be in the middle of a pipeline
            raise
        return [_rows(result) for result in results]

    def _prepare(self, statement: str) -> None:
        """Prepare a statement if it came often enough."""
        times = self._times[statement] = self._times.get(statement, 0) + 1
        if times <= _OFTEN:
            return
        name = b"stategraph_" + sha256(statement.encode()).hexdigest().encode()[:32]
        self._connection.pgconn.send_prepare(name, statement.encode())
        (result,) = self._connection.wait(generators.execute(self._connection.pgconn))
        problem = None if result.status == ExecStatus.COMMAND_OK else errors.error_from_result(result)
        if problem is not None and not isinstance(problem, errors.DuplicatePreparedStatement):
            raise problem
        self._names[statement] = name

    def _send(self, statement: str, values: Sequence[Any], formats: Sequence[int]) -> None:
        name = self._names.get(statement)
        if name is None:
            self._connection.pgconn.send_query_params(statement.encode(), values, None, formats, _BINARY)
        else:
            self._connection.pgconn.send_query_prepared(name, values, formats, _BINARY)

    def _sent(self, values: Sequence[Any]) -> _Sent:
        """Return values as they are sent, and the format of each."""
        try:
            return [None if value is None else _SENT[type(value)](value) for value in values], [_BINARY] * len(values)
        except KeyError:  # a list, a float, or what is derived from one of these types
            transformer = Transformer(self._connection)
            sent = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
            return sent, transformer.formats or ()
        except error as wrong:
            raise OverflowError("there is no place for a number of more than 64 bits") from wrong


def _answers(pgconn: Any, many: int) -> Generator[Any, Any, list[Any]]:
    """Send what is in a pipeline; return the result of each statement, once all have come and the mark of its end."""
    yield from generators.send(pgconn)
    results = []
    for _ in range(many):
        results += yield from generators.fetch_many(pgconn)
    yield from generators.fetch_many(pgconn)
    return results


def _rows(result: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a result.

    Raises:
        psycopg.Error: the statement has failed.
    """
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


_Sent: TypeAlias = tuple[Sequence[Any], Sequence[int]]
_SENT: dict[type, Callable[[Any], bytes]] = {int: _INT8.pack, str: str.encode, bytes: bytes}
_FOUND: dict[int, Callable[[bytes], Any]] = {  # by the numbers of the types bool, int8, int4 and text
    16: b"\1".__eq__,
    20: lambda value: _INT8.unpack(value)[0],
    23: lambda value: int.from_bytes(value, signed=True),
    25: bytes.decode,
}
