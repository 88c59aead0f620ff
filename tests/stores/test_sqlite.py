"""The "sqlite" store: its file, and changes to it by others."""

import gc
import sqlite3
import weakref
from contextlib import closing

import pytest

from stategraph import State
from stategraph._values.progress import Part
from stategraph._values.provenance import ErrorInfo
from stategraph.errors import CheckpointCorruptError, CheckpointError, FormatError
from stategraph.stores._rows.sql_schema import APPLICATION_ID, SCHEMA_VERSION
from stategraph.stores.base import Policy
from stategraph.stores.sqlite import SqliteStore
from stategraph.stores.summaries import Pruned
from tests.stores.inside import connection_of


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


@pytest.fixture
def store(path):
    store = SqliteStore(path)
    yield store
    store.close()


def sql(path, statement, *values):
    """Return what another program reads, or does, in the file."""
    with closing(sqlite3.connect(path)) as database, database:
        return database.execute(statement, values).fetchall()


def saved(store, *steps, run_id="a", **data):
    for step in steps:
        store.save(State({"n": step, **data}, run_id=run_id, step=step, checkpoint_node=f"node-{step}"))


class TestTheFile:
    def test_it_says_what_it_is(self, store, path):
        """The file identifies itself to the ``file`` command and to other versions."""
        assert sql(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
        assert sql(path, "PRAGMA user_version") == [(SCHEMA_VERSION,)]
        assert sql(path, "PRAGMA journal_mode") == [("wal",)]
        assert sql(path, "PRAGMA integrity_check") == [("ok",)]

    def test_the_view_is_read_with_plain_sqlite(self, store, path):
        """The view has one row for each checkpoint, with plain column names."""
        store.retain("a", Policy("full"))
        saved(store, 1, 2)
        store.save(State(run_id="b", step=7, status="failed", error=ErrorInfo("ValueError", "no", "x")))

        rows = sql(path, "SELECT run_id, step, checkpoint_node, status FROM checkpoints ORDER BY run_id, step")

        assert rows == [("a", 1, "node-1", "active"), ("a", 2, "node-2", "active"), ("b", 7, "", "failed")]
        ((timestamp,),) = sql(path, "SELECT timestamp FROM checkpoints WHERE run_id = 'b'")
        assert timestamp == store.load("b").timestamp.strftime("%Y-%m-%d %H:%M:%S")


class TestWhatOthersMade:
    def test_a_newer_schema_is_refused_before_any_write(self, store, path):
        """The error says what to do, and no byte of the file has changed."""
        saved(store, 1)
        store.close()
        sql(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
        sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
        before = path.read_bytes()

        with pytest.raises(FormatError, match=f"schema {SCHEMA_VERSION + 1} .* update"):
            SqliteStore(path)
        with pytest.raises(FormatError, match="update"):
            SqliteStore(path, read_only=True)

        assert path.read_bytes() == before

    def test_a_file_that_is_no_database_is_refused(self, path):
        """A file that is no database is refused and stays as it is."""
        path.write_bytes(b"Dear diary, " * 1_000)

        with pytest.raises(FormatError, match="not a SQLite database"):
            SqliteStore(path)

        assert path.read_bytes() == b"Dear diary, " * 1_000

    @pytest.mark.parametrize(
        "change",
        [
            "payload = x'00'",
            "payload = 'text'",
            "payload = 5",
            "seal = x''",
            "seal = 'text'",
            "status = 'completed'",
            "status = 'unheard of'",
            "checkpoint_node = 'another'",
            "timestamp_ns = timestamp_ns + 1",
            "timestamp_ns = 'noon'",
            'error = \'["a", "b", "c"]\'',
            "error = 'no JSON'",
            "error = '[1]'",
            "base = 0",
            "encoding = 'pickle'",
            "id = id + 1",
        ],
    )
    def test_a_row_that_was_changed_is_refused(self, store, path, change):
        """Every changed row is refused as damaged."""
        saved(store, 5)
        sql(path, f"UPDATE checkpoint SET {change}")

        with pytest.raises(CheckpointError):
            store.load("a")
        with SqliteStore(path) as other, pytest.raises(CheckpointError):
            other.load("a")

    @pytest.mark.parametrize(
        "change", ["status = 'unheard of'", "policy = 'x'", "parent = 'x'", "error = 'x'", "policy = 'windowed x -'"]
    )
    def test_a_run_that_was_changed_is_refused(self, store, path, change, caplog):
        """A changed run is reported and left out of lists; all others are listed."""
        saved(store, 5)
        sql(path, f"UPDATE run SET {change}")
        saved(store, 5, run_id="b")

        column = change.partition(" ")[0]
        with pytest.raises(CheckpointCorruptError, match=rf"its column {column} holds.*store\.delete\('a'\)"):
            store.load("a")
        for _ in range(2):
            assert [run.run_id for run in store.runs(limit=1)] == store.list() == ["b"]
        assert store.prune().damaged == ("a",)
        (record,) = caplog.records
        assert "run 'a' in the sqlite store" in record.getMessage()

    @pytest.mark.parametrize("use", ["load", "save", "list", "runs", "delete"])
    @pytest.mark.parametrize("content", [b"\xff", b"no database"])
    def test_a_file_that_is_damaged_while_it_is_open(self, store, path, use, content):
        """Each read and write of a damaged file fails with the name of the file and the way out."""
        for number in range(200):
            saved(store, 1, run_id=f"run-{number}", text="x" * 500)
        connection_of(store).execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection_of(store).execute("PRAGMA cache_size = 0")
        size = path.stat().st_size
        start = 4096 if content == b"\xff" else 0  # without the first page it is no database
        with path.open("r+b") as file:
            file.seek(start)
            file.write((content * size)[: size - start])
        uses = {
            "load": lambda: [store.load(f"run-{number}") for number in range(200)],
            "save": lambda: [saved(store, 2, run_id=f"run-{number}") for number in range(200)],
            "list": store.list,
            "runs": store.runs,
            "delete": lambda: [store.delete(f"run-{number}") for number in range(200)],
        }

        with pytest.raises(CheckpointCorruptError, match=f"{path} is damaged: .*put back a copy"):
            uses[use]()


class TestReadOnly:
    def test_it_changes_nothing(self, store, path):
        """Every writing call of a read-only store is an error."""
        saved(store, 1)
        with SqliteStore(path, read_only=True) as reader:
            for change in (
                lambda: saved(reader, 2),
                lambda: reader.delete("a"),
                lambda: reader.fork("a", "b"),
                lambda: reader.rollback("a", 1),
                lambda: reader.save_parts("a", [Part(2, "map", "x", 1)]),
            ):
                with pytest.raises(
                    CheckpointError, match=r"was opened with read_only=True.* open it without"
                ) as caught:
                    change()
                assert str(path) in str(caught.value)
            assert reader.prune() == Pruned()

        assert store.load("a").step == 1
        assert store.list() == ["a"]


class TestOneStoreForMany:
    def test_a_closed_store_is_freed_at_once(self, path):
        """Its file of locks is closed with it, without a garbage collection."""
        gc.disable()
        try:
            store = SqliteStore(path)
            store.save(State(run_id="a"))
            store.close()
            freed = weakref.ref(store)
            del store

            assert freed() is None
        finally:
            gc.enable()

    def test_a_store_that_is_closed(self, store):
        """Says so, and how to get another; closing it again is no error."""
        saved(store, 1)
        store.close()
        store.close()

        assert store.closed
        for use in (lambda: saved(store, 2), lambda: store.load("a"), store.list, lambda: store.delete("a")):
            with pytest.raises(CheckpointError, match="closed; get_checkpoint_store"):
                use()
