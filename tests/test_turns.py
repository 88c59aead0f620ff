"""Turns: an order continues a run, and repeated delivery is harmless."""

import threading
from datetime import UTC, datetime
from decimal import Decimal

import attrs
import pytest

from stategraph import AnswerError, ExecutionError, InterruptNode, RunBusyError, RunCancelledError, RunStatus, State
from stategraph._values.progress import Progress
from stategraph.errors import FormatError
from stategraph.stores import MemoryStore, SqliteStore
from stategraph.turns import Order, forget, from_bytes, next_number, perform, to_bytes
from tests.scenarios import make_graph


@pytest.fixture(params=["memory", "sqlite"])
def store(request, tmp_path):
    """An empty store, of this process or of the machine."""
    with MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db") as store:
        yield store


class Scene:
    """Two nodes, perhaps a question between them, and a note of what ran."""

    def __init__(self, store, *, asks=False, **checkpoint):
        self.store, self.asks, self.ran = store, asks, []
        self.fails, self.does = {}, {}
        self.checkpoint = {"preserve": True, **checkpoint}
        self.graph = self.make()

    def make(self, second="b", *, max_iterations=1000):
        """Build the graph once more, as another process would."""
        asks = {"ask": InterruptNode("a", "decision")} if self.asks else {}
        nodes = {"a": self.node("a"), **asks, second: self.node(second)}
        return make_graph(nodes, store=self.store, name="work", max_iterations=max_iterations, **self.checkpoint)

    def node(self, name):
        def work(state):
            self.ran.append(name)
            self.does.get(name, bool)()
            if name in self.fails:
                raise self.fails[name]
            return {name: state.get(name, 0) + 1}

        return work

    def order(self, number=1, **more):
        """Return an order for the run."""
        if number == 1:
            more["state"] = State({"n": 1}, run_id="run")
        return Order(self.graph, "run", number, **more)

    def perform(self, order, **how):
        return perform(order, [self.graph], **how)


@pytest.fixture
def scene(store):
    """A scene that asks nothing and keeps its run."""
    return Scene(store)


# --------------------------------------------------------------------------- beginning


@pytest.mark.parametrize("preserve", [True, False])
def test_an_order_that_is_performed_twice_runs_no_node_again(store, preserve):
    """Even where a complete run is not to be preserved: it stays until `forget`."""
    scene = Scene(store, preserve=preserve)

    first, again = (scene.perform(scene.order()) for _ in range(2))

    assert first == again == store.load("run")
    assert first.status is RunStatus.COMPLETED
    assert scene.ran == ["a", "b"]


@pytest.mark.parametrize("preserve", [True, False])
def test_forget_deletes_what_the_graph_does_not_preserve(store, preserve):
    """`forget` deletes only runs that the graph does not preserve, and may be called twice."""
    scene = Scene(store, preserve=preserve)
    scene.perform(scene.order())

    for _ in range(2):
        forget(scene.order(), [scene.graph])

    assert store.list() == (["run"] if preserve else [])


