"""A store uses no file that another user can write to, has planted, or has put in the place of another."""

import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import stategraph
from stategraph import (
    CheckpointConfig,
    CheckpointError,
    CheckpointSaveError,
    ConfigError,
    FormatError,
    GraphConfig,
    State,
    StateGraph,
)
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")
STORES = {"sqlite": SqliteStore, "disk": DiskStore}
OTHER_USER = 65534
is_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def kind() -> str:
    """Return the name of a store with files; tests of the disk store alone replace it."""
    return "sqlite"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of one's own, for a file; where the disk store has its database, which is the same to it."""
    folder = tmp_path / "place"
    folder.mkdir(mode=0o700)
    return folder


def file_of(kind: str, folder: Path) -> Path:
    """Return the database of a store in the folder."""
    return folder / ("disk-store.db" if kind == "disk" else "runs.db")


def opened(kind: str, folder: Path) -> SqliteStore | DiskStore:
    """Return a store in the folder."""
    return DiskStore(folder) if kind == "disk" else SqliteStore(file_of(kind, folder))


def saved(kind: str, folder: Path) -> Path:
    """Return the database of a store that holds a run, and that no process has open."""
    with opened(kind, folder) as store:
        store.save(State({"n": 1}, run_id="a", step=1))
    return file_of(kind, folder)


def refused(kind: str, folder: Path, *texts: str) -> None:
    """Check that opening a store fails with an error that contains the texts."""
    with pytest.raises(ConfigError) as caught:
        opened(kind, folder)
    for text in texts:
        assert text in str(caught.value)


def named(folder: Path, kind: str, end: str) -> Path:
    """Return one of the files that SQLite keeps beside a database."""
    return file_of(kind, folder).with_name(file_of(kind, folder).name + end)


class TestModes:
    """Files and folders that others can write to."""

    @pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o664])
    def test_of_the_database(self, kind: str, folder: Path, mode: int) -> None:
        """It is refused; the error names the file, its mode and the way out, which works."""
        file = saved(kind, folder)
        file.chmod(mode)

        refused(kind, folder, f"{file} has mode {mode:04o}", f"chmod go-w {file}")
        file.chmod(mode & 0o755)
        with opened(kind, folder) as store:
            assert store.load("a")["n"] == 1

    @pytest.mark.parametrize("end", ["-wal", "-shm"])
    def test_of_a_file_beside_it(self, kind: str, folder: Path, end: str) -> None:
        """The log is as much a part of the database as its file, and needs the same protection."""
        with opened(kind, folder) as store:
            store.save(State({"n": 1}, run_id="a", step=1))
            named(folder, kind, end).chmod(0o666)

            refused(kind, folder, end, "0666", "chmod go-w")

    @pytest.mark.parametrize("kind", STORES)
    @pytest.mark.parametrize("mode", [0o777, 0o707, 0o772])
    def test_of_the_folder(self, kind: str, folder: Path, mode: int) -> None:
        """A user who can write to it can replace the database."""
        saved(kind, folder)
        folder.chmod(mode)

        refused(kind, folder, f"{folder} has mode {mode:04o}", f"chmod go-w {folder}")

    @pytest.mark.parametrize("kind", STORES)
    @pytest.mark.parametrize("is_link", [False, True])
    @pytest.mark.parametrize("read_only", [False, True])
    def test_of_a_shared_folder_such_as_tmp(self, kind: str, folder: Path, is_link: bool, read_only: bool) -> None:
        """A database directly in a folder with the sticky bit is refused: others could put a log next to it.

        A folder of one's own in the shared one is accepted.
        """
        file = saved(kind, folder)
        folder.chmod(0o1777)
        if is_link:
            link = folder.parent / "link"
            link.symlink_to(folder if kind == "disk" else file)
        path = folder.parent / "link" if is_link else folder if kind == "disk" else file

        with pytest.raises(ConfigError, match=re.escape(f"{folder} has mode 1777")) as caught:
            STORES[kind](path, read_only=read_only)
        way_out = re.search(r"mkdir -m 700 (\S+)/NAME", str(caught.value))
        assert way_out is not None
        own = Path(way_out[1]) / "NAME"
        subprocess.run(["mkdir", "-m", "700", own], check=True)
        assert saved(kind, own).exists()

    def test_of_a_folder_with_a_link(self, folder: Path, tmp_path: Path) -> None:
        """A link of one's own in a folder with the sticky bit is followed: no other user can replace it."""
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o1777)
        (shared / "link.db").symlink_to(saved("sqlite", folder))

        with SqliteStore(shared / "link.db") as store:
            assert store.load("a")["n"] == 1

    @pytest.mark.parametrize("kind", STORES)
    def test_of_what_is_made(self, kind: str, tmp_path: Path) -> None:
        """Files and all folders above them are the owner's, whatever the umask allows."""
        before = os.umask(0)
        try:
            with opened(kind, tmp_path / "new" / "deep" / "place") as store:
                store.save(State(run_id="a", step=1))
                made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
                modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made}
        finally:
            os.umask(before)

        assert {name: mode for name, mode in modes.items() if mode & 0o077} == {}
        assert len(modes) == 7


