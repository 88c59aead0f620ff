"""Migration of databases with an older schema, and failures of it.

The tests invent a version after the newest one, with another column, as a later release may have.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import stategraph
from stategraph import State
from stategraph.errors import CheckpointError
from stategraph.stores._rows import sql_schema
from stategraph.stores.sqlite import SqliteStore

SCHEMA_1 = Path(__file__).parents[1] / "golden" / "format-1.db"
SECOND = (
    "ALTER TABLE run ADD COLUMN tenant TEXT",
    "ALTER TABLE checkpoint ADD COLUMN took INTEGER",
    "CREATE INDEX run_by_tenant ON run (tenant)",
)
SUPPLEMENT = "CREATE TEMP VIEW run AS SELECT *, NULL AS due_ns, 0 AS inbox, NULL AS tenant FROM main.run"

NEXT_VERSION = f"""
import os, signal, sys
from stategraph.stores import sqlite
from stategraph.stores._rows import sql_schema
second = {SECOND!r}
sql_schema.MIGRATIONS = (*sql_schema.MIGRATIONS, second)
sql_schema.SCHEMA_VERSION = 4
"""

OPEN = f"""{NEXT_VERSION}
sys.stdin.readline()
with sqlite.SqliteStore(sys.argv[1]) as store:
    print(len(store.list()))
"""

DIE = f"""{NEXT_VERSION}
def dying():
    yield from second[:int(sys.argv[2])]
    os.kill(os.getpid(), signal.SIGKILL)

sql_schema.check = lambda database, path: None  # it would take the statements as well
sql_schema.MIGRATIONS = (*sql_schema.MIGRATIONS[:-1], dying())
sqlite.SqliteStore(sys.argv[1])
"""


@pytest.fixture
def path(tmp_path):
    """Return a database of schema 1, with runs in it."""
    copy = Path(shutil.copy(SCHEMA_1, tmp_path / "runs.db"))
    copy.chmod(0o600)
    return copy


@pytest.fixture
def next_version(monkeypatch):
    """This process has the next version."""
    monkeypatch.setattr(sql_schema, "MIGRATIONS", (*sql_schema.MIGRATIONS, SECOND))
    monkeypatch.setattr(sql_schema, "SCHEMA_VERSION", 4)
    monkeypatch.setitem(sql_schema.SUPPLEMENTS, 1, (SUPPLEMENT, *sql_schema.SUPPLEMENTS[1][1:]))
    sql_schema._made_by_us.cache_clear()
    yield
    sql_schema._made_by_us.cache_clear()


def process(program, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(stategraph.__file__).parents[1])}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def schema_of(path):
    """Return the version of the schema, and the columns that version 3 has."""
    with closing(sqlite3.connect(path)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        columns = {row[1] for table in ("run", "checkpoint") for row in database.execute(f"PRAGMA table_info({table})")}
        return version, columns & {"tenant", "took"}


OLD: tuple[int, set[str]] = (1, set())
NEW = (4, {"tenant", "took"})


def test_processes_that_open_it_at_once_migrate_it_once(path):
    """The second process finds it done."""
    processes = [process(OPEN, path) for _ in range(4)]
    outputs = [one.communicate("\n")[0] for one in processes]

    assert [one.returncode for one in processes] == [0] * 4
    assert len(set(outputs)) == 1
    assert schema_of(path) == NEW


@pytest.mark.parametrize("statements", [0, 1, 3])
def test_a_process_that_is_killed_while_it_migrates_leaves_it_as_it_was(path, statements):
    """The next one migrates it."""
    killed = process(DIE, path, statements)
    killed.communicate("\n")

    assert killed.returncode == -signal.SIGKILL
    assert schema_of(path) == OLD
    with SqliteStore(path, read_only=True) as store:
        assert store.load("history/json").step == 12
    assert process(OPEN, path).communicate("\n")[0]
    assert schema_of(path) == NEW


def test_it_is_read_as_it_is_by_who_only_reads(path, next_version):
    """A read-only store writes nothing and reads like the newest version, even while another process migrates it."""
    before = path.read_bytes()
    with SqliteStore(path, read_only=True) as reader:
        assert reader.load("history/json", 5).step == 5
        assert len(reader.history("history/json")) == 12
        with pytest.raises(CheckpointError):
            reader.save(State(run_id="new", step=1))
        assert path.read_bytes() == before
        assert schema_of(path) == OLD

        runs = reader.runs()
        with SqliteStore(path) as writer:
            writer.save(State(run_id="new", step=1))
        assert [run.run_id for run in reader.runs()] == ["new", *(run.run_id for run in runs)]
        assert reader.load("new").step == 1


def test_labels_are_found_in_one_of_the_first_version(path):
    """A read-only store scans the runs for labels; a writing store creates and fills the index."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE run SET labels = ? WHERE run_id = 'history/json'", ('["team", "a", "x", "team"]',))
        database.execute("UPDATE run SET labels = 'damaged' WHERE run_id = 'fork/json'")
        seen = database.execute("SELECT count(*) FROM run WHERE labels LIKE '%team%'").fetchone()
    assert seen == (1,)

    for read_only in (True, False, True):
        with SqliteStore(path, read_only=read_only) as store:
            assert store.count(labels={"team": "a"}) == store.count(labels={"team": "a", "x": "team"}) == 1
            assert store.count(labels={"a": "x"}) == 0
            assert len(store.runs()) < store.count()  # damaged runs are counted, and not listed


def test_another_process_that_has_it_open_keeps_the_index_right(path):
    """A process that opened the database before its migration keeps the index right, too."""
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        assert older.execute("SELECT count(*) FROM run").fetchone() > (0,)
        with SqliteStore(path) as store:
            update = "UPDATE run SET labels = ? WHERE run_id = 'history/json'"
            counts = []
            for labels in ('["team", "a"]', '["team", "b"]', "damaged", '["team", "a"]'):
                older.execute(update, (labels,))
                counts.append((store.count(labels={"team": "a"}), store.count(labels={"team": "b"})))
            older.execute("DELETE FROM run WHERE run_id = 'history/json'")
            counts.append((store.count(labels={"team": "a"}), store.count(labels={"team": "b"})))

    assert counts == [(1, 0), (0, 1), (0, 0), (1, 0), (0, 0)]
