"""Two store objects on the same files: one notices changes that the other makes."""

import pytest

from stategraph import State
from stategraph._owners.base import owned
from stategraph._values.ids import step_of
from stategraph._values.progress import Part
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointNotFoundError, StepConflictError
from stategraph.stores.base import Policy
from stategraph.stores.sqlite import SqliteStore
from tests.postgres_server import postgres_at
from tests.redis_server import redis_at
from tests.stores.inside import table_of


@pytest.fixture(params=[SqliteStore, postgres_at, redis_at])
def opened(request, tmp_path):
    stores = []

    def open_another():
        stores.append(request.param(tmp_path / "runs"))
        return stores[-1]

    yield open_another
    for store in stores:
        store.close()


@pytest.fixture
def store(opened):
    return opened()


@pytest.fixture
def other(opened):
    return opened()


def saved(store, *steps, **data):
    for step in steps:
        store.save(State({"n": step, **data}, run_id="a", step=step))


def test_a_run_that_another_began_again(store, other):
    """Nothing of the old one gets into it, until it is loaded."""
    saved(store, 1)
    other.delete("a")
    saved(other, 1, text="another run")
    state = State({"n": 2}, run_id="a", step=2)

    with pytest.raises(StepConflictError, match="deleted"):
        store.save(state)
    with pytest.raises(StepConflictError, match="deleted"):
        store.save_many([state, State({"n": 3}, run_id="a", step=3)])

    assert other.load("a")["text"] == "another run"
    assert store.load("a").step == 1
    store.save(state)
    assert other.load("a") == state


def test_a_run_that_another_rolled_back(store, other):
    """A save after the rollback of another handle builds on the step that it went back to."""
    store.retain("a", Policy("full"))
    saved(store, 1, 2, 3)
    other.rollback("a", 1)

    saved(store, 2, other="way")

    assert other.load("a")["other"] == "way"


class TestNestedRunsOfARunThatWasDeleted:
    """A nested run of a deleted run is no part of a new run with the same id."""

    @pytest.fixture
    def dead(self, store):
        """Return a handle that has saved a run and a nested run of it."""
        saved(store, 1)
        store.save(nested(1))
        return store

    @staticmethod
    def begun_again(other):
        other.delete("a")
        saved(other, 1, text="another run")

    @staticmethod
    def within(store):
        """Return all that the files hold within the run, from both handles."""
        return table_of(store).nested_ids("a")

    @pytest.mark.parametrize("step", [1, 2])
    def test_a_save_is_refused(self, dead, other, step):
        self.begun_again(other)

        with pytest.raises(StepConflictError, match="deleted"):
            dead.save(nested(step, status="failed"))

        assert self.within(other) == []

    @pytest.mark.parametrize("has_parts", [False, True])
    def test_parts_are_refused(self, dead, other, has_parts):
        dead.save_parts("a", [Part(2, "map", "x", "dead")])
        self.begun_again(other)
        if has_parts:
            other.save_parts("a", [Part(2, "map", "y", "new")])

        with pytest.raises(StepConflictError, match="deleted"):
            dead.save_parts("a", [Part(2, "map", "z", "dead")])

        assert other.load_parts("a", 2, "map") == ({"y": "new"} if has_parts else {})

    @pytest.mark.parametrize("begins", ["load", "look"])
    def test_the_way_out(self, dead, other, begins):
        """The handle can save again after it loads the new run or begins one."""
        self.begun_again(other)
        if begins == "load":
            dead.load("a")
        else:
            other.delete("a")
            with pytest.raises(CheckpointNotFoundError):
                dead.load("a")
            with owned(dead, "a"):
                dead.save(nested(1, new="run"))  # before the run around it, as durability "exit" does
                saved(dead, 1)

        dead.save(nested(2, new="run"))

        assert other.load("a/#2/child")["new"] == "run"


def nested(step, run_id="a/#2/child", status="active", **data):
    parent = ParentStep("a", step_of(run_id) - 1)
    return State({"n": step, **data}, run_id=run_id, step=step, status=status, parent=parent)
