"""`encrypt_with`: who can read or write a store without its key reads nothing, and changes nothing unnoticed."""

import json
import os
import secrets
import sqlite3
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest

from proof import ciphers
from stategraph import (
    CachePolicy,
    CheckpointConfig,
    ConfigError,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    MapNode,
    State,
    StateGraph,
)
from stategraph._owners import base
from stategraph._values.entries import Entry
from stategraph.errors import CheckpointCorruptError, CheckpointError, StateGraphError
from stategraph.stores import DiskStore, Policy, SqliteStore, get_checkpoint_store
from stategraph.stores._rows.entries import record_of
from stategraph.stores._rows.records import Appended
from tests import postgres_server, redis_server
from tests.scenarios import make_graph
from tests.stores.test_rekey import asking
from tests.stores.test_transfer import make_graph as make_nested_map

pytest.importorskip("cryptography")

OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32
STORES: dict[str, Any] = {
    "sqlite": lambda path, **options: SqliteStore(path / "runs.db", **options),
    "disk": lambda path, **options: DiskStore(path / "runs", **options),
    "postgres": postgres_server.postgres_at,
    "redis": redis_server.redis_at,
}


@pytest.fixture
def opened(tmp_path):
    """-> opens a store with a key, once more each time, and closes it in the end."""
    stores = []

    def open_one(kind="sqlite", **options):
        stores.append(STORES[kind](tmp_path, **{"encrypt_with": {"new": NEW}, **options}))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


# --------------------------------------------------------------------------- what a thief reads


def kept(kind, path):
    """-> all bytes that a thief finds: those of all files, tables or keys."""
    files = b"".join(file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file())
    return files + {"postgres": in_postgres, "redis": in_redis}.get(kind, lambda path: b"")(path)


def in_postgres(path):
    import psycopg

    schema, found = postgres_server.schema_of(path), []
    with psycopg.connect(postgres_server.dsn()) as database:
        tables = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall()
        assert tables
        for (table,) in tables:
            for row in database.execute(f'SELECT * FROM "{schema}"."{table}"').fetchall():
                found += [bytes(value) if isinstance(value, bytes) else str(value).encode() for value in row]
    return b" ".join(found)


def in_redis(path):
    import redis

    found = []
    with redis.Redis.from_url(redis_server.url()) as client:
        for key in client.scan_iter(f"*{redis_server.prefix_of(path)}*"):
            kind = client.type(key).decode()
            read = {"hash": client.hgetall, "string": client.get, "set": client.smembers, "zset": _members}[kind]
            found += [key, *flattened(read(key))]
        assert found
    return b" ".join(found)


def _members(key):
    import redis

    with redis.Redis.from_url(redis_server.url()) as client:
        return client.zrange(key, 0, -1)


def flattened(value):
    if isinstance(value, bytes):
        return [value]
    return [part for pair in (value.items() if isinstance(value, dict) else [value]) for part in pair]


class Corpus(dict[str, str]):
    """Random tokens by the place into which they are put."""

    def __missing__(self, place):
        self[place] = secrets.token_hex(12)
        return self[place]


