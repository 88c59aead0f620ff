"""No thread, task, open file or memory stays after a run, however it ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import tracemalloc
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stategraph import CheckpointStore, MapNode, ParallelNode, RunStatus, State, StateGraph
from stategraph.stores.memory import MemoryStore
from tests.all_features import INPUTS, answer, build_all_features, expected
from tests.scenarios import RUN, live_threads, make_graph, returns, traces
from tests.simulated_process import CALLS, STORES, Everything, Journal, SimulatedProcess, Tool

pytestmark = pytest.mark.unmeasured

RELEASE = 300.0  # seconds until a test gives up waiting


def open_files() -> list[str]:
    """Return what this process has open, but for the file with the locks of a store, which stays open with it."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(file.readlink()))
    return sorted(name for name in found if not name.removesuffix(" (deleted)").endswith("owners"))


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Threads and open files are as before."""
    gc.collect()
    threads, files = live_threads(), open_files()
    yield
    gc.collect()
    for thread in live_threads() - threads:
        thread.join(300)  # a stopped thread may still be ending
    assert {thread.name for thread in live_threads() - threads} == set()
    assert open_files() == files


def in_loop(work: Callable[[], Any]) -> Any:
    """Run a coroutine function on an event loop -> its answer; no task is left when it returns."""

    async def run() -> Any:
        try:
            return await work()
        finally:
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    return asyncio.run(run())


def node_that_waits(at: str, ended: list[str], store: CheckpointStore, began: asyncio.Event | None = None) -> Any:
    """Return a node of which a part, a nested run, a chunk, or all of it waits and notes its end."""

    async def waits(argument: object) -> Any:
        if began is not None:
            began.set()
        try:
            await asyncio.sleep(RELEASE)
        finally:
            ended.append(at)

    async def chunks(state: State) -> Any:
        try:
            yield 1
            await waits(state)
        finally:
            ended.append("closed")

    return {
        "branch": ParallelNode({"a": waits, "b": returns({})}),
        "item": MapNode(waits, "items", "into"),
        "child": make_graph({"in": waits}, store=store, name="child").as_node(),
        "chunk": chunks,
        "node": waits,
    }[at]


@pytest.fixture(params=["memory", "sqlite"])
def name(request: pytest.FixtureRequest) -> str:
    """The name of a store."""
    return str(request.param)


@pytest.fixture(params=["sync", "async"])
def durability(request: pytest.FixtureRequest) -> str:
    """How States are saved."""
    return str(request.param)


def all_features(store: CheckpointStore, **options: Any) -> StateGraph:
    """Return the graph with every feature, of which nothing fails for good."""
    process = SimulatedProcess(kinds=())
    return build_all_features(store, Tool(process, Journal(failed=Everything())), "mixed", **options)


def finish(graph: StateGraph, driver: str) -> State:
    """Run a graph to its end."""
    final = CALLS[driver](graph, SimulatedProcess(), "execute", State(INPUTS, run_id=RUN))
    while final.pause is not None:
        final = CALLS[driver](
            graph, SimulatedProcess(), "resume", RUN, {final.pause.response_param: answer(final.pause)}
        )
    return final


LEFT = [(2, "async"), (9, "sync"), (12, "async")]
"""After how many States streams are left, and how these are saved."""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux for open files")
class TestNothingIsLeft:
    """Nothing is left with any driver, store or durability."""

    @pytest.mark.parametrize("driver", CALLS)
    def test_when_a_run_completes(self, tmp_path: Path, name: str, durability: str, driver: str) -> None:
        """Pauses included."""
        with nothing_left(), STORES[name](tmp_path) as store:
            final = finish(all_features(store, durability=durability), driver)
            assert (dict(final), final.step) == expected()

    @pytest.mark.parametrize("at", ["branch", "item", "child", "chunk", "node"])
    def test_when_its_task_is_cancelled(self, tmp_path: Path, durability: str, at: str) -> None:
        """Wherever it waits: it has stopped once the task is over."""
        began, ended = asyncio.Event(), list[str]()

        with nothing_left(), STORES["sqlite"](tmp_path) as store:
            nodes = {"node": node_that_waits(at, ended, store, began)}
            graph = make_graph(nodes, store=store, durability=durability)

            async def cancelled() -> None:
                run = asyncio.create_task(graph.aexecute(State({"items": [1, 2]}, run_id=RUN)))
                await began.wait()
                run.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await run

            in_loop(cancelled)
            assert at in ended
            assert at != "chunk" or "closed" in ended
            assert store.load(RUN).status is RunStatus.ACTIVE

    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize(("after", "durability"), LEFT)
    def test_when_a_stream_is_left(
        self, tmp_path: Path, name: str, durability: str, after: int, is_async: bool
    ) -> None:
        """Nothing stays when a stream is left after a step, a chunk or a nested run, which can be resumed."""
        with nothing_left(), STORES[name](tmp_path) as store:
            graph = all_features(store, durability=durability)

            async def left() -> None:
                async with contextlib.aclosing(graph.astream(State(INPUTS, run_id=RUN))) as states:
                    for _ in range(after):
                        await anext(states, None)

            if is_async:
                in_loop(left)
            else:
                with graph.stream(State(INPUTS, run_id=RUN)) as states:
                    for _ in range(after):
                        next(states, None)
            assert store.load(RUN).step > 0


# --------------------------------------------------------------------------- memory


def runs_in(root: object) -> set[str]:
    """Return the runs whose ids can be reached from an object, as they can be from whatever keeps something of them."""
    found, seen, ahead = set(), {id(root)}, [root]
    while ahead:
        at = ahead.pop()
        keys = at if isinstance(at, dict) else ()  # of texts, which are no referents
        for one in [*gc.get_referents(at), *keys]:
            if isinstance(one, str):
                found |= {one.partition("/")[0]} if one.startswith("run-") else set()
            elif id(one) not in seen and not isinstance(one, type | types.ModuleType | types.FunctionType):
                seen.add(id(one))
                ahead.append(one)
    return found


def nested_twice(store: CheckpointStore, last: Any, **options: Any) -> StateGraph:
    """Return a graph in a graph in a graph, whose last node is this."""
    graph = make_graph({"a": traces("a")["a"], "last": last}, store=store, interval=0, name="in")
    graph = make_graph({"in": graph.as_node()}, store=store, interval=0, name="middle")
    return make_graph({"middle": graph.as_node(), "end": returns({})}, store=store, name="out", **options)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_store_forgets_runs_that_are_over(name: str, tmp_path: Path, durability: str) -> None:
    """A store forgets completed runs with all their nested runs."""
    with STORES[name](tmp_path) as store:
        graph = nested_twice(store, returns({}), durability=durability)
        for number in range(30):
            graph.execute(State(run_id=f"run-{number}"))

        give_up = time.monotonic() + 300  # the writer of the store may be about to look at the last one
        while runs_in(store) and time.monotonic() < give_up:
            time.sleep(0.01)
        assert runs_in(store) == set()
        assert store.list() == []


def peak_of(steps: int, interval: int) -> int:
    """Return the most memory, in bytes, that a run of so many steps had at a time."""

    def count(state: State) -> dict[str, Any]:
        return {"n": state.get("n", 0) + 1}

    edges = [("a", "b"), ("b", "a", lambda state: state["n"] < steps), ("b", "c")]
    graph = make_graph(dict.fromkeys("abc", count), edges, store=MemoryStore(), interval=interval, max_iterations=10**9)
    tracemalloc.start()
    try:
        assert graph.execute(State(run_id=RUN))["n"] == steps + 1
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("interval", [0, 1])
def test_a_long_run_does_not_grow(interval: int) -> None:
    """20,000 steps take no more memory than 5,000: not one reference a step is kept."""
    peak_of(10, interval)  # imports what a run imports
    assert peak_of(20_000, interval) < peak_of(5_000, interval) + 100_000
