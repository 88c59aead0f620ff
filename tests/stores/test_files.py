"""Whose files a store uses: none that somebody else can write to, has planted, or has put in the place of another."""

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
    CachePolicy,
    CheckpointConfig,
    CheckpointError,
    CheckpointSaveError,
    ConfigError,
    FormatError,
    GraphConfig,
    State,
    StateGraph,
)
from stategraph.stores._files.results import ResultCache
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes are those of POSIX")
STORES = {"sqlite": SqliteStore, "disk": DiskStore}
NOBODY = 65534
is_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give a file away")


@pytest.fixture
def kind() -> str:
    """-> the name of a store that has files; what the disk store has of its own, it is asked for by name."""
    return "sqlite"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """-> a folder of one's own, for a file; where the disk store has its database, which is the same to it."""
    folder = tmp_path / "place"
    folder.mkdir(mode=0o700)
    return folder


def file_of(kind: str, folder: Path) -> Path:
    """-> the database of a store in the folder."""
    return folder / ("disk-store.db" if kind == "disk" else "runs.db")


def opened(kind: str, folder: Path) -> SqliteStore | DiskStore:
    """-> a store in the folder."""
    return DiskStore(folder) if kind == "disk" else SqliteStore(file_of(kind, folder))


def saved(kind: str, folder: Path) -> Path:
    """-> the database of a store that holds a run, and that nobody has open."""
    with opened(kind, folder) as store:
        store.save(State({"n": 1}, run_id="a", step=1))
    return file_of(kind, folder)


def refused(kind: str, folder: Path, *told: str) -> None:
    """See a store refused, by an error that tells all of this."""
    with pytest.raises(ConfigError) as caught:
        opened(kind, folder)
    for text in told:
        assert text in str(caught.value)


def named(folder: Path, kind: str, end: str) -> Path:
    """-> one of the files that SQLite keeps beside a database."""
    return file_of(kind, folder).with_name(file_of(kind, folder).name + end)


class TestModes:
    """What others can write to."""

    @pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o664])
    def test_of_the_database(self, kind: str, folder: Path, mode: int) -> None:
        """It is refused; the error names the file, its mode and the way out, which works."""
        file = saved(kind, folder)
        file.chmod(mode)

        refused(kind, folder, f"{file} has mode {mode:04o}", f"chmod go-w {file}")
        file.chmod(mode & 0o755)
        with opened(kind, folder) as store:
            assert store.load("a")["n"] == 1

    @pytest.mark.parametrize("mode", [0o644, 0o640, 0o600])
    def test_that_only_let_others_read(self, kind: str, folder: Path, mode: int) -> None:
        """They are the owner's choice, and left as they are."""
        file = saved(kind, folder)
        file.chmod(mode)

        with opened(kind, folder) as store:
            assert store.load("a")["n"] == 1
        assert stat.S_IMODE(file.stat().st_mode) == mode

    @pytest.mark.parametrize("end", ["-wal", "-shm"])
    def test_of_a_file_beside_it(self, kind: str, folder: Path, end: str) -> None:
        """What is in the log belongs to the database as much as what is in the file."""
        with opened(kind, folder) as store:
            store.save(State({"n": 1}, run_id="a", step=1))
            named(folder, kind, end).chmod(0o666)

            refused(kind, folder, end, "0666", "chmod go-w")

    @pytest.mark.parametrize("kind", STORES)
    @pytest.mark.parametrize("mode", [0o777, 0o707, 0o772])
    def test_of_the_folder(self, kind: str, folder: Path, mode: int) -> None:
        """Whoever can write to it can put another file in the place of the database."""
        saved(kind, folder)
        folder.chmod(mode)

        refused(kind, folder, f"{folder} has mode {mode:04o}", f"chmod go-w {folder}")

    def test_of_a_shared_folder_such_as_tmp(self, folder: Path) -> None:
        """With the sticky bit, nobody can replace the files of others in it."""
        folder.chmod(0o1777)

        with SqliteStore(folder / "runs.db") as store:
            store.save(State(run_id="a", step=1))
            assert store.load("a").step == 1
        with DiskStore(folder / "runs") as other:
            other.save(State(run_id="a", step=1))
            assert other.load("a").step == 1

    def test_of_a_folder_for_the_disk_store_itself(self, folder: Path) -> None:
        """A sticky bit is not enough there: others could put a log beside the database."""
        folder.chmod(0o1777)

        refused("disk", folder, "1777", "take a folder of your own in it")

    def test_of_a_folder_in_a_folder_that_others_can_write_to(self, tmp_path: Path) -> None:
        """They could put another folder in its place."""
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)

        refused("disk", tmp_path / "open" / "runs", "0777")

    @pytest.mark.parametrize("members", [["somebody"], []])
    def test_of_the_group_of_one_user(self, folder: Path, members: list[str], monkeypatch: Any) -> None:
        """Many systems give each user a group and let it write, as if it were the user: nobody else is in it."""
        import grp
        import pwd

        me = pwd.getpwuid(os.geteuid())
        monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("own", "x", gid, members)))
        monkeypatch.setattr(pwd, "getpwall", lambda: [pwd.struct_passwd((*me[:3], me.pw_gid or 4711, *me[4:]))])
        os.chown(folder, -1, me.pw_gid or 4711)  # the group of root is never taken for one of a user
        folder.chmod(0o770)

        if members:
            refused("sqlite", folder, "0770")
        else:
            saved("sqlite", folder)

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

    def test_of_a_cache(self, folder: Path, caplog: Any) -> None:
        """It is not used, and the node is called: a cache never fails."""
        results = ResultCache(folder)
        key = results.find([1], None).key or ""
        results.keep(key, ({"y": 1}, []))
        (folder / "cache.db").chmod(0o666)

        found = ResultCache(folder).find([1], None)
        assert (found.changes, found.is_broken) == (None, True)
        assert "cache.path" in found.reason
        assert "chmod go-w" in found.reason


