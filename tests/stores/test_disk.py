"""The disk store's safety: against damage, tampering, other programs' files, and its own process being killed."""

import gc
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import diskcache
import pytest

from stategraph import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    ConfigError,
    FormatError,
    State,
    StateGraphError,
    StepConflictError,
    get_checkpoint_store,
)
from stategraph.stores import Policy
from stategraph.stores._files.safe_diskcache import Connection
from stategraph.stores.disk import DiskStore
from tests.stores.inside import connection_of, table_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def store(folder: Path) -> Iterator[DiskStore]:
    store = DiskStore(folder)
    yield store
    store.close()


@pytest.fixture
def saved(folder: Path) -> Path:
    """-> a folder that holds step 1 of run "a", and that nobody has open."""
    with closing(DiskStore(folder)) as store:
        store.save(State({"n": 1}, run_id="a", step=1))
    return folder


def change(folder: Path, *statements: str, **values: Any) -> None:
    """Do to the database what another program could do."""
    with closing(sqlite3.connect(folder / "cache.db", isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement, {name: value for name, value in values.items() if f":{name}" in statement})


def keys_in(folder: Path) -> list[str]:
    """-> the keys of all rows."""
    with closing(sqlite3.connect(folder / "cache.db")) as database:
        return sorted(key for (key,) in database.execute("SELECT key FROM Cache"))


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, which nobody measures: that would open files, too."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)


# --------------------------------------------------------------------------- open and close


def test_another_store_on_the_folder_sees_what_was_saved(folder: Path, store: DiskStore) -> None:
    """While the first one is open, and after it was closed."""
    store.save(State({"n": 1}, run_id="a", step=1))

    with closing(DiskStore(folder)) as other:
        assert other.load("a")["n"] == 1
    store.close()
    with closing(DiskStore(folder)) as other:
        assert other.list() == ["a"]


def test_a_closed_store_is_not_used_again(store: DiskStore) -> None:
    """Each method says so, and none opens the database again behind its owner's back."""
    store.save(State({"n": 1}, run_id="a", step=1))
    store.close()
    store.close()

    assert store.closed
    calls: list[Callable[[], object]] = [
        lambda: store.load("a"),
        lambda: store.save(State(run_id="a", step=2)),
        lambda: store.amend(State(run_id="a", step=2)),
        lambda: store.delete("a"),
        lambda: store.history("a"),
        lambda: store.fork("a", "b"),
        lambda: store.rollback("a", 1),
        store.list,
        store.runs,
        store.prune,
    ]
    with ThreadPoolExecutor(1) as pool:
        for call in calls:
            with pytest.raises(CheckpointError, match="closed"):
                call()
            with pytest.raises(CheckpointError, match="closed"):
                pool.submit(call).result()
    assert not (store.path / "cache.db-wal").exists()
    with closing(DiskStore(store.path)) as other:
        assert other.load("a").step == 1


def test_the_registry_gives_a_fresh_store_after_close(folder: Path) -> None:
    """The same one before."""
    store = get_checkpoint_store("disk", path=str(folder))
    assert get_checkpoint_store("disk", path=folder) is store

    store.close()
    fresh = get_checkpoint_store("disk", path=str(folder))

    assert fresh is not store
    assert not fresh.closed
    fresh.close()


def test_errors_name_the_store(store: DiskStore) -> None:
    """By its kind and its folder."""
    with pytest.raises(CheckpointNotFoundError, match=f"run 'b' in the disk store at {store.path}"):
        store.load("b")
    with pytest.raises(CheckpointNotFoundError, match="run 'b' at step 7"):
        store.load("b", 7)


# --------------------------------------------------------------------------- the folder


def test_the_folder_is_its_owners_only(store: DiskStore) -> None:
    """States may hold secrets: nobody else reads them, whatever the umask is."""
    store.save(State({"n": 1}, run_id="a", step=1))

    assert store.path.stat().st_mode & 0o777 == 0o700
    modes = {file.name: file.stat().st_mode & 0o777 for file in store.path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "cache.db-wal" in modes


def test_permissions_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    """Not even on one that takes nothing away."""
    before = os.umask(0)
    try:
        with closing(DiskStore(tmp_path / "deep" / "runs")) as store:
            store.save(State(run_id="a", step=1))
            modes = {file.stat().st_mode & 0o777 for file in store.path.iterdir()}
    finally:
        os.umask(before)

    assert modes == {0o600}
    assert (tmp_path / "deep" / "runs").stat().st_mode & 0o777 == 0o700


def test_a_path_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store stays where it was made when the process goes elsewhere."""
    monkeypatch.chdir(tmp_path)
    with closing(DiskStore("runs")) as store:
        monkeypatch.chdir("/")
        store.save(State(run_id="a", step=1))

        assert store.path == tmp_path / "runs"
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(store.list).result() == ["a"]


@pytest.mark.parametrize("name", ["~", "~root", "$NOT_A_VARIABLE", "${", "a b", "a%20b", "ä", "?", "a;b", "'", "-"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made under that very name; a ~ at the start of a path is another matter."""
    monkeypatch.chdir(tmp_path)
    with closing(DiskStore(f"./{name}")) as store:
        store.save(State(run_id="a", step=1))

        assert [path.name for path in tmp_path.iterdir()] == [name]
        assert (tmp_path / name / "cache.db").is_file()


def test_a_variable_in_a_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """diskcache would put its value there, and the store somewhere else."""
    monkeypatch.setenv("ELSEWHERE", "elsewhere")

    with pytest.raises(ConfigError, match=r"without \$ variables"):
        DiskStore(tmp_path / "$ELSEWHERE")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", [None, 5, b"runs", ["runs"], "a\0b", True, 1.5], ids=repr)
def test_what_is_no_path_is_refused(path: Any) -> None:
    """As a configuration that is wrong."""
    with pytest.raises(ConfigError) as caught:
        DiskStore(path)

    assert caught.value.key == "checkpoint.options.path"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """And left alone."""
    (tmp_path / "file").write_text("mine")

    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="a folder that can be made"):
            DiskStore(path)

    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_in_the_place_of_the_database_is_refused(folder: Path) -> None:
    """In words of stategraph."""
    (folder / "cache.db").mkdir(parents=True)

    with pytest.raises(ConfigError, match="a folder that can be made and written to"):
        DiskStore(folder)


# --------------------------------------------------------------------------- files of others


def _text(path: Path) -> None:
    path.write_text("this is no database\n" * 500)


def _zeros(path: Path) -> None:
    path.write_bytes(b"\0" * 32_768)


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE customers (name TEXT)")
        database.commit()


def _foreign_settings(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE Settings (user TEXT, theme TEXT)")
        database.commit()


@pytest.mark.parametrize("make", [_text, _zeros, _foreign, _foreign_settings])
def test_a_file_that_is_no_store_is_refused_and_left_alone(folder: Path, make: Callable[[Path], None]) -> None:
    """The error names it."""
    folder.mkdir()
    make(folder / "cache.db")
    before = (folder / "cache.db").read_bytes()

    with pytest.raises(FormatError, match=r"cache\.db"):
        DiskStore(folder)

    assert (folder / "cache.db").read_bytes() == before


def test_somebody_elses_cache_is_refused_and_left_alone(folder: Path) -> None:
    """A folder of diskcache's own holds other things, which may be evicted."""
    with closing(diskcache.Cache(str(folder))) as cache:
        cache["a"] = {"some": "object"}

    with pytest.raises(FormatError, match="is not a disk store of stategraph"):
        DiskStore(folder)

    with closing(diskcache.Cache(str(folder))) as cache:
        assert cache["a"] == {"some": "object"}
        assert cache.eviction_policy == "least-recently-stored"


# --------------------------------------------------------------------------- damage


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_a_truncated_database_is_an_error(saved: Path, share: float) -> None:
    """Never a State that was not saved."""
    database = saved / "cache.db"
    os.truncate(database, int(database.stat().st_size * share))

    with pytest.raises(CheckpointError, match="damaged"):
        DiskStore(saved)


def test_an_emptied_database_is_a_new_one(saved: Path) -> None:
    """It holds no run."""
    os.truncate(saved / "cache.db", 0)

    with closing(DiskStore(saved)) as store, pytest.raises(CheckpointNotFoundError):
        store.load("a")


@pytest.mark.parametrize(("page", "is_seen"), [(0, True), (2, True), (4, True), (6, False), (8, False)])
def test_a_zeroed_page_is_an_error_or_unseen(saved: Path, page: int, is_seen: bool) -> None:
    """What is read goes through the first pages; those after them are indexes that a load does not need."""
    with (saved / "cache.db").open("r+b") as file:
        file.seek(page * 4096)
        file.write(b"\0" * 4096)

    with pytest.raises(CheckpointError) if is_seen else nullcontext(), closing(DiskStore(saved)) as store:
        assert store.load("a")["n"] == 1


def test_a_damaged_record_is_found_out_and_can_be_deleted(saved: Path) -> None:
    """Loading and saving are errors that name the run; deleting it is the way out."""
    change(saved, "UPDATE Cache SET value = CAST(substr(value, 1, 30) AS BLOB)")

    with closing(DiskStore(saved)) as store:
        for call in (lambda: store.load("a"), lambda: store.save(State(run_id="a", step=2))):
            with pytest.raises(CheckpointCorruptError, match="run 'a'"):
                call()
        store.delete("a")
        store.save(State({"n": 2}, run_id="a", step=1))
        assert store.load("a")["n"] == 2


@pytest.mark.parametrize("key", ["run:a", "row:a!1"])
def test_a_run_with_a_damaged_part_can_be_deleted(saved: Path, key: str) -> None:
    """Whichever it is, nothing of the run is left."""
    change(saved, "UPDATE Cache SET value = x'c1' WHERE key = :key", key=key)

    with closing(DiskStore(saved)) as store:
        with pytest.raises(CheckpointCorruptError):
            store.load("a")
        store.delete("a")
        assert store.list() == []
    assert keys_in(saved) == ["id", "number of runs"]


def test_a_record_moved_to_another_run_is_found_out(saved: Path) -> None:
    """The checksum covers the run id."""
    change(saved, "UPDATE Cache SET key = replace(key, 'a', 'b')")

    with closing(DiskStore(saved)) as store:
        assert store.list() == []
        with pytest.raises(CheckpointCorruptError):
            store.load("b")


def test_a_record_moved_to_another_step_is_found_out(saved: Path) -> None:
    """Each row is found under its own step."""
    with closing(DiskStore(saved)) as store:
        store.retain("a", Policy("full"))
        store.save(State({"n": 2}, run_id="a", step=2))
    change(
        saved,
        "DELETE FROM Cache WHERE key = 'row:a!2'",
        "UPDATE Cache SET key = 'row:a!2' WHERE key = 'row:a!1'",
    )

    with closing(DiskStore(saved)) as store, pytest.raises(CheckpointCorruptError):
        store.load("a")


@pytest.mark.parametrize("previous", [2, 3, "x", b"", 1.5, -1, []], ids=repr)
def test_a_row_that_names_no_earlier_one_is_found_out(saved: Path, previous: Any) -> None:
    """Nobody goes round in circles for it."""
    import ormsgpack

    with closing(DiskStore(saved)) as store:
        store.retain("a", Policy("full"))
        store.save(State({"n": 2}, run_id="a", step=2))
    with closing(sqlite3.connect(saved / "cache.db")) as database:
        ((kept,),) = database.execute("SELECT value FROM Cache WHERE key = 'row:a!2'")
    forged = ormsgpack.packb([previous, *ormsgpack.unpackb(kept)[1:]])
    change(saved, "UPDATE Cache SET value = :forged WHERE key = 'row:a!2'", forged=forged)

    with closing(DiskStore(saved)) as store:
        for call in (store.load, store.history):
            with pytest.raises(CheckpointCorruptError):
                call("a")


def test_a_number_of_runs_that_is_damaged_is_an_error(saved: Path) -> None:
    """Of the save that needs it."""
    change(saved, "UPDATE Cache SET value = x'ff' WHERE key = 'number of runs'")

    with closing(DiskStore(saved)) as store:
        with pytest.raises(CheckpointError):
            store.save(State(run_id="b", step=1))
        assert store.load("a")["n"] == 1


def test_a_failure_of_the_database_is_told_as_it_is(store: DiskStore) -> None:
    """One that is not a lock is not reported as a lock that was waited for."""
    connection_of(store).execute("PRAGMA query_only = 1")

    with pytest.raises(CheckpointSaveError) as caught:
        store.save(State(run_id="a", step=1))

    assert "locked by another process" not in str(caught.value)
    assert "readonly" in str(caught.value)


# --------------------------------------------------------------------------- tampering


class _Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def _rows(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    """-> ways to tamper with the row that is the head of run "a", and with the one that is its checkpoint."""
    ways = _ways(folder)
    return {
        f"{name} of {row}": (f"{statement} WHERE key = :row", {**values, "row": row})
        for row in ("run:a", "row:a!1")
        for name, (statement, values) in ways.items()
    }


def _ways(folder: Path) -> dict[str, tuple[str, dict[str, Any]]]:
    bomb = pickle.dumps(_Bomb(folder.parent / "exploded"))
    return {
        "pickled value": ("UPDATE Cache SET mode = 4, value = :value", {"value": bomb}),
        "pickled value in a file": ("UPDATE Cache SET mode = 4, value = NULL, filename = 'payload.val'", {}),
        "pickled key": ("UPDATE Cache SET raw = 0, key = :key", {"key": bomb}),
        "side file": ("UPDATE Cache SET mode = 2, value = NULL, filename = '../secret'", {}),
        "text side file": ("UPDATE Cache SET mode = 3, value = NULL, filename = :name", {"name": "/etc/passwd"}),
        "file name beside a value": ("UPDATE Cache SET filename = '../secret'", {}),
        "text value": ("UPDATE Cache SET value = 'text'", {}),
        "number": ("UPDATE Cache SET value = 5", {}),
        "null": ("UPDATE Cache SET value = NULL", {}),
        "unknown mode": ("UPDATE Cache SET mode = 99", {}),
        "text mode": ("UPDATE Cache SET mode = 'x'", {}),
        "bytes key": ("UPDATE Cache SET key = :key", {"key": b"a"}),
        "key that is a path": ("UPDATE Cache SET key = '../../etc/passwd'", {}),
        "key that is a number": ("UPDATE Cache SET key = 5", {}),
        "key that is no text": ("UPDATE Cache SET key = CAST(x'ff' AS TEXT)", {}),
    }


_ROW_NAMES = list(_rows(Path("unused")))


@pytest.mark.parametrize("name", _ROW_NAMES)
def test_a_tampered_row_is_refused(saved: Path, name: str) -> None:
    """Nothing in it is unpickled, opened or deleted, whatever is asked of the store."""
    (saved.parent / "secret").write_text("keep")
    (saved / "payload.val").write_bytes(pickle.dumps(_Bomb(saved.parent / "exploded")))
    statement, values = _rows(saved)[name]
    change(saved, statement, **values)

    with closing(DiskStore(saved)) as store:
        calls: list[Callable[[], object]] = [
            store.list,
            lambda: store.load("a"),
            lambda: store.save(State(run_id="a", step=2)),
            lambda: store.delete("a"),
        ]
        refused = 0
        for call in calls:
            try:
                call()
            except CheckpointError:
                refused += 1

    assert refused
    assert not (saved.parent / "exploded").exists()
    assert (saved.parent / "secret").read_text() == "keep"


_SETTINGS: dict[str, tuple[Any, Any]] = {
    "pragma with a statement behind it": ("sqlite_synchronous", "0; ATTACH 'x.db' AS x"),
    "less than full synchronous": ("sqlite_synchronous", 0),
    "unknown pragma": ("sqlite_writable_schema", 1),
    "pragma in the name": ("sqlite_mmap_size = 0; --", 1),
    "eviction": ("eviction_policy", "least-recently-used"),
    "size limit": ("size_limit", 10),
    "side files": ("disk_min_file_size", 0),
    "option of a disk class": ("disk_compress_level", 5),
    "metadata that is text": ("count", "many"),
    "unknown": ("theme", "dark"),
    "bytes": (b"theme", "dark"),
    "number": (5, 5),
    "null": ("sqlite_cache_size", None),
}


@pytest.mark.parametrize("name", _SETTINGS)
def test_tampered_settings_are_refused(saved: Path, name: str) -> None:
    """Before diskcache makes statements of them."""
    key, value = _SETTINGS[name]
    change(saved, "INSERT OR REPLACE INTO Settings VALUES (:key, :value)", key=key, value=value)

    with pytest.raises(FormatError, match="is not a disk store of stategraph"):
        DiskStore(saved)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER spy AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END",
        "CREATE VIEW more AS SELECT * FROM Cache",
        "CREATE TABLE more (a)",
        "CREATE INDEX more ON Cache (value)",
    ],
)
def test_an_added_part_of_the_database_is_refused(saved: Path, statement: str) -> None:
    """stategraph did not make it."""
    change(saved, statement)

    with pytest.raises(FormatError, match=r"(spy|more)"):
        DiskStore(saved)


def test_a_replaced_trigger_does_not_run(saved: Path) -> None:
    """One of a name that belongs there, but with other statements: nothing in a store ever runs code."""
    change(
        saved,
        "DROP TRIGGER Settings_size_insert",
        "CREATE TRIGGER Settings_size_insert AFTER INSERT ON Cache BEGIN DELETE FROM Cache; END",
    )

    with pytest.raises(FormatError, match="Settings_size_insert"):
        DiskStore(saved)


def test_settings_with_keys_that_cannot_be_sorted_are_refused(saved: Path) -> None:
    """A key that is text and one that is bytes."""
    change(saved, "INSERT INTO Settings VALUES ('x', 1), (x'00', 1)")

    with pytest.raises(FormatError):
        DiskStore(saved)


_AUDITED = """
import sys
from pathlib import Path
from stategraph import State, StateGraphError
from stategraph.stores.disk import DiskStore

def use(folder):
    try:
        store = DiskStore(folder)
        for call in (store.list, lambda: store.load("a"), lambda: store.save(State(run_id="a", step=2)),
                     lambda: store.delete("a"), store.close):
            try:
                call()
            except StateGraphError:
                pass
    except StateGraphError:
        pass

folders = sys.argv[2:]
use(sys.argv[1])  # imports and opens what is opened once

FORBIDDEN = ("pickle.find_class", "exec", "compile", "import", "os.system", "subprocess.Popen", "os.remove",
             "os.rename", "os.rmdir", "os.exec", "os.posix_spawn", "socket.connect", "ctypes.dlopen", "shutil.rmtree")

def hear(event, arguments):
    if event in FORBIDDEN:
        print("FORBIDDEN", folder, event, arguments[:1])
    if event in ("open", "sqlite3.connect", "os.mkdir") and not str(arguments[0]).startswith((folder, ":memory:")):
        print("FORBIDDEN", folder, event, arguments[:1])

folder = folders[0]
sys.addaudithook(hear)
for folder in folders:
    use(folder)
print("done")
"""


@pytest.mark.timeout(60)
def test_a_tampered_store_opens_and_runs_nothing(saved: Path) -> None:
    """The interpreter's own audit events say so, for every kind of tampered row."""
    copies = []
    for number, (statement, values) in enumerate(_rows(saved).values()):
        copies.append(saved.parent / f"copy-{number}" / "runs")
        shutil.copytree(saved, copies[-1])
        change(copies[-1], statement, **values)
    damaged = saved.parent / "damaged"
    shutil.copytree(saved, damaged)
    change(damaged, "UPDATE Cache SET value = x'c1'")

    result = python(_AUDITED, damaged, *copies)

    assert all("is left out" in line for line in result.stderr.splitlines())
    assert result.stdout == "done\n"
    assert not (saved.parent / "exploded").exists()


# --------------------------------------------------------------------------- interrupts and kills


def test_a_transaction_left_open_does_not_swallow_the_next_save(store: DiskStore) -> None:
    """As an interrupt leaves it that comes just after diskcache began one."""
    store.save(State({"n": 1}, run_id="a", step=1))
    connection_of(store).execute("BEGIN IMMEDIATE")
    table_of(store).cache._txn_id = threading.get_ident()

    store.save(State({"n": 2}, run_id="a", step=2))

    with closing(DiskStore(store.path)) as other:
        assert other.load("a")["n"] == 2
    assert not connection_of(store).in_transaction


def test_a_thread_mark_left_behind_does_not_split_the_next_save(store: DiskStore) -> None:
    """An ended thread's id is given to a new thread, which has no transaction open."""
    store.save(State({"n": 1}, run_id="a", step=1))
    table_of(store).cache._txn_id = threading.get_ident()
    statements: list[str] = []
    connection_of(store).set_trace_callback(statements.append)

    store.save(State({"n": 2}, run_id="a", step=2))

    assert any(statement.startswith("BEGIN") for statement in statements)


def test_a_transaction_whose_beginning_is_interrupted_locks_nobody_out(
    folder: Path, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken back at once, not by the next save, which may never come."""

    def begins() -> Any:
        connection_of(store).execute("BEGIN IMMEDIATE")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(table_of(store).cache, "transact", begins)
        with pytest.raises(KeyboardInterrupt):
            store.save(State({"n": 1}, run_id="a", step=1))

    with closing(DiskStore(folder)) as other:
        connection_of(other).execute("PRAGMA busy_timeout = 1")
        other.save(State({"n": 1}, run_id="a", step=1))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_save_leaves_the_old_state(
    store: DiskStore, interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next one works."""
    store.save(State({"n": 1}, run_id="a", step=1))

    def stop(*arguments: object) -> None:
        raise interrupt

    with monkeypatch.context() as patched:
        patched.setattr(table_of(store).cache, "set", stop)
        with pytest.raises(interrupt):
            store.save(State({"n": 2}, run_id="a", step=2))

    assert store.load("a")["n"] == 1
    store.save(State({"n": 2}, run_id="a", step=2))
    assert store.load("a")["n"] == 2


_WRITER = """
import sys
from stategraph import State
from stategraph.stores.disk import DiskStore

store = DiskStore(sys.argv[1])
print("ready", flush=True)
for step in range(int(sys.argv[2]), 1_000_000):
    store.save(State({"n": step, "text": "x" * 5000}, run_id="a", step=step))
    print(step, flush=True)
"""


@pytest.mark.timeout(60)
def test_a_killed_writer_loses_no_save_that_returned(folder: Path) -> None:
    """It is killed again and again, in the midst of saving."""
    step = 1
    for kill in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(folder), str(step)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            heard = [process.stdout.readline() for _ in range(1 + 7 * kill % 11)]
            process.send_signal(signal.SIGKILL)
            heard += process.stdout.read().splitlines(keepends=True)
            acknowledged = max(int(line) for line in heard if line.endswith("\n"))

        with closing(DiskStore(folder)) as store:
            state = store.load("a")
            assert state.step in (acknowledged, acknowledged + 1)
            assert state["n"] == state.step
            step = state.step + 1


# --------------------------------------------------------------------------- side by side


_SAVES = """
import sys
from stategraph import State
from stategraph.stores.disk import DiskStore

store = DiskStore(sys.argv[1])
for step in range(1, 31):
    store.save(State({"n": step}, run_id=f"run-{sys.argv[2]}", step=step))
store.close()
"""


def test_processes_share_a_folder(folder: Path) -> None:
    """They make it at the same time, and none loses a save."""
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda name: python(_SAVES, folder, name), range(4)))

    assert [result.stderr for result in results] == [""] * 4
    with closing(DiskStore(folder)) as store:
        assert store.list() == [f"run-{name}" for name in range(4)]
        assert {store.load(run_id).step for run_id in store.list()} == {30}


