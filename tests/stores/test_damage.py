"""What is lost or was tampered with, and how each store tells that it is."""

import os
import sqlite3
import stat
from contextlib import closing, suppress

import pytest

from stategraph import ConfigError, State, get_checkpoint_store
from stategraph._values.progress import Part
from stategraph._values.provenance import ParentStep
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    FormatError,
    InvalidRunIdError,
    RunExistsError,
)
from stategraph.state import evolve
from stategraph.stores._files.paths import make_private
from stategraph.stores._rows.sql_schema import SCHEMA_VERSION
from stategraph.stores.base import Policy
from stategraph.stores.sqlite import SqliteStore
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
    @pytest.mark.parametrize("asked", [None, 3])
    def test_the_newest_one(self, store, policy, asked):
        """The run is there: it is damaged, and not unknown; and an earlier checkpoint does not pass for its newest."""
        saved(store, 1, 2, 3, policy=policy)

        lose(store, 3)

        with pytest.raises(CheckpointCorruptError, match="step 3 is missing"):
            store.load("a", asked)
        with pytest.raises(CheckpointCorruptError, match="'a'"):
            store.history("a")

    def test_the_only_one(self, store):
        """A run of which nothing is left but that it was there."""
        saved(store, 3)
        lose(store, 3)

        for ask in (store.load, store.history, lambda run_id: store.rollback(run_id, 3), lambda a: store.fork(a, "b")):
            with pytest.raises(CheckpointCorruptError, match="step 3 is missing"):
                ask("a")

    def test_a_run_goes_on_behind_it(self, store):
        """What is saved next holds everything."""
        saved(store, 1, 2)
        lose(store, 2)
        log_of(store).forget_all("a")

        saved(store, 3)
        assert store.load("a")["n"] == 3

    def test_one_that_others_build_on(self, store):
        """They tell that it was there, whoever asks for it."""
        saved(store, 1, 2, 3, policy=Policy("full"))
        lose(store, 2)

        with pytest.raises(CheckpointCorruptError):
            store.load("a", 2)

    def test_a_revision(self, store):
        """The one before it does not pass for the newest, and the history does not hide it."""
        saved(store, 1, 2, policy=Policy("full"))
        saved(store, 2, status="paused")
        saved(store, 3)
        place = next(row.sequence for row in table_of(store).index("a") if row.revision)
        lose(store, place)

        with pytest.raises(CheckpointCorruptError):
            store.load("a", 2)
        with pytest.raises(CheckpointCorruptError, match="is missing"):
            store.history("a")

    def test_the_newest_revision(self, store):
        """The one before it does not pass for the newest of its step."""
        saved(store, 1, 2, policy=Policy("full"))
        saved(store, 2, status="paused")
        lose(store, 3)

        with pytest.raises(CheckpointCorruptError, match="step 2 is missing"):
            store.load("a", 2)

    def test_one_before_a_snapshot(self, store):
        """Nothing builds on it, and the numbers of those around it show that it was there."""
        saved(store, 1, 2, 3, policy=Policy("full"))
        store.rollback("a", 1)
        lose(store, 3)

        with pytest.raises(CheckpointCorruptError, match="is missing"):
            store.history("a")

    def test_one_in_whose_place_another_stands(self, store):
        """It was saved, and is damaged."""
        saved(store, 1, 2, 3, policy=Policy("full"))
        store.rollback("a", 1)
        saved(store, 2, generation=1)
        lose(store, 3)
        copy_row(store, 1, 3)

        with pytest.raises(CheckpointCorruptError):
            store.load("a", 3)

    def test_one_that_never_was(self, store):
        """Nothing is lost where steps were not saved."""
        saved(store, 2, 4, 6, policy=Policy("full"))

        for step in (1, 3, 5, 7):
            with pytest.raises(CheckpointNotFoundError):
                store.load("a", step)


def test_a_run_that_is_deleted_while_it_is_loaded(store, monkeypatch):
    """It is not found: nothing of it is damaged."""
    saved(store, 1)
    chain = table_of(store).chain

    def deleted(*asked):
        store.delete("a")
        return chain(*asked)

    monkeypatch.setattr(table_of(store), "chain", deleted)

    with pytest.raises(CheckpointNotFoundError):
        store.load("a")


def test_a_run_that_is_deleted_while_its_step_is_saved_again(store, monkeypatch):
    """It begins anew."""
    saved(store, 1)
    log_of(store).forget_all("a")
    chain = table_of(store).chain

    def deleted(*asked):
        store.delete("a")
        return chain(*asked)

    monkeypatch.setattr(table_of(store), "chain", deleted)
    saved(store, 1)
    monkeypatch.undo()

    assert store.load("a").step == 1