@is_root
class TestOwners:
    """What belongs to somebody else."""

    def test_of_the_database(self, kind: str, folder: Path) -> None:
        """Its owner can write to it at any time."""
        file = saved(kind, folder)
        os.chown(file, NOBODY, -1)

        refused(kind, folder, f"{file} belongs to user {NOBODY}", "chown")

    @pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
    def test_of_a_file_beside_it(self, kind: str, folder: Path, end: str) -> None:
        """It was planted."""
        saved(kind, folder)
        named(folder, kind, end).touch(0o600)
        os.chown(named(folder, kind, end), NOBODY, -1)

        refused(kind, folder, end, f"belongs to user {NOBODY}")

    def test_of_the_folder(self, kind: str, folder: Path) -> None:
        """Its owner can replace what is in it, sticky bit or not."""
        saved(kind, folder)
        os.chown(folder, NOBODY, -1)
        folder.chmod(0o1755)

        refused(kind, folder, f"{folder} belongs to user {NOBODY}")


class TestLinks:
    """Links, which somebody may have planted, or made for good reasons."""

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

    def test_in_a_folder_that_others_can_write_to(self, folder: Path, tmp_path: Path) -> None:
        """They could make another one, of links to links as well."""
        (tmp_path / "open").mkdir()
        saved("sqlite", folder)
        (tmp_path / "open" / "middle.db").symlink_to(folder / "runs.db")
        (tmp_path / "link.db").symlink_to(tmp_path / "open" / "middle.db")
        (tmp_path / "open").chmod(0o777)

        with pytest.raises(ConfigError, match="open has mode 0777"):
            SqliteStore(tmp_path / "link.db")

    def test_to_nothing(self, kind: str, folder: Path, tmp_path: Path) -> None:
        """Nothing is made where somebody wants it to be made."""
        file_of(kind, folder).symlink_to(tmp_path / "target")

        refused(kind, folder, "is a link to", "which is not there")
        assert not (tmp_path / "target").exists()

    @pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
    def test_beside_a_database(self, kind: str, folder: Path, tmp_path: Path, end: str) -> None:
        """SQLite never makes one there, and would write to what it leads to."""
        saved(kind, folder)
        (tmp_path / "target").write_bytes(b"mine")
        named(folder, kind, end).symlink_to(tmp_path / "target")

        refused(kind, folder, end, "is not a regular file")
        assert (tmp_path / "target").read_bytes() == b"mine"

    def test_that_are_hard(self, kind: str, folder: Path, tmp_path: Path) -> None:
        """Of one file under two names, each would have a log of its own."""
        os.link(saved(kind, folder), tmp_path / "other.db")

        refused(kind, folder, "2 names")


