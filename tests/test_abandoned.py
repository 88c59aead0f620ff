"""Streams that are left early: closed, thrown into, or abandoned, which counts as a crash."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import CheckpointStore, RunCancelledError, RunStatus, State, StateGraph
from stategraph.stores.memory import MemoryStore
from tests.conftest import make_store
from tests.pairs import every_pair
from tests.scenarios import RUN, WatchedStore, fails_always, make_graph, traces

SAVED: dict[str, dict[str, Any]] = {
    "each step": {},
    "every 4th": {"interval": 4},
    "exit": {"durability": "exit"},
    "async": {"durability": "async", "interval": 3},
}
"""When States are saved."""


@pytest.fixture(params=["memory", "sqlite", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """A store of each kind."""
    with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=["memory", "sqlite"])
def some_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointStore]:
    """A store, where its kind hardly matters."""
    with make_store(request.param, tmp_path) as store:
        yield store


@pytest.fixture(params=["every 4th", "async"])
def some(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Options with which States wait to be saved."""
    return SAVED[request.param]


def begun(graph: StateGraph, states: int = 2) -> tuple[Any, State]:
    """Return a stream, and the last of the States that were taken from it."""
    stream = graph.stream(State(run_id=RUN))
    return stream, [next(stream) for _ in range(states)][-1]


_IN_THE_MIDDLE_OF_ITEMS = """
from stategraph import MapNode, State, StateGraph

graph = StateGraph("g")
graph.add_node("map", MapNode(lambda item: item, over="items", into="made", max_workers=4))
graph.set_entry_point("map")
graph.set_exit_point("map")
stream = graph.stream(State(dict(items=[*range(20)])))
next(stream)
{left}print("abandoned")
"""


class TestAbandoned:
    """A stream that is neither closed nor exhausted: a warning, a free run, the last checkpoint, and nothing more."""

    def resumed(self, graph: StateGraph) -> Any:
        """Return the trace of the run once it is resumed, or begun again if it was never saved."""
        if RUN not in graph.store.list():
            return graph.execute(State(run_id=RUN))["trace"]
        assert graph.store.owner(RUN) is None
        assert graph.store.load(RUN).status is RunStatus.ACTIVE
        return graph.resume(RUN)["trace"]

    @pytest.mark.parametrize("when", SAVED)
    def test_a_stream(self, store: CheckpointStore, when: str) -> None:
        """The run can be resumed at once."""
        graph = make_graph(traces("abcde"), store=store, **SAVED[when])
        stream, _ = begun(graph)
        with pytest.warns(ResourceWarning, match="neither closed nor exhausted"):
            del stream
            gc.collect()

        assert self.resumed(graph) == [*"abcde"]

    def test_at_a_chunk(self, some_store: CheckpointStore) -> None:
        """The generator is closed, too."""
        closed: list[bool] = []

        def chunks(state: State) -> Iterator[Any]:
            try:
                yield "a"
                yield "b"
            finally:
                closed.append(True)

        graph = make_graph({"a": chunks}, store=some_store)
        stream, _ = begun(graph, 1)
        with pytest.warns(ResourceWarning, match="neither closed nor exhausted"):
            del stream
            gc.collect()

        assert closed == [True]
        assert some_store.owner(RUN) is None

    @pytest.mark.parametrize("loop_is", ["running", "closed"])
    def test_on_an_event_loop(self, some_store: CheckpointStore, loop_is: str) -> None:
        """Whether it runs or not, the run is free as it is."""
        graph = make_graph(traces("abcde"), store=some_store, interval=2)
        loop = asyncio.new_event_loop()
        kept: list[Any] = []

        async def main() -> None:
            stream = graph.astream(State(run_id=RUN))
            await anext(stream)
            await anext(stream)
            kept.append(stream)
            del stream
            if loop_is == "running":
                with pytest.warns(ResourceWarning, match="neither closed nor exhausted"):
                    kept.clear()
                    gc.collect()

        loop.run_until_complete(main())
        loop.close()
        if kept:
            with pytest.warns(ResourceWarning, match="neither closed nor exhausted"):
                kept.clear()
                gc.collect()

        assert self.resumed(graph) == [*"abcde"]

    @pytest.mark.parametrize("left", ["del stream\n", ""], ids=["dropped", "kept to the end"])
    def test_while_items_are_at_work(self, left: str) -> None:
        """Their threads do not keep the process from ending, even if something still refers to the stream."""
        command = [sys.executable, "-c", _IN_THE_MIDDLE_OF_ITEMS.format(left=left)]
        done = subprocess.run(command, timeout=300, check=True, capture_output=True)

        assert done.stdout == b"abandoned\n"


class TestThrow:
    """An error in the loop over a stream stops the run, and is raised."""

    def thrown(self, graph: StateGraph, is_async: bool, error: Any) -> None:
        """Throw an error into a stream after its second State."""
        if not is_async:
            stream, _ = begun(graph)
            stream.throw(error)
            return

        async def main() -> None:
            stream = graph.astream(State(run_id=RUN))
            await anext(stream)
            await anext(stream)
            await stream.athrow(error)

        asyncio.run(main())

    @every_pair(
        error=[ValueError("no"), KeyboardInterrupt(), ValueError],
        is_async=[False, True],
        some=["every 4th", "async"],
        some_store=["memory", "sqlite"],
        indirect=["some", "some_store"],
    )
    def test_the_run_is_saved(
        self,
        some_store: CheckpointStore,
        some: dict[str, Any],
        is_async: bool,
        error: BaseException | type[BaseException],
    ) -> None:
        """An exception thrown into a stream saves the last State as active, not as failed."""
        graph = make_graph(traces("abcde"), store=some_store, **some)
        with pytest.raises(error if isinstance(error, type) else type(error)) as raised:
            self.thrown(graph, is_async, error)

        assert raised.value is error or isinstance(error, type)
        assert some_store.load(RUN)["trace"] == ["a", "b"]
        assert some_store.load(RUN).status is RunStatus.ACTIVE
        assert graph.resume(RUN)["trace"] == [*"abcde"]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_save_that_fails(self, is_async: bool) -> None:
        """It is raised as by `close`."""
        store = WatchedStore(MemoryStore(), fails_always("save", OSError("the disk is full")))
        with pytest.raises(RunCancelledError) as raised:
            self.thrown(make_graph(traces("abc"), store=store, interval=5), is_async, ValueError("no"))

        assert "the disk is full" in raised.value.__notes__[0]
