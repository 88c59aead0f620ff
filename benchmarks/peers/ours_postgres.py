"""stategraph in PostgreSQL, beside a bare INSERT for each State."""

from __future__ import annotations

import ormsgpack

from benchmarks import postgres, scratch, threads
from benchmarks.counters import START
from benchmarks.measure import Run
from benchmarks.peers.ours import count, execution, loop_graph
from stategraph import CheckpointConfig, State
from stategraph.stores.postgres import PostgresStore

_PUT = "INSERT INTO {table} VALUES (%s, %s, %s)"


def inserts(steps: int) -> Run:
    """A row for the State of each step, by one thread."""
    return _inserting(_table(), steps, 0)


def inserts_of_threads(steps: int) -> Run:
    """The same in eight threads, a connection each, and a share of the steps."""
    table, share = _table(), max(1, steps // threads.COUNT)
    return threads.together([_inserting(table, share, run) for run in range(threads.COUNT)])


def _table() -> str:
    table = postgres.new_schema()
    with postgres.connected() as database:
        database.execute(f"CREATE TABLE {table} (run bigint, step bigint, body bytea, PRIMARY KEY (run, step))")
    return table


def _inserting(table: str, steps: int, run_number: int) -> Run:
    database = postgres.connected()
    scratch.at_end(database.close)
    put = _PUT.format(table=table)
    database.execute(put, (run_number, -1, b""))

    def run() -> None:
        for n in range(steps):
            database.execute(put, (run_number, n, ormsgpack.packb({"n": n})))

    return run


def saves(steps: int) -> Run:
    """`store.save` of each step, by one thread."""
    return _saving(_store(), steps, 0)


def saves_of_threads(steps: int) -> Run:
    """The same in eight threads, a run each, and a share of the steps."""
    store, share = _store(), max(1, steps // threads.COUNT)
    return threads.together([_saving(store, share, run) for run in range(threads.COUNT)])


def _store() -> PostgresStore:
    store = PostgresStore(postgres.dsn(), schema=postgres.new_schema(), pool=threads.COUNT)
    scratch.at_end(store.close)
    return store


def _saving(store: PostgresStore, steps: int, run_number: int) -> Run:
    run_id = f"run-{run_number}"
    for step in range(1, 6):  # statements are prepared
        store.save(State({"n": 0}, run_id=run_id, step=step))

    def run() -> None:
        for n in range(6, steps + 6):
            store.save(State({"n": n}, run_id=run_id, step=n))

    return run


def saved_steps(steps: int) -> Run:
    """A run that is executed, owned, and every step of it saved."""
    return execution(loop_graph(count, steps, CheckpointConfig(interval=1), _store()), State(START))
