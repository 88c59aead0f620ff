"""What somebody does who can write to the file, and has no key: nothing of it is taken for what was saved."""

import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import attrs
import pytest

from stategraph import ConfigError, State
from stategraph._values.progress import Part, Pause
from stategraph._values.provenance import ParentStep
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    RunLostError,
    StateGraphError,
)
from stategraph.stores import get_checkpoint_store
from stategraph.stores.base import Policy
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing import fixed
from tests.stores.inside import table_of

KEY, OLD_KEY = b"k" * 32, b"o" * 32


@pytest.fixture
def opened(tmp_path):
    """-> opens a store, by default signed and always the same one."""
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
    """-> does what another program does in the file."""

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
    def test_a_body_that_was_changed_meanwhile(self, opened, change_bodies, signed, status, steps):
        """It gets no signature, and no checksum either: what was saved takes its place."""
        store = opened() if signed else opened(sign_with=None)
        saved(store, *range(1, steps + 1))
        state = store.load("a")
        change_bodies(b"pay 0100", b"pay 9999")

        store.save(attrs.evolve(state, status=status))

        reader = opened() if signed else opened(sign_with=None)
        assert reader.load("a") == attrs.evolve(state, status=status)


class TestHeads:
    """What a store tells of a run without loading it."""

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

    def test_a_chain_that_was_cut(self, opened, sql):
        """The step before does not pass for the newest one, though it was once."""
        store = opened()
        store.retain("a", Policy("full"))
        saved(store, 1, 2)
        saved(store, 3)
        sql("DELETE FROM checkpoint WHERE id & 0xffffffff = 3")
        sql("UPDATE run SET step = 2")

        fresh = opened()
        for ask in (fresh.load, fresh.history):
            with pytest.raises(CheckpointCorruptError):
                ask("a")

    def test_an_earlier_version_of_the_newest_step(self, opened, sql):
        """Sealed for this very step, before the run was taken back and came there another way."""
        store = opened()
        saved(store, 1)
        saved(store, 2, status="failed")
        row = sql("SELECT * FROM checkpoint")
        store.amend(State({"n": "another"}, run_id="a", step=2, checkpoint_node="node"))
        sql(f"INSERT OR REPLACE INTO checkpoint VALUES ({', '.join('?' * len(row[-1]))})", *row[-1])

        with pytest.raises(CheckpointCorruptError):
            opened().load("a")

    def test_a_run_of_another_store(self, opened, sql):
        """With the same key: its rows are none of this one."""
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

    @pytest.mark.parametrize("signed", [True, False])
    def test_one_bad_head_keeps_no_other_from_being_told_of(self, opened, sql, signed, caplog):
        """Nested deeper than Python can read, or not even text: it is left out, and can be deleted."""
        store = opened() if signed else opened(sign_with=None)
        for run_id in "abc":
            store.retain(run_id, Policy(ttl=1e-9))
            saved(store, 1, run_id=run_id, status="completed")
        sql("UPDATE run SET error = ? WHERE run_id = 'b'", "[" * 100_000)

        assert store.list() == ["a", "c"]
        assert [run.run_id for run in store.runs(limit=2)] == ["c", "a"]
        pruned = store.prune()
        assert (set(pruned.runs), pruned.damaged) == ({"a", "c"}, ("b",))
        assert caplog.text.count("run 'b' in the") == 1
        store.delete("b")
        assert store.prune().damaged == ()


class TestIncarnations:
    """What is left of a run that was deleted is no part of one that has begun anew under its id."""

    def test_parts_that_are_put_back(self, opened, sql):
        """They were signed for a run of this id, and of this step."""
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

    def test_what_is_within_a_run_that_is_saved_after_it(self, opened):
        """As where only the end of a call is saved: it is of that run."""
        store = opened()
        store.save(State({"n": 1}, run_id="a/#2/child", step=1, parent=ParentStep("a", 1)))
        saved(store, 1)

        assert opened().load("a/#2/child")["n"] == 1


