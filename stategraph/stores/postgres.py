"""The "postgres" store: runs in a PostgreSQL database that many machines share.

Other tools can read its tables: ``run`` and ``checkpoint`` have descriptive columns, and the view ``checkpoints`` joins
them for psql (see the page "PostgreSQL").
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

from stategraph._owners.leases import LEASE
from stategraph._util.validators import is_count, is_name
from stategraph.errors import ConfigError
from stategraph.stores._checks import check_flags
from stategraph.stores._rows.store import RowOptions, RowStore
from stategraph.stores._rows.table import Identify, Table
from stategraph.stores._servers import Connections, address_of, check_seconds

_MAX_NAME = 63  # bytes; PostgreSQL cuts off longer names


class PostgresStore(RowStore):
    """Keeps runs in a PostgreSQL database. Machines, processes and threads may share it; each run has one owner.

    A save is one transaction and one round trip.

    Args:
        dsn: The address of the database, as libpq takes it: an URL or "key=value" pairs; or the name of an environment
            variable that holds it. It is never shown.
        schema: The schema with the tables.
        pool: How many threads use a connection at the same time.
        patience: Seconds to wait for the server before giving up.
        prepare: Prepare statements, and set the options of a session once. Use False with PgBouncer in transaction
            mode, where each transaction may be in another session.
        migrate: Create missing tables, and migrate old ones. Otherwise the error lists the statements that an
            administrator has to run.
        lease: Seconds after which a process that does not renew its lease loses its runs.
        options: As for RowStore.

    Raises:
        ConfigError: an option is not allowed, psycopg is not installed, or the server is not durable.
        FormatError: the tables are of a newer version, or of an older one and may not be changed; or other roles can
            change them.
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
        **options: Unpack[RowOptions],
    ) -> None:
        if not is_name(schema) or len(schema.encode(errors="replace")) > _MAX_NAME or schema.startswith("pg_"):
            raise ConfigError("checkpoint.options.schema", schema, f"the name of a schema, of up to {_MAX_NAME} bytes")
        if "?" in schema or "{s}." in schema:  # placeholders of our statements
            raise ConfigError("checkpoint.options.schema", schema, "the name of a schema without ? and {s}.")
        if not is_count(pool, at_least=1):
            raise ConfigError("checkpoint.options.pool", pool, "a positive number of connections")
        check_seconds(patience=patience, lease=lease)
        check_flags(prepare=prepare, migrate=migrate)
        self._schema = schema
        address = address_of("postgres", "dsn", dsn, ("postgresql", "postgres"), _parse)

        def open_table(identify: Identify) -> Table:
            from stategraph.stores._postgres.connections import connected  # imported when used: psycopg takes 60 ms
            from stategraph.stores._postgres.table import PostgresTable

            connections = Connections(partial(connected, address, patience, prepares=prepare), pool)
            limits = {"patience": patience, "lease": lease}
            return PostgresTable(str(self), identify, connections, schema, migrates=migrate, **limits)

        super().__init__(open_table, **options)

    def __str__(self) -> str:
        return f"postgres store in schema {self._schema}"


def _parse(dsn: str) -> None:
    from psycopg.conninfo import conninfo_to_dict

    conninfo_to_dict(dsn)
