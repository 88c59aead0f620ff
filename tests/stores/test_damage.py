"""Each store reports lost and changed rows."""

import sqlite3
from contextlib import closing, suppress

import pytest

from stategraph import State
from stategraph.errors import CheckpointCorruptError, CheckpointNotFoundError, InvalidRunIdError
from stategraph.stores.base import Policy
from stategraph.stores.sqlite import SqliteStore
from tests.pairs import every_pair
from tests.stores.inside import log_of, table_of

OVER = Policy(ttl=1e-9)


def sql(path, statement):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    with SqliteStore(path) as store:
        yield store


def saved(store, *steps, run_id="a", policy=None, **provenance):
    if policy is not None:
        store.retain(run_id, policy)
    for step in steps:
        store.save(State({"n": step}, run_id=run_id, step=step, checkpoint_node="node", **provenance))


def lose(store, step, run_id="a"):
    """Take a row away, as damage may."""
    number = table_of(store).run(run_id).number
    sql(store.path, f"DELETE FROM checkpoint WHERE id = {number << 32 | step}")


class TestLostRows:
    @pytest.mark.parametrize("policy", [Policy(), Policy("full"), Policy("windowed", window=2)])
    @pytest.mark.parametrize("step", [None, 3])
    def test_the_newest_one(self, store, policy, step):
        """The run is there: it is damaged, and not unknown; and an earlier checkpoint does not pass for its newest."""
        saved(store, 1, 2, 3, policy=policy)

        lose(store, 3)

        with pytest.raises(CheckpointCorruptError, match="step 3 is missing"):
            store.load("a", step)
        with pytest.raises(CheckpointCorruptError, match="'a'"):
            store.history("a")

    def test_a_run_goes_on_behind_it(self, store):
        """The next save holds all data."""
        saved(store, 1, 2)
        lose(store, 2)
        log_of(store).forget_all("a")

        saved(store, 3)
        assert store.load("a")["n"] == 3

    def test_one_that_others_build_on(self, store):
        """Later rows show that the row existed, so every way to read it reports damage."""
        saved(store, 1, 2, 3, policy=Policy("full"))
        lose(store, 2)

        with pytest.raises(CheckpointCorruptError):
            store.load("a", 2)

    def test_the_newest_revision(self, store):
        """The one before it does not pass for the newest of its step."""
        saved(store, 1, 2, policy=Policy("full"))
        saved(store, 2, status="paused")
        lose(store, 3)

        with pytest.raises(CheckpointCorruptError, match="step 2 is missing"):
            store.load("a", 2)

    def test_one_that_never_was(self, store):
        """Nothing is lost where steps were not saved."""
        saved(store, 2, 4, 6, policy=Policy("full"))

        for step in (1, 3, 5, 7):
            with pytest.raises(CheckpointNotFoundError):
                store.load("a", step)


@pytest.fixture
def again():
    """Yield a function that opens a store once more."""
    opened = []

    def open_again(store):
        opened.append(type(store)(store.path))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


class TestPrune:
    @pytest.mark.parametrize("change", ["status = 'completed'", "status = 'completed', timestamp_ns = 0"])
    def test_a_run_is_over_when_it_was_saved_so(self, store, path, change):
        """A row that was changed to say so is damage, which is reported."""
        saved(store, 1, policy=OVER)
        sql(path, f"UPDATE run SET {change}")

        pruned = store.prune()

        assert (pruned.runs, pruned.damaged) == ((), ("a",))
        with pytest.raises(CheckpointCorruptError):
            store.load("a")


class TestTheWayOut:
    """Damaged runs are listed with ids that `delete` takes; errors name the column, the store and that way out."""

    RAW_IDS = ("'x y'", "'../etc'", "x'ff00'", "CAST(x'61ff62' AS TEXT)", "''", "'a!1'", "'" + "a" * 300 + "'")

    @pytest.mark.parametrize("raw_id", RAW_IDS)
    def test_an_id_that_no_run_can_have(self, store, raw_id, again, caplog):
        saved(store, 1, run_id="a")
        saved(store, 1, 2, run_id="b", policy=Policy("full"))
        sql(store.path, f"UPDATE run SET run_id = {raw_id} WHERE run_id = 'b'")

        store = again(store)
        assert store.list() == ["a"]
        (run_id,) = store.prune().damaged
        (record,) = caplog.records
        assert record.getMessage().count(f"store.delete({run_id!r})") == 1
        assert str(store.path) in record.getMessage()
        assert "run_id" in record.getMessage()

        store.delete(run_id)
        assert store.prune().damaged == ()
        assert store.list() == ["a"]
        assert store.load("a")["n"] == 1
        with pytest.raises(InvalidRunIdError):
            store.delete(run_id)


@every_pair(
    column=["run.seal", "run.tip", "checkpoint.seal", "checkpoint.payload"],
    value=["5", "1.5", "'text'", "x''", "-1"],
    sign_with=[None, lambda: b"k" * 32],
)
def test_a_column_of_bytes_that_holds_another_type(path, column, value, sign_with):
    with SqliteStore(path, sign_with=sign_with) as store:
        saved(store, 1, 2, policy=Policy("full"))
    table, name = column.split(".")
    sql(path, f"UPDATE {table} SET {name} = {value}")

    with SqliteStore(path, sign_with=sign_with) as store:
        with pytest.raises(CheckpointCorruptError, match="'a'"):
            store.load("a")
        assert [damage.run_id for damage in store.verify().damaged] == ["a"]
        with suppress(CheckpointCorruptError):  # a history reads no payload
            store.history("a")
        store.delete("a")
        saved(store, 1)


@pytest.mark.parametrize("column", ["kind", "status", "policy", "labels"])
def test_a_null_where_none_is_allowed(path, column):
    """A null that only a changed file can hold, as SQLite refuses to write it, is reported."""
    with SqliteStore(path) as store:
        saved(store, 1)
    with closing(sqlite3.connect(path)) as database, database:
        (kept,) = database.execute("SELECT sql FROM sqlite_master WHERE name = 'run'").fetchone()
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'run'", (kept.replace(" NOT NULL", ""),))
    sql(path, f"UPDATE run SET {column} = NULL")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'run'", (kept,))

    with SqliteStore(path) as store:
        with pytest.raises(CheckpointCorruptError, match="'a'"):
            store.load("a")
        assert store.runs() == []
        assert "a" in {damage.run_id for damage in store.verify().damaged}
        store.delete("a")
        saved(store, 1)
