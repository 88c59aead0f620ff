"""Durability "async" and "exit": what is saved behind a run, or where it ends."""

import signal
import threading
import time

import pytest

from stategraph import CheckpointConfig, GraphConfig, State, StateGraph
from stategraph._values.progress import Part
from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointSaveError, ExecutionError, NotSerializableError, RunCancelledError
from stategraph.stores import write_behind as background
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore
from stategraph.stores.write_behind import WriteBehindStore
from stategraph.testing.corpus import Order

LAST = 20


def interrupted_at_once(function, *arguments):
    """Call a function in the main thread, and interrupt it soon."""
    timer = threading.Timer(0.05, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT))
    timer.start()
    return function(*arguments)


def wait_until_no_thread_saves():
    """Wait until those have ended that nobody could join."""
    give_up = time.monotonic() + 20
    while any(thread.name == "stategraph writer" for thread in threading.enumerate()):
        assert time.monotonic() < give_up
        time.sleep(0.001)


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
    options = {"durability": "async", "preserve": True, **checkpoint}
    graph = StateGraph(
        GraphConfig(name="g", observer="noop", checkpoint=CheckpointConfig(interval=interval, **options)), store=store
    )
    graph.add_node("work", work)
    graph.add_node("end", lambda state: {})
    graph.set_entry_point("work")
    graph.set_exit_point("end")
    graph.add_edge("work", "work", lambda state: state.step < last)
    graph.add_edge("work", "end")
    return graph


