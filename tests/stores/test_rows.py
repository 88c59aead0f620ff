"""The rows that a durable store writes for a step, and their size."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest

from stategraph import State
from stategraph.stores import Policy, SqliteStore
from stategraph.testing import is_same

BIG = os.urandom(200_000)


class Row(NamedTuple):
    """A row of a step: its base, which is the first step that it builds on, and the bytes of its payload."""

    step: int
    base: int
    size: int


@pytest.fixture
def rows_of(tmp_path: Path) -> Callable[[Sequence[State]], list[Row]]:
    """Return a function that saves States of a run, checks that each is loaded, and returns their rows."""

    def written(states: Sequence[State]) -> list[Row]:
        with SqliteStore(tmp_path / "runs.db") as store:
            store.retain("a", Policy("full"))
            for state in states:
                store.save(state)
        assert_all_come_back(tmp_path / "runs.db", states)
        with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
            return [Row(*row) for row in database.execute("SELECT step, base, length(payload) FROM checkpoint")]

    return written


def assert_all_come_back(path: Path, states: Sequence[State]) -> None:
    """Each State that was saved is loaded as it was, in values and in types."""
    with SqliteStore(path) as store:
        for state in states:
            loaded = store.load("a", state.step)
            assert loaded == state
            assert is_same(dict(loaded), dict(state))


def run_of(*contents: dict[str, Any]) -> list[State]:
    """Return the States of a run, each laid over the one before."""
    states = [State(run_id="a")]
    for step, data in enumerate(contents, 1):
        states.append(attrs.evolve(states[-1].update(data), step=step, checkpoint_node=f"node-{step}"))
    return states[1:]


# --------------------------------------------------------------------------- size


def test_a_small_change_of_a_large_state_weighs_what_it_is(rows_of: Any) -> None:
    """A row has the size of the change, not of the State; setting a key to the same object is no change."""
    states = run_of({"big": BIG, "n": 0}, {"n": 1}, {"text": "abc"}, {"n": 2}, {})
    states.append(attrs.evolve(states[-1].set("big", states[-1]["big"]), step=6))

    snapshot, *changes = rows_of(states)

    assert snapshot.size > len(BIG)
    assert max(row.size for row in changes) < 40
    assert [row.size for row in changes[-2:]] == [5, 5]


def test_a_list_that_grew_weighs_its_new_items(rows_of: Any) -> None:
    """A row of a list that grew has the size of the new items, however long the list is."""
    messages = [os.urandom(1000) for _ in range(40)]

    rows = rows_of(run_of(*({"log": messages[:count]} for count in range(20, 41))))

    assert all(1000 < row.size < 1040 for row in rows[1:] if row.base < row.step)
    assert sum(row.base == row.step for row in rows) <= 2


def test_a_snapshot_is_written_when_the_changes_weigh_as_much(rows_of: Any) -> None:
    """So reading any step takes no more than twice what the State weighs, and some small rows."""
    rows = rows_of(run_of({"big": BIG}, *({"part": os.urandom(20_000)} for _ in range(60))))

    assert 2 < sum(row.base == row.step for row in rows) < 12
    for row in rows:
        chain = rows[row.base - 1 : row.step]
        assert sum(one.size for one in chain) <= 2.2 * chain[0].size + 20_000