def played(store, path, corpus, look):
    """Put tokens into every place of a store that takes a value of a user, and look at it in between."""

    def write(state, context):
        context.status(corpus["status"])
        context.effect("pay", lambda: corpus["effect"])
        look()
        yield corpus["chunk"]
        yield "end"
        return {"data": corpus["data"]}

    def ends(state):
        raise ValueError(corpus["error"])

    def item(value):
        if value == 2:
            raise ValueError(corpus["item error"])
        return corpus["part"]

    graph = StateGraph(GraphConfig("corpus", checkpoint=CheckpointConfig(interval=1, preserve=True)), store=store)
    graph.add_node("write", write, persist_chunks=True)
    graph.add_node("cached", lambda state: {"y": corpus["cached"]}, cache=CachePolicy(("x",), path=path / "cache"))
    graph.add_node("ask", InterruptNode("question", "answer"))
    graph.add_node("end", lambda state: {"end": corpus["end"]})
    for edge in (("write", "cached"), ("cached", "ask"), ("ask", "end")):
        graph.add_edge(*edge)
    graph.set_entry_point("write")
    graph.set_exit_point("end")
    data = {"x": corpus["input"], "question": corpus["question"]}
    given = {"labels": {"customer": corpus["label"]}, "by": corpus["author"]}
    graph.execute(State(data, run_id="a"), **given)
    graph.send("a", {"message": corpus["message"]}, by=corpus["sender"])
    graph.answer("a", corpus["answer"], by=corpus["answerer"])
    look()
    ended = make_graph({"ends": ends}, name="ended", store=store, preserve=True)
    mapped = make_graph({"map": MapNode(item, over="items", into="out", max_workers=1)}, name="mapped", store=store)
    for failing, state in ((ended, State(run_id="b")), (mapped, State({"items": [0, 1, 2]}, run_id="c"))):
        with pytest.raises(ExecutionError):
            failing.execute(state)
    store.append("a", [Entry("turn", {"input": corpus["turn"]}, name="key", by=corpus["caller"])])
    with suppress(CheckpointError):
        store.cancel("a", by=corpus["canceller"])
    look()


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("encrypts", [True, False])
def test_no_byte_of_a_value_is_found(opened, kind, encrypts, tmp_path):
    """Of data, inputs, chunks, effects, statuses, errors, pauses, messages, answers, turns, parts, cached results, and,
    with encrypt_labels, of labels and authors; neither while the store is open nor once it is closed. In a plain store,
    the same search finds each of them."""
    corpus, seen = Corpus(), []
    store = opened(kind, **({"encrypt_labels": True} if encrypts else {"encrypt_with": None}))

    played(store, tmp_path, corpus, lambda: seen.append(kept(kind, tmp_path)))
    store.close()

    everything = b"".join([*seen, kept(kind, tmp_path)])
    assert len(corpus) > 18
    found = {place for place, token in corpus.items() if token.encode() in everything}
    assert found == (set() if encrypts else {*corpus})
    if encrypts:
        again = opened(kind, encrypt_labels=True)
        assert again.load("a")["data"] == corpus["data"]
        assert {run.run_id: run.labels for run in again.runs()}["a"] == {"customer": corpus["label"]}
        assert again.history("a")[0].by == corpus["canceller"]
        assert again.load("b").error.message == corpus["error"]
        assert {entry.by for entry in again.entries("a")} > {corpus["sender"], corpus["answerer"], corpus["caller"]}


def test_the_author_of_a_cancellation_is_a_secret_too(opened, tmp_path):
    """Of a run that another process is at work on, which learns of it later; a name in its place is dropped."""
    store, author = opened(encrypt_labels=True), secrets.token_hex(12)
    store.save(State(run_id="a", step=1))
    base.own(store, busy := base.Ownership("a"))

    opened(encrypt_labels=True).cancel("a", by=author)

    assert author.encode() not in kept("sqlite", tmp_path)
    assert store._cancelled_by("a") == author
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        database.execute("UPDATE fence SET by_whom = 'someone'")
    assert store._cancelled_by("a") is None
    base.release(busy)


@pytest.mark.parametrize("kind", STORES)
def test_a_row_takes_few_bytes_more(opened, kind, tmp_path):
    """Than in a plain store: the nonce, the tag, and the name of the key."""
    sizes = []
    for name, options in (("plain", {"encrypt_with": None}), ("secret", {})):
        store = opened(kind, **options)
        store.save(State({"text": "x" * 1000}, run_id=name))
        (row,) = store._log.table.chain(name, None)
        sizes.append(len(row.payload) + len(row.encoding))

    assert sizes[1] - sizes[0] <= 60


# --------------------------------------------------------------------------- what is refused


def test_a_key_that_is_missing_or_wrong_is_named(opened):
    """Without a key, the error names encrypt_with; with another one, the key that the row names."""
    opened(encrypt_with={"june": OLD}).save(State({"n": 1}, run_id="a", step=1))
    for keys, culprit in [
        (None, "run 'a': its step 1 is encrypted, and this store has no key: open it with encrypt_with"),
        (
            {"june": OTHER},
            "run 'a': its run record of step 1 cannot be decrypted: encrypt_with has other bytes as the key 'june'",
        ),
        (
            {"july": OTHER},
            "run 'a': its run record of step 1 cannot be decrypted: encrypt_with has no key 'june', but 'july'",
        ),
    ]:
        with pytest.raises(CheckpointCorruptError) as caught:
            opened(encrypt_with=keys).load("a")
        assert str(caught.value).startswith(culprit)
        assert opened(encrypt_with=keys).runs() == []
        assert "with store.delete" not in str(caught.value)


