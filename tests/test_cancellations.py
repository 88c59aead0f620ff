"""Cancellations by asyncio: a cancelled task ends once its run has stopped."""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from stategraph import ExecutionError, ParallelNode, RunStatus, State
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, WatchedStore, as_async, does, live_threads, make_graph, returns, traces
from tests.test_stopping import Gate, cancel_at

pytestmark = pytest.mark.timeout(600)

PATIENCE = 300  # seconds after which something hangs


def in_time(main: Callable[[], Coroutine[Any, Any, Any]], selector: selectors.BaseSelector | None = None) -> Any:
    """Run a coroutine function on an event loop, in a thread that may hang; return its answer."""
    outcomes: list[Any] = []

    def run() -> None:
        loop = asyncio.SelectorEventLoop(selector)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                outcomes.append(runner.run(main()))
            except BaseException as error:
                outcomes.append(error)

    before = set(threading.enumerate())
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert outcomes, "it hangs"
    thread.join(PATIENCE)
    give_up = time.monotonic() + PATIENCE
    while not live_threads() <= before and time.monotonic() < give_up:
        time.sleep(0.001)  # a thread that has reported its outcome is about to end
    assert live_threads() <= before
    if isinstance(outcomes[0], BaseException):
        raise outcomes[0]
    return outcomes[0]


async def left_alone() -> None:
    """Fail if there is any task but this one."""
    assert asyncio.all_tasks() == {asyncio.current_task()}


class Consumer:
    """A caller that iterates over a run and collects the States in `shown`."""

    def __init__(self, graph: Any, most: int = 1000) -> None:
        self.shown: list[State] = []
        self._graph, self._most = graph, most

    async def __call__(self) -> None:
        """Iterate, and leave after so many States."""
        async with contextlib.aclosing(self._graph.astream(State(run_id=RUN))) as states:
            async for state in states:
                self.shown.append(state)
                if len(self.shown) == self._most:
                    break


TIMES = pytest.mark.parametrize("times", [1, 20])
CALLS = {"execute": lambda graph: graph.aexecute(State(run_id=RUN)), "iterate": lambda graph: Consumer(graph)()}
BOTH = pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))


class TestIterating:
    """The task that runs a graph, or iterates over a run, is cancelled: the run has stopped when that comes out."""

    @TIMES
    @BOTH
    def test_while_a_sync_node_works(self, call: Any, times: int) -> None:
        """The node is finished and saved first."""
        gate, store = Gate(), MemoryStore()

        def slow(state: State) -> dict[str, Any]:
            gate.wait()
            return {"trace": [*state["trace"], "b"]}

        async def main() -> None:
            graph = make_graph({**traces("a"), "b": slow, **traces("c")}, store=store, interval=10)
            task = asyncio.create_task(call(graph))
            await cancel_at(gate, task, times)
            await left_alone()

        in_time(main)
        assert (store.load(RUN)["trace"], store.load(RUN).status) == (["a", "b"], RunStatus.ACTIVE)
        assert make_graph(traces("abc"), store=store).resume(RUN)["trace"] == [*"abc"]

    @TIMES
    @pytest.mark.parametrize("interval", [1, 10])
    def test_while_the_store_saves(self, times: int, interval: int) -> None:
        """Saving is not cut off, nor is the last save of a run that was left."""
        gate, inner = Gate(), MemoryStore()

        def before(method: str, argument: Any) -> None:
            if method == "save" and not gate.reached.is_set():
                gate.wait()

        async def main() -> None:
            consumer = Consumer(make_graph(traces("abcd"), store=WatchedStore(inner, before), interval=interval), 2)
            task = asyncio.create_task(consumer())
            await cancel_at(gate, task, times)
            await left_alone()
            assert not consumer.shown or inner.load(RUN).step >= consumer.shown[-1].step

        in_time(main)
        assert make_graph(traces("abcd"), store=inner).resume(RUN)["trace"] == [*"abcd"]

    @pytest.mark.parametrize("shown", [0, 1])
    def test_while_the_reader_computes(self, as_node: Any, shown: int) -> None:
        """The cancellation stops the run before its next node and fails no node, whatever the kind of the node."""
        store = MemoryStore()
        graph = make_graph({name: as_node(node) for name, node in traces("abc").items()}, store=store)

        async def reads() -> None:
            async with contextlib.aclosing(graph.astream(State(run_id=RUN))) as states:
                for _ in range(shown):
                    await anext(states)
                cast(Any, asyncio.current_task()).cancel("stop")  # it arrives at the next await, within the run
                await anext(states)

        async def main() -> None:
            with pytest.raises(asyncio.CancelledError, match="stop"):
                await asyncio.create_task(reads())
            await left_alone()

        in_time(main)
        assert (store.load(RUN).step, store.load(RUN).status) == (shown, RunStatus.ACTIVE)
        assert graph.resume(RUN)["trace"] == [*"abc"]


