"""The promises of a store to those who look at it from outside, and to whoever cancels a run without its graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import CheckpointNotFoundError, RunCompleteError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores.base import RetentionPolicy


class LookingContract:
    """The part of `CheckpointStoreContract` that is about looking."""

    # ------------------------------------------------------------------ verify

    def test_verify_reads_everything(self, store: CheckpointStore) -> None:
        """It counts the runs by their status, and what it has read of them; nothing is damaged, and nothing changes."""
        assert store.verify().runs == {}
        store.retain("a", RetentionPolicy("full"))
        for step in (1, 2, 3):
            store.save(State({"n": step}, run_id="a", step=step))
        store.save(State({"n": 1}, run_id="b", step=1, status="completed"))
        before = [store.load(run_id) for run_id in ("a", "b")]

        found = store.verify()

        assert found.runs == {"active": 1, "completed": 1}
        assert found.checkpoints == sum(len(store.history(run_id)) for run_id in ("a", "b"))
        assert (found.nested, found.damaged, found.unreadable) == (0, (), ())
        assert [store.load(run_id) for run_id in ("a", "b")] == before

    # ------------------------------------------------------------------ changed_since

    def test_nothing_has_changed_as_long_as_nobody_has_changed_anything(self, store: CheckpointStore) -> None:
        """However often it is asked, and whatever is read meanwhile."""
        store.save(State({"n": 1}, run_id="a", step=1))
        token = store.changed_since(None)
        of_run = store.changed_since(None, "a")
        assert token is not None
        assert of_run is not None

        for _ in range(3):
            assert (store.load("a").step, len(store.runs()), len(store.history("a"))) == (1, 1, 1)
            assert store.changed_since(token) is None
            assert store.changed_since(of_run, "a") is None

    def test_each_change_is_noticed(self, store: CheckpointStore) -> None:
        """A run that begins, goes on, ends at the same step, is copied, taken back, or deleted."""
        token = store.changed_since(None)
        assert token is not None
        changes: list[Callable[[], object]] = [
            lambda: store.save(State({"n": 1}, run_id="a", step=1)),
            lambda: store.save(State({"n": 2}, run_id="a", step=2)),
            lambda: store.save(State({"n": 2}, run_id="a", step=2, status="completed")),
            lambda: store.amend(State({"n": 3}, run_id="a", step=2)),
            lambda: store.fork("a", "b"),
            lambda: store.rollback("a", 2),
            lambda: store.delete("a"),
        ]

        for change in changes:
            change()
            newer = store.changed_since(token)
            assert newer is not None
            assert newer != token
            assert store.changed_since(newer) is None
            token = newer

    def test_each_change_of_a_run_is_noticed(self, store: CheckpointStore) -> None:
        """By whoever asks about this run; one that is not there is noticed when it begins."""
        token = store.changed_since(None, "a")

        for step in (1, 2):
            store.save(State({"n": step}, run_id="a", step=step))
            newer = store.changed_since(token, "a")
            assert newer is not None
            token = newer
        store.delete("a")
        assert store.changed_since(token, "a") is not None

    # ------------------------------------------------------------------ cancel

    def test_a_run_that_nobody_is_at_work_on_is_cancelled_at_once(self, store: CheckpointStore) -> None:
        """With its data as they are; the history knows by whom. To cancel it once more changes nothing."""
        store.save(State({"n": 1}, run_id="a", step=1, checkpoint_node="one"))

        assert store.cancel("a", by="ann") is None

        state = store.load("a")
        assert (state.status, state.kind, state.by, state["n"]) == (RunStatus.CANCELLED, Kind.CANCEL, "ann", 1)
        assert store.cancel("a") is None
        assert store.load("a") == state

    def test_only_an_unfinished_run_is_cancelled(self, store: CheckpointStore) -> None:
        """Neither one that is not there, nor one that is complete."""
        store.save(State(run_id="a", step=1, status="completed"))

        with pytest.raises(RunCompleteError):
            store.cancel("a")
        with pytest.raises(CheckpointNotFoundError):
            store.cancel("nobody")