@pytest.mark.parametrize("kind", STORES)
def test_plain_rows_are_refused_until_rekey(opened, kind):
    """A thief plants nothing: neither a run nor an entry. The error says how a store is encrypted that began plain."""
    plain = opened(kind, encrypt_with=None)
    plain.retain("a", Policy("full"))
    for step in (1, 2):
        plain.save(State({"n": step}, run_id="a", step=step))
    plain.append("a", [Entry("message", {"n": 9})])
    store = opened(kind)
    for ask in (store.load, store.history, store.entries, lambda run_id: store.fork(run_id, "b"), store.export_run):
        with pytest.raises(CheckpointCorruptError, match=r"'a'.* is not encrypted.*store\.rekey\(\) encrypts"):
            list(ask("a"))
    assert store.runs() == []
    assert [left.run_id for left in store.rekey(plain=False).left] == ["a"]
    with pytest.raises(ConfigError, match=r"^plain: 'no' is not allowed; True or False"):
        store.rekey(plain="no")

    report = store.rekey()

    assert (report.runs, report.left, report.plain) == (1, (), ("a",))
    assert store.rekey().plain == ()
    assert [store.load("a", step)["n"] for step in (1, 2)] == [1, 2]
    assert [entry.value for entry in store.entries("a")] == [{"n": 9}]
    assert store.verify().damaged == ()


def test_a_planted_entry_is_refused(opened, tmp_path):
    """In a run that is encrypted otherwise."""
    store = opened()
    store.save(State({"n": 1}, run_id="a", step=1))
    store.append("a", [Entry("message", {"n": 2})])
    thief = opened(encrypt_with=None)._log  # it makes right checksums
    run = thief.find("a")
    planted = record_of(thief, "a", Entry("message", {"n": 3}, seq=2), run.incarnation)
    assert thief.write(Appended("a", run.incarnation, (planted,), 1))

    with pytest.raises(CheckpointCorruptError, match="its entry record of step 0 is not encrypted"):
        store.entries("a")


def test_no_changed_ciphertext_is_believed():
    """A share of the proof: a writer who makes right checksums gets nothing past a reader with the key."""
    report = ciphers._work(400, secrets.token_hex(4))

    assert report.failures == []
    assert sum(report.tried.values()) > 350


def test_a_store_without_keys_warns_that_it_does_not_encrypt(opened, caplog):
    """As one without the key of signed runs does."""
    opened().save(State(run_id="a"))

    opened(encrypt_with=None)

    assert "holds runs that are encrypted, and was opened without encrypt_with" in caplog.text


def test_each_run_can_have_keys_of_its_own(opened):
    """A function of the run id returns them; nested runs have those of the outer run. A run whose key is gone stays
    unread, and harms no other."""
    keys = {"one": {"k1": OLD}, "two": NEW}
    store = opened(encrypt_with=lambda run_id: keys[run_id.partition("-")[0]])
    asking(store).execute(State({"question": "sure?"}, run_id="one-a"))
    store.save(State({"n": 2}, run_id="two-a", step=1))
    store.fork("two-a", "one-b")
    assert asking(store).resume("one-a", {"sure": True})["sure"] is True
    assert store.verify().damaged == ()

    del keys["one"]

    with pytest.raises(CheckpointError, match=r"run 'one-b': encrypt_with returned no key for it: KeyError$"):
        store.load("one-b")
    assert [run.run_id for run in store.runs()] == ["two-a"]
    with pytest.raises(CheckpointError, match="KeyError"):
        store.save(State(run_id="one-c"))
    keys["one"] = {"k1": OLD}
    assert store.load("one-b")["n"] == 2


def test_labels_that_are_encrypted_cannot_be_searched(opened):
    """The error names the option; the labels are shown."""
    store = opened(encrypt_labels=True)
    store.save(State(run_id="a", labels={"customer": "c1"}))

    for search in (store.runs, store.count):
        with pytest.raises(ConfigError, match=r"labels: .*encrypt_labels=True"):
            search(labels={"customer": "c1"})
    assert store.runs()[0].labels == {"customer": "c1"}
    assert opened(encrypt_labels=False).runs()[0].labels == {"customer": "c1"}


