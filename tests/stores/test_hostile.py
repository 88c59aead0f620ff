"""Stored bytes and imported lines of others: they take no time, no memory and no code that their size does not show."""

import enum
import json
import sqlite3
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

from stategraph import State, register_type
from stategraph._values.progress import NodeOutline, Origin, Partial, Pause, Progress
from stategraph._values.provenance import EdgeStructure, GraphStructure, ParentStep
from stategraph.errors import CheckpointCorruptError, FormatError, StateGraphError
from stategraph.stores import SqliteStore
from stategraph.stores._rows import encoder
from tests.scenarios import make_graph
from tests.stores.inside import log_of, table_of

called: list[str] = []


@register_type
class Right(enum.Flag):
    """Flags that do something of their own with a value that is none of theirs."""

    READ, WRITE = 1, 2

    @classmethod
    def _missing_(cls, value):
        called.append("missing")
        return super()._missing_(value)


@register_type
@attrs.frozen(eq=False)
class Busy:
    """An object with methods that Python calls by itself."""

    name: str = "busy"

    def _call(self, *_):
        called.append("method")
        return iter(())

    __iter__ = __getitem__ = __index__ = __bool__ = __eq__ = keys = items = replace = __int__ = _call
    __hash__ = object.__hash__


def full_state():
    """Return a State that has everything that a State may have."""
    now = datetime(2024, 5, 29, tzinfo=UTC)
    inner = GraphStructure(("x",), (EdgeStructure("x", "x", "l", "s"),), "x", ("x",), {"x": NodeOutline("pause")})
    outlines = {"b": NodeOutline("graph", ("n",), inner)}
    structure = GraphStructure(("a", "b"), (EdgeStructure("a", "b", "always", "q"),), "a", ("b",), outlines)
    pause = Pause("why", "a", {"v": 1}, "answer", now, now, "id", "part", (Pause("w", "b", 1, None, now),))
    origins = {"k": Origin("a", 1, {"z"})}
    old: dict[str, Any] = {
        "answer": {"q": (1,)},
        "replaced": {"r": (1,)},
        "partial": Partial("a", [1, (2,)]),
        "answered": {"k"},
    }
    progress = Progress(next_node="b", woken=pause, origins=origins, recoveries=2, turn=3, **old)
    values: dict[str, Any] = {
        "flags": Right.READ | Right.WRITE,
        "at": now,
        "took": timedelta(1),
        "range": range(3),
        "sets": [{1}, {1: 2}],
    }
    facts: dict[str, Any] = {
        "graph": "g",
        "structure": structure,
        "parent": ParentStep("q", 1),
        "generation": 1,
        "labels": {"a": "b"},
    }
    return State(
        values, run_id="a", step=3, checkpoint_node="a", progress=progress, status="paused", pause=pause, **facts
    )


@pytest.fixture
def lines(tmp_path):
    """Return the lines of a run with this State: its record and its checkpoint."""
    with SqliteStore(tmp_path / "one.db") as store:
        store.save(full_state())
        return [json.loads(line) for line in store.export_run("a")]


def places(value, at=()):
    yield at
    items = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for name, inner in items:
        yield from places(inner, (*at, name))


def put(value, at, new):
    """Return the value with another one in a place of it."""
    if not at:
        return new
    copy = value.copy()
    copy[at[0]] = put(value[at[0]], at[1:], new)
    return copy


BUSY = {"$type": "object", "value": [f"{__name__}.Busy", 1, {"name": "busy"}]}
WRONG = [BUSY, [BUSY] * 3, {"x": BUSY}, {"$type": "range", "value": [0, 3, 1]}, "\ud800", 7, [], None]


@pytest.mark.parametrize("field", ["changes", "pause"])
def test_no_code_of_a_registered_class_runs(lines, field, tmp_path):
    """Whatever stands in a place of a checkpoint, it is refused or loaded, and only makes declared values.

    A quarter of the values is tried in each place.
    """
    run, checkpoint = lines
    with SqliteStore(tmp_path / "other.db") as store:
        for number, at in enumerate(places(checkpoint[field])):
            for wrong in WRONG[number % 4 :: 4]:
                called.clear()
                changed = checkpoint | {field: put(checkpoint[field], at, wrong)}
                with suppress(FormatError, CheckpointCorruptError):
                    store.import_runs(map(json.dumps, (run, changed)))
                    store.load("a")
                    store.fork("a", "b")
                    assert store.verify().damaged == (), (at, wrong)
                assert called == [], (at, wrong)
                store.delete("a")
                store.delete("b")


