"""Servers under test: what a trial does to any of them, and how."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import psycopg

from stategraph.stores import CheckpointStore, PostgresStore, RedisStore
from tests import postgres_server, redis_server
from tests.postgres_proxy import Proxy, folder_of
from tests.redis_proxy import RedisProxy

Options = dict[str, Any]
"""What a store is opened with; it can be handed to another process as JSON."""

MODES = ("hole", "deaf", "cut before", "cut after")
"""What a network does: swallows all, or the answers; closes the connection before the server is asked, or after."""


class Network(Protocol):
    """A network between stores and the server, which can fail.

    Attributes:
        mode: One of `MODES`, or "pass". Cutting is done once.
        options: What a store is opened with that is to go through it.
    """

    mode: str
    options: Options

    def close(self) -> None:
        """Cut all."""


class Server(Protocol):
    """A server that a trial is made on.

    Attributes:
        kind: The name of its stores.
    """

    kind: str

    def place(self) -> Options:
        """Return what a store is opened with that is empty; others that are opened with the same are the same store."""

    def open(self, options: Options, **more: Any) -> CheckpointStore:
        """Open a store, once more each time."""

    def network(self, options: Options) -> Network:
        """Return a network that leads to a store."""

    def crash(self) -> None:
        """Kill the server with all its processes, and start it again."""

    def read_only(self) -> AbstractContextManager[object]:
        """Let the server refuse all that writes, as one that another takes the place of."""


class PostgresServer:
    """A PostgreSQL server of this process."""

    kind = "postgres"

    def place(self) -> Options:
        return {"dsn": postgres_server.dsn(), "schema": postgres_server.new_schema()}

    def open(self, options: Options, **more: Any) -> CheckpointStore:
        return PostgresStore(**{**options, **more})

    def network(self, options: Options) -> Network:
        return _PostgresNetwork(options)

    def crash(self) -> None:
        postgres_server.crash(postgres_server.server())

    @contextmanager
    def read_only(self) -> Iterator[None]:
        self._set("SET default_transaction_read_only = on")
        try:
            yield
        finally:
            self._set("RESET default_transaction_read_only")

    def _set(self, setting: str) -> None:
        """Change a setting of the database; who is connected is cut off."""
        with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(f"ALTER DATABASE postgres {setting}")
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            connection.execute(f"{others} AND application_name = 'stategraph'")


class _PostgresNetwork(Proxy):
    def __init__(self, options: Options) -> None:
        super().__init__(folder_of(options["dsn"]))
        self.options = {**options, "dsn": self.dsn}


class RedisServer:
    """A Redis server of this process."""

    kind = "redis"

    def place(self) -> Options:
        return {"url": redis_server.url(), "prefix": redis_server.new_prefix()}

    def open(self, options: Options, **more: Any) -> CheckpointStore:
        more.pop("pool", None)  # it has as many connections as it takes
        return RedisStore(**{**options, **more})

    def network(self, options: Options) -> Network:
        return _RedisNetwork(options)

    def crash(self) -> None:
        redis_server.server().signal(signal.SIGKILL)
        redis_server.server().start()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        with redis_server.server().client() as client:  # a replica would not be read, either: it may be behind
            client.config_set("min-replicas-to-write", 1)
            try:
                yield
            finally:
                client.config_set("min-replicas-to-write", 0)


class _RedisNetwork(RedisProxy):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options = {**options, "url": self.url}


SERVERS: dict[str, Callable[[], Server]] = {"postgres": PostgresServer, "redis": RedisServer}
