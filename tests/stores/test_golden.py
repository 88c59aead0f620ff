"""This version loads stores of earlier versions and resumes their runs."""

import base64
import json
import runpy
import shutil
import uuid
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from stategraph import CheckpointError, MapNode, State
from stategraph._values.entries import Entry
from stategraph._values.provenance import ErrorInfo, ParentStep
from stategraph.stores._rows.records import FORMAT
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import fixed, is_same
from tests.scenarios import make_graph

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
MAKER = runpy.run_path(str(ROOT / "tools" / "make_golden.py"))
FILES = sorted(path for path in GOLDEN.iterdir() if path.name.startswith("format-"))


def copied(path, folder):
    copy = folder / path.name
    if path.is_dir():
        shutil.copytree(path, copy, copy_function=shutil.copyfile)
        copy.chmod(0o700)
    else:
        shutil.copyfile(path, copy)
    for file in copy.iterdir() if copy.is_dir() else [copy]:  # a checkout may let its group write
        file.chmod(0o600)
    return copy


@contextmanager
def on_postgres(path):
    """Open a store in a new database with the tables and rows of a dump."""
    import psycopg

    from stategraph.stores.postgres import PostgresStore
    from tests.postgres_server import dsn

    name = f"golden_{uuid.uuid4().hex}"
    with psycopg.connect(dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    place = psycopg.conninfo.make_conninfo(dsn(), dbname=name)
    with psycopg.connect(place) as connection:
        connection.execute(path.read_text())
    with PostgresStore(place, schema="golden") as store:
        yield store
    with psycopg.connect(dsn(), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def on_redis(path):
    """Open a store with the keys of a dump under a new prefix."""
    import redis

    from stategraph.stores.redis import RedisStore
    from tests.redis_server import url

    prefix = f"golden-{uuid.uuid4().hex}"
    client = redis.Redis.from_url(url())
    for key, value in json.loads(path.read_text()).items():
        client.restore(key.replace("{golden:", f"{{{prefix}:"), 0, base64.b64decode(value))
    with RedisStore(url(), prefix=prefix) as store:
        yield store
    client.close()


def opened(path, folder):
    if path.suffix == ".sql":
        return on_postgres(path)
    if path.suffix == ".json":
        return on_redis(path)
    copy = copied(path, folder)
    return DiskStore(copy) if copy.is_dir() else SqliteStore(copy)


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def store(request, tmp_path):
    with opened(request.param, tmp_path) as store:
        yield store


def opened_of(kind, tmp_path, name):
    path = copied(GOLDEN / f"{name}{kind}", tmp_path)
    return DiskStore(path) if path.is_dir() else SqliteStore(path)


@pytest.mark.parametrize("kind", [".db", "-disk"])
@pytest.mark.parametrize("serializer", MAKER["SERIALIZERS"])
def test_entries(tmp_path, kind, serializer):
    """The journal and the inbox are as they were appended, a key stays known, and a fork has the journal."""
    run_id = f"entries/{serializer}"
    with opened_of(kind, tmp_path, "layout-3") as store:
        for step, made in ((3, MAKER["journal"]()), (0, MAKER["inbox"]())):
            found = store.entries(run_id, step=step)
            assert [attrs.evolve(entry, value=None) for entry in found] == [
                attrs.evolve(entry, value=None, seq=seq) for seq, entry in enumerate(made, 1)
            ]
            assert all(is_same(entry.value, other.value) for entry, other in zip(found, made, strict=True))
        again = attrs.evolve(MAKER["inbox"]()[1], value="other")
        assert [entry.seq for entry in store.append(run_id, [again, Entry("message", 5)])] == [2, 5]
        store.fork(run_id, "copy")
        assert len(store.load_parts("copy", 3, "map")) == len(MAKER["journal"]()) - 2
        store.save(State({"n": 3}, run_id=run_id, step=3, graph="golden"))
        assert store.entries(run_id, step=3) == []


def test_an_encrypted_store(tmp_path):
    """Its key opens what was encrypted: what a ciphertext is bound to stays the same in every later version."""
    pytest.importorskip("cryptography")
    with SqliteStore(copied(GOLDEN / "encrypted.db", tmp_path), **MAKER["ENCRYPTED"]) as store:
        assert store.verify().damaged == ()
        for state in MAKER["history_states"]("history"):
            assert is_same(dict(store.load("history", state.step)), dict(state))
        waits = store.load("paused").pause
        assert waits is not None
        assert is_same(waits.value, MAKER["paused_state"]("paused").pause.value)
        assert store.load("failed").error == ErrorInfo("E", "no", "n")
        assert {run.run_id: run.labels for run in store.runs()}["failed"] == {"a": "b"}
        entries = zip(store.entries("paused"), MAKER["inbox"](), strict=True)
        assert all(is_same(entry.value, made.value) and entry.by == made.by for entry, made in entries)


def test_a_half_done_map_of_an_older_version_goes_on(tmp_path):
    """Its finished parts are not repeated, also if the process dies again half way: they are in the journal then."""
    made = []

    def double(item):
        made.append(item)
        if len(made) == 2:
            raise KeyboardInterrupt
        return 2 * item

    def graph():
        nodes = {"first": lambda state: {}, "map": MapNode(double, over="items", into="made", max_workers=1)}
        return make_graph({**nodes, "last": lambda state: {}}, store=SqliteStore(path), preserve=True)

    path = copied(GOLDEN / "half-done-map.db", tmp_path)
    with pytest.raises(KeyboardInterrupt):
        graph().resume("run")
    first = graph().store
    assert [entry.name for entry in first.entries("run", step=2, kinds=("part",))] == ["0", "1", "2"]

    final = graph().resume("run")

    assert final["made"] == ["aa", "bb", "cc", "dd"]
    assert made == ["c", "d", "d"]
    assert [*first.entries("run"), *first.load_parts("run", 2, "map")] == []


def test_there_are_golden_files_of_every_format_and_store():
    """There is a golden file of every format for every durable store."""
    kinds = (".db", "-disk", "-postgres.sql", "-redis.json")
    expected = {f"format-{version}{kind}" for version in range(1, FORMAT + 1) for kind in kinds}

    assert {path.name for path in FILES} == expected


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".db"], ids=lambda path: path.name)
def test_a_database_is_read_without_writing(path, tmp_path):
    """A read-only store shows the same of a database of any version as after its migration."""
    pytest.importorskip("zstandard")  # one of its runs is compressed
    copy = copied(path, tmp_path)
    before = copy.read_bytes()
    with SqliteStore(copy, read_only=True) as store:
        before_migration = shown_by(store)
        with pytest.raises(CheckpointError):
            store.save(State(run_id="new", step=1))
    assert copy.read_bytes() == before

    with SqliteStore(copy) as store:
        assert shown_by(store) == before_migration


