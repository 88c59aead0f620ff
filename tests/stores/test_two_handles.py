"""Two store objects on the same files: what one remembers of a run is not what another has made of it."""

import threading
from pathlib import Path

import attrs
import pytest

from stategraph import State
from stategraph.errors import StepConflictError
from stategraph.stores._rows import known
from stategraph.stores.disk import DiskStore
from stategraph.stores.retention import Policy
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing.corpus import Order


@pytest.fixture(params=[SqliteStore, DiskStore])
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


def test_a_run_that_another_began_anew(store, other):
    """A State saved on top of it can be loaded."""
    saved(store, 1)
    other.delete("a")
    saved(other, 1, text="another run")
    state = State({"n": 2}, run_id="a", step=2)

    store.save(state)

    assert store.load("a") == state


def test_a_run_that_another_deleted_begins_anew(store, other):
    """It is not behind anything."""
    saved(store, 1, 2, 3)
    other.delete("a")

    saved(store, 1)

    assert other.load("a").step == 1


def test_a_run_that_another_deleted_is_saved_again(store, other):
    """With another status."""
    saved(store, 3)
    state = store.load("a")
    other.delete("a")

    store.save(attrs.evolve(state, status="failed"))

    assert other.load("a").status == "failed"


def test_a_run_that_another_rolled_back(store, other):
    """Goes on from there."""
    store.retain("a", Policy("full"))
    saved(store, 1, 2, 3)
    other.rollback("a", 1)

    saved(store, 2, other="way")

    assert other.load("a")["other"] == "way"


@pytest.mark.inside
def test_a_run_that_another_went_on_with_is_not_pruned(store, other, monkeypatch):
    """Though it was over when prune began."""
    store.retain("a", Policy(ttl=1e-9))
    store.save(State(run_id="a", step=1, status="completed"))
    heads = store._heads

    def then_another_goes_on(*asked):
        found = heads(*asked)
        other.amend(State({"new": "question"}, run_id="a", step=1))
        return found

    monkeypatch.setattr(store, "_heads", then_another_goes_on)
    store.prune()

    assert other.load("a")["new"] == "question"


@pytest.mark.inside
def test_a_load_beside_a_save(store, other, monkeypatch):
    """What it remembers of the run is all of one time: what is saved after it can be loaded."""
    store.retain("a", Policy("full"))
    saved(store, 1)
    chain = other._chain

    def then_another_saves(*asked):
        found = chain(*asked)
        store.save(attrs.evolve(store.load("a"), status="failed"))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(other, "_chain", then_another_saves)
        state = other.load("a")

    other.save(attrs.evolve(state.set("n", 2), step=2))
    assert store.load("a").step == 2


def test_an_object_that_changed_after_it_was_loaded(store, other):
    """Is other data of a step that is saved."""
    store.save(State({"order": Order(1, ["tea"])}, run_id="a", step=1))
    state = other.load("a")
    state["order"].items.append("milk")

    with pytest.raises(StepConflictError):
        other.save(attrs.evolve(state, status="failed"))

    assert store.load("a")["order"].items == ["tea"]


def test_keys_keep_their_order(store, other):
    """One that went and came back is the last, as in the State that was saved."""
    store.retain("a", Policy("full"))
    state = State({"a": [1], "b": [2], "c": [3]}, run_id="a", step=1)
    store.save(state)
    state = attrs.evolve(state.remove("a").set("a", state["a"]), step=2)
    store.save(state)

    assert list(other.load("a")) == list(state) == ["b", "c", "a"]


def test_threads_that_end_leave_nothing_open(store):
    """However many have saved: an async run has a thread of its own."""
    saved(store, 1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for step in range(2, 32):
        thread = threading.Thread(target=saved, args=(store, step))
        thread.start()
        thread.join()

    assert len(list(Path("/proc/self/fd").iterdir())) < before + 10


@pytest.mark.parametrize("states", [1, 3])
def test_several_saves_of_one_go_by_what_another_was_told(store, other, states):
    """One keeps the newest checkpoint, as it was told; the other was told since that all are to be kept."""
    saved(store, 1)
    other.retain("a", Policy("full"))
    saved(other, 2)

    store.save_many([State({"n": step}, run_id="a", step=step) for step in range(3, 3 + states)])
    store.save_many([State({"n": step}, run_id="a", step=step) for step in range(10, 13)])

    assert [row.step for row in other.history("a")] == [1, 2, *range(3, 3 + states), 10, 11, 12]


def test_what_was_told_last_counts(store, other):
    """From the next save on, whoever makes it."""
    store.retain("a", Policy("full"))
    saved(store, 1, 2)
    other.retain("a", Policy("windowed", window=2))
    saved(other, 3)

    saved(store, 4, 5)

    assert [row.step for row in store.history("a")] == [4, 5]


@pytest.mark.inside
def test_a_run_that_is_at_work_does_not_end_a_prune(store, other, monkeypatch):
    """What is due of it goes another time; all others lose what is due, and that is told."""
    for run_id in ("a", "b", "c"):
        store.retain(run_id, Policy("full"))
        for step in range(1, 9):
            store.save(State({"big": str(step) * 20_000}, run_id=run_id, step=step))
        store.retain(run_id, Policy("windowed", window=2))
        store.save(attrs.evolve(store.load(run_id), status="failed"))
    index = store._index

    def then_it_goes_on(run_id):
        rows = index(run_id)
        if run_id == "b":
            other.save(attrs.evolve(other.load("b").set("n", 1), step=other.load("b").step + 1))
        return rows

    monkeypatch.setattr(store, "_index", then_it_goes_on)
    pruned = store.prune()
    monkeypatch.undo()

    assert (pruned.runs, pruned.damaged) == ((), ())
    assert pruned.checkpoints == 2 * 6
    assert [row.step for row in other.history("b")][-1] > 8
    assert store.prune().checkpoints > 0


@pytest.mark.inside
def test_policies_of_many_runs_are_not_remembered_for_ever(store, other, monkeypatch):
    """A run that was saved has its own in the store; one that was not keeps it until it is."""
    monkeypatch.setattr(known, "_MOST_TAILS", 5)
    store.retain("waits", Policy("full"))
    for number in range(50):
        store.retain(f"run-{number}", Policy("windowed", window=2))
        store.save(State(run_id=f"run-{number}", step=1))

    assert len(store._known._policies) == 1
    for run_id, kept in (("run-0", 2), ("waits", 4)):
        for step in range(2, 6):
            store.save(State({"n": step}, run_id=run_id, step=step))
        assert len(other.history(run_id)) == kept