@pytest.mark.parametrize(
    "keys", [b"short", "", "NO_SUCH_VARIABLE", {}, {"a": b"short"}, {"a" * 25: OLD}, {1: OLD}, 5, lambda: OLD, bytes]
)
def test_what_is_no_key_is_refused_and_not_shown(opened, keys):
    """When the store is opened or, of a function, at its first call."""
    with pytest.raises(StateGraphError, match="encrypt_with") as caught:
        opened(encrypt_with=keys).save(State(run_id="a"))
    assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "culprit"),
    [
        (b"short", r"encrypt_with: .* it has 5 bytes"),
        ({"new": NEW, "old": b"short"}, r"encrypt_with\['old'\]: .* it has 5 bytes"),
        (OLD.hex(), "encrypt_with: .* no variable of this name is set"),
        ({"old": "RUNS_KEY"}, r"encrypt_with\['old'\]: .* RUNS_KEY holds 5 characters"),
        ("\ud800", "encrypt_with: .* no variable of this name is set"),
        ([OLD], "encrypt_with: .* it is neither"),
        (lambda run_id: {"old": b"short"}, r"run 'a': encrypt_with returned no key for it: .*\['old'\].* 5 bytes"),
    ],
)
def test_the_wrong_key_is_named(opened, monkeypatch, keys, culprit):
    """With what is wrong with it; neither the key nor a text that may be one is shown."""
    monkeypatch.setenv("RUNS_KEY", "short")
    with pytest.raises(StateGraphError, match=culprit) as caught:
        opened(encrypt_with=keys).save(State(run_id="a"))
    assert "short" not in str(caught.value)
    assert OLD.hex() not in str(caught.value)


def test_labels_are_not_left_plain_by_mistake(opened):
    """A store without a key cannot encrypt labels."""
    with pytest.raises(ConfigError, match="encrypt_labels: True is not allowed; with encrypt_with"):
        opened(encrypt_with=None, encrypt_labels=True)


def test_a_key_comes_from_the_environment(tmp_path, monkeypatch):
    """By the name of a variable with hex digits, so that a configuration file can name it."""
    monkeypatch.setenv("RUNS_KEY", OLD.hex())
    config = CheckpointConfig(store="sqlite", options={"path": str(tmp_path / "runs.db"), "encrypt_with": "RUNS_KEY"})
    with get_checkpoint_store(config.store, **config.store_options()) as store:
        store.save(State({"n": 1}, run_id="a"))

    for keys in (OLD, {"any": OLD}, {"new": "RUNS_KEY"}, lambda run_id: {"x": NEW, "y": OLD}):
        with SqliteStore(tmp_path / "runs.db", encrypt_with=keys) as store:
            assert store.load("a")["n"] == 1


# --------------------------------------------------------------------------- new keys


def test_an_end_in_the_middle_of_rekey_loses_nothing(opened):
    """Wherever it ends, another call does the rest."""
    plain = opened(encrypt_with=None)
    plain.retain("a", Policy("full"))
    for step in range(1, 8):
        plain.save(State({"text": f"{step}" * 20_000}, run_id="a", step=step))

    def key(left, run_id):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return {"new": NEW}

    for calls in (3, 9, 15):
        with pytest.raises(KeyboardInterrupt):
            opened(encrypt_with=partial(key, [calls])).rekey()
    assert opened().rekey().left == ()
    assert [row.step for row in opened().history("a")] == list(range(1, 8))
    assert [opened().load("a", step)["text"][:1] for step in range(1, 8)] == list("1234567")


def test_cached_results_need_the_key_too(tmp_path, opened):
    """Without it, or under another first key, the node is called again; inputs cannot be guessed from the names."""
    calls = []

    def counted(state):
        calls.append(1)
        return {"y": 1}

    def run(**options):
        with opened(**options) as store:
            graph = StateGraph(GraphConfig("g", checkpoint=CheckpointConfig(interval=1)), store=store)
            graph.add_node("n", counted, cache=CachePolicy(("x",), path=tmp_path / "c"))
            graph.set_entry_point("n")
            graph.set_exit_point("n")
            graph.execute(State({"x": 1}))

    for options in ({}, {}, {"encrypt_with": {"newer": OTHER, "new": NEW}}, {"encrypt_with": None}):
        run(**options)
    assert len(calls) == 3


