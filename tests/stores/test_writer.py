"""The writer of a store: one thread for all runs that are saved behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stategraph import State
from stategraph._owners.holds import held
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.stores import write_behind
from stategraph.stores.base import RetentionPolicy
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.stores.write_behind import WriteBehindStore
from tests.scenarios import RUN, make_graph, traces

pytestmark = pytest.mark.timeout(60)


def at(step: int, run_id: str = RUN) -> State:
    """Return a State of a run at a step."""
    return State({"n": step}, run_id=run_id, step=step)


def writers() -> list[threading.Thread]:
    """Return the threads of all writers."""
    return [thread for thread in threading.enumerate() if thread.name == "stategraph writer"]


def until(condition: Any) -> None:
    """Wait until something holds."""
    give_up = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.001)


class SlowStore(MemoryStore):
    """Saves when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may_save, self.is_saving = threading.Event(), threading.Event()

    def save_many(self, states: Any) -> None:
        self.is_saving.set()
        self.may_save.wait()
        super().save_many(states)


class TestWriter:
    """It saves soon what is queued, whatever the runs do meanwhile."""

    def test_one_thread_for_all_runs(self) -> None:
        """However many they are; all of them are saved without being asked."""
        store, before = MemoryStore(), len(writers())
        runs = [WriteBehindStore(store) for _ in range(50)]
        for number, run in enumerate(runs):
            run.save(at(1, f"run-{number}"))
        assert len(writers()) <= before + 1

        until(lambda: len(store.list()) == 50)

    def test_what_comes_meanwhile(self) -> None:
        """A State that is queued while the writer saves is saved after it, though nobody calls."""
        store = SlowStore()
        run = WriteBehindStore(store)
        run.save(at(1))
        assert store.is_saving.wait(20)
        run.save(at(2))
        store.may_save.set()

        until(lambda: store.list() and store.load(RUN).step == 2)

    def test_a_run_of_a_store_that_fails(self, tmp_path: Path) -> None:
        """It hears of it; the others are saved."""

        class Store(MemoryStore):
            def save(self, state: State) -> None:
                if state.run_id == "bad":
                    raise CheckpointSaveError("bad", "the disk is full")
                super().save(state)

        store = Store()
        runs = {run_id: WriteBehindStore(store) for run_id in ("a", "bad", "z")}
        for run_id, run in runs.items():
            run.save(at(1, run_id))
        until(lambda: store.list() == ["a", "z"])

        with pytest.raises(CheckpointSaveError, match="full"):
            runs["bad"].flush()
        runs["a"].flush()
        runs["z"].flush()

    def test_a_run_that_is_too_far_ahead_saves_itself(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even if the writer never comes."""
        monkeypatch.setattr(write_behind, "QUEUE_BOUND", 3)
        store = MemoryStore()
        run = WriteBehindStore(store)
        monkeypatch.setattr(run, "save_queued", lambda: None)
        for step in range(1, 11):
            run.save(at(step))
        assert store.load(RUN).step >= 7
        run.flush()

        assert store.load(RUN).step == 10

    def test_no_thread_can_be_had(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Then the run saves at once."""

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        store = MemoryStore()
        monkeypatch.setattr(threading.Thread, "start", start)
        WriteBehindStore(store).save(at(1))

        assert store.load(RUN).step == 1

    def test_the_store_is_let_go(self) -> None:
        """A writer that waits for calls keeps no store."""
        store = MemoryStore()
        run = WriteBehindStore(store)
        run.save(at(1))
        run.flush()
        gone = weakref.ref(store)
        del store, run

        def is_gone() -> bool:
            gc.collect()
            return gone() is None

        until(is_gone)

    @pytest.mark.unmeasured  # coverage has a lock that a fork leaves locked
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
    @pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
    def test_a_forked_child(self) -> None:
        """It has a writer of its own, and waits for none of its parent, which is just saving."""
        store = SlowStore()
        run = WriteBehindStore(store)
        run.save(at(1))
        assert store.is_saving.wait(20)
        child = os.fork()
        if not child:
            signal.alarm(10)  # or it waits for ever
            try:
                store.may_save = threading.Event()
                store.may_save.set()
                other = WriteBehindStore(store)
                other.save(at(1, "other"))
                until(lambda: "other" in store.list())
                with suppress(Exception):  # it has lost the run, or saves it: what counts is that it ends
                    run.flush()
                os._exit(0)
            except BaseException:
                os._exit(1)
        store.may_save.set()
        assert os.waitpid(child, 0)[1] == 0
        run.flush()

        assert store.load(RUN).step == 1

    def test_a_store_that_is_closed(self, tmp_path: Path) -> None:
        """What is queued then is not lost without a word."""
        store = SqliteStore(tmp_path / "runs.db")
        run = WriteBehindStore(store)
        run.save(at(1))
        store.close()

        with suppress(CheckpointError):  # which says that it is closed
            run.flush()
            with SqliteStore(tmp_path / "runs.db") as again:
                assert again.load(RUN).step == 1


class TestShortRuns:
    """A run that is over soon saves itself: no thread is made for it."""

    def test_threads(self, tmp_path: Path) -> None:
        """Many runs in some threads at once end as one by one."""
        with SqliteStore(tmp_path / "runs.db") as store:
            graph = make_graph(traces("ab"), store=store, durability="async", preserve=True)
            with ThreadPoolExecutor(8) as pool:
                finals = list(pool.map(lambda number: graph.execute(State(run_id=f"run-{number}")), range(80)))
            assert all(store.load(final.run_id) == final for final in finals)

    def test_a_run_that_others_keep_in_full(self, tmp_path: Path) -> None:
        """The first save of several States of a run that is there already asks how that is kept."""
        with SqliteStore(tmp_path / "runs.db") as first, SqliteStore(tmp_path / "runs.db") as second:
            first.retain(RUN, RetentionPolicy("full"))
            first.save(at(1))
            second.save_many([at(2), at(3)])

            assert [row.step for row in first.history(RUN)] == [1, 2, 3]


class TestFinalisers:
    """They may come anywhere, on any thread, and use the store that this thread saves to."""

    @pytest.mark.inside
    @pytest.mark.parametrize("fails", [False, True])
    def test_what_one_saves_among_saves_that_are_gathered(self, tmp_path: Path, fails: bool) -> None:
        """It is durable when that is said, whatever becomes of the others."""
        with SqliteStore(tmp_path / "a.db") as store, SqliteStore(tmp_path / "a.db") as other:

            def save() -> None:
                store.save(at(1))
                store.save(at(1, "another"))
                assert other.list() == ["another"]
                if fails:
                    raise ValueError

            with held(store, RUN):
                assert store._save_together([({RUN}, save)]) == [not fails]
            assert other.list() == ["another", *([] if fails else [RUN])]

    @pytest.mark.inside
    def test_gathering_again_among_saves_that_are_gathered(self, tmp_path: Path) -> None:
        """The outer ones go on being gathered."""
        with SqliteStore(tmp_path / "a.db") as store:

            def save() -> None:
                store.save(at(1))
                with held(store, "b"):
                    assert store._save_together([({"b"}, lambda: store.save(at(1, "b")))]) == [True]
                store.save(at(2))
                assert store.list() == ["b"]

            with held(store, RUN):
                assert store._save_together([({RUN}, save)]) == [True]
            assert (store.list(), store.load(RUN).step) == (["b", RUN], 2)

    @pytest.mark.parametrize("ends", ["flush", "save_queued", "begun"])
    def test_one_that_ends_the_run_whose_saves_are_made(self, ends: str) -> None:
        """They are made once."""

        class Reentered(MemoryStore):
            saved: list[int] = []

            def save_many(self, states: Any) -> None:
                if not self.saved:
                    self.saved.append(0)
                    getattr(run, ends)()
                self.saved.extend(state.step for state in states)
                super().save_many(states)

        store = Reentered()
        store.saved = []
        run = WriteBehindStore(store)
        for step in (1, 2, 3):
            run.save(at(step))
        run.flush()

        assert store.load(RUN).step == 3
        assert run.has_queued is False
