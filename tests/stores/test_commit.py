"""Shared commits: threads that write at the same time share a transaction and its outcome."""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from stategraph import State
from stategraph.errors import CheckpointCorruptError, CheckpointError, CheckpointSaveError
from stategraph.stores.disk import DiskStore
from stategraph.stores.sqlite import SqliteStore
from tests.stores.inside import connection_of, table_of

THREADS = 8


class TestWithAStore:
    @pytest.mark.parametrize("kind", [DiskStore, SqliteStore])
    def test_a_run_that_is_damaged_fails_alone(self, tmp_path, kind, monkeypatch):
        """Others save at the same time, in the same transactions, and hear nothing of it."""
        with kind(tmp_path / "runs") as store, ThreadPoolExecutor(THREADS) as pool:
            for number in range(THREADS):
                store.save(State({"n": 0}, run_id=f"run-{number}"))
            apply, sizes = table_of(store).apply, []

            def counted(writes):
                sizes.append(len(writes))
                time.sleep(0.005)
                if "run-3" in [write.run_id for write in writes]:
                    raise CheckpointCorruptError("run-3", "what the store holds for its step 0 is no checkpoint")
                return apply(writes)

            monkeypatch.setattr(table_of(store), "apply", counted)

            def run(number):
                try:
                    for step in range(1, 6):
                        store.save(State({"n": step}, run_id=f"run-{number}", step=step))
                except CheckpointError as error:
                    return error
                return None

            wrong = [error for error in pool.map(run, range(THREADS)) if error]

            assert max(sizes) > 1
            assert [(type(error), error.run_id) for error in wrong] == [(CheckpointCorruptError, "run-3")]
            assert {run.run_id: run.step for run in store.runs()} == {
                f"run-{number}": 0 if number == 3 else 5 for number in range(THREADS)
            }


def test_a_database_that_others_have_locked_is_not_damaged(tmp_path):
    """The save fails as one that may be tried again, and the run is as it was."""
    with SqliteStore(tmp_path / "runs.db") as store:
        store.save(State({"n": 1}, run_id="a", step=1))
        connection_of(store).execute("PRAGMA busy_timeout = 10")
        with sqlite3.connect(tmp_path / "runs.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(CheckpointSaveError, match="locked") as failed:
                store.save(State({"n": 2}, run_id="a", step=2))
            other.execute("ROLLBACK")
        other.close()

        assert not isinstance(failed.value, CheckpointCorruptError)
        assert store.load("a")["n"] == 1
        store.save(State({"n": 2}, run_id="a", step=2))
        assert store.load("a")["n"] == 2
