"""Deleted data is in no file of a store, at the latest when the store is closed."""

import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import diskcache
import pytest

from stategraph import CachePolicy, InterruptNode, State, StateGraph
from stategraph._values import clock
from stategraph._values.entries import Entry
from stategraph._values.provenance import ErrorInfo
from stategraph.stores import Policy
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore
from tests.scenarios import make_graph, returns
from tests.stores.inside import connection_of, table_of

SECRET = "a secret that must not be found"
STORES: dict[str, Callable[[Path], Any]] = {
    "sqlite": lambda folder: SqliteStore(folder / "runs.db"),
    "disk": DiskStore,
}


@pytest.fixture(autouse=True)
def sqlite_that_leaves_traces(monkeypatch: Any) -> None:
    """Use SQLite without `secure_delete`: some builds have it on by default."""
    connect = sqlite3.connect

    def connected(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **options)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connected)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """-> where the files are."""
    return tmp_path / "runs"


@pytest.fixture(params=STORES)
def store(request: Any, folder: Path) -> Iterator[Any]:
    """Yield a store that holds other runs, too."""
    with STORES[request.param](folder) as store:
        for number in range(5):
            store.retain(f"other-{number}", Policy("full"))
            for step in (1, 2, 3):
                store.save(State({"text": "x" * 3000 * number}, run_id=f"other-{number}", step=step))
        yield store


def copies(folder: Path, secret: str = SECRET) -> int:
    """Return how often the secret stands in the files of the folder."""
    return sum(file.read_bytes().count(secret.encode()) for file in folder.rglob("*") if file.is_file())


def saved(store: Any, *run_ids: str, policy: Policy | None = None, **provenance: Any) -> None:
    """Save runs with secrets of all sizes, some of them in other places than the data."""
    for run_id in run_ids:
        store.retain(run_id, policy or Policy("full"))
        for step in range(1, 13):
            text = SECRET * (1, 60, 4000)[step % 3]
            error = ErrorInfo("ValueError", SECRET, "node") if step == 7 else None
            about = {"error": error, "status": "failed"} if error else provenance
            store.save(State({"text": text, "n": step}, run_id=run_id, step=step, **about))


class TestByHand:
    """Erased when the call returns, while the store stays open."""

    def test_delete(self, store: Any, folder: Path) -> None:
        """From the file and from its log."""
        saved(store, "a", "b")
        assert copies(folder) > 100

        store.delete("a")
        store.delete("b")

        assert copies(folder) == 0
        assert len(store.list()) == 5

    @pytest.mark.parametrize("seed", [56, 120, 158])
    def test_delete_of_one_run_among_others(self, folder: Path, seed: int) -> None:
        """Also the pieces that SQLite leaves in a page when it moves rows to another one."""
        chance, steps = Random(seed), Counter[str]()
        runs = [f"r{number}" for number in range(8)]
        with SqliteStore(folder / "runs.db") as store:
            for run_id in runs:
                store.retain(run_id, Policy("full" if chance.random() < 0.7 else "latest"))
            for _ in range(120):
                run_id = chance.choice(runs)
                steps[run_id] += 1
                text = (SECRET if run_id == "r3" else "x" * 31) * chance.choice([1, 1, 2, 5, 30, 100])
                status: Any = "failed" if chance.random() < 0.1 else "active"
                store.save(State({"text": text, "n": 1}, run_id=run_id, step=steps[run_id], status=status))
                if chance.random() < 0.2:
                    store.append(run_id, [Entry("message", {"m": text})])

            store.delete("r3")

            assert copies(folder, SECRET[:18]) == 0

    def test_the_id_of_a_run_that_was_cancelled(self, store: Any, folder: Path) -> None:
        """Its cancellation goes with it, with its author, whether or not the run has gone on since."""
        run_id = SECRET.replace(" ", "-")
        for goes_on in (True, False):
            graph = make_graph({"a": returns({}), "b": InterruptNode("q", "r"), "c": returns({})}, store=store)
            graph.execute(State({"q": 1}, run_id=run_id))
            graph.cancel(run_id, by=SECRET)
            if goes_on:
                graph.resume(run_id, {"r": 1})

            store.delete(run_id)

            assert copies(folder) == copies(folder, run_id) == 0

    def test_prune(self, store: Any, folder: Path) -> None:
        """Runs whose time is over."""
        saved(store, "a", policy=Policy("full", ttl=1e-9), status="completed")
        assert copies(folder) > 0

        assert store.prune().runs == ("a",)

        assert copies(folder) == 0

    def test_rollback(self, store: Any, folder: Path) -> None:
        """The steps that are taken back, of a run that does not keep them as its story."""
        store.retain("a", Policy("windowed", window=9))
        store.save(State({"text": "harmless"}, run_id="a", step=1))
        for step in (2, 3, 4):
            store.save(State({"text": SECRET * step * 500}, run_id="a", step=step))

        store.rollback("a", 1)

        assert store.load("a")["text"] == "harmless"
        assert copies(folder) == 0


