"""Nodes that are generators: each runs as one activity from start to end, with every driver."""

from __future__ import annotations

import asyncio
import contextlib
import decimal
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

import attrs
import pytest

from stategraph import ExecutionError, RunCancelledError, State, StateGraph, Updates
from stategraph.stores.memory import MemoryStore
from tests.pairs import every_pair
from tests.scenarios import DRIVERS, RUN, Scene, as_async_chunks, as_sync, call_async, make_graph
from tests.test_streams import stream

pytestmark = pytest.mark.timeout(600)
NAME: ContextVar[str] = ContextVar("NAME", default="unset")


def alone(node: Any, **options: Any) -> StateGraph:
    """Return a graph of this node."""
    return make_graph({"talks": node}, store=MemoryStore(), **options)


def limited(node: Any) -> StateGraph:
    """Return the same, with a time limit that is never reached."""
    return alone(node, policies={"talks": {"timeout": 50}})


def nested(node: Any) -> StateGraph:
    """Return the same, within another."""
    return make_graph({"inner": alone(node, name="inner").as_node()}, store=MemoryStore())


@attrs.define
class Talk:
    """The outcome of a generator node: its chunks and its result."""

    said: list[str] = attrs.field(factory=list)


def typed(node: Any) -> StateGraph:
    """Return the same, with a schema."""
    return alone(node, schema=Talk)


GRAPHS, KINDS = [alone, limited, nested, typed], [as_sync, as_async_chunks]


@pytest.fixture(params=GRAPHS)
def make(request: pytest.FixtureRequest) -> Any:
    """Makes a graph of a node."""
    return request.param


