"""The promises of a store about the past of runs: histories, forks, rollbacks, retention."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

import attrs
import pytest

from stategraph._values.provenance import ErrorInfo, ParentStep, RunStatus
from stategraph.errors import CheckpointNotFoundError, InvalidRunIdError, RunExistsError
from stategraph.state import State
from stategraph.stores import CheckpointStore
from stategraph.stores.base import RetentionPolicy
from stategraph.testing.corpus import Order, is_same
from stategraph.testing.values import PAUSE, saved_at

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class HistoryContract:
    """The part of `CheckpointStoreContract` about the past of runs."""

    keeps_history: ClassVar[bool] = True

    def test_the_default_history_is_the_newest_checkpoint(self, store: CheckpointStore) -> None:
        """Older steps cannot be loaded. An unknown run has no history."""
        for step in (1, 2, 3):
            store.save(State({"n": step}, run_id="a", step=step, checkpoint_node=f"node-{step}"))

        assert [(row.step, row.checkpoint_node) for row in store.history("a")] == [(3, "node-3")]
        assert store.history("nobody") == []
        with pytest.raises(CheckpointNotFoundError, match="step 2"):
            store.load("a", 2)

    # ------------------------------------------------------------------ forks

    def test_a_fork_is_an_independent_copy(self, store: CheckpointStore) -> None:
        """It is active, names its parent, and survives the deletion of its source."""
        store.save(State({"n": [1]}, run_id="a", step=4, status="failed", error=ErrorInfo("ValueError", "", "x")))

        forked = store.fork("a", "b")
        store.delete("a")

        assert store.load("b") == forked
        assert (forked["n"], forked.step, forked.status, forked.error) == ([1], 4, RunStatus.ACTIVE, None)
        assert forked.parent == ParentStep("a", 4)
        store.save(State({"n": 2}, run_id="b", step=5, parent=forked.parent))
        assert store.load("b")["n"] == 2

    def test_a_fork_of_a_paused_run_is_active(self, store: CheckpointStore) -> None:
        """It continues with the node that waits."""
        store.save(saved_at(2, status="paused", pause=PAUSE))

        forked = store.fork("a", "b")

        assert store.load("b") == forked
        assert (forked.status, forked.pause) == (RunStatus.ACTIVE, None)
        assert forked.progress is not None
        assert forked.progress.next_node == PAUSE.node

    def test_a_fork_never_replaces_a_run(self, store: CheckpointStore) -> None:
        """A used id is an error, and so is an unknown source."""
        store.save(State({"n": 1}, run_id="a", step=1))
        store.save(State({"n": 2}, run_id="b", step=1))

        with pytest.raises(RunExistsError, match="'b'"):
            store.fork("a", "b")
        with pytest.raises(CheckpointNotFoundError):
            store.fork("nobody", "c")
        with pytest.raises(InvalidRunIdError):
            store.fork("a", "../c")
        assert store.load("b")["n"] == 2

    # ------------------------------------------------------------------ stores that keep a history

    @pytest.fixture
    def full(self, store: CheckpointStore) -> CheckpointStore:
        """Return the store after asking it to keep the full history of run "a"."""
        if not self.keeps_history:
            pytest.skip("keeps_history is False: this store keeps only the newest State of a run")
        store.retain("a", RetentionPolicy("full"))
        return store

    @pytest.fixture
    def long_run(self, full: CheckpointStore) -> CheckpointStore:
        """Return the store with all 60 steps of a run "a", made by `long_run_of`."""
        for state in long_run_of(60):
            full.save(state)
        return full

    def test_every_step_can_be_loaded(self, long_run: CheckpointStore) -> None:
        """With retention "full" each step keeps its values and types, and the history lists it."""
        for state, row in zip(long_run_of(60), long_run.history("a"), strict=True):
            loaded = long_run.load("a", state.step)
            assert is_same(dict(loaded), dict(state))
            assert loaded.checkpoint_node == row.checkpoint_node == state.checkpoint_node
            assert row.step == state.step
        assert list(long_run.iter_history("a")) == long_run.history("a")

    @pytest.mark.parametrize("window", [1, 5, 40])
    def test_a_window_keeps_the_newest(self, full: CheckpointStore, window: int) -> None:
        """Exactly as many checkpoints as the window are listed and loaded. A rollback deletes later ones."""
        full.retain("a", RetentionPolicy("windowed", window=window))
        states = long_run_of(60)
        for state in states:
            full.save(state)

        assert [row.step for row in full.history("a")] == list(range(61 - window, 61))
        assert is_same(dict(full.load("a", 61 - window)), dict(states[60 - window]))
        with pytest.raises(CheckpointNotFoundError, match=f"step {60 - window}"):
            full.load("a", 60 - window)
        back = 60 - window // 2
        full.rollback("a", back)
        assert max(row.step for row in full.history("a")) == back

    def test_rollback_deletes_later_steps(self, long_run: CheckpointStore) -> None:
        """The run continues from there. A rollback to an unknown step deletes nothing."""
        with pytest.raises(CheckpointNotFoundError, match="step 99"):
            long_run.rollback("a", 99)
        assert long_run.load("a").step == 60

        state = long_run.rollback("a", 20)

        assert state.step == 20
        assert long_run.load("a") == state
        long_run.save(State({"other": "way"}, run_id="a", step=21))
        assert is_same(dict(long_run.load("a")), {"other": "way"})
        assert long_run.load("a", 20) == state

    def test_a_fork_has_the_history(self, long_run: CheckpointStore) -> None:
        """It has every step up to the fork, even after its source is deleted. A rollback keeps its parent."""
        states = long_run_of(60)
        forked = long_run.fork("a", "b", 30)
        long_run.delete("a")

        assert long_run.load("b") == forked
        assert [row.step for row in long_run.history("b")] == list(range(1, 31))
        for step in (1, 17, 29, 30):
            assert is_same(dict(long_run.load("b", step)), dict(states[step - 1]))
        long_run.save(State({"n": "new"}, run_id="b", step=31, parent=forked.parent))
        assert long_run.load("b")["n"] == "new"
        assert long_run.rollback("b", 20).parent == long_run.load("b").parent == forked.parent

    def test_prune_removes_expired_runs(self, full: CheckpointStore) -> None:
        """It removes completed runs after their ttl, and never a run that can be resumed."""
        for run_id, status in (("done", "completed"), ("failed", "failed"), ("active", "active")):
            full.retain(run_id, RetentionPolicy(ttl=60))
            full.save(State(run_id=run_id, step=1, status=status, timestamp=LONG_AGO))
        full.retain("fresh", RetentionPolicy(ttl=3600))
        full.save(State(run_id="fresh", step=1, status="completed"))
        full.save(State(run_id="forever", step=1, status="completed", timestamp=LONG_AGO))

        assert full.prune().runs == ("done",)

        assert full.list() == ["active", "failed", "forever", "fresh"]
        assert full.prune().runs == ()


def long_run_of(steps: int) -> list[State]:
    """Return the States of a run: a list grows, a key comes and goes, and an object changes."""
    order = Order(1, [])
    states = [State({"log": [], "big": "x" * 2_000}, run_id="a", timestamp=datetime(2024, 1, 1, tzinfo=UTC))]
    for step in range(1, steps + 1):
        state = states[-1].update(log=[*states[-1]["log"], {"step": step, "text": "y" * 500}], n=step)
        order = Order(step // 10, [step // 10])
        state = state.set("order", order) if step % 3 else state.set("odd", step)
        if step % 7 == 0 and "odd" in state:
            state = state.remove("odd")
        states.append(attrs.evolve(state, step=step, checkpoint_node=f"node-{step}"))
    return states[1:]