class TestLinks:
    """Links, planted by another user or made on purpose."""

    def test_to_a_database(self, folder: Path, tmp_path: Path) -> None:
        """It is followed, as deep as it leads; SQLite keeps the log beside the file, not beside the link."""
        link, other = tmp_path / "link.db", tmp_path / "other.db"
        link.symlink_to(folder / "runs.db")
        other.symlink_to("link.db")
        saved("sqlite", folder)

        with SqliteStore(other) as store:
            assert store.load("a")["n"] == 1
            store.save(State({"n": 2}, run_id="a", step=2))
            assert named(folder, "sqlite", "-wal").exists()
            with SqliteStore(folder / "runs.db") as same:
                assert same.load("a")["n"] == 2

    @pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
    def test_beside_a_database(self, kind: str, folder: Path, tmp_path: Path, end: str) -> None:
        """A link in place of a log is refused: SQLite never creates one and would write to its target."""
        saved(kind, folder)
        (tmp_path / "target").write_bytes(b"mine")
        named(folder, kind, end).symlink_to(tmp_path / "target")

        refused(kind, folder, end, "is not a regular file")
        assert (tmp_path / "target").read_bytes() == b"mine"

    @pytest.mark.parametrize(
        ("how", "reason"),
        [
            ("hard link", "is one file with 2 names (hard links)"),
            ("broken link", "which is not there: make that first, or remove the link"),
            ("circle", "Too many levels of symbolic links"),
            pytest.param("owner", "belongs to", marks=is_root),
        ],
    )
    def test_in_place_of_a_database(self, folder: Path, how: str, reason: str) -> None:
        """The error says what the file is, and the way out."""
        file = folder / "runs.db" if how in ("broken link", "circle") else saved("sqlite", folder)
        if how == "hard link":
            os.link(file, folder / "other.db")
        elif how == "owner":
            os.chown(file, OTHER_USER, OTHER_USER)
        else:
            file.symlink_to(folder / ("away.db" if how == "broken link" else "runs.db"))

        refused("sqlite", folder, reason)

    def test_a_working_directory_that_is_gone(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A path that begins there is refused."""
        monkeypatch.chdir(folder)
        folder.rmdir()

        with pytest.raises(ConfigError, match="the working directory does not exist any more"):
            SqliteStore("runs.db")


class TestPlanted:
    """Foreign files at the paths of a store."""

    @pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
    def test_beside_a_database_that_is_not_there(self, kind: str, folder: Path, end: str) -> None:
        """A log without its database is refused and kept: it may be all that is left of the database."""
        named(folder, kind, end).write_bytes(b"left")
        named(folder, kind, end).chmod(0o600)

        refused(kind, folder, end, "without its database")
        assert [path.name for path in folder.iterdir()] == [named(folder, kind, end).name]
        assert named(folder, kind, end).read_bytes() == b"left"

    @pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
    def test_pipes_of_any_name(self, kind: str, folder: Path, end: str) -> None:
        """Beside the database as well."""
        if end:
            saved(kind, folder)
        os.mkfifo(named(folder, kind, end) if end else file_of(kind, folder), 0o600)

        refused(kind, folder, "is not a regular file")

    @pytest.mark.parametrize("kind", STORES)
    def test_a_pipe_in_place_of_the_locks(self, kind: str, folder: Path) -> None:
        """A pipe in place of the file with the locks keeps no one waiting: it is refused, or ignored by a reader."""
        file = saved(kind, folder)
        locks = folder / ("owners" if kind == "disk" else f"{file.name}-owners")
        locks.unlink()
        os.mkfifo(locks, 0o600)

        with opened(kind, folder) as store, pytest.raises(CheckpointError, match="is not a regular file"):
            store.save(State({"n": 2}, run_id="a", step=2))
        asks = f"from stategraph.stores.{kind} import *; import sys; {STORES[kind].__name__}"
        done = run(f"{asks}(sys.argv[1], read_only=True).owner('a')", folder if kind == "disk" else file)
        assert done.stderr == ""


def run(program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a new process."""
    package = str(Path(stategraph.__file__).parents[1])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    variables = {**kept, "PYTHONPATH": package, **environment}
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, timeout=300, errors="replace"
    )