def test_a_run_that_is_written_while_it_is_loaded(store, monkeypatch):
    """What the loader saves next builds on what is there by then."""
    saved(store, 1, 2, policy=Policy("full"))
    log_of(store).forget("a")
    chain = table_of(store).chain

    def read_before_it_is_written(*asked):
        rows = chain(*asked)
        monkeypatch.undo()
        store.rollback("a", 2)
        return rows

    monkeypatch.setattr(table_of(store), "chain", read_before_it_is_written)
    state = store.load("a")
    store.save(evolve(state.set("n", 3), step=3))

    assert store.load("a")["n"] == 3
    assert store.load("a", 2).generation == 1


BIG = "x" * 20_000  # two steps of it take a snapshot


class TestWindows:
    """Which rows go as a run goes on."""

    @pytest.fixture
    def windowed(self, store, again):
        """-> a run of which four checkpoints are kept, in a store that remembers nothing of it; 1 and 4 are whole."""
        store.retain("a", Policy("windowed", window=4))
        for step in range(1, 6):
            store = again(store) if step == 4 else store
            store.save(State({"n": step, "steps": [*range(step)]}, run_id="a", step=step))
        return again(store)

    def went_on(self, store, *steps):
        for step in steps:
            store.save(State({"n": step, "big": f"{step}{BIG}"}, run_id="a", step=step))

    def test_what_is_as_it_was(self, windowed, again):
        """Goes in time, whether or not the store has saved it itself."""
        self.went_on(windowed, 6, 7, 8, 9, 10)
        assert table_of(windowed).index("a")[0].step == 6

        store = again(windowed)
        self.went_on(store, 11)
        assert table_of(store).index("a")[0].step == 8


@pytest.fixture
def again():
    """-> opens a store once more."""
    opened = []

    def open_again(store):
        opened.append(type(store)(store.path))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


def copy_row(store, step, to):
    """Have a row stand at another step as well."""
    first = table_of(store).run("a").number << 32
    fields = "base, step, revision, kind, checkpoint_node, timestamp_ns, status, error, by_whom, took_ns, attempts, "
    fields += "owner, pause, format, encoding, payload, seal"
    select = f"SELECT {first | to}, {fields} FROM checkpoint WHERE id = {first | step}"
    sql(store.path, f"INSERT INTO checkpoint (id, {fields}) {select}")


class TestPrune:
    @pytest.mark.parametrize("change", ["status = 'completed'", "status = 'completed', timestamp_ns = 0"])
    def test_a_run_is_over_when_it_was_saved_so(self, store, path, change):
        """And not when somebody has written so into the list of runs: that is damage, which is reported."""
        saved(store, 1, policy=OVER)
        sql(path, f"UPDATE run SET {change}")

        pruned = store.prune()

        assert (pruned.runs, pruned.damaged) == ((), ("a",))
        with pytest.raises(CheckpointCorruptError):
            store.load("a")

    def test_what_is_damaged_stays(self, store, path):
        """And keeps no other from going."""
        for run_id in ("a", "b", "c"):
            saved(store, 1, run_id=run_id, policy=OVER if run_id < "c" else None, status="completed")
        sql(path, "UPDATE checkpoint SET payload = x'00' WHERE id >> 32 = 1")
        lose(store, 1, "c")

        pruned = store.prune()

        assert (pruned.runs, set(pruned.damaged)) == (("b",), {"a", "c"})
        assert store.list() == ["a", "c"]


def test_a_fork_finds_out_beforehand_what_is_in_its_way(store, monkeypatch):
    """Not even for a moment is a half of it there."""
    saved(store, 1)
    saved(store, 1, run_id="a/#2/child", parent=ParentStep("a", 1))
    saved(store, 1, run_id="b")
    monkeypatch.setattr(store._log.committer, "_apply", None)

    with pytest.raises(RunExistsError, match="'b'"):
        store.fork("a", "b")


def test_nothing_is_saved_together(store):
    """No State at all is no error."""
    store.save_many([])

    assert store.list() == []


class TestOpening:
    @pytest.mark.parametrize("table", ["run", "checkpoint"])
    @pytest.mark.parametrize("when", ["AFTER INSERT", "BEFORE UPDATE", "AFTER DELETE"])
    @pytest.mark.parametrize("read_only", [True, False])
    def test_a_trigger_that_was_planted(self, store, path, table, when, read_only):
        """It would run when a run is saved: the database is refused, and the error names it."""
        store.close()
        sql(path, f"CREATE TRIGGER spy {when} ON {table} BEGIN SELECT 1; END")

        with pytest.raises(FormatError, match=r"changed by others than stategraph .*spy"):
            SqliteStore(path, read_only=read_only)

    def test_a_name_that_is_no_text(self, store, path):
        """Damage in the schema is damage of the file."""
        store.close()
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("PRAGMA writable_schema = 1")
            database.execute("UPDATE sqlite_master SET sql = CAST(x'ff' || sql AS TEXT) WHERE name = 'checkpoints'")

        with pytest.raises(FormatError, match="damaged"):
            SqliteStore(path)

    def test_an_empty_file_is_not_read_only(self, path):
        """There is nothing to read yet, which is no damage; and nothing is made."""
        path.touch()

        with pytest.raises(FormatError, match="is empty"):
            SqliteStore(path, read_only=True)

        assert path.read_bytes() == b""

    def test_a_newer_version_that_migrates_at_the_same_time(self, path, monkeypatch):
        """Its schema is not taken back to ours."""
        from stategraph.stores._rows import sql_schema as module

        def overtaken(database, _):
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")

        monkeypatch.setattr(module, "check", overtaken)

        with pytest.raises(FormatError, match="update it"):
            SqliteStore(path)

        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)


