"""`rekey` signs everything in a store again, so that its former key can be removed."""

import sqlite3
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from stategraph import ConfigError, ExecutionError, InterruptNode, State
from stategraph._owners import base
from stategraph._values.entries import Entry
from stategraph.errors import CheckpointCorruptError
from stategraph.stores import Policy, SqliteStore
from tests import scenarios
from tests.postgres_server import postgres_at
from tests.redis_server import redis_at
from tests.stores.test_transfer import make_graph

STORES: dict[str, Any] = {"sqlite": lambda path, **options: SqliteStore(path / "runs.db", **options)}
STORES |= {"postgres": postgres_at, "redis": redis_at}
OLD: dict[str, Any] = {"sign_with": lambda: b"old" * 9}
NEW: dict[str, Any] = {"sign_with": lambda: b"new" * 9}
BOTH = NEW | {"verify_with": [OLD["sign_with"]]}
KEYS: dict[str, Any] = {
    "signed": (OLD, NEW, BOTH),
    "encrypted": (
        {"encrypt_with": {"old": b"o" * 32}},
        {"encrypt_with": {"new": b"n" * 32}},
        {"encrypt_with": {"new": b"n" * 32, "old": b"o" * 32}},
    ),
    "encrypted and signed": (
        OLD | {"encrypt_with": b"o" * 32},
        NEW | {"encrypt_with": {"new": b"n" * 32}},
        BOTH | {"encrypt_with": {"new": b"n" * 32, "old": b"o" * 32}, "encrypt_labels": True},
    ),
    "encrypted for the first time": ({}, {"encrypt_with": b"n" * 32}, {"encrypt_with": b"n" * 32}),
}
"""The former keys, the new ones, and both."""


@pytest.fixture
def opened(tmp_path):
    """-> opens a store with these keys, once more each time, and closes it in the end."""
    stores = []

    def open_one(keys, kind="sqlite"):
        stores.append(STORES[kind](tmp_path, **keys))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


def asking(store):
    """Return a graph with a graph within that asks."""
    ask = {"ask": InterruptNode("question", response_param="sure")}
    inner = scenarios.make_graph(ask, name="inner", store=store)
    return scenarios.make_graph({"outer": inner.as_node()}, name="asks", store=store, preserve=True)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("kind", STORES)
def test_nothing_needs_the_former_key_then(opened, kind, keys):
    """Not a history with a rollback, entries, a run that waits in a nested graph, or one that stopped within a map."""
    old_keys, new_keys, both = KEYS[keys]
    if "encrypt" in keys:
        pytest.importorskip("cryptography")
    old = opened(old_keys, kind)
    calls: list[int] = []
    with pytest.raises(ExecutionError):
        make_graph(old, calls).execute(State(run_id="map"))
    assert asking(old).execute(State({"question": "sure?"}, run_id="ask")).status == "paused"
    for run_id, policy in (("full", Policy("full")), ("few", Policy("windowed", window=2)), ("one", Policy())):
        old.retain(run_id, policy)
        for step in range(1, 6):
            old.save(State({"n": step, "text": f"{step}" * 9_000}, run_id=run_id, step=step))
    old.rollback("full", 2)
    old.append("few", [Entry("message", {"n": 1}, by="ann"), Entry("answer", True, name="x")])
    old.append("few", [Entry("effect", "paid", step=6, place="pay", name="card")])
    entries = old.entries("few")
    histories = {run_id: old.history(run_id) for run_id in old.list()}

    report = opened(both, kind).rekey()

    assert report.left == ()
    assert report.runs > len(histories)  # with nested runs and parts
    new = opened(new_keys, kind)
    assert new.verify().damaged == ()
    assert {run_id: new.history(run_id) for run_id in new.list()} == histories
    assert len(entries) == 3
    assert new.entries("few") == entries
    for row in histories["full"]:
        assert new.load("full", row.step, row.revision)["n"] == row.step
    assert asking(new).resume("ask", {"sure": True})["sure"] is True
    assert make_graph(new, calls, mended=True).resume("map")["squares"] == [0, 1, 4, 9]
    assert calls == [0, 1, 2, 2, 3]
    with pytest.raises(CheckpointCorruptError):
        opened(old_keys, kind).load("full")


@pytest.mark.parametrize("kind", STORES)
def test_a_stored_answer_stays_due(opened, kind):
    """A sweep goes on with the run afterwards."""
    store = opened(OLD, kind)
    nodes = {"ask": InterruptNode(None, response_param="sure"), "b": lambda state: {}}
    graph = scenarios.make_graph(nodes, store=store, preserve=True)
    graph.execute(State(run_id="ask"))
    graph.answer("ask", True)

    assert store.rekey().left == ()

    assert [run.error for run in graph.recover()] == [None]
    assert store.load("ask")["sure"] is True


def test_what_is_left_is_named_and_never_signed(opened, tmp_path):
    """A damaged run, a run without a signature, and a run that is at work; once they are mended, a second call does the
    rest."""
    old, unsigned = opened(OLD), opened({})
    for run_id in ("damaged", "busy", "fine"):
        old.save(State({"n": 1}, run_id=run_id, step=1))
    unsigned.save(State({"n": 1}, run_id="unsigned", step=1))
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        at = "(SELECT number FROM run WHERE run_id = 'damaged')"
        database.execute(f"UPDATE checkpoint SET payload = payload || x'00' WHERE id >> 32 = {at}")
    store, busy = opened(BOTH), base.Ownership("busy")
    base.own(old, busy)

    report = store.rekey()

    base.release(busy)
    assert (report.runs, {left.run_id for left in report.left}) == (1, {"damaged", "unsigned", "busy"})
    assert "at work" in next(left.reason for left in report.left if left.run_id == "busy")
    assert opened(NEW).load("fine")["n"] == 1
    for run_id in ("damaged", "unsigned", "busy"):
        with pytest.raises(CheckpointCorruptError):
            opened(NEW).load(run_id)
    assert {left.run_id for left in store.rekey().left} == {"damaged", "unsigned"}
    assert opened(NEW).load("busy")["n"] == 1


def test_an_end_in_the_middle_loses_nothing(opened):
    """Wherever it ends, each run can be read with both keys, and another call does the rest."""
    old = opened(OLD)
    old.retain("a", Policy("full"))
    for step in range(1, 8):
        old.save(State({"text": f"{step}" * 20_000}, run_id="a", step=step))

    def key(left):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return NEW["sign_with"]()

    for calls in range(2, 20, 3):
        with pytest.raises(KeyboardInterrupt):
            opened(BOTH | {"sign_with": partial(key, [calls])}).rekey()
        assert [row.step for row in opened(BOTH).history("a")] == list(range(1, 8))
    assert opened(BOTH).rekey().left == ()
    assert len(opened(NEW).history("a")) == 7


def test_it_takes_a_key(opened):
    """A store that does not sign has nothing to sign again."""
    with pytest.raises(ConfigError, match="sign_with"):
        opened({}).rekey()