class TestTakenAway:
    """Files that are moved, removed or replaced while a store has them open: later saves would be lost."""

    def change(self, kind: str, folder: Path, how: str) -> None:
        """Make a mistake that people make with files of a store."""
        file = file_of(kind, folder)
        if how == "the folder is deleted":
            shutil.rmtree(folder)
        elif how == "the folder is moved":
            folder.rename(folder.with_name("moved"))
        elif how == "the file is deleted":
            file.unlink()
        elif how == "the log is deleted":
            named(folder, kind, "-wal").unlink()
        elif how == "the index is deleted":
            named(folder, kind, "-shm").unlink()
        else:
            copy = shutil.copy(file, folder / "copy")
            Path(copy).replace(file)

    @pytest.mark.parametrize(
        "how",
        [
            *("the folder is deleted", "the folder is moved", "the file is deleted", "the log is deleted"),
            *("the index is deleted", "the file is replaced"),
        ],
    )
    def test_a_save_says_so(self, kind: str, folder: Path, how: str) -> None:
        """A save to files that were taken away fails every time."""
        store = opened(kind, folder)
        store.save(State({"n": 1}, run_id="a", step=1))
        self.change(kind, folder, how)

        for step in (2, 3):
            with pytest.raises(CheckpointSaveError, match="moved, removed or replaced while it was open"):
                store.save(State({"n": step}, run_id="a", step=step))
        store.close()

    @pytest.mark.parametrize("how", ["the folder is deleted", "the file is deleted", "the file is replaced"])
    def test_the_way_out(self, kind: str, folder: Path, how: str) -> None:
        """The errors lead from one step to the next: close the store, build the graph again, begin the run again."""

        def take_away(state: State) -> State:
            if not is_taken:
                is_taken.append(True)
                self.change(kind, folder, how)
            return state.set("y", 1)

        path = folder if kind == "disk" else file_of(kind, folder)

        def made() -> StateGraph:
            checkpoint = CheckpointConfig(store=kind, options={"path": str(path)}, interval=1, preserve=True)
            graph = StateGraph(GraphConfig(name="taken", checkpoint=checkpoint, observer="noop"))
            graph.add_node("take", take_away)
            graph.set_entry_point("take")
            graph.set_exit_point("take")
            return graph

        is_taken: list[bool] = []
        graph = made()
        with pytest.raises(CheckpointSaveError, match=r"close the store.* and make the graph again") as caught:
            graph.execute(State({"x": 1}, run_id="a"))
        graph.store.close()
        with pytest.raises(CheckpointError, match=r"is closed; .* a graph keeps its store: make a new graph"):
            graph.execute(State({"x": 1}, run_id="a"))

        for name in re.findall("move ([^ ]*) away", str(caught.value)):
            (folder / name).rename(folder / f"away-{name}")
        graph = made()
        assert graph.execute(State({"x": 1}, run_id="b"))["y"] == 1
        assert graph.store.load("b")["y"] == 1
        graph.store.close()


READER = """
import os, sys
import urllib.parse  # pathlib may import it late, when the library of Python cannot be read any more
from stategraph.stores.sqlite import SqliteStore
os.setuid(int(sys.argv[2]))
with SqliteStore(sys.argv[1], read_only=True) as store:
    print(store.load("a")["n"], flush=True)
    for line in sys.stdin:
        print(store.load("a")["n"], flush=True)
"""