class TestOptions:
    @pytest.mark.parametrize("name", ["sqlite", "disk"])
    def test_one_that_is_misspelt_is_named(self, name):
        """And not the one that is missing because of it."""
        with pytest.raises(ConfigError, match=r"'pth'.*\(it takes: path"):
            get_checkpoint_store(name, pth="runs")

    def test_one_that_is_missing_is_named(self):
        """Where all that are given are known."""
        with pytest.raises(ConfigError, match="missing a required argument: 'path'"):
            get_checkpoint_store("sqlite", read_only=True)


class TestPrivateFiles:
    def test_a_new_one(self, tmp_path):
        """Only its owner may read it, whatever the umask allows."""
        before = os.umask(0)
        try:
            make_private(tmp_path / "new")
        finally:
            os.umask(before)

        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600

    def test_one_that_is_there_is_not_opened(self, tmp_path, monkeypatch):
        """To close it again would end the locks of this process; what is in it and who may read it stays."""
        file = tmp_path / "there"
        file.write_bytes(b"content")
        file.chmod(0o640)
        closed: list[int] = []
        monkeypatch.setattr(os, "close", closed.append)

        make_private(file)
        monkeypatch.undo()

        assert closed == []
        assert file.read_bytes() == b"content"
        assert stat.S_IMODE(file.stat().st_mode) == 0o640

    def test_one_that_may_not_be_written(self, tmp_path, monkeypatch):
        """Whoever asks is not allowed to."""
        file = tmp_path / "locked"
        file.touch()
        monkeypatch.setattr(os, "access", lambda *_: False)

        with pytest.raises(PermissionError, match="locked"):
            make_private(file)


def test_parts_of_a_run_that_is_gone(store):
    """They are found no more, and dropping them again is no error."""
    saved(store, 1)
    store.save_parts("a", [Part(2, "map", "x", 1)])
    store.delete("a")

    store.drop_parts("a", 2, newer_too=True)

    assert store.load_parts("a", 2, "map") == {}


@pytest.mark.parametrize("run_id", ["w\0ndow", "", ".window", b"window"])
def test_an_id_that_no_run_can_have(tmp_path, run_id):
    """It is damage, and not a run that is listed."""
    with SqliteStore(tmp_path / "runs.db") as store:
        store.save(State(run_id="window", step=1))
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        database.execute("UPDATE run SET run_id = ?", (run_id,))
        database.commit()

    with SqliteStore(tmp_path / "runs.db") as store:
        assert store.list() == []
        assert store.runs() == []
        assert store.prune().damaged == (str(run_id),)


class TestTheWayOut:
    """What is no run is told of as `delete` takes it, and an error names the column, the store, and that."""

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

    @pytest.mark.parametrize("run_id", ["x y", "\ud800", "", 5, None])
    def test_an_id_that_is_not_there_is_none(self, store, run_id):
        saved(store, 1)

        with pytest.raises(InvalidRunIdError):
            store.delete(run_id)

    @pytest.mark.parametrize(
        ("column", "value"),
        [("status", "'x'"), ("policy", "'x'"), ("parent", "5"), ("error", "'x'")],
    )
    def test_the_column_is_named(self, store, path, column, value):
        saved(store, 1)
        sql(path, f"UPDATE run SET {column} = {value}")

        with pytest.raises(CheckpointCorruptError) as caught:
            store.load("a")

        for named in (f"its column {column} holds", str(path), "store.delete('a')"):
            assert named in str(caught.value)
        store.delete("a")
        saved(store, 1)


@pytest.mark.parametrize("sign_with", [None, lambda: b"k" * 32], ids=["checksum", "signature"])
@pytest.mark.parametrize("value", ["5", "1.5", "'text'", "x''", "-1"])
@pytest.mark.parametrize("column", ["run.seal", "run.tip", "checkpoint.seal", "checkpoint.payload"])
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
    """As in a file whose bytes were changed: SQLite itself refuses to write one."""
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
