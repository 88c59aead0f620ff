"""Policies of nodes: retries, timeouts and handlers of errors."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stategraph import (
    AsyncNodeError,
    ConfigError,
    EventType,
    ExecutionError,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    RunStatus,
    State,
    StateGraph,
    register_type,
)
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Scene, as_async, call_sync, make_graph, raises, returns, trace
from tests.test_events import Recorder

pytestmark = pytest.mark.timeout(600)

AT_ONCE = RetryPolicy(max_attempts=3, initial_delay=0)
SOON = 0.05  # seconds: a timeout for what never ends


def failed_within(cause: Exception) -> ExecutionError:
    """Return how a graph within fails."""
    error = ExecutionError("a", State(run_id=RUN), ("a",), "failed")
    error.__cause__ = cause
    return error


def reported(observer: Recorder, *keys: str) -> list[tuple[Any, ...]]:
    """Return the types of the events, with some of their data."""
    return [(event.type.value, *(event.data.get(key) for key in keys)) for event in observer.events]


class Failing:
    """A node that fails some times, and counts."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.left, self.error = times, error or ValueError("no luck")
        self.contexts: list[NodeContext] = []

    def __call__(self, state: State, context: NodeContext) -> dict[str, Any]:
        self.contexts.append(context)
        if self.left:
            self.left -= 1
            raise self.error
        return {"done": True}