class TestKeys:
    @pytest.mark.parametrize("key", [b"k", b"k" * 15, "k" * 32, None, bytearray(32)])
    def test_a_key_that_is_none(self, opened, key):
        """Or a short one: refused before anything is saved, and never shown."""
        store = opened(sign_with=lambda: key)

        with pytest.raises(ConfigError, match=r"sign_with.*at least 16 bytes") as caught:
            saved(store, 1)
        assert "kkk" not in str(caught.value)

    def test_a_short_one_from_the_environment(self, opened, monkeypatch):
        """When the store is opened."""
        monkeypatch.setenv("RUNS_KEY", "k" * 15)

        with pytest.raises(ConfigError, match="at least 16 bytes"):
            opened(sign_with="RUNS_KEY")

    def test_a_new_key_beside_the_old_one(self, opened):
        """What was signed with the old one is read, goes on, and is signed with the new one from then on."""
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

    def test_old_keys_from_the_environment(self, opened, monkeypatch):
        """By name, as configuration files have them."""
        monkeypatch.setenv("OLD", OLD_KEY.decode())
        monkeypatch.setenv("NEW", KEY.decode())
        saved(opened(sign_with="OLD"), 1)

        assert opened(sign_with="NEW", verify_with=["OLD"]).load("a")["n"] == 1

    @pytest.mark.parametrize("wrong", ["OLD", [None], [b"k" * 32], 5, ["NOT_SET"], None])
    def test_what_is_no_list_of_keys(self, opened, wrong):
        """Is refused, without being shown."""
        with pytest.raises(ConfigError, match="verify_with") as caught:
            opened(verify_with=wrong)
        assert "kkk" not in str(caught.value)

    def test_old_keys_alone(self, opened):
        """A store that signs nothing verifies nothing: that is told."""
        with pytest.raises(ConfigError, match="sign_with"):
            opened(sign_with=None, verify_with=[lambda: OLD_KEY])

    def test_both_by_name_of_the_store(self, tmp_path, monkeypatch):
        """As graph.toml has them."""
        monkeypatch.setenv("OLD", OLD_KEY.decode())
        monkeypatch.setenv("NEW", KEY.decode())
        with get_checkpoint_store("sqlite", path=str(tmp_path / "runs"), sign_with="OLD") as store:
            saved(store, 1)

        options = {"path": str(tmp_path / "runs"), "sign_with": "NEW", "verify_with": ["OLD"]}
        with get_checkpoint_store("sqlite", **options) as store:
            assert store.load("a")["n"] == 1


def test_a_history_is_what_was_signed(opened, sql):
    """Each row of it, for whoever signs; without a key only what is read is checked."""
    store = opened()
    store.retain("a", Policy("full"))
    saved(store, 1, 2, 3)
    sql("UPDATE checkpoint SET status = 'completed' WHERE id & 0xffffffff = 1")

    with pytest.raises(CheckpointCorruptError):
        opened().history("a")


def test_the_seals_of_equal_runs_differ(opened):
    """Neither the same store nor the same values make them the same: every run has an incarnation of its own."""
    with fixed():
        saved(opened(), 1)
        seals = [table_of(opened()).chain("a", 1)[0].seal]
        opened().delete("a")
        saved(opened(), 1)
        seals.append(table_of(opened()).chain("a", 1)[0].seal)

    assert len(set(seals)) == 2


def test_errors_are_of_stategraph(opened, sql):
    """Whatever stands in the place of the id of the store."""
    opened().close()
    sql("UPDATE store SET id = 5")

    with pytest.raises(StateGraphError):
        opened()


def test_pages_go_on_behind_what_is_damaged(opened, sql):
    """Each run is told of once, however small the pages are."""
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


