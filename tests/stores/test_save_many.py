"""Saving many States of a run at once, as a run with queued States does."""

import os

import pytest

from stategraph import State
from stategraph.stores.base import Policy
from stategraph.stores.sqlite import SqliteStore


def states(*steps, **data):
    return [State({"n": step, **data}, run_id="a", step=step) for step in steps]


@pytest.mark.parametrize("policy", [Policy("full"), Policy("windowed", 10)], ids=lambda policy: policy.retention)
def test_a_run_that_another_handle_began_keeps_every_step(tmp_path, policy):
    """The record of a run holds its policy, also for a handle that has not used the run before."""
    with SqliteStore(tmp_path / "runs.db") as first, SqliteStore(tmp_path / "runs.db") as second:
        first.retain("a", policy)
        first.save(states(1)[0])
        second.save_many(states(2, 3, 4))

        assert [row.step for row in first.history("a")] == [1, 2, 3, 4]


def test_the_newest_steps_of_a_window_stay_when_a_later_one_holds_all_data(tmp_path):
    """The newest steps stay even if a later State in the same batch holds all data."""
    with SqliteStore(tmp_path / "runs.db") as store:
        store.retain("a", Policy("windowed", 3))
        store.save_many([State({"data": os.urandom(30_000)}, run_id="a", step=step) for step in range(1, 8)])

        assert [row.step for row in store.history("a")] == [5, 6, 7]
        assert store.verify().checkpoints < 7
