"""The disk store: its folder, and folders that older versions have written. Rows are those of the sqlite store."""

import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import diskcache
import pytest

from stategraph import (
    CheckpointCorruptError,
    CheckpointError,
    ConfigError,
    FormatError,
    State,
)
from stategraph.stores.disk import DiskStore
from tests.stores.inside import table_of

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1-disk"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def store(folder: Path) -> Iterator[DiskStore]:
    with DiskStore(folder) as store:
        yield store


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


def put(folder: Path, key: str, value: bytes) -> None:
    """Add an entry, as the older version writes them."""
    change(folder, "INSERT OR REPLACE INTO Cache (key, raw, mode, value) VALUES (?, 1, 1, ?)", key, value)


class TestFolder:
    """Where the store is, and what is made there."""

    def test_a_path_may_be_relative(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The store stays where it was made when the process goes elsewhere."""
        monkeypatch.chdir(tmp_path)
        with DiskStore("runs") as store:
            monkeypatch.chdir("/")
            store.save(State(run_id="a", step=1))

            assert store.path == tmp_path / "runs"
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(store.list).result() == ["a"]

    def test_a_file_in_the_place_of_the_folder_is_refused(self, tmp_path: Path) -> None:
        """And left alone."""
        (tmp_path / "file").write_text("mine")

        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(ConfigError, match="a folder that can be made"):
                DiskStore(path)

        assert (tmp_path / "file").read_text() == "mine"

    def test_one_that_is_not_there_is_not_made_to_be_read(self, folder: Path) -> None:
        """Nor is anything made in one that is empty."""
        for make in (lambda: None, folder.mkdir):
            make()
            with pytest.raises(ConfigError):
                DiskStore(folder, read_only=True)
        assert list(folder.iterdir()) == []

    def test_results_of_nodes_may_be_kept_in_it(self, folder: Path) -> None:
        """The cache of diskcache that is in the folder is not touched, and not taken for runs."""
        with diskcache.Cache(folder) as cache:
            cache["id"] = b"0123456789abcdef"
        folder.chmod(0o700)
        (folder / "cache.db").chmod(0o600)

        with DiskStore(folder) as store:
            store.save(State(run_id="a", step=1))
            assert store.list() == ["a"]
        with diskcache.Cache(folder) as cache:
            assert cache["id"] == b"0123456789abcdef"


class TestOlderFolders:
    """Runs that stand as entries in the cache of diskcache are copied at the first opening."""

    def test_runs_keep_their_order_and_numbers(self, older: Path) -> None:
        """Also where somebody has forged a number, which no seal covers: then only the order is kept."""
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

    def test_what_was_copied_is_removed(self, older: Path) -> None:
        """What is deleted from the store would stand there otherwise. It is opened again, and to be read only."""
        with DiskStore(older) as store:
            ids = store.list()
            assert store.verify().damaged == ()
        assert sorted(file.name for file in older.iterdir()) == ["disk-store.db"]

        for read_only in (False, True):
            with DiskStore(older, read_only=read_only) as store:
                assert store.list() == ids

    def test_the_cache_of_another_store_stays(self, older: Path, tmp_path: Path) -> None:
        """As when an older version has begun a store of its own in the folder since."""
        with DiskStore(older) as store:
            store.save(State(run_id="newer", step=1))
        shutil.copyfile(GOLDEN / "cache.db", older / "cache.db")
        (older / "cache.db").chmod(0o600)
        put(older, "id", b"another store 16")

        with DiskStore(older) as store:
            assert "newer" in store.list()
        assert (older / "cache.db").exists()

    def test_opened_to_be_read_only_it_says_how_to_copy_it(self, older: Path) -> None:
        """Nothing is made or changed for that."""
        before = (older / "cache.db").read_bytes()
        with pytest.raises(FormatError, match=r"older version .* open it once without read_only"):
            DiskStore(older, read_only=True)

        assert (older / "cache.db").read_bytes() == before
        assert [file.name for file in older.iterdir()] == ["cache.db"]

    def test_fences_and_cancellations_are_kept(self, older: Path) -> None:
        """Of runs that were taken over, or cancelled and not taken up since."""
        put(older, "fence:history/json", b"3")
        put(older, "fence:paused/json", b"1 cancelled")
        put(older, "fence:paused/msgpack", b"0 cancelled by whom ever")
        put(older, "fence:unknown", b"nonsense")

        with DiskStore(older) as store:
            table = table_of(store)
            assert table.fence("history/json") == (3, False)
            assert table.fence("paused/json") == (1, True)
            assert table.cancelled_by("paused/json") is None
            assert table.fence("paused/msgpack") == (0, True)
            assert table.cancelled_by("paused/msgpack") == "by whom ever"
            assert table.fence("unknown") == (0, False)

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
        """Its files are not in place any more, which it checks after each save."""
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

    @pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
    def test_a_truncated_database_is_an_error(self, older: Path, share: float) -> None:
        """Never a store without its runs. Nothing is copied, and with the file put back all is there."""
        whole = (older / "cache.db").read_bytes()
        os.truncate(older / "cache.db", int(len(whole) * share))
        for _ in range(2):
            with pytest.raises(CheckpointError, match="damaged"):
                DiskStore(older)

        (older / "cache.db").write_bytes(whole)
        with DiskStore(older) as store:
            assert len(store.list()) == 12

    def test_one_that_others_can_write_to_is_refused(self, older: Path) -> None:
        """As every file of a store."""
        (older / "cache.db").chmod(0o666)

        with pytest.raises(ConfigError, match=r"cache\.db has mode 0666"):
            DiskStore(older)


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
        """They copy an older one at the same time, and none loses a save."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
        commands = [[sys.executable, "-c", _SAVES, str(older), str(name)] for name in range(3)]
        processes = [subprocess.Popen(command, stderr=subprocess.PIPE, env=environment) for command in commands]

        assert [process.communicate()[1] for process in processes] == [b""] * 3
        with DiskStore(older) as store:
            assert len(store.list()) == 12 + 3
            assert {store.load(f"run-{name}").step for name in range(3)} == {30}