@pytest.fixture(params=KINDS, ids=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> Any:
    """Makes a sync or an async generator of a sync one."""
    return request.param


@pytest.fixture(params=["execute", "stream"])
def said(request: pytest.FixtureRequest, memory_play: Scene) -> Callable[[StateGraph], Any]:
    """Return what a graph has said, run by every driver, with a caller that iterates over the run and without."""
    if request.param == "execute":
        return lambda graph: memory_play.execute(graph)["said"]
    return lambda graph: stream(memory_play, graph, "stream", State(run_id=RUN))[-1]["said"]


# --------------------------------------------------------------------------- thread, task and context


def precise(state: State) -> Iterator[Any]:
    """Reckon with 50 digits."""
    with decimal.localcontext(prec=50):
        yield "one"
        yield "two"
        yield Updates({"said": [str(Decimal(1) / 3)]})


def named(state: State) -> Iterator[Any]:
    """Have a name for a while."""
    token = NAME.set("caller")
    yield "one"
    found = NAME.get()
    NAME.reset(token)
    yield "two"
    yield Updates({"said": [found, NAME.get()]})


class TestContext:
    """The context variables of a generator."""

    @every_pair(
        generator=[(precise, ["0." + 50 * "3"]), (named, ["caller", "unset"])],
        make=GRAPHS,
        kind=KINDS,
        said=["execute", "stream"],
        driver=DRIVERS,
        indirect=["make", "kind", "said", "driver"],
    )
    def test_it_is_set_until_the_generator_resets_it(self, make: Any, said: Any, kind: Any, generator: Any) -> None:
        node, found = generator
        assert said(make(kind(node))) == found

    def test_it_is_not_set_for_readers_and_later_nodes(self, memory_play: Scene, kind: Any) -> None:
        seen: list[int] = []

        def after(state: State) -> dict[str, Any]:
            seen.append(decimal.getcontext().prec)
            return {}

        graph = make_graph({"talks": kind(precise), "after": after}, store=MemoryStore())

        async def main() -> None:
            async for _ in graph.astream(State()):
                seen.append(decimal.getcontext().prec)

        if memory_play.call is call_async:
            asyncio.run(main())
        else:
            seen.extend(decimal.getcontext().prec for _ in graph.stream(State()))
        assert seen == 5 * [28]


class TestThread:
    """The thread of a sync generator, and the task of an async one."""

    def test_a_connection_and_a_lock(self, make: Any, said: Any) -> None:
        """Only the thread that made them may use them."""

        def node(state: State) -> Iterator[Any]:
            with contextlib.closing(sqlite3.connect(":memory:")) as database, threading.RLock():
                for number in range(5):
                    yield f"chunk {number}"
                    database.execute("SELECT 1")
            yield Updates({"said": ["all"]})

        assert said(make(node)) == ["all"]

    @pytest.mark.parametrize("graph_of", [alone, typed])
    def test_other_runs_work_between_its_chunks(self, graph_of: Any) -> None:
        """Other runs use the worker threads of the loop, while the generator keeps its own thread."""
        seen: set[int] = set()

        def node(state: State) -> Iterator[Any]:
            for number in range(3):
                seen.add(threading.get_ident())
                yield number

        def slow(state: State) -> dict[str, Any]:
            time.sleep(0.01)
            return {}

        async def main() -> None:
            async for _ in graph_of(node).astream(State()):
                await asyncio.gather(*(alone(slow).aexecute(State()) for _ in range(4)))

        asyncio.run(main())
        assert len(seen) == 1


@pytest.mark.parametrize("graph_of", [alone, typed])
def test_a_plain_function_returns_a_generator(graph_of: Any) -> None:
    """It is no generator function, so its result is refused."""
    with pytest.raises(ExecutionError, match=r"\(generator\); a node returns a State"):
        graph_of(lambda state: (number for number in range(3))).execute(State())


# --------------------------------------------------------------------------- what an async one may hold


@pytest.mark.parametrize(("limit", "result"), [(0.05, "cut off"), (300, "in time")])
def test_a_timeout_around_chunks(make: Any, said: Any, limit: float, result: str) -> None:
    async def node(state: State) -> AsyncIterator[Any]:
        found = "in time"
        try:
            async with asyncio.timeout(limit):
                yield "one"
                yield "two"
                await asyncio.sleep(300 if limit < 1 else 0)
        except TimeoutError:
            found = "cut off"
        yield Updates({"said": [found]})

    assert said(make(node)) == [result]


class TestEnds:
    """A generator that does not come to its own end."""

    @pytest.mark.parametrize("how", ["left", "cancelled", "out of time"])
    def test_it_can_clean_up(self, memory_play: Scene, how: str) -> None:
        """A generator cleans up in its own task, where timeouts and cancellation work."""
        cancel, seen = threading.Event(), list[bool]()

        async def node(state: State) -> AsyncIterator[Any]:
            task = asyncio.current_task()
            try:
                async with asyncio.timeout(300):
                    yield "one"
                    if how == "cancelled":
                        cancel.set()
                    if how == "out of time":
                        await asyncio.sleep(300)
                    yield "two"
                    yield "three"
            finally:
                await asyncio.sleep(0.01)
                seen.append(task is asyncio.current_task())

        graph = alone(node, policies={"talks": {"timeout": 1 if how == "out of time" else 300}})
        match how:
            case "left":
                stream(memory_play, graph, "stream", State(run_id=RUN), most=1)
            case "cancelled":
                with pytest.raises(RunCancelledError):
                    memory_play.execute(graph, cancel=cancel)
            case _:
                with pytest.raises(ExecutionError, match="took longer than its timeout"):
                    memory_play.execute(graph)

        assert seen == [True]


class TestNeverAhead:
    """A generator never runs ahead of its reader."""

    def test_between_two_chunks(self, memory_play: Scene, kind: Any) -> None:
        """The generator waits between two chunks, however long the reader takes."""
        log: list[str] = []

        def node(state: State) -> Iterator[Any]:
            for number in range(3):
                log.append(f"made {number}")
                yield number
            yield Updates({})

        graph = alone(kind(node))

        async def main() -> None:
            async for state in graph.astream(State()):
                await asyncio.sleep(0.02)
                log.append(f"seen {state.partial.chunk if state.partial else 'the end'}")

        if memory_play.call is call_async:
            asyncio.run(main())
        else:
            for state in graph.stream(State()):
                log.append(f"seen {state.partial.chunk if state.partial else 'the end'}")
        assert log == ["made 0", "seen 0", "made 1", "seen 1", "made 2", "seen 2", "seen the end"]
