"""The "postgres" store: runs in a PostgreSQL database that many machines share.

Tables that others understand: ``run`` and ``checkpoint`` say what they are, and the view ``checkpoints`` puts them
together for psql (see docs/postgres.md).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stategraph._owners.leases import LEASE
from stategraph._text.shown import Hidden, unreadable
from stategraph._util.validators import is_count, is_seconds
from stategraph.errors import ConfigError
from stategraph.stores._rows.store import RowStore
from stategraph.stores._rows.table import Identify, Table

_MOST_NAMED = 63  # bytes of a name that PostgreSQL keeps


class PostgresStore(RowStore):
    """Keeps runs in a PostgreSQL database. Machines, processes and threads may share it; one owner has each run.

    A save is one transaction and one round trip.

    Args:
        dsn: Where the database is, as libpq takes it: an URL or "key=value" pairs; or the name of an environment
            variable that holds that. It is never shown.
        schema: The schema with the tables.
        pool: How many threads use a connection at the same time.
        patience: Seconds until whatever waits for the server gives up.
        prepare: Whether statements are prepared and the session is given its settings once. False behind PgBouncer in
            transaction mode, where the next transaction may be in another session.
        migrate: Whether tables that are missing, or of an older version, are made. If not, the error says what an
            administrator has to run.
        lease: Seconds after which a process that is not heard of has lost its runs.
        options: As for RowStore.

    Raises:
        ConfigError: an option is not allowed, psycopg is not installed, or the server does not keep what it
            acknowledges.
        FormatError: the tables are of a newer version, or of an older one and may not be changed.
        CheckpointError: the server does not answer.
    """

    kind = "postgres"

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "stategraph",
        pool: int = 4,
        patience: float = 60,
        prepare: bool = True,
        migrate: bool = True,
        lease: float = LEASE,
        **options: Any,
    ) -> None:
        flags = {"prepare": prepare, "migrate": migrate}
        _check_options(schema, {"patience": patience, "lease": lease}, pool, flags)
        self._schema = schema
        where = _dsn_of(dsn)

        def open_table(store: object, identify: Identify) -> Table:
            from stategraph.stores._postgres.table import PostgresTable  # imported when used: psycopg takes 60 ms

            table = PostgresTable(store, where, schema, pool=pool, patience=patience, prepares=prepare, lease=lease)
            try:
                table.open(schema, identify, migrates=migrate)
            except BaseException:
                table.close()
                raise
            return table

        super().__init__(open_table, **options)

    def __str__(self) -> str:
        return f"postgres store in schema {self._schema}"


def _check_options(schema: object, seconds: Mapping[str, object], pool: object, flags: Mapping[str, object]) -> None:
    """Raise ConfigError unless these options are allowed."""
    is_name = isinstance(schema, str) and schema.isprintable() and len(schema.encode(errors="replace")) > 0
    if not is_name or len(str(schema).encode(errors="replace")) > _MOST_NAMED or str(schema).startswith("pg_"):
        raise ConfigError("checkpoint.options.schema", schema, f"the name of a schema, of up to {_MOST_NAMED} bytes")
    if not is_count(pool, at_least=1):
        raise ConfigError("checkpoint.options.pool", pool, "how many connections are used at the same time, from 1 on")
    for name, value in seconds.items():
        if not is_seconds(value):
            raise ConfigError(f"checkpoint.options.{name}", value, "seconds, more than 0")
    for name, value in flags.items():
        if type(value) is not bool:
            raise ConfigError(f"checkpoint.options.{name}", value, "true or false")


def _dsn_of(given: object) -> str:
    """Return the connection string that was given, or that an environment variable of this name holds.

    Raises:
        ConfigError: there is none, it cannot be read, or psycopg is not installed.
    """
    key = "checkpoint.options.dsn"
    allowed = "a connection string such as postgresql://host/database, or the environment variable that holds one"
    if not isinstance(given, str) or not given.strip():
        raise ConfigError(key, Hidden.of(given), allowed)
    text = given
    if given.isidentifier():
        text = os.environ.get(given, "")
        if not text:
            raise ConfigError(key, given, f"{allowed}: no environment variable is named {given}")
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        way_out = "psycopg comes first, as the extra stategraph[postgres] brings it"
        raise ConfigError("checkpoint.store", "postgres", f"a store that can be used: {way_out}") from error
    try:
        conninfo_to_dict(text)
    except ProgrammingError:
        raise ConfigError(key, Hidden.of(given), f"{allowed}: {unreadable(text, 'postgresql', 'postgres')}") from None
    return text