class Gate:
    """A gate that nodes wait for until it is opened; it is opened at the end of each test."""

    def __init__(self) -> None:
        self.opened = threading.Event()

    def wait(self, *_: Any) -> dict[str, Any]:
        """Wait in this thread."""
        assert self.opened.wait(300)
        return {"late": True}


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A closed gate, opened in the end; then all threads end."""
    before = set(threading.enumerate())
    gate = Gate()
    yield gate
    gate.opened.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(300)


@pytest.fixture
def store() -> MemoryStore:
    """An empty store."""
    return MemoryStore()


def run(driver: Any, graph: StateGraph, data: Any = None, **options: Any) -> State:
    """Return the final State of a fresh run."""
    return driver(graph, "execute", State(data or {}, run_id=RUN), **options)  # type: ignore[no-any-return]


def one_node(node: Any, store: Any, observer: Any = None, **policies: Any) -> StateGraph:
    """Return a graph of a node with policies and another node."""
    return make_graph({"a": node, "b": trace("b")}, store=store, observer=observer, policies={"a": policies})


# --------------------------------------------------------------------------- retries


class TestDelays:
    """RetryPolicy.delay_after: the seconds to wait."""

    def test_they_grow_up_to_the_longest(self) -> None:
        """Each delay is a multiple of the one before; without jitter delays are not random."""
        policy = RetryPolicy(max_attempts=9, initial_delay=0.5, backoff_multiplier=3, max_delay=10)

        assert [policy.delay_after(attempt, ValueError()) for attempt in range(1, 6)] == [0.5, 1.5, 4.5, 10, 10]

    @pytest.mark.parametrize(
        ("options", "attempt", "seconds"),
        [
            ({"jitter": 2, "random": lambda: 0.5}, 1, 2.0),
            ({"backoff_multiplier": 10}, 5000, 60.0),
            ({"initial_delay": 100}, 1, 100.0),
            ({"initial_delay": 100}, 2, 100.0),
            ({"initial_delay": 100, "max_delay": 60}, 1, 60.0),
            ({"delay": lambda error: 1 / 0}, 1, None),
            ({"delay": lambda error: "soon"}, 1, None),
        ],
    )
    def test_unusual_delays(self, options: dict[str, Any], attempt: int, seconds: float | None) -> None:
        """Only a given `max_delay` cuts the first delay. A policy whose function fails gives up, and says so in a note
        on the error."""
        error = ValueError()
        policy = RetryPolicy(**{"max_attempts": 9999, "initial_delay": 1, **options})

        assert policy.delay_after(attempt, error) == seconds
        assert (seconds is None) == hasattr(error, "__notes__")

    @pytest.mark.parametrize(
        ("retry_on", "error", "is_retried"),
        [
            (ConnectionError, ConnectionResetError(), True),
            (ConnectionError, ValueError(), False),
            ((KeyError, ValueError), ValueError(), True),
            ((KeyError, ValueError), TypeError(), False),
            (lambda error: "again" in str(error), ValueError("try again"), True),
            (lambda error: "again" in str(error), ValueError("never"), False),
            (ValueError, ExceptionGroup("parts", [ValueError(), ExceptionGroup("", [ValueError()])]), True),
            (ValueError, ExceptionGroup("parts", [ValueError(), TypeError()]), False),
            (Exception, AsyncNodeError("a"), False),
            (ConnectionError, failed_within(failed_within(ConnectionResetError())), True),
            (ConnectionError, failed_within(ExceptionGroup("parts", [ConnectionResetError()])), True),
            (ConnectionError, failed_within(ValueError()), False),
        ],
    )
    def test_retry_on(self, retry_on: Any, error: Exception, is_retried: bool) -> None:
        """Classes, or a function; a group fits classes if all that is in it does, the failure of a graph within if what
        it came from does. Misuse is not tried again."""
        assert (RetryPolicy(retry_on=retry_on).delay_after(1, error) is not None) == is_retried

    @pytest.mark.parametrize(
        "options",
        [
            {"max_attempts": 0},
            {"initial_delay": -1},
            {"backoff_multiplier": 0.5},
            {"max_delay": float("inf")},
            {"retry_on": "ValueError"},
            {"retry_on": KeyboardInterrupt},
            {"random": 0.5},
        ],
    )
    def test_wrong_values_are_refused(self, options: dict[str, Any]) -> None:
        """ConfigError names it."""
        with pytest.raises(ConfigError, match=f"retry.{next(iter(options))}"):
            RetryPolicy(**options)


class TestRetries:
    """A node with a RetryPolicy."""

    @pytest.mark.parametrize("kind", [lambda node: node, as_async], ids=["sync", "async"])
    def test_until_it_works(self, driver: Any, store: MemoryStore, kind: Any) -> None:
        """Attempts are counted, the idempotency key stays, and events report each failure and delay."""
        node = Failing(2)
        observer = Recorder(EventType.NODE_ERROR, EventType.NODE_RETRY, EventType.NODE_START, EventType.NODE_COMPLETE)

        def work(state: State, context: NodeContext) -> Any:
            return node(state, context)

        policy = RetryPolicy(max_attempts=3, initial_delay=0.001, backoff_multiplier=2)
        final = run(driver, one_node(kind(work), store, observer, retry=policy))

        assert (final["done"], final.step) == (True, 2)
        assert [context.attempt for context in node.contexts] == [1, 2, 3]
        assert {context.idempotency_key for context in node.contexts} == {f"flow/{RUN}/#1/a"}
        assert reported(observer, "node", "attempt", "delay")[:6] == [
            ("node.start", "a", None, None),
            ("node.error", "a", 1, None),
            ("node.retry", "a", 1, 0.001),
            ("node.error", "a", 2, None),
            ("node.retry", "a", 2, 0.002),
            ("node.complete", "a", None, None),
        ]

    def test_in_vain(self, driver: Any, store: MemoryStore) -> None:
        """The error and the stored State say how many attempts there were; a resume counts from 1."""
        node = Failing(3)
        observer = Recorder(EventType.NODE_ERROR, EventType.NODE_RETRY)
        graph = one_node(node, store, observer, retry=AT_ONCE)
        with pytest.raises(ExecutionError, match="failed after 3 attempts: ValueError: no luck") as caught:
            run(driver, graph)

        assert caught.value.__cause__ is node.error
        error = store.load(RUN).error
        assert error is not None
        assert (error.type, error.message, error.node) == ("ValueError", "no luck (after 3 attempts)", "a")
        assert reported(observer) == [("node.error",), ("node.retry",)] * 2 + [("node.error",)]
        assert driver(graph, "resume", RUN)["done"] is True
        assert node.contexts[-1].attempt == 1

    @pytest.mark.parametrize("interval", [0, 1])
    def test_items(self, driver: Any, store: MemoryStore, interval: int) -> None:
        """A retry repeats no finished item, whether it is saved or not."""
        calls: list[int] = []
        left = [OSError("no luck")]

        def double(item: int) -> int:
            calls.append(item)
            if item == 2 and left:
                raise left.pop()
            return item * 2

        graph = make_graph(
            {"a": MapNode(double, "items", "doubled", max_workers=1)},
            store=store,
            interval=interval,
            policies={"a": {"retry": AT_ONCE}},
        )

        assert run(driver, graph, {"items": [1, 2, 3]})["doubled"] == [2, 4, 6]
        assert sorted(calls) == [1, 2, 2, 3]


# --------------------------------------------------------------------------- timeouts


async def forever(state: Any) -> Any:
    """Wait, and never end."""
    await asyncio.Event().wait()


def long_nodes(gate: Gate) -> dict[str, Any]:
    """Return nodes that do not end in time, of every kind."""

    def generator(state: State) -> Any:
        yield "first"
        yield gate.wait()

    async def agenerator(state: State) -> Any:
        yield "first"
        await forever(state)

    child = make_graph({"x": trace("x"), "y": gate.wait}, store=MemoryStore(), name="child")
    achild = make_graph({"x": trace("x"), "y": forever}, store=MemoryStore(), name="child")
    return {
        "sync": gate.wait,
        "async": forever,
        "generator": generator,
        "async generator": agenerator,
        "branches": ParallelNode({"p": gate.wait, "q": returns({"q": 1})}),
        "mixed branches": ParallelNode({"p": gate.wait, "q": as_async(returns({"q": 1}))}),
        "async branches": ParallelNode({"p": forever, "q": returns({"q": 1})}),
        "items": MapNode(gate.wait, "items", "results"),
        "async items": MapNode(forever, "items", "results"),
        "graph": child.as_node(),
        "async graph": achild.as_node(),
    }


KINDS = list(long_nodes(Gate()))


class TestTimeouts:
    """A node with a timeout."""

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_node_that_takes_too_long_fails(self, driver: Any, store: MemoryStore, gate: Gate, kind: str) -> None:
        """A slow node fails with a TimeoutError; earlier steps count, and the run can be resumed."""
        long = long_nodes(gate)[kind]
        nodes = {"first": trace("first"), "a": long, "b": trace("b")}
        graph = make_graph(nodes, store=store, policies={"a": {"timeout": SOON}})
        with pytest.raises(ExecutionError, match=r"timeout of 0\.05 s") as caught:
            run(driver, graph, {"items": [1]})

        assert type(caught.value.__cause__) is TimeoutError
        saved = store.load(RUN)
        assert (saved.checkpoint_node, saved.status, saved["trace"]) == ("first", RunStatus.FAILED, ["first"])
        mended = make_graph({**nodes, "a": returns({"mended": 1})}, store=store)
        final = driver(mended, "resume", RUN, allow_changed=True, abandon_parts=True)
        assert (final["mended"], "late" in final) == (1, False)

    def test_an_async_function_cleans_up(self, driver: Any, store: MemoryStore) -> None:
        """It is cancelled: its finally runs before the run ends."""
        done: list[str] = []

        async def node(state: State) -> Any:
            try:
                await forever(state)
            finally:
                done.append("cleaned up")

        with pytest.raises(ExecutionError):
            run(driver, one_node(node, store, timeout=1.0))  # enough to begin

        assert done == ["cleaned up"]


# --------------------------------------------------------------------------- handlers

ERROR = {"type": "ValueError", "message": "no luck", "node": "a"}
WAY = [("a", "b"), ("b", "end"), ("handler", "end")]


def handled(node: Any, store: Any, observer: Any = None, handler: Any = None, **options: Any) -> StateGraph:
    """Return a graph whose first node has a handler of failures."""
    nodes = {"a": node, "b": trace("b"), "handler": handler or trace("handler"), "end": trace("end")}
    policies = {"a": {"on_error": "handler", **options.pop("more", {})}}
    return make_graph(nodes, WAY, store=store, observer=observer, policies=policies, **options)


class TestHandlers:
    """A node with on_error."""

    @pytest.mark.parametrize("kind", [lambda node: node, as_async], ids=["sync", "async"])
    def test_a_failure_goes_to_the_handler(self, driver: Any, store: MemoryStore, kind: Any) -> None:
        """The failed node counts as a step, whose outcome is the error."""
        final = run(driver, handled(kind(raises(ValueError("no luck"))), store))

        assert (final["trace"], final["error"], final.step) == (["handler", "end"], ERROR, 3)
        assert (final.status, final.error) == (RunStatus.COMPLETED, None)

    @pytest.mark.parametrize("more", [{}, {"timeout": 20}], ids=["plain", "visited"])
    def test_a_crash_in_between(self, driver: Any, store: MemoryStore, more: Any) -> None:
        """After a crash the run continues at the handler, not along the edges."""
        graph = handled(raises(ValueError("no luck")), store, handler=raises(KeyboardInterrupt()), more=more)
        with pytest.raises(KeyboardInterrupt):
            run(call_sync, graph)

        saved = store.load(RUN)
        assert (saved.step, saved.checkpoint_node, saved["error"]) == (1, "a", ERROR)
        mended = handled(raises(ValueError("no luck")), store, more=more)
        assert driver(mended, "resume", RUN)["trace"] == ["handler", "end"]

    def test_after_the_last_attempt(self, driver: Any, store: MemoryStore) -> None:
        """Retries come first."""
        node = Failing(3)
        final = run(driver, handled(node, store, more={"retry": AT_ONCE}))

        assert len(node.contexts) == 3
        assert final["error"] == {**ERROR, "message": "no luck (after 3 attempts)"}


# --------------------------------------------------------------------------- what a failed attempt has changed


@register_type
@dataclasses.dataclass
class Tally:
    """A value that may change in place."""

    numbers: list[int] = dataclasses.field(default_factory=list)


def failing_at(*attempts: int, seen: list[Any]) -> Any:
    """Return a node that changes a value of its State in place, and fails in these attempts."""

    def node(state: State) -> dict[str, Any]:
        seen.append(list(state["tally"].numbers))
        state["tally"].numbers.append(2)
        if len(seen) in attempts:
            raise OSError("away")
        return {"done": True}

    return node


@pytest.mark.parametrize(
    ("interval", "is_branch", "key"), [(1, False, "tally"), (5, True, "tallies"), (0, True, "tally")]
)
def test_a_retry_begins_with_the_state_as_it_was(memory_scene: Scene, interval: int, is_branch: bool, key: str) -> None:
    """A retry begins without the changes that a failed attempt made in place."""
    seen: list[Any] = []

    def count(state: State) -> Any:
        return failing(state if key == "tally" else State({"tally": state["tallies"][0]}))

    failing = failing_at(1, 2, seen=seen)
    node = memory_scene.as_node(count)
    graph = make_graph(
        {"a": returns({}), "b": ParallelNode({"one": node}) if is_branch else node, "c": returns({})},
        store=memory_scene.store,
        policies={"b": {"retry": AT_ONCE}},
        interval=interval,
    )

    final = memory_scene.execute(graph, State({"tally": Tally([1]), "tallies": [Tally([1])]}, run_id=RUN))

    assert seen == [[1], [1], [1]]
    assert (final["tally"] if key == "tally" else final["tallies"][0]) == Tally([1, 2])


@pytest.mark.parametrize(
    ("before", "retry", "interval"), [("a", None, 1), ("a", AT_ONCE, 1), ("", AT_ONCE, 1), ("", AT_ONCE, 5)]
)
def test_an_error_has_the_state_as_it_was(
    memory_scene: Scene, before: str, retry: RetryPolicy | None, interval: int
) -> None:
    """Changes that failed attempts made in place are undone, also of a first node; a resume begins there."""
    seen: list[Any] = []
    nodes = {**dict.fromkeys(before, returns({})), "b": failing_at(*range(1, 4 if retry else 2), seen=seen)}
    policies = {"b": {"retry": retry}} if retry else {}
    graph = memory_scene.graph(nodes, policies=policies, interval=interval)

    with pytest.raises(ExecutionError) as caught:
        memory_scene.execute(graph, State({"tally": Tally([1])}, run_id=RUN))

    assert caught.value.state["tally"] == graph.store.load(RUN)["tally"] == Tally([1])
    assert caught.value.state.status is RunStatus.FAILED
    assert "away" in caught.value.state.error.message
    assert memory_scene.resume(graph)["done"] is True
    assert seen == [[1]] * len(seen)
