"""A long history is the same in pages as at once, on every store, and damage is reported."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import CheckpointCorruptError, CheckpointError, State
from stategraph.state import evolve
from stategraph.stores import DiskStore, SqliteStore
from stategraph.stores._rows import loading
from stategraph.stores.base import RetentionPolicy
from tests.stores.inside import table_of
from tests.stores.servers import SERVERS


@pytest.fixture(autouse=True)
def pages_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_PAGE", 3)


@pytest.fixture(params=["sqlite", "disk", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """One whose run "a" has eleven checkpoints: steps that were skipped, revisions, and a rollback among them."""
    with _opened(request, tmp_path) as made:
        made.retain("a", RetentionPolicy("full"))
        for step in (0, 1, 2, 3, 7, 8, 9):
            made.save(State({"n": step}, run_id="a", step=step))
        made.amend(State({"n": 10}, run_id="a", step=9))
        made.rollback("a", 2)
        for step in (3, 4):
            made.save(_after(made, step))
        yield made


def _opened(request: pytest.FixtureRequest, folder: Path) -> Any:
    match request.param:
        case "sqlite":
            return SqliteStore(folder / "runs.db")
        case "disk":
            return DiskStore(folder / "runs")
        case name:
            server = SERVERS[name]
            return server.open(server.new_place())


def _after(store: Any, step: int) -> State:
    return evolve(store.load("a"), step=step)


def test_pages_make_up_the_history(store: Any) -> None:
    assert len(store.history("a")) == 11
    assert list(store.iter_history("a")) == store.history("a")


def test_it_is_the_history_of_one_time(store: Any) -> None:
    """The iteration leaves out rows that are saved after its begin."""
    before = store.history("a")
    rows = store.iter_history("a")
    first = next(rows)
    store.save(_after(store, 5))

    assert [first, *rows] == before


def test_the_newest_state_is_saved_again_at_the_same_time(store: Any) -> None:
    """A State that is saved twice, as after an interrupted commit, is no damage."""
    rows = store.iter_history("a")
    first = next(rows)
    store.save(store.load("a"))

    assert len([first, *rows]) == 11


@pytest.mark.parametrize("place", range(11))
def test_a_lost_checkpoint_is_missed(store: Any, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the whole history shows it: at the beginning and the end of a page, too."""
    table = table_of(store)
    gone = table.index("a")[place].sequence
    index = table.index

    def without(run_id: str, *bounds: int) -> list[Any]:
        return [row for row in index(run_id, *bounds) if row.sequence != gone]

    monkeypatch.setattr(table, "index", without)

    if place in (1, 2, 3, 4, 5, 9):  # a step may have been skipped
        assert len(list(store.iter_history("a"))) == len(store.history("a")) == 10
    else:
        with pytest.raises(CheckpointCorruptError):
            store.history("a")
        with pytest.raises(CheckpointCorruptError):
            list(store.iter_history("a"))


def test_a_run_that_is_deleted_between_pages(store: Any) -> None:
    """It is no damage."""
    rows = store.iter_history("a")
    next(rows)
    store.delete("a")

    with pytest.raises(CheckpointError, match="others have deleted it") as caught:
        list(rows)
    assert not isinstance(caught.value, CheckpointCorruptError)