def shown_by(store):
    """Return all that a store shows, without the values of pauses: one of them is a nan."""
    ids = store.list()
    rows = [*store.runs(), *(row for run_id in ids for row in store.history(run_id))]
    steps = [store.load(row.run_id, row.step).step for row in rows]
    return ids, [attrs.evolve(row, pause=None) for row in rows], [row.pause is None for row in rows], steps


@pytest.mark.parametrize("serializer", MAKER["SERIALIZERS"])
def test_values_and_provenance(store, serializer):
    """Everything is as it was saved, in values and in types."""
    with fixed():
        expected = MAKER["values_state"](f"values/{serializer}")

    loaded = store.load(f"values/{serializer}")

    assert len(loaded) >= 40
    for name, value in loaded.items():
        assert is_same(value, expected[name]), name
    for field in ("run_id", "checkpoint_node", "timestamp", "step", "status", "graph", "error", "fingerprint"):
        assert getattr(loaded, field) == getattr(expected, field), field


@pytest.mark.parametrize("serializer", MAKER["SERIALIZERS"])
def test_every_step_of_a_history(store, serializer):
    """Each step of a run and of a fork is loaded, and the run can be resumed."""
    run_id = f"history/{serializer}"
    with fixed():
        expected = MAKER["history_states"](run_id)

    assert [row.step for row in store.history(run_id)] == list(range(1, MAKER["STEPS"] + 1))
    assert all(is_same(dict(store.load(run_id, state.step)), dict(state)) for state in expected)
    assert is_same(dict(store.load(f"fork/{serializer}")), dict(expected[6]))
    assert store.load(f"fork/{serializer}").parent == ParentStep(run_id, 7)
    store.save(State({**expected[-1], "new": True}, run_id=run_id, step=MAKER["STEPS"] + 1, graph="golden"))
    assert store.load(run_id)["new"] is True
    assert is_same(dict(store.load(run_id, 9)), dict(expected[8]))


