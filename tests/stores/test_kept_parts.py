"""Parts and nested runs of steps: kept beyond the process, damaged, or out of date."""

import sqlite3
from contextlib import closing

import pytest

from stategraph import CheckpointCorruptError, CheckpointNotFoundError, State
from stategraph._values.progress import Part
from stategraph._values.provenance import ParentStep
from stategraph.stores.sqlite import SqliteStore


@pytest.fixture
def opened(tmp_path):
    """Yield a function that opens the store again on each call."""
    stores = []

    def open_store():
        stores.append(SqliteStore(tmp_path / "runs.db"))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


@pytest.fixture
def change(tmp_path):
    """Return a function that changes what stands in the file, as no store does."""

    def change(statement):
        with closing(sqlite3.connect(tmp_path / "runs.db")) as database, database:
            return database.execute(statement).rowcount

    return change


def fill(store):
    store.save(State({"n": 2}, run_id="a", step=2))
    for label in "xyz":
        store.save_parts("a", [Part(3, "map", label, f"value of {label}" * 10)])
    store.save(State({"inner": 1}, run_id="a/#3/child", step=4, parent=ParentStep("a", 2)))


def test_another_process_finds_them(opened):
    """Parts and runs within, still hidden, still to be dropped."""
    store = opened()
    fill(store)
    store.close()

    store = opened()
    assert store.load_parts("a", 3, "map") == {label: f"value of {label}" * 10 for label in "xyz"}
    assert store.load("a/#3/child")["inner"] == 1
    assert store.list() == ["a"]
    store.save_parts("a", [Part(3, "map", "x", "newer")])
    store.close()

    store = opened()
    assert store.load_parts("a", 3, "map")["x"] == "newer"
    store.delete("a")
    assert store.load_parts("a", 3, "map") == {}
    with pytest.raises(CheckpointNotFoundError):
        store.load("a/#3/child")


BODY_OF_PARTS = (
    "UPDATE entry SET payload = CAST(replace(CAST(payload AS TEXT), 'value of y', 'value of q') AS BLOB) "
    "WHERE instr(payload, CAST('value of y' AS BLOB))"
)


class TestDamage:
    def test_a_damaged_part_is_an_error(self, opened, change):
        """Never a wrong value; the error names the run that can be deleted, and a fork does not make it good."""
        store = opened()
        fill(store)
        assert change(BODY_OF_PARTS) == 1

        with pytest.raises(CheckpointCorruptError, match="'a'"):
            store.load_parts("a", 3, "map")
        with pytest.raises(CheckpointCorruptError):
            store.fork("a", "b")
        assert store.list() == ["a"]
        store.delete("a")
        assert store.load_parts("a", 3, "map") == {}
