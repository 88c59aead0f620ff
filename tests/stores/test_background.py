"""Durability "async" and "exit": what is saved behind a run, or where it ends."""

import signal
import threading
import time

import pytest

from stategraph import State
from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointSaveError, ExecutionError
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.testing.corpus import Order
from tests.scenarios import make_graph

LAST = 20


def interrupted_at_once(function, *arguments):
    """Call a function in the main thread, and interrupt it soon."""
    timer = threading.Timer(0.05, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
    timer.start()
    return function(*arguments)


class SlowStore(MemoryStore):
    """Saves when it is let, and fails when it is told to."""

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
    """-> a graph whose node runs until there are so many steps."""
    edges = [("work", "work", lambda state: state.step < last), ("work", "end")]
    options = {"durability": "async", "preserve": True, **checkpoint}
    return make_graph({"work": work, "end": lambda state: {}}, edges, store=store, interval=interval, **options)


class TestAsyncRuns:
    @pytest.mark.parametrize("retention", ["latest", "full"])
    @pytest.mark.parametrize("interval", [1, 7])
    @pytest.mark.parametrize("last", [1, 20])
    def test_a_completed_run_is_saved(self, tmp_path, retention, interval, last):
        """When execute returns, all that was to be kept is kept."""
        with SqliteStore(tmp_path / "runs.db") as store:
            final = graph_on(store, last=last, retention=retention, interval=interval).execute(State(run_id="a"))

            assert store.load("a") == final
            due = [step for step in range(1, last + 1) if step % interval == 0]
            steps = [row.step for row in store.history("a")]
            assert steps == ([last + 1] if retention == "latest" else [0, *sorted({*due, last + 1}), last + 1])

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
    def test_an_interrupted_run_is_saved(self, store, error):
        """And stays active."""

        def work(state):
            if state.step == 7:
                raise error
            return {"n": state.step + 1}

        with pytest.raises(error):
            graph_on(store, work).execute(State(run_id="a"))

        assert (store.load("a").step, store.load("a").status) == (7, RunStatus.ACTIVE)

    def test_an_interrupt_while_saves_are_waited_for_costs_none(self, store):
        """They are made, and waited for again."""
        store.may_save.clear()
        threading.Timer(0.3, store.may_save.set).start()
        with pytest.raises(KeyboardInterrupt):
            interrupted_at_once(graph_on(store).execute, State(run_id="a"))

        assert store.load("a").step == LAST + 1

    def test_a_failed_write_stops_the_run_at_the_next_step(self, store):
        """It does not go on for hours without being saved."""
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
        """As itself. A run that was too quick to be stopped does not seem to be well, and its history has no gap: what
        comes behind the write that failed is not saved either."""
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
        """Each checkpoint has it as it was after its step."""

        def work(state):
            order = state.get("order") or Order(1, [])
            order.items.append(state.step + 1)
            return {"order": order}

        with SqliteStore(tmp_path / "runs.db") as store:
            graph_on(store, work, retention="full").execute(State(run_id="a"))

            assert store.load("a", 3)["order"].items == [1, 2, 3]

    @pytest.mark.parametrize("durability", ["sync", "async"])
    def test_a_failed_node_does_not_change_what_is_saved(self, store, durability):
        """What it did to an object before it failed is not in the last completed State, which is saved as failed."""

        def work(state):
            order = state.get("order") or Order(1, [])
            order.items.append(state.step + 1)
            if state.step == 3:
                raise ValueError("no")
            return {"order": order}

        with pytest.raises(ExecutionError):
            graph_on(store, work, durability=durability).execute(State(run_id="a"))

        kept = store.load("a")
        assert kept["order"].items == [1, 2, 3]
        assert kept.status is RunStatus.FAILED
        assert kept.error is not None
        assert kept.error.message == "no"


class TestExitRuns:
    def test_nothing_is_saved_on_the_way(self, store):
        """Not even the first step."""
        seen = []

        def work(state):
            seen.extend(store.list())
            return {}

        graph_on(store, work, durability="exit").execute(State(run_id="a"))

        assert seen == []
        assert store.load("a").status is RunStatus.COMPLETED

    def test_a_failed_run_is_saved_and_goes_on(self, store):
        """From the last completed step, with none repeated."""
        entered = []

        def work(state):
            entered.append(state.step)
            if state.step == 7 and entered.count(7) == 1:
                raise ValueError("no")
            return {"n": state.step + 1}

        graph = graph_on(store, work, durability="exit")
        with pytest.raises(ExecutionError):
            graph.execute(State(run_id="a"))
        assert (store.load("a").step, store.load("a").status) == (7, RunStatus.FAILED)

        graph.resume("a")

        assert entered == [*range(8), *range(7, LAST)]