@is_root
@pytest.mark.unmeasured  # as another user, coverage has no folder to write to either
class TestReadingWhereNothingCanBeWritten:
    """SQLite wants to write an index beside the log, even to read."""

    @pytest.fixture
    def file(self) -> Any:
        """Yield a database that others may read, in a folder to which only root writes."""
        import tempfile

        with tempfile.TemporaryDirectory() as name:  # other users cannot enter folders of pytest
            folder = Path(name)
            folder.chmod(0o755)
            file = saved("sqlite", folder)
            file.chmod(0o644)
            yield file

    def test_a_database_that_is_not_open(self, file: Path) -> None:
        """It is read as it is, and nothing is made."""
        done = run(READER, file, OTHER_USER)

        assert (done.stdout, done.stderr) == ("1\n", "")
        assert {path.name for path in file.parent.iterdir()} == {"runs.db", "runs.db-owners"}

    def test_a_database_whose_newest_checkpoints_are_in_its_log(self, file: Path) -> None:
        """Opening fails rather than leave out the newest checkpoints; the error says what to do."""
        with SqliteStore(file) as store:
            store.save(State({"n": 2}, run_id="a", step=2))
            log = named(file.parent, "sqlite", "-wal").read_bytes()
            content = file.read_bytes()
        file.write_bytes(content)
        named(file.parent, "sqlite", "-wal").write_bytes(log)
        done = run(READER, file, OTHER_USER)

        assert "ConfigError" in done.stderr
        assert "runs.db-wal; copy both" in done.stderr
        assert done.stdout == ""


NAMES = """
import sys
from pathlib import Path
from stategraph import CachePolicy, GraphConfig, State, StateGraph
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore
name = sys.argv[1] if sys.argv[1] != "literal" else "gr\\u00fc\\u00df \\u4f60"
base = sys.argv[2]
for store in (SqliteStore(f"{base}/{name}.db"), DiskStore(f"{base}/{name}")):
    store.save(State(run_id="a", step=1))
    str(store)
    store.close()
with SqliteStore(f"{base}/{name}.db", read_only=True) as store:
    assert store.list() == ["a"]
graph = StateGraph(GraphConfig(name="g", observer="noop"))
graph.add_node("a", lambda state: {"y": 1}, cache=CachePolicy(("x",), path=f"{base}/{name} cache", version=1))
graph.set_entry_point("a")
graph.set_exit_point("a")
assert graph.execute(State({"x": 1}))["y"] == 1
assert GraphConfig.from_file(f"{base}/{name}.json").name == "from a file"
"""


class TestNames:
    """Paths of any characters."""

    @pytest.mark.parametrize(
        "environment", [{"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONUTF8": "1"}]
    )
    @pytest.mark.parametrize("given", ["literal", "argument"])
    def test_in_any_locale(self, tmp_path: Path, environment: dict[str, str], given: str) -> None:
        """Files have the same names, however few characters the locale has."""
        name = "grüß 你"
        (tmp_path / f"{name}.json").write_text('{"name": "from a file"}')
        done = run(NAMES, "literal" if given == "literal" else name, tmp_path, **environment)

        assert done.stderr == ""
        made = {path.name for path in tmp_path.iterdir() if not path.name.endswith(("-wal", "-shm", "-owners"))}
        assert made == {f"{name}.json", f"{name}.db", name, f"{name} cache"}


class TestIndexesOfOthers:
    """Additions of other tools to a database: some are allowed, others refused."""

    @pytest.fixture
    def file(self, folder: Path) -> Path:
        """Return a database with a run."""
        return saved("sqlite", folder)

    @pytest.mark.parametrize(
        "statement",
        [
            "CREATE UNIQUE INDEX mine ON checkpoint (checkpoint_node)",
            "CREATE UNIQUE INDEX mine ON run (graph)",
            "CREATE INDEX mine ON run (abs(step))",
            "CREATE INDEX mine ON checkpoint (id + 1)",
            "CREATE INDEX mine ON run (graph) WHERE length(graph) > 5",
            "ALTER TABLE run ADD COLUMN mine AS (abs(step))",
            "CREATE TRIGGER mine AFTER INSERT ON run BEGIN SELECT 1; END",
        ],
    )
    @pytest.mark.parametrize("read_only", [True, False])
    def test_a_changed_schema_is_refused(self, file: Path, statement: str, read_only: bool) -> None:
        """It is refused, by name."""
        change(file, statement)

        with pytest.raises(FormatError, match=r"changed by others than stategraph \((mine|run)\)"):
            SqliteStore(file, read_only=read_only)


def change(file: Path, statement: str) -> None:
    """Do what another program could do."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(statement)
