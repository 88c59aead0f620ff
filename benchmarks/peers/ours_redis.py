"""stategraph in Redis, beside a bare HSET for each State."""

from __future__ import annotations

import ormsgpack

from benchmarks import redis_server, scratch, threads
from benchmarks.counters import START
from benchmarks.measure import Run
from benchmarks.peers.ours import count, execution, loop_graph
from stategraph import CheckpointConfig, State
from stategraph.stores.redis import RedisStore


def sets(steps: int) -> Run:
    """A field for the State of each step, by one thread."""
    return _setting(redis_server.new_prefix(), steps, 0)


def sets_of_threads(steps: int) -> Run:
    """The same in eight threads, a connection each, and a share of the steps."""
    key, share = redis_server.new_prefix(), max(1, steps // threads.COUNT)
    return threads.together([_setting(key, share, run) for run in range(threads.COUNT)])


def _setting(key: str, steps: int, run_number: int) -> Run:
    client = redis_server.connected()
    scratch.at_end(client.close)
    key = f"{key}:{run_number}"
    client.hset(key, -1, b"")

    def run() -> None:
        for n in range(steps):
            client.hset(key, n, ormsgpack.packb({"n": n}))

    return run


def saves(steps: int) -> Run:
    """`store.save` of each step, by one thread."""
    return _saving(_store(), steps, 0)


def saves_of_threads(steps: int) -> Run:
    """The same in eight threads, a run each, and a share of the steps."""
    store, share = _store(), max(1, steps // threads.COUNT)
    return threads.together([_saving(store, share, run) for run in range(threads.COUNT)])


def _store() -> RedisStore:
    store = RedisStore(redis_server.url(), prefix=redis_server.new_prefix())
    scratch.at_end(store.close)
    return store


def _saving(store: RedisStore, steps: int, run_number: int) -> Run:
    run_id = f"run-{run_number}"
    for step in range(1, 6):  # the server knows the scripts
        store.save(State({"n": 0}, run_id=run_id, step=step))

    def run() -> None:
        for n in range(6, steps + 6):
            store.save(State({"n": n}, run_id=run_id, step=n))

    return run


def saved_steps(steps: int) -> Run:
    """A run that is executed, owned, and every step of it saved."""
    return execution(loop_graph(count, steps, CheckpointConfig(interval=1), _store()), State(START))
