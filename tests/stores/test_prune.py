"""Pruning many runs removes them in batches, blocks no call for long, and removes only due runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stategraph import State
from stategraph._owners.base import Ownership, on_behalf_of, own, owned, release
from stategraph.stores import SqliteStore
from stategraph.stores._rows import maintenance
from stategraph.stores.base import RetentionPolicy
from tests.stores.inside import table_of

NAMES = [f"run-{number:02d}" for number in range(25)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "store") as made:
        for name in NAMES:
            made.retain(name, RetentionPolicy(ttl=1e-9))
            made.save(State({"n": 1}, run_id=name, step=1, status="completed"))
        yield made


@pytest.mark.parametrize("together", [1, 4, 25, 1_000])
def test_all_that_is_due_goes(store, monkeypatch, together):
    """Prune removes all due runs for every size of a batch."""
    monkeypatch.setattr(maintenance, "_BATCH", together)

    assert sorted(store.prune().runs) == NAMES
    assert store.list() == []


def test_a_run_with_an_owner_stays(store):
    with owned(store, "run-07"):
        assert "run-07" not in store.prune().runs

    assert store.list() == ["run-07"]
    assert store.prune().runs == ("run-07",)


def test_a_run_that_is_resumed_during_the_prune_stays(store, monkeypatch):
    """A write since the run was looked at has made another version of it."""

    def another_writes():
        ownership = Ownership("run-07")
        own(store, ownership, take_over=True)
        with on_behalf_of(ownership):
            store.amend(State({"n": 2}, run_id="run-07", step=1, status="completed"))
        release(ownership)

    before_the_removal(store, monkeypatch, another_writes)

    assert len(store.prune().runs) == len(NAMES) - 1
    assert store.load("run-07")["n"] == 2


def before_the_removal(store, monkeypatch, do):
    """Do something once, after the runs were checked."""
    table = table_of(store)
    commit = table.commit

    def after(writes):
        monkeypatch.setattr(table, "commit", commit)
        do()
        return commit(writes)

    monkeypatch.setattr(table, "commit", after)
