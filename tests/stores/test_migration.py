"""Databases of an older version of the schema: what becomes of them when they are opened, and when that goes wrong."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest

import stategraph
from stategraph import State
from stategraph.provenance import Pause
from stategraph.stores.sqlite import SqliteStore

SCHEMA_1 = Path(__file__).parents[1] / "golden" / "format-1.db"
PAUSE = Pause("approve it", "review", [1], "verdict", datetime(2024, 5, 29, tzinfo=UTC))

OPEN = """
import sys
from stategraph.stores.sqlite import SqliteStore
sys.stdin.readline()
with SqliteStore(sys.argv[1]) as store:
    print(len(store.list()))
"""

DIE = """
import os, signal, sys
from stategraph.stores import sqlite
first, second = sqlite.MIGRATIONS

def dying():
    yield from second[:int(sys.argv[2])]
    os.kill(os.getpid(), signal.SIGKILL)

sqlite._check = lambda database, path: None  # it would take the statements as well
sqlite.MIGRATIONS = (first, dying())
sqlite.SqliteStore(sys.argv[1])
"""


@pytest.fixture
def path(tmp_path):
    """-> a database of schema 1, with runs in it."""
    path = Path(shutil.copyfile(SCHEMA_1, tmp_path / "runs.db"))
    path.chmod(0o600)  # a checkout may let its group write
    return path


def process(program, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(Path(stategraph.__file__).parents[1])}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def schema_of(path):
    with closing(sqlite3.connect(path)) as database:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        columns = {table: [row[1] for row in database.execute(f"PRAGMA table_info({table})")] for table in TABLES}
        return version, columns


TABLES = ("run", "checkpoint", "checkpoints")


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    """-> the schema of a database that is made now."""
    path = tmp_path_factory.mktemp("new") / "runs.db"
    SqliteStore(path).close()
    return schema_of(path)


def test_it_is_migrated_when_it_is_opened_for_writing(path, newest):
    """It has the newest schema then, all its runs, and keeps pauses."""
    assert schema_of(path)[0] == 1
    paused = State(run_id="new", step=1, status="paused", pause=PAUSE)
    with SqliteStore(path) as store:
        before = store.list()
        store.save(paused)

    assert schema_of(path) == newest
    with SqliteStore(path) as store:
        assert store.list() == sorted([*before, "new"])
        assert store.load("new") == paused
        assert store.load("history/json").step == 12


def test_processes_that_open_it_at_once_migrate_it_once(path, newest):
    """Whoever comes second finds it done."""
    processes = [process(OPEN, path) for _ in range(4)]
    told = [one.communicate("\n")[0] for one in processes]

    assert [one.returncode for one in processes] == [0] * 4
    assert len(set(told)) == 1
    assert schema_of(path) == newest


@pytest.mark.parametrize("statements", [0, 1, 3, 4])
def test_a_process_that_is_killed_while_it_migrates_leaves_it_as_it_was(path, newest, statements):
    """The next one migrates it."""
    before = schema_of(path)
    killed = process(DIE, path, statements)
    killed.communicate("\n")

    assert killed.returncode == -signal.SIGKILL
    assert schema_of(path) == before
    with SqliteStore(path) as store:
        assert store.load("history/json").step == 12
    assert schema_of(path) == newest


class TestReadOnly:
    def test_it_is_read_as_it_is(self, path):
        """Nothing is written, and no run waits for anything."""
        before = path.read_bytes()
        with SqliteStore(path, read_only=True) as store:
            assert store.load("history/json", 5).step == 5
            assert [row.pause for row in store.runs()] == [None] * len(store.list())
            assert [row.pause for row in store.history("history/json")] == [None] * 12
            assert store.load_parts("history/json", 13, "map") == {}

        assert path.read_bytes() == before
        assert schema_of(path)[0] == 1

    def test_another_process_may_migrate_it_meanwhile(self, path):
        """The reader goes on, and sees what is new."""
        with SqliteStore(path, read_only=True) as reader:
            before = reader.runs()
            with SqliteStore(path) as writer:
                paused = State(run_id="new", step=1, status="paused", pause=PAUSE)
                writer.save(paused)
                writer.save(attrs.evolve(paused, run_id="other", status="active", pause=None))

                assert reader.runs()[2:] == before
                assert reader.load("new") == paused
                assert [row.pause for row in reader.runs(status="paused")] == [PAUSE]
                assert reader.history("new")[0].pause == PAUSE
                assert reader.load("other").pause is None
