"""Statements that come again and again: prepared once for a connection, then sent to libpq without a cursor.

A cursor of psycopg finds out for each value how it is sent, which takes three times as long as to send it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Any

import psycopg
from psycopg import errors, generators
from psycopg.pq import ExecStatus

_OFTEN = 2  # times that a statement comes before it is prepared: most of a short process come once
_INT8 = Struct("!q")
_BINARY = 1


class Prepared:
    """The statements that are prepared in a session.

    Args:
        connection: The connection to it.
    """

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._times: dict[str, int] = {}
        self._names: dict[str, bytes] = {}

    def found(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Return what a statement finds. With values that are no integers, texts or bytes, it is made as any other."""
        if statement not in self._names and not self._prepare(statement):
            return self._connection.execute(statement, values, binary=True).fetchall()
        try:
            sent = [None if value is None else _SENT[type(value)](value) for value in values]
        except KeyError:  # a list, or what is derived from one of these types
            return self._connection.execute(statement, values, binary=True).fetchall()
        except error as wrong:
            raise OverflowError("there is no place for a number of more than 64 bits") from wrong
        pgconn = self._connection.pgconn
        pgconn.send_query_prepared(self._names[statement], sent, [_BINARY] * len(sent), _BINARY)
        (result,) = self._connection.wait(generators.execute(pgconn))
        if result.status != ExecStatus.TUPLES_OK:
            raise errors.error_from_result(result)
        found = [_FOUND.get(result.ftype(number), bytes) for number in range(result.nfields)]
        return [
            tuple(
                None if (value := result.get_value(row, number)) is None else read(value)
                for number, read in enumerate(found)
            )
            for row in range(result.ntuples)
        ]

    def _prepare(self, statement: str) -> bool:
        """Prepare a statement that came often enough; return whether it is prepared."""
        times = self._times[statement] = self._times.get(statement, 0) + 1
        if times <= _OFTEN:
            return False
        name = b"stategraph_%d" % len(self._names)
        self._connection.pgconn.send_prepare(name, statement.encode())
        (result,) = self._connection.wait(generators.execute(self._connection.pgconn))
        if result.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result)
        self._names[statement] = name
        return True


_SENT: dict[type, Callable[[Any], bytes]] = {int: _INT8.pack, str: str.encode, bytes: bytes}
_FOUND: dict[int, Callable[[bytes], Any]] = {  # by the numbers of the types bool, int8, int4 and text
    16: b"\1".__eq__,
    20: lambda value: _INT8.unpack(value)[0],
    23: lambda value: int.from_bytes(value, signed=True),
    25: bytes.decode,
}