class TestWriteBehindStore:
    def test_save_returns_before_the_store_has_saved(self, store):
        """And flush when it has."""
        store.may_save.clear()
        behind = WriteBehindStore(store)

        behind.save(states(1)[0])

        assert store.list() == []
        store.may_save.set()
        behind.flush()
        assert store.load("a").step == 1

    def test_the_order_is_kept(self, store):
        """Every State once, in the order in which they came, some of them together."""
        behind = WriteBehindStore(store)
        for state in states(*range(1, 201)):
            behind.save(state)
        behind.flush()

        assert store.saved == list(range(1, 201))
        assert len(store.batches) < 200

    def test_a_run_that_is_too_far_ahead_waits(self, store, monkeypatch):
        """Never more than the bound are waiting, and none is dropped."""
        monkeypatch.setattr(background, "QUEUE_BOUND", 5)
        store.may_save.clear()
        behind = WriteBehindStore(store)
        taken = []

        def run():
            for state in states(*range(1, 21)):
                behind.save(state)
                taken.append(state.step)

        runner = threading.Thread(target=run)
        runner.start()
        time.sleep(0.1)
        ahead = len(taken)
        store.may_save.set()
        runner.join(10)
        behind.flush()

        assert ahead == 5
        assert store.saved == list(range(1, 21))

    def test_each_part_counts_as_a_save(self, store, monkeypatch):
        """A run whose parts come in batches is no further ahead for that; parts that wait are saved together."""
        monkeypatch.setattr(background, "QUEUE_BOUND", 6)
        behind, taken, written = WriteBehindStore(store), [], []
        store.save(states(1)[0])
        keep = store.save_parts

        def save_parts(run_id, parts):
            store.may_save.wait()
            written.append(len(parts))
            keep(run_id, parts)

        store.save_parts = save_parts
        store.may_save.clear()

        def run():
            for first in range(0, 30, 3):
                behind.save_parts("a", [Part(2, "map", str(number), [number]) for number in range(first, first + 3)])
                taken.append(first)

        runner = threading.Thread(target=run)
        runner.start()
        time.sleep(0.1)
        ahead = len(taken)
        store.may_save.set()
        runner.join(10)
        behind.flush()

        assert ahead == 2
        assert sum(written) == 30
        assert max(written) <= 6 + 2
        assert store.load_parts("a", 2, "map") == {str(number): [number] for number in range(30)}

    def test_parts_are_saved_as_they_were_when_they_were_given(self, store):
        """Whatever happens to objects in them meanwhile, and in order with the States around them."""
        order = Order(1, ["tea"])
        behind = WriteBehindStore(store)
        behind.save(states(1)[0])
        behind.save_parts("a", [Part(2, "map", "x", order), Part(2, "map", "y", [order])])
        order.items.append("milk")
        behind.save_parts("a", [Part(3, "map", "x", "later")])
        behind.drop_parts("a", 1)

        assert behind.load_parts("a", 2, "map") == {"x": Order(1, ["tea"]), "y": [Order(1, ["tea"])]}
        behind.save(states(2)[0])
        behind.drop_parts("a", 2)
        behind.flush()
        assert store.load_parts("a", 2, "map") == {}
        assert store.load_parts("a", 3, "map") == {"x": "later"}

    def test_a_part_that_cannot_be_copied_is_refused_at_once(self, store):
        """As the store does it; what waited before it is saved."""
        behind = WriteBehindStore(store)
        behind.save(states(1)[0])
        behind.save_parts("a", [Part(2, "map", "x", 1)])

        with pytest.raises(NotSerializableError):
            behind.save_parts("a", [Part(2, "map", "y", threading.Lock())])

        assert store.load_parts("a", 2, "map") == {"x": 1}

    def test_a_write_that_failed_is_raised_by_the_next_save(self, store):
        """And once only; what waited behind it is not saved, for it builds on what is missing."""
        store.fails_at = 2
        behind = WriteBehindStore(store)
        for state in states(1, 2):
            behind.save(state)
        time.sleep(0.1)

        with pytest.raises(CheckpointSaveError, match="full"):
            behind.save(states(3)[0])

        behind.flush()
        assert store.load("a").step == 1

    def test_a_write_that_failed_is_raised_by_flush(self, store):
        """If there is no next save."""
        store.fails_at = 1
        behind = WriteBehindStore(store)
        behind.save(states(1)[0])

        with pytest.raises(CheckpointSaveError, match="full"):
            behind.flush()

    def test_after_a_failure_it_saves_again(self, store):
        """A State that comes after the error was raised is saved like any other, or its save is an error too."""
        store.fails_at = 1
        behind = WriteBehindStore(store)
        behind.save(states(1)[0])
        time.sleep(0.1)
        with pytest.raises(CheckpointSaveError):
            behind.save(states(2)[0])
        store.fails_at = None

        behind.save(states(3)[0])
        behind.flush()

        assert store.load("a").step == 3

    def test_a_writer_that_waits_for_room_is_told_of_the_failure(self, store, monkeypatch):
        """It does not wait for a thread that has stopped."""
        monkeypatch.setattr(background, "QUEUE_BOUND", 2)
        store.fails_at = 1
        store.may_save.clear()
        behind = WriteBehindStore(store)
        for state in states(1, 2):
            behind.save(state)
        threading.Timer(0.1, store.may_save.set).start()

        with pytest.raises(CheckpointSaveError):
            behind.save(states(3)[0])
        behind.flush()

    def test_flush_of_nothing(self, store):
        """Is done at once, any number of times."""
        behind = WriteBehindStore(store)
        behind.flush()
        behind.flush()

        assert store.list() == []

    def test_the_rest_of_the_store_waits_until_all_is_saved(self, store):
        """What is loaded, amended or deleted is what was saved before."""
        behind = WriteBehindStore(store)
        behind.save(states(1)[0])
        assert behind.load("a").step == 1
        behind.save(states(2)[0])
        behind.amend(State({"n": "other"}, run_id="a", step=2))
        assert store.load("a")["n"] == "other"
        behind.save(states(3)[0])
        behind.delete("a")
        assert store.list() == []

    def test_a_state_is_kept_as_it_was_when_it_was_saved(self, store):
        """An object in it that changes before the thread comes to it changes nothing that is kept."""
        store.may_save.clear()
        order = Order(1, ["tea"])
        behind = WriteBehindStore(store)
        behind.save(State({"order": order}, run_id="a", step=1))

        order.items.append("milk")
        store.may_save.set()
        behind.flush()

        assert store.load("a")["order"].items == ["tea"]


