"""Serializers, compression and signatures of payloads: their formats, and the payloads that are refused."""

import ast
import json
import re
import sqlite3
import sys
import zlib
from contextlib import closing
from typing import Any

import pytest

from stategraph import CheckpointConfig, GraphConfig, State, StateGraph, stores
from stategraph.errors import CheckpointCorruptError, CheckpointError, ConfigError, FormatError
from stategraph.stores._rows.encoder import LARGEST
from stategraph.stores.base import Policy
from stategraph.stores.serializers import Serializer, find_format, register_serializer
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import KEPT_VALUES, is_same
from stategraph.testing.corpus import Order
from stategraph.testing.values import ValuesContract, check_each
from tests.stores.inside import log_of, table_of


class TestSqliteStoreWithJson(ValuesContract):
    @pytest.fixture
    def store(self, tmp_path):
        store = SqliteStore(tmp_path / "runs.db", serializer="json")
        yield store
        store.close()


class TestSqliteStoreThatCompresses(ValuesContract):
    @pytest.fixture
    def store(self, tmp_path):
        pytest.importorskip("zstandard")
        store = SqliteStore(tmp_path / "runs.db", compress=True)
        yield store
        store.close()


class Zipped(Serializer):
    """A serializer of a user."""

    def dumps(self, plain):
        return zlib.compress(json.dumps(plain).encode())

    def loads(self, payload):
        return json.loads(zlib.decompress(payload))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def rows(path, columns="payload"):
    """Return columns of all rows, as any other tool reads them."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute(f"SELECT {columns} FROM checkpoint ORDER BY id").fetchall()


def saved(path, data, **options):
    with SqliteStore(path, **options) as store:
        store.save(State(data, run_id="a", step=1))


def loaded(path, **options):
    with SqliteStore(path, **options) as store:
        return store.load("a")


# --------------------------------------------------------------------------- JSON


def test_plain_values_look_plain(path):
    """Any tool that reads SQLite shows them, and its JSON functions find them."""
    saved(path, {"topic": "Käse", "n": 1, "orders": [{"total": 1.5, "paid": None}]}, serializer="json")

    (((put, *_),),) = [[json.loads(payload)] for (payload,) in rows(path)]
    assert put == {"topic": "Käse", "n": 1, "orders": [{"total": 1.5, "paid": None}]}
    assert rows(path, "typeof(payload), payload LIKE '%Käse%'") == [("text", 1)]
    assert rows(path, "json_extract(payload, '$[0].orders[0].total')") == [(1.5,)]
    with closing(sqlite3.connect(path)) as database:
        assert "Käse" in database.execute("SELECT json FROM checkpoints").fetchone()[0]


def test_other_values_are_tagged(path):
    """Other values are stored with their type and their parts."""
    names = ("date", "UUID", "tuple")
    saved(path, {name: KEPT_VALUES[name] for name in names}, serializer="json")

    put, *_ = json.loads(rows(path)[0][0])
    assert put["UUID"] == {"$type": "UUID", "value": "12345678-1234-5678-1234-567812345678"}
    assert put["date"][1] == {"$type": "date", "value": "2024-02-29"}
    assert put["tuple"][1] == {"$type": "tuple", "value": [1]}


@pytest.mark.parametrize(
    "value",
    [
        {"$type": "date", "value": "2024-02-29"},
        {"$type": 1},
        {"$$type": {"$": {"$$": 1}}, "$value": 2},
        {"value": 1, "$type": {"$type": "tuple", "value": []}},
        "\ud83d\ude00",  # two lone surrogates, which JSON would make one character of
        [10**400, float("nan"), float("-inf"), -0.0, 1e22, b"\xff"],
        Order(1, [{"$type": "x"}]),
    ],
    ids=ascii,
)
def test_nothing_is_taken_for_something_else(path, value):
    """Values that look like tags, or that JSON would mix up, are loaded exactly."""
    saved(path, {"value": value, "$type": value}, serializer="json")

    assert is_same(dict(loaded(path)), {"value": value, "$type": value})


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_equal_values_have_equal_bytes(serializer):
    """A loaded value is the same and encodes to the same bytes."""

    def check(value):
        payload = find_format(serializer).encode([{"value": value}])
        (data,) = find_format(serializer).decode(payload)
        assert is_same(data["value"], value)
        assert find_format(serializer).encode([data]) == payload

    check_each(KEPT_VALUES.items(), check)


# --------------------------------------------------------------------------- serializers by name


def test_one_run_may_have_rows_of_several_serializers(path):
    """Each row names its serializer."""
    register_serializer("zipped", Zipped())
    for step, serializer in enumerate(("msgpack", "json", "zipped", "msgpack"), 1):
        with SqliteStore(path, serializer=serializer) as store:
            store.retain("a", Policy("full"))
            state = store.load("a") if step > 1 else State({"big": "x" * 500}, run_id="a")
            store.save(State({**state, "n": step}, run_id="a", step=step))

    assert [encoding for (encoding,) in rows(path, "encoding")] == ["msgpack", "json", "zipped", "msgpack"]
    with SqliteStore(path) as store:
        assert [dict(store.load("a", step)) for step in (1, 2, 3, 4)] == [
            {"big": "x" * 500, "n": step} for step in (1, 2, 3, 4)
        ]


def test_a_serializer_that_does_not_give_back_what_it_was_given():
    """It is found out when it is registered, not when a run is to be resumed."""

    class Sloppy(Zipped):
        def loads(self, payload):
            return json.loads(zlib.decompress(payload), parse_int=float)

    class Textual(Zipped):
        def dumps(self, plain):
            return json.dumps(plain)

    unsuitable: list[Any] = [Sloppy(), Textual(), Zipped, object()]
    for serializer in unsuitable:
        with pytest.raises(ConfigError, match="sloppy"):
            register_serializer("sloppy", serializer)


# --------------------------------------------------------------------------- configuration


def graph(**checkpoint):
    return StateGraph(GraphConfig(name="g", checkpoint=CheckpointConfig(interval=1, **checkpoint)))


def test_the_config_names_the_serializer(path):
    """It reaches the store with its options."""
    made = graph(store="sqlite", serializer="json", options={"path": path})
    made.store.save(State({"n": 1}, run_id="a", step=1))

    assert rows(path, "encoding") == [("json",)]
    assert GraphConfig.from_dict(made.config.to_dict()) == made.config
    made.store.close()


# --------------------------------------------------------------------------- compression

LARGE = {"text": "all work and no play " * 1000}


def test_large_bodies_are_compressed_and_small_ones_are_not(path):
    """Below 4 KB there is little to gain; the row says which it is."""
    pytest.importorskip("zstandard")
    with SqliteStore(path, compress=True, serializer="json") as store:
        store.save(State({"n": 1}, run_id="a", step=1))
        store.save(State(LARGE, run_id="b", step=1))

    assert rows(path, "encoding") == [("json",), ("json+zstd",)]
    assert rows(path, "length(payload) < 1000") == [(1,), (1,)]
    with SqliteStore(path) as store:
        assert dict(store.load("b")) == LARGE


def tampered(path, payload):
    """Put another payload into the only row, with checksums that fit: a writer of the file can make them."""
    with SqliteStore(path) as store:
        run, (row,) = table_of(store).run("a"), table_of(store).chain("a", 1)
        sealer = log_of(store).sealer
        forged = sealer.seal("a", row._replace(payload=payload), b"", run.incarnation)
        head = sealer.sealed_run(run._replace(tip=forged.seal))
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE checkpoint SET payload = ?, seal = ?", (forged.payload, forged.seal))
        database.execute("UPDATE run SET tip = ?, seal = ?", (head.tip, head.seal))


def test_bombs_are_refused(path):
    """A frame that claims more than is ever written, one that claims nothing, one that is cut, and garbage."""
    zstandard = pytest.importorskip("zstandard")
    saved(path, LARGE, compress=True)
    (payload,) = rows(path)[0]
    honest = zstandard.ZstdCompressor(level=1)
    bomb = b"\x28\xb5\x2f\xfd\xe0" + (LARGEST + 1).to_bytes(8, "little") + b"\x01\x00\x00"
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100_000)
    for frame in (bomb, unknown, payload[:-3], payload + b"x", b"", b"garbage", honest.compress(b"\xc1")):
        tampered(path, frame)
        with pytest.raises(
            CheckpointCorruptError, match=r"bytes (cannot be decompressed|claim to be|cannot be decoded)"
        ):
            loaded(path)


def test_without_the_package_the_extra_is_named(path, monkeypatch):
    """Without the package, compressing and loading compressed rows name the extra to install."""
    pytest.importorskip("zstandard")
    saved(path, LARGE, compress=True)
    monkeypatch.setitem(sys.modules, "zstandard", None)

    with pytest.raises(ConfigError, match=r"durable-stategraph\[zstd\]"):
        SqliteStore(path, compress=True)
    with pytest.raises(ConfigError, match=r"durable-stategraph\[zstd\]"):
        loaded(path)


# --------------------------------------------------------------------------- forged payloads


class Literals(Serializer):
    """A serializer of a user, whose bytes may hold any literal."""

    def dumps(self, plain):
        return repr(plain).encode()

    def loads(self, payload):
        return ast.literal_eval(payload.decode())


def tag(name, value):
    """Return a row whose value has this tag."""
    return f'[{{"x": {json.dumps({"$type": name, "value": value})}}}, {{}}, [], null]'


COLOUR, ORDER = (f"stategraph.testing.corpus.{name}" for name in ("Colour", "Order"))
FORGED = {
    "no list": ("json", tag("tuple", 5), "it holds 5 where a list should be"),
    "too few": ("json", tag("complex", ["1"]), "where a list of 2 should be"),
    "no text": ("json", tag("Decimal", 5), "it holds 5 where a text should be"),
    "no fields": ("json", tag("object", [ORDER, 1, []]), "where a version and fields should be"),
    "no type": ("json", tag("Fraction", "1/2"), "it holds an unknown type 'Fraction'"),
    "a number as a type": ("json", tag(9, "1/2"), "it holds an unknown type 9"),
    "no enum": ("json", tag("enum", [ORDER, "RED", None]), "was saved as an enum and is none now"),
    "no object": ("json", tag("object", [COLOUR, 1, {}]), "was saved as an object with fields and is none now"),
    "another system": ("json", tag("WindowsPath", "a"), "on this system there are none"),
    "a path as a zone": ("json", tag("datetime", ["2024-05-29", "../zone", 0]), "a time zone that there cannot be"),
    "no zone": ("json", tag("datetime", ["2024-05-29", "Mars/Base", 0]), "'pip install tzdata'"),
    "no zone of Pydantic": ("json", tag("datetime", ["2024-05-29", "pydantic:x", 0]), "zone that there cannot be"),
    "no tag": ("json", '[{"$x": 1}, {}, [], null]', "which is no tag"),
    "no JSON": ("json", '[{"x": NaN}, {}, [], null]', "it holds NaN, which is not JSON"),
    "too deep": ("json", f'[{{"x": {"[" * 900}{"]" * 900}}}, {{}}, [], null]', "nested deeper than"),
    "no changes": ("json", "[[], {}, [], null]", "its bytes hold no changes"),
    "no snapshot": ("json", "[{}, {}, [], null]", "its bytes begin with no snapshot"),
    "not plain": ("literals", "[{'x': (1, {})}, {}, [], None]", "it holds a tuple, which is not plain"),
    "a key that is no text": ("literals", "[{1: 2}, {}, [], None]", "a dict with the key 1, which is not plain"),
    "garbage": ("literals", "garbage", "its bytes cannot be decoded"),
}


@pytest.mark.parametrize("forged", FORGED)
def test_forged_payloads_are_refused(path, forged):
    """The error names what a row holds that stategraph does not write there, or cannot construct here."""
    serializer, payload, reason = FORGED[forged]
    register_serializer("literals", Literals())
    saved(path, {"x": 1}, serializer=serializer)
    tampered(path, payload.encode())

    with pytest.raises(CheckpointError, match=re.escape(reason)):
        loaded(path)


def test_a_serializer_that_is_not_registered_is_named(path, monkeypatch):
    """The row says which one it needs."""
    register_serializer("zipped", Zipped())
    saved(path, {"x": 1}, serializer="zipped")
    monkeypatch.delitem(stores.serializers._formats._entries, "zipped")

    with pytest.raises(FormatError, match=r"a serializer that is not registered here.*register_serializer makes it"):
        loaded(path)


# --------------------------------------------------------------------------- signatures


def test_the_key_may_come_from_the_environment(path, monkeypatch):
    """The same key gives the same signature, wherever it comes from."""
    monkeypatch.setenv("RUNS_KEY", "k" * 32)
    saved(path, {"n": 1}, sign_with="RUNS_KEY")

    assert loaded(path, sign_with=lambda: b"k" * 32)["n"] == 1
    monkeypatch.setenv("RUNS_KEY", "another" * 5)
    for options in ({}, {"sign_with": "RUNS_KEY"}):
        with pytest.raises(CheckpointCorruptError):
            loaded(path, **options)
