"""The disk store: its folder, and folders of older versions. Its rows are tested with the sqlite store."""

import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stategraph import CheckpointCorruptError, ConfigError, FormatError, State
from stategraph.stores.disk import DiskStore

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1-disk"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def older(folder: Path) -> Path:
    """Return a folder as an older version has left it, with 12 runs."""
    folder.mkdir(mode=0o700)
    shutil.copyfile(GOLDEN / "cache.db", folder / "cache.db")
    (folder / "cache.db").chmod(0o600)
    return folder


def change(folder: Path, statement: str, *values: Any) -> None:
    """Do to the older database what another program could do."""
    with closing(sqlite3.connect(folder / "cache.db", isolation_level=None)) as database:
        database.execute(statement, values)


class TestFolder:
    """The folder of the store and its files."""

    def test_a_file_in_the_place_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        """The file is refused and stays as it is."""
        (tmp_path / "file").write_text("mine")

        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(ConfigError, match="a folder that can be made"):
                DiskStore(path)

        assert (tmp_path / "file").read_text() == "mine"


class TestOlderFolders:
    """Runs that stand as entries in the cache of diskcache are copied at the first opening."""

    def test_runs_keep_their_order_and_numbers(self, older: Path) -> None:
        """With forged numbers, which no seal covers, at least the order is kept."""
        with closing(sqlite3.connect(older / "cache.db")) as database:
            rows = database.execute("SELECT key FROM Cache WHERE key GLOB 'run:*' ORDER BY rowid").fetchall()
        expected = [key.removeprefix("run:") for (key,) in rows if "#" not in key]

        with DiskStore(older) as store:
            assert [run.run_id for run in store.runs()] == expected[::-1]
            cursors = [int(run.cursor or 0) for run in store.runs()]
            store.save(State(run_id="new", step=1))
            assert [run.run_id for run in store.runs(limit=2)] == ["new", expected[-1]]
        assert cursors == sorted(cursors, reverse=True)
        assert cursors[-1] == 1

    def test_opened_to_be_read_only_it_says_how_to_copy_it(self, older: Path) -> None:
        """Nothing is made or changed for that."""
        before = (older / "cache.db").read_bytes()
        with pytest.raises(FormatError, match=r"older version .* open it once without read_only"):
            DiskStore(older, read_only=True)

        assert (older / "cache.db").read_bytes() == before
        assert [file.name for file in older.iterdir()] == ["cache.db"]

    def test_a_copy_that_is_cut_off_begins_again(self, older: Path, tmp_path: Path) -> None:
        """Wherever the process is killed: nothing is lost, and no run is there twice."""
        program = """
import os, signal, sqlite3, sys
from stategraph.stores._files import sqlite_files
from stategraph.stores.disk import DiskStore

left = int(sys.argv[2])

def connect(*arguments, **options):
    database = sqlite3.connect(*arguments, **options)

    def count(statement):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    database.set_trace_callback(count)
    return database

sqlite_files.sqlite3 = type(sys)("sqlite3")
sqlite_files.sqlite3.__dict__.update({**sqlite3.__dict__, "connect": connect})
DiskStore(sys.argv[1]).close()
"""
        moments, killed = [0, 25, 100, 1000], 0
        for moment in moments:
            copy = tmp_path / str(moment)
            shutil.copytree(older, copy)
            done = subprocess.run([sys.executable, "-c", program, copy, str(moment)], check=False)
            killed += done.returncode == -signal.SIGKILL
            with DiskStore(copy) as store:
                assert len(store.list()) == 12
                assert store.verify().checkpoints == 56
            assert not (copy / "cache.db").exists()
        assert killed == len(moments) - 1

    def test_a_process_of_the_older_version_cannot_save_any_more(self, older: Path) -> None:
        """An older process notices after its save that its files are gone."""
        with closing(sqlite3.connect(older / "cache.db")) as process:
            process.execute("SELECT count(*) FROM Cache").fetchone()
            with DiskStore(older) as store:
                assert len(store.list()) == 12
            assert process.execute("SELECT count(*) FROM Cache").fetchone() == (0,)
        assert not [*older.glob("cache.db*")]

    @pytest.mark.parametrize("make", [b"this is no database\n" * 500, b"\0" * 32_768], ids=["text", "zeros"])
    def test_a_file_that_is_no_database_is_refused_and_left_alone(self, folder: Path, make: bytes) -> None:
        """The error names it; it may be a database of runs that is damaged."""
        folder.mkdir(mode=0o700)
        (folder / "cache.db").write_bytes(make)
        (folder / "cache.db").chmod(0o600)

        with pytest.raises(FormatError, match=r"cache\.db"):
            DiskStore(folder)

        assert (folder / "cache.db").read_bytes() == make


class _Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class TestDamagedEntries:
    """An entry that cannot be read is an error when its run is read, as it was; all others are copied."""

    @pytest.mark.parametrize("key", ["run:paused/json", "row:paused/json!2"])
    @pytest.mark.parametrize(
        ("statement", "value"),
        [
            ("mode = 4, value = ?", "a pickle"),
            ("mode = 4, value = NULL, filename = ?", "payload.val"),
            ("mode = 2, value = NULL, filename = ?", "../secret"),
            ("filename = ?", "../secret"),
            ("value = ?", "text"),
            ("value = ?", None),
            ("value = ?", b"\xc1"),
            ("value = CAST(? AS TEXT)", b"\xff"),
        ],
    )
    def test_nothing_is_unpickled_or_opened(self, older: Path, key: str, statement: str, value: Any) -> None:
        bomb = pickle.dumps(_Bomb(older.parent / "exploded"))
        (older / "payload.val").write_bytes(bomb)
        (older.parent / "secret").write_text("keep")
        change(older, f"UPDATE Cache SET {statement} WHERE key = ?", bomb if value == "a pickle" else value, key)

        with DiskStore(older) as store:
            with pytest.raises(CheckpointCorruptError, match="'paused/json'"):
                store.load("paused/json")
            assert any((store.verify().damaged, store.verify().unreadable))
            assert store.load("history/json").step == 12
            store.delete("paused/json")
            assert len(store.list()) == 11
        assert not (older.parent / "exploded").exists()
        assert (older.parent / "secret").read_text() == "keep"


_SAVES = """
import sys
from stategraph import State
from stategraph.stores.disk import DiskStore

with DiskStore(sys.argv[1]) as store:
    for step in range(1, 31):
        store.save(State({"n": step}, run_id=f"run-{sys.argv[2]}", step=step))
"""


class TestSideBySide:
    """Handles, threads and processes that share a folder."""

    def test_processes(self, older: Path) -> None:
        """Processes that migrate an older folder at the same time lose no save."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
        commands = [[sys.executable, "-c", _SAVES, str(older), str(name)] for name in range(3)]
        processes = [subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) for command in commands]

        assert [process.communicate()[1] for process in processes] == [b""] * 3
        with DiskStore(older) as store:
            assert len(store.list()) == 12 + 3
            assert {store.load(f"run-{name}").step for name in range(3)} == {30}