class TestExecuting:
    """The task that runs a graph is cancelled."""

    def test_a_node_that_fails_during_the_cancellation(self) -> None:
        """The cancellation is raised even if the node fails; the failure is saved with its cause."""
        gate, store = Gate(), MemoryStore()

        def fails(state: State) -> None:
            gate.wait()
            raise ValueError("no")

        async def main() -> None:
            task = asyncio.create_task(make_graph({"a": fails}, store=store).aexecute(State(run_id=RUN)))
            assert isinstance((await cancel_at(gate, task)).__cause__, ExecutionError)

        in_time(main)
        assert store.load(RUN).status is RunStatus.FAILED

    @pytest.mark.parametrize("is_handled", [True, False])
    def test_a_task_group_of_a_node(self, is_handled: bool) -> None:
        """When one of its tasks fails, nothing but the group is cancelled."""

        async def fails() -> None:
            await asyncio.sleep(0)
            raise ValueError("in the group")

        async def node(state: State) -> dict[str, Any]:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(fails())
            except* ValueError:
                if not is_handled:
                    raise
            return {}

        async def main() -> State:
            graph = make_graph({"a": node, **traces("b")}, store=MemoryStore())
            return await graph.aexecute(State(run_id=RUN))

        if is_handled:
            assert in_time(main)["trace"] == ["b"]
        else:
            with pytest.raises(ExecutionError, match="TaskGroup"):
                in_time(main)


class CountingSelector(selectors.DefaultSelector):
    """Counts the turns of its event loop."""

    turns = 0

    def select(self, timeout: float | None = None) -> Any:
        self.turns += 1
        return super().select(timeout)


class TestTurns:
    """To wait for what cannot be cut off keeps no processor busy."""

    @pytest.mark.parametrize("how", ["execute", "iterate", "timed", "branch"])
    def test_in_a_scope_of_anyio(self, how: str) -> None:
        """The loop does not spin in a scope of anyio, which cancels its task in every turn."""
        anyio, gate = pytest.importorskip("anyio"), Gate()

        slow, store = does(gate.wait), MemoryStore()
        node: Any = ParallelNode({"a": slow, "b": as_async(returns({}))}) if how == "branch" else slow
        policies = {"a": {"timeout": 60}} if how == "timed" else {}
        graph = make_graph({"a": node, **traces("b")}, store=store, policies=policies)
        counts: list[int] = []

        def watch(scope: Any, loop: asyncio.AbstractEventLoop) -> None:
            gate.reached.wait(PATIENCE)
            loop.call_soon_threadsafe(scope.cancel)
            time.sleep(0.1)
            counts.append(selector.turns)
            time.sleep(0.3)
            counts.append(selector.turns)
            gate.opened.set()

        async def main() -> None:
            with anyio.CancelScope() as scope:
                watcher = threading.Thread(target=watch, args=(scope, asyncio.get_running_loop()))
                watcher.start()
                if how == "iterate":
                    await Consumer(graph)()
                else:
                    await graph.aexecute(State(run_id=RUN))
            assert scope.cancelled_caught
            assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
            watcher.join(PATIENCE)
            await left_alone()

        selector = CountingSelector()
        in_time(main, selector)
        assert counts[1] - counts[0] < 10
        assert how != "iterate" or store.load(RUN).step == 1