@pytest.mark.parametrize("policy", [Policy(), Policy("full")], ids=["latest", "full"])
def test_a_load_sees_the_rows_of_one_time(folder: Path, store: DiskStore, policy: Policy, monkeypatch: Any) -> None:
    """However much somebody else saves, cuts and deletes between the reads of one load."""
    states = [State({"n": step, "big": "x" * 9000}, run_id="a", step=step) for step in range(1, 40)]
    store.retain("a", policy)
    for state in states[:5]:
        store.save(state)
    loaded = store.load("a")
    with closing(DiskStore(folder)) as other:
        read, reads = table_of(store).cache.get, []

        def get(key: str, *arguments: Any) -> Any:
            reads.append(key)
            if len(reads) == 3:  # the first is of the head, before the rows
                other.rollback("a", 5)
                for state in states[5:30]:
                    other.save(state.set("big", f"{state.step}" * 9000))
                other.delete("a")
                other.save(State(run_id="a", step=1))
            return read(key, *arguments)

        monkeypatch.setattr(table_of(store).cache, "get", get)

        assert store.load("a") == loaded
        assert len(reads) >= 3


def test_a_rollback_leaves_no_rows_behind(folder: Path, store: DiskStore) -> None:
    """Or a later step would have them as its past again."""
    store.retain("a", Policy("windowed", window=20))
    for step in range(1, 10):
        store.save(State({"n": step}, run_id="a", step=step))

    store.rollback("a", 3)
    store.save(State({"n": "new"}, run_id="a", step=8))

    assert [row.step for row in store.history("a")] == [1, 2, 3, 8]
    assert keys_in(folder) == ["id", "number of runs", *(f"row:a!{step}" for step in (1, 2, 3, 8)), "run:a"]