@pytest.mark.parametrize("how", ["load", "history", "fork", "rollback", "save"])
def test_a_run_is_not_given_out_under_another_id(opened, sql, how):
    """Where somebody has made a table in which ids that differ in case are the same, each run is still itself."""
    store = opened()
    saved(store, 1, 2)
    ((schema,),) = sql("SELECT sql FROM sqlite_master WHERE name = 'run'")
    sql("ALTER TABLE run RENAME TO former")
    sql(schema.replace("run_id TEXT", "run_id TEXT COLLATE NOCASE"))
    sql("INSERT INTO run SELECT * FROM former")
    calls = {
        "load": lambda: store.load("A"),
        "history": lambda: store.history("A"),
        "fork": lambda: store.fork("A", "b"),
        "rollback": lambda: store.rollback("A", 2),
        "save": lambda: saved(store, 3, run_id="A"),
    }

    with pytest.raises(CheckpointCorruptError, match="of run 'a'"):
        calls[how]()
    assert store.load("a")["n"] == 2


def test_a_snapshot_that_says_it_builds_on_a_later_step(opened, sql):
    """It is there, and damaged: it is not said to be missing."""
    store = opened()
    store.retain("a", Policy("full"))
    saved(store, 1, 2)
    sql("UPDATE checkpoint SET base = 5 WHERE id & 0xffffffff = 1")

    with pytest.raises(CheckpointCorruptError):
        opened().load("a", 1)


TEXTS = {
    "surrogates": '\'["\\ud800", "x", "y"]\'',
    "no UTF-8": "CAST(x'ff' AS TEXT)",
    "huge": "'x@99999999999999999999999'",
}


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        ("error", "surrogates"),
        *(("graph", "no UTF-8"), ("checkpoint_node", "no UTF-8"), ("run_id", "no UTF-8")),
        ("parent", "huge"),
    ],
)
def test_text_that_nothing_can_be_made_of(opened, sql, signed, change):
    """It is damage of one run: all others are told of."""
    store = opened() if signed else opened(sign_with=None)
    for run_id in "abc":
        saved(store, 1, run_id=run_id)
    sql(f"UPDATE run SET {change[0]} = {TEXTS[change[1]]} WHERE run_id = 'b'")

    assert store.list() == ["a", "c"]
    assert [run.run_id for run in store.runs(limit=2)] == ["c", "a"]
    assert len(store.prune().damaged) == 1
    if change[0] != "run_id":
        with pytest.raises(CheckpointCorruptError):
            store.load("b")


def test_a_row_whose_text_nothing_can_be_made_of(opened, sql):
    """To load it is an error of stategraph's."""
    saved(opened(), 1)
    sql(f"UPDATE checkpoint SET error = {TEXTS['surrogates']}")

    with pytest.raises(CheckpointCorruptError):
        opened().load("a")


def test_prune_checks_what_it_goes_by(opened, sql):
    """A row says on which others it builds: it is believed once its seal is right."""
    store = opened()
    store.retain("a", Policy("windowed", window=3))
    saved(store, 1, 2, 3, 4, 5, 6)
    sql("UPDATE checkpoint SET base = 6")

    pruned = opened().prune()

    assert (pruned.checkpoints, pruned.damaged) == (0, ("a",))
    assert sql("SELECT count(*) FROM checkpoint") == [(6,)]


@pytest.mark.parametrize("how", ["fork", "rollback"])
def test_what_is_copied_is_of_one_run(opened, monkeypatch, how):
    """One that is deleted and begun anew while it is read is not mixed with what it was."""
    store, other = opened(), opened()
    store.retain("a", Policy("full"))
    saved(store, 1, 2, 3)
    chain = table_of(store).chain

    def then_it_begins_anew(*asked):
        rows = chain(*asked)
        monkeypatch.undo()
        other.delete("a", take_over=True)
        other.retain("a", Policy("full"))
        for step in (1, 2, 3):
            other.save(State({"n": "new"}, run_id="a", step=step))
        return rows

    monkeypatch.setattr(table_of(store), "chain", then_it_begins_anew)
    if how == "fork":
        store.fork("a", "b", 2)
    else:
        with pytest.raises(RunLostError):
            store.rollback("a", 2)

    run_id = "b" if how == "fork" else "a"
    assert {other.load(run_id, row.step)["n"] for row in other.history(run_id)} == {"new"}