class TestPlanted:
    """What stands where a store looks, and is no database of its own."""

    @pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
    def test_beside_a_database_that_is_not_there(self, kind: str, folder: Path, end: str) -> None:
        """It is refused and left as it is: what is in a log may be all that is left of a database."""
        named(folder, kind, end).write_bytes(b"left")
        named(folder, kind, end).chmod(0o600)

        refused(kind, folder, end, "without its database")
        assert [path.name for path in folder.iterdir()] == [named(folder, kind, end).name]
        assert named(folder, kind, end).read_bytes() == b"left"

    @pytest.mark.parametrize("content", [b"left", b""])
    def test_a_log_beside_an_empty_database(self, kind: str, folder: Path, content: bytes) -> None:
        """SQLite would delete it."""
        file_of(kind, folder).touch(0o600)
        named(folder, kind, "-wal").write_bytes(content)
        named(folder, kind, "-wal").chmod(0o600)

        refused(kind, folder, "without its database")
        assert named(folder, kind, "-wal").read_bytes() == content

    def test_a_database_that_was_lost_while_its_log_was_not(self, kind: str, folder: Path, tmp_path: Path) -> None:
        """Nothing of the log is lost, and with the database put back everything is there."""
        with opened(kind, folder) as store:
            store.save(State({"n": 1}, run_id="a", step=1))
            shutil.copytree(folder, tmp_path / "killed")
        lost = file_of(kind, tmp_path / "killed")
        lost.rename(tmp_path / "lost")

        refused(kind, tmp_path / "killed", "put", "back")
        (tmp_path / "lost").rename(lost)
        with opened(kind, tmp_path / "killed") as store:
            assert store.load("a")["n"] == 1

    @pytest.mark.parametrize("end", ["", "-wal", "-shm", "-journal"])
    def test_pipes_of_any_name(self, kind: str, folder: Path, end: str) -> None:
        """Beside the database as well."""
        if end:
            saved(kind, folder)
        os.mkfifo(named(folder, kind, end) if end else file_of(kind, folder), 0o600)

        refused(kind, folder, "is not a regular file")


def run(program: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    package = str(Path(stategraph.__file__).parents[1])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    variables = {**kept, "PYTHONPATH": package, **environment}
    return subprocess.run(
        command, env=variables, capture_output=True, text=True, check=False, timeout=60, errors="replace"
    )


class TestTakenAway:
    """Files that are moved, removed or replaced while a store has them open: what is saved then nobody would find."""

    def change(self, kind: str, folder: Path, how: str) -> None:
        """Do what somebody may do by mistake."""
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
        """And never that it was done."""
        store = opened(kind, folder)
        store.save(State({"n": 1}, run_id="a", step=1))
        self.change(kind, folder, how)

        for step in (2, 3):
            with pytest.raises(CheckpointSaveError, match="moved, removed or replaced while it was open"):
                store.save(State({"n": step}, run_id="a", step=step))
        store.close()

    @pytest.mark.parametrize("how", ["the folder is deleted", "the file is deleted", "the file is replaced"])
    def test_the_way_out(self, kind: str, folder: Path, how: str) -> None:
        """As the errors say, from one to the next: close the store, make the graph again, begin the run again."""

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

    def test_the_folder_of_a_cache(self, folder: Path) -> None:
        """To delete it is how a cache is emptied: it is made anew."""
        results = ResultCache(folder)
        key = results.find([1], None).key or ""
        assert results.keep(key, ({"y": 1}, [])) == ""
        shutil.rmtree(folder)

        assert results.find([1], None).reason == "new"
        assert results.keep(key, ({"y": 2}, [])) == ""
        assert ResultCache(folder).find([1], None).changes == ({"y": 2}, [])

    @pytest.mark.parametrize("size", [0, 1, 40, 4096, 5000])
    @pytest.mark.parametrize("which", ["", "-wal"])
    def test_a_file_that_is_cut_off(self, kind: str, folder: Path, tmp_path: Path, which: str, size: int) -> None:
        """All of it is there, or nothing, or it is an error of stategraph's: never an older State, nor a hang."""
        with opened(kind, folder) as store:
            for step in (1, 2):
                store.save(State({"n": step, "text": "x" * 9000}, run_id="a", step=step))
            shutil.copytree(folder, tmp_path / "killed")
        cut = tmp_path / "killed" / f"{file_of(kind, folder).name}{which}"
        os.truncate(cut, min(size, cut.stat().st_size))

        try:
            with opened(kind, tmp_path / "killed") as store:
                assert [store.load(run_id)["n"] for run_id in store.list()] in ([], [2])
        except stategraph.StateGraphError as error:
            assert which == "", f"a log that was cut off holds no commit: {error}"  # noqa: PT017 - one outcome of three


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
@pytest.mark.unmeasured  # as somebody else, coverage has no folder to write to either
class TestReadingWhereNothingCanBeWritten:
    """SQLite wants to write an index beside the log, even to read."""

    @pytest.fixture
    def file(self) -> Any:
        """-> a database that others may read, in a folder to which only root writes."""
        import tempfile

        with tempfile.TemporaryDirectory() as name:  # those of pytest cannot be entered by others
            folder = Path(name)
            folder.chmod(0o755)
            file = saved("sqlite", folder)
            file.chmod(0o644)
            yield file

    def test_a_database_that_nobody_has_open(self, file: Path) -> None:
        """It is read as it is, and nothing is made."""
        done = run(READER, file, NOBODY)

        assert (done.stdout, done.stderr) == ("1\n", "")
        assert {path.name for path in file.parent.iterdir()} == {"runs.db", "runs.db-owners"}

    def test_a_database_that_changes_nevertheless(self, file: Path) -> None:
        """Its owner may open it at any time: what is read is what is there by then."""
        environment = {**os.environ, "PYTHONPATH": str(Path(stategraph.__file__).parents[1])}
        command = [sys.executable, "-c", READER, str(file), str(NOBODY)]
        with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True, bufsize=1) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            assert reader.stdout.readline() == "1\n"
            with SqliteStore(file) as store:
                store.save(State({"n": 2}, run_id="a", step=2))
                reader.stdin.write("\n")
                assert reader.stdout.readline() == "2\n"
            reader.stdin.write("\n")
            assert reader.stdout.readline() == "2\n"

    def test_a_database_whose_newest_checkpoints_are_in_its_log(self, file: Path) -> None:
        """They are not left out in silence; the error says what to do."""
        with SqliteStore(file) as store:
            store.save(State({"n": 2}, run_id="a", step=2))
            log = named(file.parent, "sqlite", "-wal").read_bytes()
            content = file.read_bytes()
        file.write_bytes(content)
        named(file.parent, "sqlite", "-wal").write_bytes(log)
        done = run(READER, file, NOBODY)

        assert "ConfigError" in done.stderr
        assert "runs.db-wal; copy both" in done.stderr
        assert done.stdout == ""

    def test_a_read_only_file_system(self, file: Path, tmp_path: Path) -> None:
        """Root cannot write there either."""
        mounted = tmp_path / "mounted"
        mounted.mkdir()
        steps = [["--bind", str(file.parent), str(mounted)], ["-o", "remount,ro,bind", str(mounted)]]
        if any(subprocess.run(["mount", *step], check=False, capture_output=True).returncode for step in steps):
            pytest.skip("cannot mount here")
        try:
            with SqliteStore(mounted / "runs.db", read_only=True) as store:
                assert store.load("a")["n"] == 1
            with pytest.raises(ConfigError, match="a file that can be used"):
                SqliteStore(mounted / "runs.db")
        finally:
            subprocess.run(["umount", str(mounted)], check=True)


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

    @pytest.mark.parametrize("path", ["a\0b", "\ud800", "x/\0"])
    @pytest.mark.parametrize("kind", STORES)
    def test_that_no_file_can_have(self, kind: str, path: str) -> None:
        """They are errors that name the option, wherever they are given."""
        with pytest.raises(ConfigError, match=r"checkpoint\.options\.path"):
            STORES[kind](path)
        with pytest.raises(ConfigError, match=r"cache\.path"):
            CachePolicy(("x",), path=path)
        with pytest.raises(ConfigError, match=r"cache\.path"):
            ResultCache(path)
        with pytest.raises(ConfigError, match="file"):
            GraphConfig.from_file(f"{path}.json")
        with pytest.raises(ConfigError, match=r"checkpoint\.options\.path"):
            stategraph.get_checkpoint_store(kind, path=path)


