"""Durability "async" saves in the background, and "exit" at the end of a call."""

import threading
import time

import pytest

from stategraph import State
from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointSaveError
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing.corpus import Order
from tests.scenarios import make_graph

LAST = 20


class SlowStore(MemoryStore):
    """A store whose saves wait for a gate, and fail on request."""

    def __init__(self):
        super().__init__()
        self.may_save = threading.Event()
        self.may_save.set()
        self.batches = []
        self.fails_at = None

    def save_many(self, states):
        self.may_save.wait()
        self.batches.append([state.step for state in states])
        super().save_many(states)

    def save(self, state):
        if self.fails_at is not None and state.step >= self.fails_at:
            raise CheckpointSaveError(state.run_id, "the disk is full")
        super().save(state)

    @property
    def saved(self):
        return [step for batch in self.batches for step in batch]


@pytest.fixture
def store():
    return SlowStore()


def states(*steps, **data):
    return [State({"n": step, **data}, run_id="a", step=step) for step in steps]


def graph_on(store, work=lambda state: {"n": state.step + 1}, *, last=LAST, interval=1, **checkpoint):
    """Return a graph whose node runs until there are so many steps."""
    edges = [("work", "work", lambda state: state.step < last), ("work", "end")]
    options = {"durability": "async", "preserve": True, **checkpoint}
    return make_graph({"work": work, "end": lambda state: {}}, edges, store=store, interval=interval, **options)


class TestAsyncRuns:
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_an_interrupted_run_is_saved(self, store, error):
        """An interrupted run is saved as active."""

        def work(state):
            if state.step == 7:
                raise error
            return {"n": state.step + 1}

        with pytest.raises(error):
            graph_on(store, work).execute(State(run_id="a"))

        assert (store.load("a").step, store.load("a").status) == (7, RunStatus.ACTIVE)

    def test_a_failed_write_stops_the_run_at_the_next_step(self, store):
        """A run does not continue for hours without being saved."""
        entered = []

        def work(state):
            entered.append(state.step)
            time.sleep(0.02)
            return {"n": state.step + 1}

        store.fails_at = 3
        with pytest.raises(CheckpointSaveError, match="full"):
            graph_on(store, work).execute(State(run_id="a"))

        assert len(entered) < LAST
        assert store.load("a").step == 2

    @pytest.mark.parametrize("preserve", [True, False])
    def test_a_failed_write_is_raised_at_the_end(self, store, preserve):
        """A run that ends before the failure stops it raises the error; States after the failed one are not saved."""
        save, left = store.save, [3]

        def fails_once(state):
            if state.step in left:
                left.remove(state.step)
                raise CheckpointSaveError(state.run_id, "the disk is full")
            save(state)

        store.save = fails_once
        store.may_save.clear()
        threading.Timer(0.1, store.may_save.set).start()

        with pytest.raises(CheckpointSaveError, match="full"):
            graph_on(store, preserve=preserve, retention="full").execute(State(run_id="a"))

        assert [row.step for row in store.history("a")] == [0, 1, 2]

    def test_an_object_that_nodes_change(self, tmp_path):
        """Each checkpoint holds the object as it was after its step."""

        def work(state):
            order = state.get("order") or Order(1, [])
            order.items.append(state.step + 1)
            return {"order": order}

        with SqliteStore(tmp_path / "runs.db") as store:
            graph_on(store, work, retention="full").execute(State(run_id="a"))

            assert store.load("a", 3)["order"].items == [1, 2, 3]