@pytest.mark.parametrize("kind", STORES)
def test_an_export_is_plain_or_encrypted(opened, kind, tmp_path):
    """Encrypted, it is one line, which a store with the key imports: another refuses it, or any change to it."""
    calls: list[int] = []
    with pytest.raises(ExecutionError):
        make_nested_map(opened(kind), calls).execute(State(run_id="a"))
    store = opened(kind)
    plain, lines = list(store.export_run("a")), list(store.export_run("a", encrypted=True))
    assert len(lines) == 1
    assert "begun" in "".join(plain)
    assert "begun" not in lines[0]

    with SqliteStore(tmp_path / "other.db", encrypt_with={"new": NEW}) as other:
        for wrong in (lines[0].replace('"a"', '"b"', 1), lines[0][:-20] + "AAAA" + lines[0][-16:]):
            with pytest.raises(CheckpointError):
                other.import_runs([wrong])
        assert other.import_runs(lines) == ["a"]
        assert list(other.export_run("a")) == plain
        assert make_nested_map(other, calls, mended=True).resume("a")["squares"] == [0, 1, 4, 9]
    with SqliteStore(tmp_path / "plain.db") as keyless:
        with pytest.raises(CheckpointCorruptError, match="encrypt_with"):
            keyless.import_runs(lines)
        assert keyless.import_runs(plain) == ["a"]
        with pytest.raises(ConfigError, match="encrypt_with"):
            list(keyless.export_run("a", encrypted=True))


@pytest.mark.parametrize("kind", STORES)
def test_redact_leaves_the_rest_encrypted(opened, kind):
    """With the error, the pause and the labels of the run."""
    store = opened(kind, encrypt_labels=True)
    paused = asking(store).execute(State({"question": "sure?", "card": "4000"}, run_id="ask"), labels={"a": "b"})

    store.redact("ask", "card")

    again = opened(kind, encrypt_labels=True)
    assert dict(again.load("ask")) == {"question": "sure?"}
    assert again.runs()[0].pause == paused.pause
    assert again.runs()[0].labels == {"a": "b"}
    assert again.verify().damaged == ()
    assert asking(again).resume("ask", {"sure": True})["sure"] is True


# --------------------------------------------------------------------------- heads


@pytest.mark.parametrize("kind", STORES)
def test_heads_notice_an_older_copy(opened, kind):
    """Of each run, nested ones included: one that is put back, or is gone; not one that went on."""
    store = opened(kind)
    asking(store).execute(State({"question": "sure?"}, run_id="ask"))
    store.save(State({"n": 1}, run_id="b", step=1))
    older = {run_id: list(store.export_run(run_id)) for run_id in ("ask", "b")}
    before = store.heads()
    assert before.keys() > {"ask", "b"}
    store.save(State({"n": 2}, run_id="b", step=2))
    assert asking(store).resume("ask", {"sure": True})["sure"] is True
    heads = store.heads()
    assert heads["b"] != before["b"]
    assert {damage.run_id for damage in store.verify(before).damaged} == before.keys() - heads.keys()

    assert store.verify(heads).damaged == ()
    store.delete("b")
    assert [damage.run_id for damage in store.verify(heads).damaged] == ["b"]
    store.import_runs(older["b"])
    assert [damage.run_id for damage in store.verify(heads).damaged] == ["b"]


def test_a_damaged_nested_run_has_no_head(opened, tmp_path, caplog):
    """It is left out, as a damaged run is, and the others have theirs."""
    store = opened()
    asking(store).execute(State({"question": "sure?"}, run_id="ask"))
    before = store.heads()
    (nested,) = (run_id for run_id in before if run_id != "ask")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
        database.execute("UPDATE run SET version = version + 1 WHERE run_id = ?", (nested,))

    assert opened().heads() == {"ask": before["ask"]}
    assert f"run '{nested}'" in caplog.text
    assert [damage.run_id for damage in store.verify(before).damaged] == [nested]


@pytest.mark.parametrize("heads", [["a"], {"a": "0"}, {"a": None}, "a", []])
def test_what_are_no_heads(opened, heads):
    """They are refused before anything is read."""
    with pytest.raises(ConfigError, match=r"heads: .* is not allowed; what store.heads\(\) returned"):
        opened().verify(heads)


def test_heads_notice_the_files_of_an_earlier_day(tmp_path):
    """Which every signature and every key accepts."""
    file = tmp_path / "runs.db"
    with SqliteStore(file, encrypt_with=NEW, sign_with=lambda: OLD) as store:
        store.save(State({"n": 1}, run_id="a", step=1))
    earlier = file.read_bytes()
    with SqliteStore(file, encrypt_with=NEW, sign_with=lambda: OLD) as store:
        store.save(State({"n": 2}, run_id="a", step=2))
        heads = json.loads(json.dumps(store.heads()))
    os.truncate(file, 0)
    file.write_bytes(earlier)

    with SqliteStore(file, encrypt_with=NEW, sign_with=lambda: OLD) as store:
        assert store.verify().damaged == ()
        (damage,) = store.verify(heads).damaged
        assert (damage.run_id, "an older copy was put back" in damage.reason) == ("a", True)