def test_an_interrupted_turn_goes_on_where_it_was(scene):
    """An interrupted turn continues from its saved steps."""
    scene.fails["b"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        scene.perform(scene.order())
    scene.fails.clear()

    final = scene.perform(scene.order())

    assert (final["a"], final["b"], scene.ran) == (1, 1, ["a", "b", "b"])


# --------------------------------------------------------------------------- answering


def test_an_answer_counts_once_however_often_it_is_delivered(store):
    """The second delivery finds the run complete."""
    scene = Scene(store, asks=True)
    paused = scene.perform(scene.order())
    order = scene.order(next_number(scene.graph, "run"), updates={"decision": "yes"}, pause=paused.pause, by="ada")

    first, again = (scene.perform(order) for _ in range(2))

    assert first == again
    assert (first["decision"], scene.ran) == ("yes", ["a", "b"])
    assert scene.perform(scene.order()) == first  # and so does the earlier order


def test_an_answer_that_was_taken_up_is_not_given_again(store):
    """An accepted answer survives the death of the worker: the current node runs again with it."""
    scene = Scene(store, asks=True)
    pause = scene.perform(scene.order()).pause
    order = scene.order(2, updates={"decision": "yes", "n": 10}, pause=pause)
    scene.fails["b"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        scene.perform(order)
    scene.fails.clear()

    final = scene.perform(order)

    assert (final["decision"], final["n"], scene.ran) == ("yes", 10, ["a", "b", "b"])


def test_updates_are_laid_over_the_data_once(scene):
    """Updates are merged once, and later changes by nodes stay."""
    scene.fails["b"] = ValueError("no")
    with pytest.raises(ExecutionError):
        scene.perform(scene.order())
    for _ in range(2):
        with pytest.raises(ExecutionError):
            scene.perform(scene.order(2, updates={"n": 7}))
    assert scene.ran == ["a", "b", "b"]
    scene.fails.clear()

    final = scene.perform(scene.order(3, updates={"b": 40}))

    assert (final["n"], final["b"]) == (7, 41)
    assert scene.perform(scene.order(2, updates={"n": 0}))["n"] == 7  # overtaken


def test_an_answer_to_a_pause_that_is_over_is_refused(store):
    """The run was answered by hand, and stays as it is."""
    scene = Scene(store, asks=True)
    pause = scene.perform(scene.order()).pause
    late = scene.order(2, updates={"decision": "no"}, pause=pause)
    scene.graph.resume("run", {"decision": "yes"})
    before = store.load("run")

    with pytest.raises(AnswerError, match="does not wait at the given pause"):
        scene.perform(late)

    assert store.load("run") == before


# --------------------------------------------------------------------------- failures and cancellations


def test_a_cancelled_run_stays_until_the_next_turn(store):
    """It is no failure: that it was cancelled is what came of the turn."""
    scene = Scene(store, asks=True)
    scene.perform(scene.order())
    scene.graph.cancel("run")

    assert scene.perform(scene.order()).status is RunStatus.CANCELLED
    assert scene.perform(scene.order(2, updates={"decision": "yes"})).status is RunStatus.COMPLETED


def test_a_run_that_is_cancelled_at_work_ends_the_turn(scene):
    """A cancelled run ends its turn at the next save, with the State."""
    scene.does["a"] = lambda: scene.graph.cancel("run")

    assert scene.perform(scene.order()).status is RunStatus.CANCELLED
    assert scene.ran == ["a"]


def test_a_worker_that_stops_leaves_the_turn_undone(scene):
    """The event of the worker is no cancellation of the run: the order is performed again, elsewhere."""
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(RunCancelledError):
        scene.perform(scene.order(), cancel=cancel)

    assert scene.perform(scene.order()).status is RunStatus.COMPLETED


def test_a_run_at_work_is_not_worked_on_twice(scene):
    """The second delivery is refused, or takes the run over."""

    def deliver_again():
        with pytest.raises(RunBusyError):
            scene.perform(scene.order())

    scene.does["a"] = deliver_again

    assert scene.perform(scene.order())["a"] == 1
    assert scene.ran == ["a", "b"]


def test_a_run_that_takes_down_its_workers_is_failed(scene):
    """A run fails after its limit of dead workers, which the test only simulates; the error names the node."""
    submitted = scene.graph.submit(State({"n": 1}, run_id="run"))
    scene.store.amend(attrs.evolve(submitted, progress=Progress(recoveries=3)))

    for _ in range(2):
        with pytest.raises(ExecutionError, match="has taken down 3 owners"):
            scene.perform(scene.order(), max_recoveries=3)

    assert scene.ran == []


# --------------------------------------------------------------------------- orders


VALUES = {
    "when": datetime(2026, 1, 1, tzinfo=UTC),
    "price": Decimal("1.10"),
    "both": (1, [2.0, {"three"}], b"\0"),
    "big": 2**70,
}


def test_an_order_is_plain_data():
    """It comes back from its bytes equal, with the exact types of its values."""
    order = Order(
        "work",
        "run",
        3,
        state=State(VALUES, run_id="run"),
        updates=VALUES,
        pause="0a1b",
        by="ada",
        labels={"a": "b"},
        migrate={"old": "new"},
    )

    again = from_bytes(to_bytes(order))

    assert again == order
    assert repr(again.updates) == repr(order.updates)
    assert again.state is not None
    assert repr(dict(again.state)) == repr(dict(State(VALUES)))


NO_TURNS = {
    "nothing": b"",
    "text": b"no turn",
    "a number": b"\5",
    "no order": b"\x91\1",
    "an order without a field": b"\x91\x80",
    "cut off": to_bytes(Order("work", "run"))[:-2],
    "a field that is not known": to_bytes(Order("work", "run")).replace(b"labels", b"libels"),
    "a graph without a name": to_bytes(Order("work", "run")).replace(b"\xa4work", b"\xc4\4work"),
    "a number that is none": to_bytes(Order("work", "run", 7)).replace(b"\xa6number\7", b"\xa6number\0"),
}


def test_bytes_that_are_no_turn():
    """The error is one of ours, and shows them."""
    for kept in (*NO_TURNS.values(), None, 5):
        with pytest.raises(FormatError, match="is no order of a turn") as caught:
            from_bytes(kept)  # type: ignore[arg-type]

        assert repr(kept)[:20].rstrip("'") in str(caught.value)