@pytest.mark.parametrize("value", ["null", '{"a": 1}', '"ab"', "no JSON", "[1]", -7, 1e300, b"\xff"])
@pytest.mark.parametrize(
    ("table", "column"),
    [("checkpoint", "effects"), ("run", "inbox"), ("run", "due_ns"), ("run", "number"), ("fence", "number")],
)
def test_a_column_of_a_run_does_not_stop_the_others(tmp_path, table, column, value):
    """Whatever a column holds, reading the store raises errors of this package only, and other runs are there."""
    path = tmp_path / "runs.db"
    with SqliteStore(path) as store:
        nodes = {"a": lambda state, context: {"x": context.effect("pay", int)}, "b": lambda state: {}}
        graph = make_graph(nodes, store=store, preserve=True, retention="full")
        for run_id in ("bad", "good"):
            graph.execute(State(run_id=run_id))
    with closing(sqlite3.connect(path)) as database, suppress(sqlite3.IntegrityError):  # as a number in its place
        database.execute("INSERT INTO fence VALUES ('bad', 1, 1, 'me')")
        done = "id = (SELECT min(id) FROM checkpoint WHERE effects IS NOT NULL)"
        place = done if table == "checkpoint" else "run_id = 'bad'"
        database.execute(f"UPDATE {table} SET {column} = ? WHERE {place}", (value,))
        database.commit()

    with SqliteStore(path) as store:
        assert "good" not in str(store.verify())
        assert "good" in [run.run_id for run in store.iter_runs()]
        for reads in (store.history, store.load, store.under_way, lambda run_id: [*store.export_run(run_id)]):
            reads("good")
            with suppress(StateGraphError):
                reads("bad")
        with suppress(StateGraphError):
            store.delete("bad")
        for left in make_graph(nodes, store=store).recover():
            assert (left.run_id, isinstance(left.error, StateGraphError)) == ("bad", True)


def test_a_list_is_a_list(lines, tmp_path):
    """A range of a few bytes, where a list of names should be, is refused and never counted out."""
    pydantic = pytest.importorskip("pydantic")
    register_type(type("Model", (pydantic.BaseModel,), {"__module__": __name__}))
    bomb = {"$type": "range", "value": [0, 1_000_000, 1]}
    run, checkpoint = lines
    read = next(at for at in places(checkpoint["changes"]) if at[-2:] == ("k", 2))
    model = {"$type": "object", "value": [f"{__name__}.Model", 1, {"model_fields_set": bomb}]}
    with SqliteStore(tmp_path / "other.db") as store:
        for at, wrong in ((read, bomb), ((0, "took"), model), ((), bomb), ((0,), bomb)):
            changed = checkpoint | {"changes": put(checkpoint["changes"], at, wrong)}
            with pytest.raises((FormatError, CheckpointCorruptError)):
                store.import_runs(map(json.dumps, (run, changed)))  # which keeps an object unread that is none here
                store.load("a")
            store.delete("a")


MANY = 100_001


@pytest.fixture
def low_limit(monkeypatch):
    """Lower the limit of values in a compressed payload, which takes seconds to reach."""
    monkeypatch.setattr(encoder, "MOST_VALUES", MANY - 1)


BOMBS = {
    "msgpack": b"\xdd" + MANY.to_bytes(4) + b"\x90" * MANY,
    "msgpack in a tuple": b"\x91\xc9" + (MANY + 5).to_bytes(4) + b"\x03\xdd" + MANY.to_bytes(4) + b"\x90" * MANY,
    "json": b"[" + b"[]," * (MANY - 1) + b"[]]",
}


@pytest.mark.parametrize("kind", BOMBS)
@pytest.mark.usefixtures("low_limit")
def test_a_compressed_row_holds_no_more_values_than_are_written(kind, tmp_path):
    """The limit is named before the values are made, which would take a gigabyte."""
    zstandard = pytest.importorskip("zstandard")
    with SqliteStore(tmp_path / "runs.db") as store:
        store.save(State(run_id="a", step=1))
        log, (row,) = log_of(store), table_of(store).chain("a", None)
        run = table_of(store).run("a")
        payload = zstandard.ZstdCompressor().compress(BOMBS[kind])
        assert len(payload) < 10_000
        forged = row._replace(encoding=f"{kind[:7].strip()}+zstd", payload=payload)
        forged = log.sealer.seal("a", forged, b"", run.incarnation)
        head = log.sealer.sealed_run(run._replace(tip=forged.seal))
        with closing(sqlite3.connect(store.path)) as database, database:
            changed = (forged.encoding, forged.payload, forged.seal)
            database.execute("UPDATE checkpoint SET encoding = ?, payload = ?, seal = ?", changed)
            database.execute("UPDATE run SET tip = ?, seal = ?", (head.tip, head.seal))

        with pytest.raises(CheckpointCorruptError, match="more than 100,000 values"):
            store.load("a")


@pytest.mark.parametrize("serializer", ["msgpack", "json"])
@pytest.mark.usefixtures("low_limit")
def test_more_values_are_kept_without_compression(serializer, tmp_path):
    """No State is lost by the limit."""
    pytest.importorskip("zstandard")
    state = State({"many": [None] * MANY}, run_id="a", step=1)
    with SqliteStore(tmp_path / "runs.db", compress=True, serializer=serializer) as store:
        store.save(state)
        log_of(store).forget_all("a")
        assert len(store.load("a")["many"]) == MANY
