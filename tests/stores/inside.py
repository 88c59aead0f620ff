"""Access to the inside of a store, for tests that public methods cannot serve."""

from __future__ import annotations

import pickle
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def log_of(store: Any) -> Any:
    """Return the RunLog of a store of rows."""
    return store._log


def table_of(store: Any) -> Any:
    """Return the table of a store of rows."""
    return store._log.table


def connection_of(store: Any) -> sqlite3.Connection:
    """Return the connection to the database of a store of rows."""
    connection: sqlite3.Connection = store._log.table.database.connection
    return connection


def _flat(value: Any) -> Iterator[bytes]:
    """Yield the parts of what a server has answered, as bytes."""
    if isinstance(value, dict | list | tuple):
        for part in value.items() if isinstance(value, dict) else value:
            yield from _flat(part)
    else:
        yield value if isinstance(value, bytes) else str(value).encode()


def kept_in(store: Any, folder: Path) -> bytes:
    """Return everything that a store keeps, as bytes: its files, its tables or its keys."""
    import psycopg  # imported when used, as the servers
    import redis

    from tests import postgres_server, redis_server

    match getattr(store, "kind", "memory"):
        case "memory":
            return pickle.dumps(vars(store)["_runs_by_id"])
        case "postgres":
            with psycopg.connect(postgres_server.dsn()) as connection:
                schema = postgres_server.schema_of(folder)
                found = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
                tables = connection.execute(found, (schema,)).fetchall()
                kept: Any = [connection.execute(f"SELECT * FROM {schema}.{table}").fetchall() for (table,) in tables]
        case "redis":
            client: Any = redis.Redis.from_url(redis_server.url())
            read: dict[bytes, Any] = {
                b"hash": client.hgetall,
                b"zset": lambda key: client.zrange(key, 0, -1),
                b"string": client.get,
                b"set": client.smembers,
            }
            keys = [*client.scan_iter(f"*{redis_server.prefix_of(folder)}*", count=1000)]
            kept = [read[client.type(key)](key) for key in keys]
        case _:
            kept = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    assert kept
    return b"\n".join(_flat(kept))
