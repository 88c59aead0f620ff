"""A process that forks while other threads use a store: both the child and the parent can use it."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from stategraph import State
from stategraph.stores import CheckpointStore
from stategraph.stores.disk import DiskStore
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from tests.postgres_server import postgres_at
from tests.redis_server import redis_at

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.unmeasured,  # coverage has a lock that a fork leaves locked
]

MAKE: dict[str, Callable[[Path], CheckpointStore]] = {
    "sqlite": lambda folder: SqliteStore(folder / "runs.db"),
    "disk": lambda folder: DiskStore(folder / "runs"),
    "memory": lambda folder: MemoryStore(),
    "postgres": postgres_at,
    "redis": redis_at,
}


@pytest.fixture(params=MAKE)
def store(request, tmp_path):
    with MAKE[request.param](tmp_path) as store:
        yield store


def in_child(work):
    """Fork, do the work in the child -> whether it was done within ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a fork beside threads may hang, which is the point
        child = os.fork()
    if not child:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it may hang where Python handles no signal
            signal.alarm(10)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def use(store, run_id):
    store.save(State({"n": 1}, run_id=run_id, step=1))
    store.save(State({"n": 2}, run_id=run_id, step=2))
    assert store.load(run_id)["n"] == 2
    assert run_id in store.list()


def test_a_child_that_is_forked_while_others_save(store):
    """The child saves and loads, and the threads of the parent continue."""
    done = threading.Event()
    failed = []

    def busy(name):
        try:
            step = 0
            while not done.is_set():
                step += 1
                store.save(State({"n": step, "text": "x" * 20_000}, run_id=name, step=step))
                store.load(name)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=busy, args=(f"busy-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        all_ended = all(in_child(lambda number=number: use(store, f"child-{number}")) for number in range(4))
    finally:
        done.set()
        for thread in threads:
            thread.join(300)

    assert all_ended
    assert failed == []
    use(store, "parent")


def test_a_fork_while_others_open_stores(monkeypatch):
    """The fork still waits for all stores: its hook does not fail."""
    failed, done, kept = [], threading.Event(), [MemoryStore() for _ in range(300)]
    monkeypatch.setattr("sys.unraisablehook", lambda hook: failed.append(hook.exc_value))
    switches = sys.getswitchinterval()

    def open_stores():
        while not done.is_set():
            kept.append(MemoryStore())
            del kept[:-300]

    thread = threading.Thread(target=open_stores)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        all_ended = all(in_child(lambda: None) for _ in range(10))
    finally:
        done.set()
        thread.join(300)
        sys.setswitchinterval(switches)

    assert all_ended
    assert failed == []