def test_a_deleted_run_leaves_no_rows_behind(folder: Path, store: DiskStore) -> None:
    """And takes none of a run with a similar id with it."""
    for run_id in ("a", "a/b", "ab", "A", "a:b"):
        store.retain(run_id, Policy("full"))
        for step in (1, 2, 10):
            store.save(State({"n": step}, run_id=run_id, step=step))

    store.delete("a")

    assert len(keys_in(folder)) == 2 + 4 * 4
    assert [run_id for run_id in ("a/b", "ab", "A", "a:b") if len(store.history(run_id)) == 3] == [
        "a/b",
        "ab",
        "A",
        "a:b",
    ]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_threads_that_ended_leave_no_files_open(store: DiskStore) -> None:
    """A service makes any number of them."""
    store.save(State(run_id="a", step=1))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for step in range(2, 150):
        thread = threading.Thread(target=store.save, args=(State(run_id="a", step=step),))
        thread.start()
        thread.join()

    assert store.load("a").step == 149
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10


def test_of_two_that_save_the_same_step_one_is_refused(folder: Path, store: DiskStore) -> None:
    """Whichever comes second: a saved step never changes."""
    with closing(DiskStore(folder)) as other:
        other.save(State({"by": "other"}, run_id="a", step=1))

        with pytest.raises(StepConflictError, match="step 1 is saved with other data"):
            store.save(State({"by": "me"}, run_id="a", step=1))

        assert store.load("a")["by"] == "other"


