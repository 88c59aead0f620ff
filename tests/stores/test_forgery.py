"""Changes by a writer without the key are never taken for saved values."""

import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import attrs
import pytest

from stategraph import ConfigError, InterruptNode, State
from stategraph._values.entries import Entry
from stategraph._values.progress import Part, Pause
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointCorruptError, CheckpointNotFoundError, RunCancelledError
from stategraph.stores.base import Policy
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import make_graph

KEY, OLD_KEY = b"k" * 32, b"o" * 32


@pytest.fixture
def opened(tmp_path):
    """Yield a function that opens a store, by default signed and always the same one."""
    stores = []

    def open_store(name="one", **options):
        (tmp_path / name).mkdir(exist_ok=True)
        stores.append(SqliteStore(tmp_path / name / "runs.db", **{"sign_with": lambda: KEY, **options}))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def sql(tmp_path):
    """Return a function that does what another program does in the file."""

    def change(statement, *values, name="one"):
        with closing(sqlite3.connect(tmp_path / name / "runs.db")) as database, database:
            return database.execute(statement, values).fetchall()

    return change


@pytest.fixture
def change_bodies(sql):
    """-> puts one text in the place of another, of the same length, in everything that is kept of checkpoints."""

    def change(old, new, name="one"):
        for number, content in sql("SELECT id, payload FROM checkpoint", name=name):
            if old in content:
                sql("UPDATE checkpoint SET payload = ? WHERE id = ?", content.replace(old, new), number, name=name)

    return change


def saved(store, *steps, run_id="a", **fields):
    for step in steps:
        store.save(State({"n": step, "amount": "pay 0100"}, run_id=run_id, step=step, checkpoint_node="node", **fields))


class TestSavedAgain:
    """A step that is saved once more, with another status, is written and sealed as this process knows it."""

    @pytest.mark.parametrize("signed", [True, False])
    @pytest.mark.parametrize("status", ["failed", "completed"])
    @pytest.mark.parametrize("steps", [1, 2])
    def test_a_body_that_was_changed_since(self, opened, change_bodies, signed, status, steps):
        """The next save replaces a changed body and does not seal it."""
        store = opened() if signed else opened(sign_with=None)
        saved(store, *range(1, steps + 1))
        state = store.load("a")
        change_bodies(b"pay 0100", b"pay 9999")

        store.save(attrs.evolve(state, status=status))

        reader = opened() if signed else opened(sign_with=None)
        assert reader.load("a") == attrs.evolve(state, status=status)


