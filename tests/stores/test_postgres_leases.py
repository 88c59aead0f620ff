"""Leases in PostgreSQL: an owner that is cut off stops in time, and sweepers claim runs without waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from stategraph import RunLostError, State
from stategraph.stores import PostgresStore
from tests.postgres_proxy import Proxy, folder_of
from tests.postgres_server import dsn, new_schema, open_postgres
from tests.scenarios import RUN, make_graph

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def schema() -> str:
    return new_schema()


@pytest.fixture
def opened(schema: str) -> Iterator[Callable[..., PostgresStore]]:
    """Return a function that opens a new store in the schema; each acts like another process."""
    stores: list[PostgresStore] = []

    def open_one(**options: Any) -> PostgresStore:
        stores.append(open_postgres(schema, **options))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


WORK = {"a": lambda state: {}, "b": lambda state: {"pid": os.getpid()}}


def leave_unfinished(store: PostgresStore, many: int) -> list[str]:
    """Begin runs and end none; -> their ids, the oldest first."""
    run_ids = [f"run-{number}" for number in range(many)]
    for run_id in run_ids:
        with make_graph(WORK, store=store, preserve=True).stream(State(run_id=run_id)) as states:
            next(states)
    return run_ids


class TestSweepers:
    """Many sweepers that continue abandoned runs at the same time."""

    def test_no_worker_waits(self, opened: Callable[..., PostgresStore], schema: str) -> None:
        """A run that one sweeper is claiming is left to it by the others."""
        store = opened()
        run_ids = leave_unfinished(store, 3)
        with psycopg.connect(dsn()) as connection:
            connection.execute(f"SELECT 1 FROM {schema}.run WHERE run_id = 'run-0' FOR UPDATE")
            began = time.monotonic()
            swept = [one.run_id for one in make_graph(WORK, store=store, preserve=True).recover()]
            assert time.monotonic() - began < 1
        assert swept == run_ids[1:]

    @pytest.mark.parametrize("how", ["killed", "expired"])
    def test_runs_of_those_who_are_gone(
        self, opened: Callable[..., PostgresStore], schema: str, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Runs of a dead process are free at once on the same machine, and after their lease on another."""
        store = opened()
        leave_unfinished(store, 1)
        stream = make_graph(WORK, store=store, preserve=True).stream(State(run_id=RUN))
        next(stream)
        graph = make_graph(WORK, store=opened(), preserve=True)
        with psycopg.connect(dsn()) as connection:
            if how == "expired":
                connection.execute(f"UPDATE {schema}.worker SET until = clock_timestamp()")
            else:
                connection.execute(f"UPDATE {schema}.worker SET place = place || '0'")  # one that began at another time

        assert [one.run_id for one in graph.recover()] == ["run-0", RUN]
        with pytest.raises(RunLostError):
            next(stream)

    def test_a_run_that_was_cancelled(self, opened: Callable[..., PostgresStore], schema: str) -> None:
        """If the owner died after a cancellation, the next sweeper saves the run as cancelled."""
        store, other = opened(), opened()
        graph = make_graph(WORK, store=other, preserve=True, retention="full")
        stream = make_graph(WORK, store=store, preserve=True, retention="full").stream(State(run_id=RUN))
        next(stream)
        graph.cancel(RUN, by="ada")
        with psycopg.connect(dsn()) as connection:
            connection.execute(f"UPDATE {schema}.worker SET until = clock_timestamp()")

        assert [*graph.recover()] == []
        row = other.history(RUN)[-1]
        stream.close()
        assert (row.kind, row.by) == ("cancel", "ada")

    def test_a_claim_whose_answer_is_lost(self, opened: Callable[..., PostgresStore]) -> None:
        """It is made once more, and comes to the same run: no other one stays leased."""

        class CutsTheFirstClaim(Proxy):
            claims = 0

            def is_trip(self, said: bytes, is_server: bool) -> bool:
                if b"SKIP LOCKED" in said and not is_server:
                    self.claims += 1
                    self.mode = "cut after" if self.claims == 1 else self.mode
                return super().is_trip(said, is_server)

        run_ids = leave_unfinished(opened(), 3)
        proxy = CutsTheFirstClaim(folder_of(dsn()))
        store = opened(dsn=proxy.dsn)

        swept = [one.run_id for one in make_graph(WORK, store=store, preserve=True).recover()]

        assert proxy.claims > len(run_ids)
        assert swept == run_ids
        store.close()
        proxy.close()