@pytest.mark.parametrize("serializer", MAKER["SERIALIZERS"])
@pytest.mark.parametrize("store", [path for path in FILES if "format-1" not in path.name], indirect=True, ids=str)
def test_edits_inside_values(store, serializer):
    """Each step of a run whose values and progress change inside is loaded, and the run can be resumed."""
    run_id = f"nested/{serializer}"
    expected = MAKER["nested_states"](run_id)

    for state in expected:
        loaded = store.load(run_id, state.step)
        assert is_same(dict(loaded), dict(state))
        assert loaded.progress == state.progress
    newer = attrs.evolve(expected[-1].set("messages", expected[-1]["messages"][1:]), step=MAKER["STEPS"] + 1)
    store.save(newer)
    assert is_same(dict(store.load(run_id)), dict(newer))


@pytest.mark.parametrize("serializer", MAKER["SERIALIZERS"])
def test_rows_of_an_older_format_go_on_with_edits(store, serializer):
    """A chain begins with rows of the golden format, and goes on with edits of their values."""
    run_id = f"history/{serializer}"
    state = store.load(run_id)
    for step in range(MAKER["STEPS"] + 1, MAKER["STEPS"] + 5):
        first, *log = state["log"]
        state = attrs.evolve(state.set("log", [{**first, "seen": step}, *log[1:], "new"]), step=step, labels={"a": "b"})
        store.save(state)
        assert is_same(dict(store.load(run_id)), dict(state))
    assert is_same(dict(store.load(run_id, 3)["log"][2]), {"step": 3, "text": "y" * 50})
    *_, newest = store.history(run_id)
    assert newest.step == MAKER["STEPS"] + 4


def test_a_compressed_run(store):
    """The database has one such run."""
    pytest.importorskip("zstandard")
    if isinstance(store, SqliteStore):
        with fixed():
            assert store.load("compressed") == MAKER["compressed_state"]("compressed")


@pytest.mark.parametrize("serializer", MAKER["SERIALIZERS"])
def test_a_run_that_waits(store, serializer):
    """The pause is the same as it was saved, in values and types."""
    run_id = f"paused/{serializer}"
    with fixed():
        expected = MAKER["paused_state"](run_id)

    for pause in (store.load(run_id).pause, store.history(run_id)[0].pause):
        for field in ("reason", "node", "response_param", "at", "deadline"):
            assert getattr(pause, field) == getattr(expected.pause, field), field
        for name, value in pause.value.items():
            assert is_same(value, expected.pause.value[name]), name
    assert {row.run_id for row in store.runs(status="paused")} == {f"paused/{name}" for name in MAKER["SERIALIZERS"]}


@pytest.mark.parametrize("serializer", MAKER["SERIALIZERS"])
def test_parts_and_a_run_within_a_run(store, serializer):
    """Parts and nested runs are loaded, copied by a fork, hidden in lists and deleted with their run."""
    outer = f"outer-{serializer}"
    expected = {part.label: part.value for part in MAKER["parts"]() if part.step == 3}
    store.fork(outer, "copy")

    for run_id in (outer, "copy"):
        loaded = store.load_parts(run_id, 3, "map")
        assert {"None", "list"} <= loaded.keys() <= expected.keys()  # later versions keep values of more kinds
        assert all(is_same(value, expected[label]) for label, value in loaded.items())
        assert is_same(dict(store.load(f"{run_id}/#3/child")), {"inner": (1,)})
        assert store.load(f"{run_id}/#3/child").parent == ParentStep(run_id, 2)
        assert store.load_parts(f"{run_id}/#3/child", 2, "map") == {"x": [1]}
    assert store.load_parts(outer, 4, "other") == {"x": "later"}
    assert not any("child" in run_id or "#" in run_id for run_id in store.list())
    store.delete(outer)
    assert store.load_parts(outer, 3, "map") == store.load_parts(f"{outer}/#3/child", 2, "map") == {}