class TestHeads:
    """The heads of runs, which a store shows without loading them."""

    @pytest.mark.parametrize(
        "column", ["step", "checkpoint_node", "timestamp_ns", "status", "graph", "error", "parent", "policy", "pause"]
    )
    def test_a_column_of_another_run(self, opened, sql, column, caplog):
        """The run is left out, and reported; the other one stays as it is."""
        store = opened()
        store.retain("b", Policy(ttl=1e-9))
        saved(store, 1)
        asks = Pause("sure?", "ask", "pay 9999", "yes", datetime(2024, 5, 29, tzinfo=UTC))
        saved(store, 2, run_id="b", graph="other", parent=ParentStep("x", 1), status="paused", pause=asks)
        sql('UPDATE run SET error = \'["E", "", ""]\' WHERE run_id = \'b\'')
        sql("UPDATE run SET timestamp_ns = 1, checkpoint_node = 'other' WHERE run_id = 'b'")
        sql(f"UPDATE run SET {column} = (SELECT {column} FROM run WHERE run_id = 'b') WHERE run_id = 'a'")

        fresh = opened()
        assert "a" not in [run.run_id for run in fresh.runs()] + fresh.list()
        assert "a" in fresh.prune().damaged
        assert "'a'" in caplog.text
        for ask in (fresh.load, fresh.history, lambda run_id: fresh.fork(run_id, "c")):
            with pytest.raises(CheckpointCorruptError):
                ask("a")

    def test_a_run_of_another_store(self, opened, sql):
        """Rows of another store with the same key are refused."""
        saved(opened(), 1)
        saved(opened("two"), 1, run_id="b")
        for table in ("run", "checkpoint"):
            for row in sql(f"SELECT * FROM {table}", name="two"):
                sql(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", *row)

        with pytest.raises(CheckpointCorruptError):
            opened().load("b")
        assert "b" not in opened().list()

    def test_a_whole_store_can_be_copied(self, opened, tmp_path):
        """It is the same store then: that is how backups are put back."""
        store = opened()
        saved(store, 1)
        store.close()
        shutil.copytree(tmp_path / "one", tmp_path / "copy")

        assert opened("copy").load("a")["n"] == 1


class TestIncarnations:
    """Remains of a deleted run do not belong to a new run with the same id."""

    def test_parts_that_are_put_back(self, opened, sql):
        """Parts of a deleted run are not used again, although they were signed for the same id and step."""
        store = opened()
        saved(store, 1)
        store.save_parts("a", [Part(2, "map", "0", "of the old run")])
        inner = State({"n": "old"}, run_id="a/#2/child", step=1, parent=ParentStep("a", 1))
        store.save(inner)
        kept = {table: sql(f"SELECT * FROM {table}") for table in ("run", "checkpoint")}
        store.delete("a")
        saved(store, 1)
        for table, rows in kept.items():
            for row in rows:
                mine = ("/#" in row[1]) if table == "run" else row[0] >> 32 > 1
                if mine:
                    sql(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", *row)

        fresh = opened()
        assert fresh.load("a")["n"] == 1
        assert fresh.load_parts("a", 2, "map") == {}
        with pytest.raises(CheckpointNotFoundError):
            fresh.load("a/#2/child")
        fresh.save(attrs.evolve(inner.set("n", "new")))
        fresh.save_parts("a", [Part(2, "map", "1", "new")])
        assert fresh.load_parts("a", 2, "map") == {"1": "new"}
        assert fresh.load("a/#2/child")["n"] == "new"


class TestReplay:
    """The record of a run from before its newest checkpoints, put back alone, is refused."""

    @pytest.fixture
    def replayed(self, opened, sql):
        """-> saves a run that completed and later waits, and puts the record of its completion back."""

        def replay(policy):
            store = opened()
            store.retain("a", policy)
            saved(store, 1)
            saved(store, 2, status="completed")
            (old,) = sql("SELECT * FROM run")
            saved(store, 3, 4, status="paused")
            sql(f"REPLACE INTO run VALUES ({', '.join('?' * len(old))})", *old)
            return opened()

        return replay

    @pytest.mark.parametrize("policy", [Policy(), Policy("full"), Policy("windowed", window=2)])
    def test_every_way_to_read_it(self, replayed, policy):
        """Whatever would continue, copy or list the checkpoints below those that the record does not know."""
        store = replayed(policy)

        for read in (
            store.load,
            store.history,
            lambda run_id: list(store.iter_history(run_id)),
            lambda run_id: list(store.export_run(run_id)),
            lambda run_id: store.load(run_id, 1),
            lambda run_id: store.rollback(run_id, 1),
            lambda run_id: store.fork(run_id, "b"),
        ):
            with pytest.raises(CheckpointCorruptError):
                read("a")
        assert [damage.run_id for damage in store.verify().damaged] == ["a"]

    def test_prune_does_not_delete_a_run_by_it(self, replayed):
        """The time of a completed run has passed; the one of the run that waits has not begun."""
        store = replayed(Policy("full", ttl=1e-9))

        pruned = store.prune()

        assert (pruned.runs, pruned.damaged, store.list()) == ((), ("a",), ["a"])


@pytest.mark.parametrize(("forged", "by"), [(None, "ann lee"), ("eve", None), ("eve 00", None), ("ann lee", None)])
def test_the_author_of_a_cancellation(opened, sql, forged, by):
    """A name that others wrote while the run was at work is never signed as the author of its cancellation."""
    store = opened()

    def cancelled(_):
        opened().cancel("a", by="ann lee")
        sql("UPDATE fence SET by_whom = coalesce(?, by_whom)", forged)

    with pytest.raises(RunCancelledError):
        make_graph({"work": cancelled, "more": lambda state: {}}, store=store).execute(State(run_id="a"))

    assert [row.by for row in opened().history("a") if row.kind == "cancel"] == [by]


class TestKeys:
    @pytest.mark.parametrize("key", [b"k", b"k" * 15, "k" * 32, None, bytearray(32)])
    def test_a_key_that_is_none(self, opened, key):
        """A missing or short key is refused before anything is saved, and is never shown."""
        store = opened(sign_with=lambda: key)

        with pytest.raises(ConfigError, match=r"sign_with.*at least 16 bytes") as caught:
            saved(store, 1)
        assert "kkk" not in str(caught.value)

    def test_a_new_key_beside_the_old_one(self, opened):
        """Runs that were signed with the old key can be read and resumed; new rows are signed with the new key."""
        old = opened(sign_with=lambda: OLD_KEY)
        old.retain("a", Policy("full"))
        saved(old, 1, 2)
        saved(old, 1, run_id="b")
        both = opened(verify_with=[lambda: OLD_KEY])
        assert (both.load("a")["n"], both.load("a", 1)["n"], both.list()) == (2, 1, ["a", "b"])

        saved(both, 3)
        assert opened(verify_with=[lambda: OLD_KEY]).load("a")["n"] == 3
        with pytest.raises(CheckpointCorruptError, match="verify_with"):
            opened().load("b")
        both.save(attrs.evolve(both.load("b"), status="failed"))
        assert opened().load("b").status == "failed"


def test_a_history_is_what_was_signed(opened, sql):
    """A signing store checks every row of a history; a store without a key checks the loaded rows."""
    store = opened()
    store.retain("a", Policy("full"))
    saved(store, 1, 2, 3)
    sql("UPDATE checkpoint SET status = 'completed' WHERE id & 0xffffffff = 1")

    with pytest.raises(CheckpointCorruptError):
        opened().history("a")


def test_pages_go_on_behind_what_is_damaged(opened, sql):
    """Each run is listed once, whatever the size of the pages."""
    store = opened()
    for number in range(9):
        saved(store, 1, run_id=f"run-{number}")
    for number in (0, 3, 4, 8):
        sql("UPDATE run SET status = 'failed' WHERE run_id = ?", f"run-{number}")

    for size in range(1, 11):
        found, after = [], None
        while page := store.runs(limit=size, after=after):
            found += [run.run_id for run in page]
            after = page[-1].cursor
        assert found == ["run-7", "run-6", "run-5", "run-2", "run-1"]


@pytest.mark.parametrize(
    "change",
    [
        "by_whom = 'the boss'",
        "seq = 5",
        "step = 1",
        "kind = 'turn'",
        "name = 'other'",
        "place = 'node'",
        "at_ns = at_ns + 1",
        "made_of = 'other'",
        "payload = (SELECT payload FROM entry WHERE seq = 2)",
        "number = (SELECT number FROM run WHERE run_id = 'b')",
    ],
)
def test_an_entry_is_what_its_author_appended(opened, sql, change):
    """An entry that was changed, or moved to another place or run, is refused: its seal covers all of it."""
    store = opened()
    for run_id in "ab":
        saved(store, 1, run_id=run_id)
    store.append("a", [Entry("message", {"x": 1}, by="me"), Entry("message", {"x": 2}, by="me")])

    sql(f"UPDATE entry SET {change} WHERE seq = 1")

    with pytest.raises(CheckpointCorruptError, match="its entry"):
        [store.entries(run_id) for run_id in "ab"]


def test_a_message_that_is_copied_to_a_new_number_is_refused(opened, sql):
    """Who can write to the file but has no key cannot send: not even what was sent before, once more."""
    store = opened()
    saved(store, 1)
    store.append("a", [Entry("message", {"x": 1})])
    sql("CREATE TABLE copy AS SELECT * FROM entry")

    sql("UPDATE copy SET seq = 2")
    sql("INSERT INTO entry SELECT * FROM copy")

    with pytest.raises(CheckpointCorruptError, match="its entry message"):
        store.entries("a")


def test_a_message_that_is_put_back_is_not_taken_in_again(opened, sql):
    """The State says which messages it has taken in: putting one back changes nothing."""
    taken = []
    pauses = {name: InterruptNode("asked", name) for name in ("first", "second")}
    graph = make_graph({"begin": lambda state: {"asked": 1}, **pauses, "end": lambda state: {}}, store=opened())

    def note(state, updates):
        taken.append(dict(updates))
        return updates

    graph.on_message(note)
    graph.execute(State(run_id="a"))
    graph.send("a", {"x": 1})
    sql("CREATE TABLE copy AS SELECT * FROM entry")
    graph.resume("a", {"first": True})

    sql("INSERT INTO entry SELECT * FROM copy")

    assert graph.resume("a", {"second": True})["x"] == 1
    assert taken == [{"x": 1}]
