"""The servers of stores, and helpers that their tests share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import psycopg

from stategraph import State
from stategraph.stores import PostgresStore, RedisStore
from stategraph.stores._rows.records import WriteBatch
from stategraph.stores._rows.saving import next_place
from tests import postgres_server, redis_server
from tests.postgres_proxy import Proxy, folder_of
from tests.redis_proxy import RedisProxy
from tests.stores.inside import log_of


class StoreServer(Protocol):
    """A server. A place on it is for one test."""

    def new_place(self) -> str:
        """Return a place where nothing is."""

    def config(self, place: str) -> dict[str, Any]:
        """Return the name and the options of a store there."""

    def open(self, place: str, **options: Any) -> PostgresStore | RedisStore:
        """Return a store there, once more each time."""

    def count(self, place: str, kind: str) -> int:
        """Return how many leases, or workers, are there."""

    def expire(self, place: str) -> None:
        """End the time of all workers."""

    def damage(self, place: str, run_id: str) -> None:
        """Change the record of a run."""

    def proxy(self) -> Proxy:
        """Return a network to the server that can fail."""

    def through(self, proxy: Any) -> dict[str, Any]:
        """Return the options of a store that is reached through it."""


class _Postgres:
    def new_place(self) -> str:
        return postgres_server.new_schema()

    def config(self, place: str) -> dict[str, Any]:
        return {"store": "postgres", "options": {"dsn": postgres_server.dsn(), "schema": place}}

    def open(self, place: str, **options: Any) -> PostgresStore:
        return postgres_server.open_postgres(place, **options)

    def count(self, place: str, kind: str) -> int:
        with psycopg.connect(postgres_server.dsn()) as connection:
            return len(connection.execute(f"SELECT 1 FROM {place}.{kind}").fetchall())

    def expire(self, place: str) -> None:
        with psycopg.connect(postgres_server.dsn()) as connection:
            connection.execute(f"UPDATE {place}.worker SET until = clock_timestamp()")

    def damage(self, place: str, run_id: str) -> None:
        with psycopg.connect(postgres_server.dsn()) as connection:
            connection.execute(f"UPDATE {place}.run SET seal = '' WHERE run_id = %s", (run_id,))

    def proxy(self) -> Proxy:
        return Proxy(folder_of(postgres_server.dsn()))

    def through(self, proxy: Any) -> dict[str, Any]:
        return {"dsn": proxy.dsn}


class _Redis:
    def new_place(self) -> str:
        return redis_server.new_prefix()

    def config(self, place: str) -> dict[str, Any]:
        return {"store": "redis", "options": {"url": redis_server.url(), "prefix": place}}

    def open(self, place: str, **options: Any) -> RedisStore:
        options.pop("pool", None)
        return redis_server.open_redis(place, **options)

    def count(self, place: str, kind: str) -> int:
        return len(self._keys(place, kind))

    def expire(self, place: str) -> None:
        with redis_server.server().client() as client:
            for key in self._keys(place, "worker"):
                client.hset(key, "until", 1)

    def _keys(self, place: str, kind: str) -> list[str]:
        with redis_server.server().client() as client:
            return list(client.keys(f"{{{place}:*}}:{kind}:*"))

    def damage(self, place: str, run_id: str) -> None:
        with redis_server.server().client() as client:
            (key,) = client.keys(f"{{{place}:*}}:run:{run_id}")
            client.hset(key, "d", "damaged")

    def proxy(self) -> Proxy:
        return RedisProxy()

    def through(self, proxy: Any) -> dict[str, Any]:
        return {"url": proxy.url}


def numbered(run_id: str, step: int, **data: Any) -> State:
    """Return the State of a run at a step."""
    return State({"n": step, **data}, run_id=run_id, step=step)


def again(store: Any, run_id: str) -> WriteBatch:
    """Return what the store writes for one more step of a run."""
    state = numbered(run_id, store.load(run_id).step + 1)
    log = log_of(store)
    run, base, *_ = log.known.get(run_id)
    row, _ = log.encoder.encode(state, run.incarnation, next_place(log, run, state), base)
    return WriteBatch(log.next_run(run, row, state, run.incarnation), run, (row,))


def shown(error: BaseException | None) -> str:
    """Return all that may be shown of an error."""
    texts: list[str] = []
    while error is not None:
        texts += str(error), repr(error), repr(error.args)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(texts)


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, for five minutes at most."""
    give_up = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.01)


SERVERS: dict[str, StoreServer] = {"postgres": _Postgres(), "redis": _Redis()}
