"""Pruning many runs: they go together, and nobody waits for long, nor loses what is not due."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stategraph import State
from stategraph._owners.holds import held
from stategraph._values.provenance import ParentStep
from stategraph.stores import SqliteStore
from stategraph.stores._rows import table
from stategraph.stores.base import RetentionPolicy

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
    """However many go together."""
    monkeypatch.setattr(store._log.table, "removed_together", together)

    assert sorted(store.prune().runs) == NAMES
    assert store.list() == []


def test_what_takes_long_is_removed_bit_by_bit(store, monkeypatch):
    """A transaction ends when others have waited for long enough, and the next one goes on."""
    monkeypatch.setattr(table, "LONGEST", -1.0)
    monkeypatch.setattr(table, "AT_ONCE", 7)
    removed: list[int] = []
    remove_all = store._log.table.remove_all

    def noting(runs):
        outcomes = remove_all(runs)
        removed.append(len(outcomes))
        return outcomes

    monkeypatch.setattr(store._log.table, "remove_all", noting)

    assert sorted(store.prune().runs) == NAMES
    assert removed == [7, 7, 7, 4]


def test_one_that_somebody_owns_stays(store):
    with held(store, "run-07"):
        assert "run-07" not in store.prune().runs

    assert store.list() == ["run-07"]
    assert store.prune().runs == ("run-07",)


def test_one_that_goes_on_meanwhile_stays(store, monkeypatch):
    """Whoever has written since the run was looked at has made another version of it."""
    remove_all = store._log.table.remove_all

    def after_another_has_written(runs):
        runs = [(run._replace(version=run.version - 1) if run.run_id == "run-07" else run, hold) for run, hold in runs]
        return remove_all(runs)

    monkeypatch.setattr(store._log.table, "remove_all", after_another_has_written)

    assert len(store.prune().runs) == len(NAMES) - 1
    assert store.load("run-07")["n"] == 1


def test_one_that_is_taken_over_meanwhile_stays(store, monkeypatch):
    """By another process, before it has written anything."""
    table = store._log.table
    remove_all = table.remove_all

    def after_another_has_taken_over(runs):
        monkeypatch.setattr(table, "remove_all", remove_all)
        table.raise_fence("run-07")
        return remove_all(runs)

    monkeypatch.setattr(table, "remove_all", after_another_has_taken_over)

    assert "run-07" not in store.prune().runs
    assert store.list() == ["run-07"]
    assert store.prune().runs == ("run-07",)


def test_what_is_nested_goes_with_it(store):
    """With its rows, and nothing of others."""
    for name in ("run-03", "run-04", "kept"):
        store.save(State({"n": 1}, run_id=name, step=2, status="completed" if name != "kept" else "active"))
        store.save(State({"n": 1}, run_id=f"{name}/#3/child", parent=ParentStep(name, 2)))

    assert sorted(store.prune().runs) == NAMES
    assert store.list() == ["kept"]
    assert store._log.table.nested_ids("run-03") == store._log.table.nested_ids("run-04") == []
    assert store.load("kept/#3/child")["n"] == 1
    assert _rows_left(store) == 2


def _rows_left(store):
    return store._log.table.connection.execute("SELECT count(*) FROM checkpoint").fetchone()[0]


def test_nobody_owns_what_was_pruned(store):
    """A run may begin anew at once under the id of one that was removed."""
    store.prune()

    assert store.owner("run-07") is None
    store.save(State({"n": 2}, run_id="run-07"))
    assert store.load("run-07")["n"] == 2