class TestClosed:
    """Erased when the last handle is closed, however it was deleted."""

    def test_checkpoints_that_retention_removes(self, store: Any, folder: Path) -> None:
        """Retention erases replaced checkpoints of an active run."""
        saved(store, "a", policy=Policy())
        store.save(State({"text": "harmless"}, run_id="a", step=13))
        store.save(State({"text": "harmless", "n": 14}, run_id="a", step=14))
        store.save(State({"text": "harmless" * 9000, "n": 15}, run_id="a", step=15))
        assert [row.base for row in table_of(store).index("a")] == [15]
        store.close()

        assert copies(folder) == 0

    def test_by_a_process_that_was_killed(self, folder: Path) -> None:
        """The next process that opens and closes the store does it."""
        program = (
            "import os, sys\nfrom stategraph import State\nfrom stategraph.stores.sqlite import SqliteStore\n"
            "store = SqliteStore(sys.argv[1])\n"
            f"[store.save(State({{'text': '{SECRET}' * 900}}, run_id='a', step=step)) for step in (1, 2, 3)]\n"
            "store._discard('a')\nos._exit(0)"
        )
        subprocess.run([sys.executable, "-c", program, str(folder / "runs.db")], check=True, timeout=300)
        assert copies(folder) > 0

        SqliteStore(folder / "runs.db").close()

        assert copies(folder) == 0

    @pytest.mark.parametrize("durability", ["sync", "async"])
    def test_a_graph_that_does_not_preserve_its_runs(self, store: Any, folder: Path, durability: str) -> None:
        """The whole way."""
        nodes = {"a": returns({"text": SECRET * 100}), "b": returns({"text": SECRET * 4000})}
        graph = make_graph(nodes, store=store, preserve=False, durability=durability)
        graph.execute(State(run_id="run"))
        assert "run" not in store.list()
        store.close()

        assert copies(folder) == 0


class TestCaches:
    """Results whose time is over."""

    def later(self, monkeypatch: Any, seconds: float) -> None:
        """Let time go by."""
        now = clock.now_ns() + int(seconds * 1e9)
        monkeypatch.setattr(clock, "now_ns", lambda: now)
        monkeypatch.setattr(diskcache.core, "time", SimpleNamespace(time=lambda: now / 1e9, sleep=time.sleep))

    def test_by_a_graph(self, folder: Path, monkeypatch: Any) -> None:
        """A graph knows the time to live of its results and erases older ones."""
        from stategraph.stores.memory import MemoryStore

        def made(secret: str, **options: Any) -> StateGraph:
            policy = CachePolicy(("x",), path=folder, version=secret, **options)
            return make_graph({"a": returns({"text": secret})}, store=MemoryStore(), policies={"a": {"cache": policy}})

        made(SECRET, ttl=3600).execute(State({"x": 1}))
        assert copies(folder) > 0
        self.later(monkeypatch, 3601)
        made("harmless").execute(State({"x": 1}))

        assert copies(folder) == 0


@pytest.mark.parametrize("mode", ["sqlite", "disk"])
def test_the_settings_of_every_connection(mode: str, folder: Path) -> None:
    """Every connection overwrites deleted data, and syncs to the medium where a plain sync does not."""
    with STORES[mode](folder) as store:
        for pragma in ("secure_delete", "fullfsync", "checkpoint_fullfsync"):
            assert connection_of(store).execute(f"PRAGMA {pragma}").fetchone() == (1,)
        assert connection_of(store).execute("PRAGMA synchronous").fetchone() == (2,)