class TestAsyncRuns:
    @pytest.mark.parametrize("retention", ["latest", "full"])
    @pytest.mark.parametrize("interval", [1, 2, 7])
    @pytest.mark.parametrize("last", [1, 6, 20])
    def test_a_completed_run_is_saved(self, tmp_path, retention, interval, last):
        """When execute returns, all that was to be kept is kept."""
        with SqliteStore(tmp_path / "runs.db") as store:
            final = graph_on(store, last=last, retention=retention, interval=interval).execute(State(run_id="a"))

            assert store.load("a") == final
            due = [step for step in range(1, last + 1) if step % interval == 0]
            steps = [row.step for row in store.history("a")]
            assert steps == ([last + 1] if retention == "latest" else [0, *sorted({*due, last + 1}), last + 1])

    def test_a_run_that_completes_at_its_first_step(self, tmp_path):
        """The State is saved as active and as completed in one go."""
        with SqliteStore(tmp_path / "runs.db") as store:
            checkpoint = CheckpointConfig(interval=1, preserve=True, durability="async", retention="full")
            graph = StateGraph(GraphConfig(name="g", observer="noop", checkpoint=checkpoint), store=store)
            graph.add_node("only", lambda state: {"n": 1})
            graph.set_entry_point("only")
            graph.set_exit_point("only")

            final = graph.execute(State(run_id="a"))

            assert store.load("a") == final

    def test_a_completed_run_that_is_not_preserved(self, store):
        """Is forgotten, with what still waited."""
        graph_on(store, preserve=False).execute(State(run_id="a"))

        assert store.list() == []

    def test_a_failed_run_is_saved(self, store):
        """Up to the last completed step, with the reason."""

        def work(state):
            if state.step == 7:
                raise ValueError("no")
            return {"n": state.step + 1}

        with pytest.raises(ExecutionError):
            graph_on(store, work).execute(State(run_id="a"))

        assert (store.load("a").step, store.load("a").status) == (7, RunStatus.FAILED)

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

    @pytest.mark.parametrize("is_run", [True, False])
    def test_an_interrupt_while_saves_are_waited_for_costs_none(self, store, is_run):
        """They are made, and waited for again."""
        store.may_save.clear()
        threading.Timer(0.3, store.may_save.set).start()
        if is_run:
            with pytest.raises(KeyboardInterrupt):
                interrupted_at_once(graph_on(store).execute, State(run_id="a"))
        else:
            saves = WriteBehindStore(store)
            saves.save(State(run_id="a", step=LAST + 1))
            time.sleep(0.02)  # the writer is at it
            with pytest.raises(KeyboardInterrupt):
                interrupted_at_once(saves.flush)
            saves.flush()

        assert store.load("a").step == LAST + 1

    def test_an_interrupt_at_the_start_of_the_thread_goes_up(self, store, monkeypatch):
        """It is not taken for a lack of threads: one that waits for the first sign of a thread finds a lock free."""
        started = threading.Thread.start

        def start(thread):
            started(thread)
            if thread.name == "stategraph writer":
                monkeypatch.undo()
                try:
                    raise KeyboardInterrupt
                finally:
                    raise RuntimeError("cannot release un-acquired lock")

        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            graph_on(store).execute(State(run_id="a"))

        assert store.load("a").step == 1
        assert graph_on(store).resume("a").step == LAST + 1
        wait_until_no_thread_saves()

    def test_a_cancelled_run_is_saved(self, store):
        """Up to the last completed step."""
        cancel = threading.Event()

        def work(state):
            if state.step == 7:
                cancel.set()
            return {"n": state.step + 1}

        with pytest.raises(RunCancelledError):
            graph_on(store, work).execute(State(run_id="a"), cancel=cancel)

        assert store.load("a").step == 8

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

    def test_a_node_and_a_write_that_fail(self, store):
        """The node's error is raised; that of the write is a note on it."""

        def work(state):
            if state.step == 7:
                time.sleep(0.1)
                raise ValueError("no")
            return {"n": state.step + 1}

        store.fails_at = 3
        with pytest.raises(ExecutionError) as caught:
            graph_on(store, work, interval=7).execute(State(run_id="a"))

        assert "full" in "".join(caught.value.__notes__)

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

    def test_a_completed_run_that_is_not_preserved(self, store):
        """Leaves nothing."""
        graph_on(store, durability="exit", preserve=False).execute(State(run_id="a"))

        assert store.list() == []