def test_threads_that_race_for_a_step_agree_on_one(store: DiskStore) -> None:
    """Exactly one of them wins; the others hear of it."""
    barrier = threading.Barrier(6)

    def save(number: int) -> int | None:
        barrier.wait()
        try:
            store.save(State({"by": number}, run_id="a", step=1))
        except StepConflictError:
            return None
        return number

    with ThreadPoolExecutor(6) as pool:
        winners = [number for number in pool.map(save, range(6)) if number is not None]

    assert winners == [store.load("a")["by"]]


@pytest.mark.unmeasured  # coverage has a lock that a fork leaves locked
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_connection_of_its_own(store: DiskStore) -> None:
    """What it saves is there, and the parent's store goes on."""
    store.save(State({"n": 1}, run_id="a", step=1))
    child = os.fork()
    if not child:
        try:
            store.save(State({"n": 2}, run_id="a", step=2))
            os._exit(0)
        finally:
            os._exit(1)

    assert os.waitpid(child, 0)[1] == 0
    assert store.load("a")["n"] == 2
    store.save(State({"n": 3}, run_id="a", step=3))
    assert store.load("a")["n"] == 3


def test_a_locked_database_is_an_error_that_says_so(
    folder: Path, store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time that a store waits for others."""
    connection_of(store).execute("PRAGMA busy_timeout = 1")
    with closing(sqlite3.connect(folder / "cache.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(CheckpointSaveError, match="locked by another process") as caught:
            store.save(State(run_id="a", step=1))

    assert isinstance(caught.value, StateGraphError)
    store.save(State(run_id="a", step=1))
    assert store.list() == ["a"]


FULL = """
import resource, signal, sys
from stategraph import CheckpointSaveError, State
from stategraph.stores.disk import DiskStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with DiskStore(sys.argv[1]) as store:
    store.save(State(run_id="a", step=1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        store.save(State({"large": "x" * 10_000_000}, run_id="a", step=2))
    except CheckpointSaveError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.load("a").step == 1
    store.save(State({"large": "x" * 10_000_000}, run_id="a", step=2))
    print(store.load("a").step)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX make a disk that is full")
def test_what_fills_the_disk_is_named_as_the_cause(tmp_path: Path) -> None:
    """Though SQLite has rolled back by then. The store goes on when there is room."""
    command = [sys.executable, "-c", FULL, str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    failure, step = done.stdout.splitlines()
    assert failure.endswith("failed: disk I/O error")
    assert step == "2"


class TestConnectionsThatAreLetGo:
    """Nothing is told of it where nothing is lost."""

    @pytest.fixture
    def unraisable(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        """-> what comes of finalisers."""
        found: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", found.append)
        return found

    def test_one_that_was_never_opened(self, tmp_path: Path, unraisable: list[Any]) -> None:
        with pytest.raises(sqlite3.OperationalError):
            sqlite3.connect(tmp_path / "no folder" / "runs", factory=Connection)
        connection = Connection.__new__(Connection)
        del connection
        gc.collect()

        assert unraisable == []

    def test_at_the_end_of_the_interpreter(self, tmp_path: Path) -> None:
        """With stores that nobody closed, on threads that have ended and on those that have not."""
        program = """
import sys, threading
from stategraph import State
from stategraph.stores._files.safe_diskcache import Connection
from stategraph.stores.disk import DiskStore

store = DiskStore(sys.argv[1])
store.save(State(run_id="a", step=1))
threading.Thread(target=store.load, args=("a",)).start()
sys.kept = store, Connection.__new__(Connection)  # until modules are gone
"""
        command = [sys.executable, "-c", program, str(tmp_path / "runs")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

        assert done.stderr == ""