class TestVersionsOfSqlite:
    """What the stores take."""

    @pytest.mark.parametrize(
        ("version", "is_refused"),
        [((3, 34, 1), True), ((3, 35, 0), False), ((3, 51, 3), False)],
    )
    def test_an_old_one(self, tmp_path: Path, kind: str, version: Any, is_refused: bool, monkeypatch: Any) -> None:
        """It is named, with what is needed and where to get it; it is no damage."""
        monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
        monkeypatch.setattr(sqlite3, "sqlite_version", ".".join(map(str, version)))

        if is_refused:
            refused(kind, tmp_path / "new", "checkpoint.store", ".".join(map(str, version)), "python.org, uv or conda")
            assert not (tmp_path / "new").exists()
        else:
            saved(kind, tmp_path / "new")


class TestIndexesOfOthers:
    """What other tools may add to a database, and what not."""

    @pytest.fixture
    def file(self, folder: Path) -> Path:
        """-> a database with a run."""
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
    def test_what_keeps_rows_out_or_computes_something(self, file: Path, statement: str, read_only: bool) -> None:
        """It is refused, by name."""
        change(file, statement)

        with pytest.raises(FormatError, match=r"changed by others than stategraph \((mine|run)\)"):
            SqliteStore(file, read_only=read_only)

    @pytest.mark.parametrize(
        "statement",
        [
            "CREATE INDEX mine ON run (graph, step)",
            "CREATE INDEX mine ON checkpoint (checkpoint_node COLLATE NOCASE DESC)",
            "CREATE VIEW mine AS SELECT abs(step) FROM run",
            "ANALYZE",
        ],
    )
    def test_what_only_helps_to_look(self, file: Path, statement: str) -> None:
        """It is welcome, and stays."""
        change(file, statement)

        with SqliteStore(file) as store:
            store.save(State({"n": 2}, run_id="a", step=2))
            assert store.load("a")["n"] == 2
        with closing(sqlite3.connect(file)) as database:
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        assert names & {"mine", "sqlite_stat1"}


def change(file: Path, statement: str) -> None:
    """Do what another program could do."""
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(statement)
