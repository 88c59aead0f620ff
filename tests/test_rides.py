"""Runs under `aexecute` whose store never waits: no hand-over to another thread where none is needed."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stategraph import RetryPolicy, RunCancelledError, State
from stategraph._drivers.rides import Ride
from stategraph._protocol.commands import Notify, RunNode, Save
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, broken_first, make_graph, trace
from tests.test_cancellations import PATIENCE, in_time
from tests.test_stopping import Gate

pytestmark = pytest.mark.timeout(90)

_word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")


def noting(found: list[Any], what: Callable[[], Any]) -> Callable[[State], dict[str, Any]]:
    """Return a sync node that notes what a function returns."""

    def node(state: State) -> dict[str, Any]:
        found.append(what())
        return {}

    return node


class TestSyncNodes:
    """A run of them goes on in one thread, and the loop is free."""

    def test_one_thread(self) -> None:
        """All nodes and saves of the run are done in one thread, which is not that of the loop."""
        where: list[int] = []

        class Store(MemoryStore):
            def save(self, state: State) -> None:
                where.append(threading.get_ident())
                super().save(state)

        async def main() -> None:
            nodes = {name: noting(where, threading.get_ident) for name in "abc"}
            await make_graph(nodes, store=Store(), preserve=True).aexecute(State())
            assert len(set(where)) == 1
            assert where[0] != threading.get_ident()

        in_time(main)

    def test_the_loop_is_free(self) -> None:
        """While the nodes block, everything else on the loop goes on."""
        ticks: list[None] = []

        async def tick() -> None:
            while True:
                ticks.append(None)
                await asyncio.sleep(0.001)

        async def main() -> None:
            ticking = asyncio.create_task(tick())
            await make_graph(
                {name: noting([], lambda: time.sleep(0.05)) for name in "abc"}, store=MemoryStore()
            ).aexecute(State())
            ticking.cancel()
            assert len(ticks) > 20

        in_time(main)

    def test_context(self) -> None:
        """Each node sees the context of the caller, and nothing that another one has set."""
        found: list[str] = []

        def node(state: State) -> dict[str, Any]:
            found.append(_word.get())
            _word.set("set by a node")
            return {}

        async def main() -> None:
            _word.set("set by the caller")
            await make_graph(dict.fromkeys("abc", node), store=MemoryStore()).aexecute(State())

        in_time(main)

        assert found == ["set by the caller"] * 3

    def test_cancelled(self) -> None:
        """A cancellation waits for the node that is at work, and the next one does not begin."""
        gate, begun, store = Gate(), list[str](), MemoryStore()

        def slow(state: State) -> dict[str, Any]:
            gate.wait()
            return {"trace": [*state["trace"], "b"]}

        async def main() -> None:
            nodes = {"a": trace("a"), "b": slow, "c": noting(begun, lambda: "c")}
            task = asyncio.create_task(make_graph(nodes, store=store).aexecute(State(run_id=RUN)))
            await asyncio.to_thread(gate.reached.wait, PATIENCE)
            task.cancel()
            await asyncio.sleep(0.05)
            assert not task.done()
            gate.opened.set()
            with pytest.raises(asyncio.CancelledError):
                await task

        in_time(main)

        assert begun == []
        assert list(store.load(RUN)["trace"]) == ["a", "b"]

    @pytest.mark.parametrize("how", ["cancel", "timeout"])
    def test_stopped(self, how: str) -> None:
        """An event that is set, or a time that is up, stops the run before the next node."""
        cancel = threading.Event()

        def slow(state: State) -> dict[str, Any]:
            cancel.set()
            time.sleep(0.1)
            return {}

        async def main() -> None:
            begun = list[str]()
            graph = make_graph({"a": trace("a"), "b": slow, "c": noting(begun, lambda: "c")}, store=MemoryStore())
            with pytest.raises(RunCancelledError):
                await graph.aexecute(State(), **({"cancel": cancel} if how == "cancel" else {"timeout": 0.05}))
            assert begun == []

        in_time(main)

    def test_loop_that_is_gone(self) -> None:
        """Nobody runs further nodes for a loop that has stopped."""
        gate, begun = Gate(), list[str]()

        def slow(state: State) -> dict[str, Any]:
            gate.wait()
            return {}

        loop = asyncio.new_event_loop()
        task = loop.create_task(
            make_graph({"a": slow, "b": noting(begun, lambda: "b")}, store=MemoryStore()).aexecute(State())
        )
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(asyncio.to_thread(gate.reached.wait, PATIENCE))
        loop.run_until_complete(loop.shutdown_default_executor())
        gate.opened.set()
        time.sleep(0.05)
        assert begun == []
        loop.run_until_complete(task)
        loop.close()

        assert begun == ["b"]

    def test_failures(self) -> None:
        """What a node raises is the engine's, which tries again, and the run goes on in a thread."""

        async def main() -> State:
            nodes = {"a": trace("a"), "b": broken_first(trace("b"), ValueError("once")), "c": trace("c")}
            policies = {"b": {"retry": RetryPolicy(max_attempts=2, initial_delay=0)}}
            return await make_graph(nodes, store=MemoryStore(), policies=policies).aexecute(State())

        assert list(in_time(main)["trace"]) == ["a", "b", "c"]


class TestRide:
    """The thread lets go of a task for good once somebody else has it."""

    def test_left(self) -> None:
        """What the thread has begun is the last: the task hears nothing of it."""
        heard: list[Any] = []

        def task() -> Iterator[Any]:
            heard.append((yield None))
            heard.append((yield (RunNode, str, 2)))

        running, gate = task(), Gate()
        next(running)
        ride = Ride(running, frozenset({RunNode, Save}), lambda: False)  # type: ignore[arg-type]

        def slow(_: object) -> str:
            gate.wait()
            return "done"

        thread = threading.Thread(target=ride.go, args=((RunNode, slow, None),))
        thread.start()
        gate.reached.wait(PATIENCE)
        ride.leave()
        gate.opened.set()
        thread.join(PATIENCE)

        assert heard == []
        running.close()  # type: ignore[attr-defined]

    def test_first_that_is_not_carried_out(self) -> None:
        """It hands back what has to be done on the loop, and what the task ends with."""

        def task() -> Iterator[Any]:
            assert (yield None) == "1"
            yield (Save, str, 2)
            yield (Notify, str, 3)

        running = task()
        next(running)
        ride = Ride(running, frozenset({RunNode, Save}), lambda: False)  # type: ignore[arg-type]

        assert ride.go((RunNode, str, 1)) == ((Notify, str, 3), None)
        command, end = ride.go((RunNode, str, 4))
        assert command is None
        assert isinstance(end, StopIteration)


class TestAsyncNodes:
    """Their saves in memory are made on the loop."""

    def test_others_have_their_turn(self) -> None:
        """A run whose nodes wait for nothing does not keep the loop, and a cancellation arrives."""

        async def count(state: State) -> dict[str, Any]:
            return {"trace": [*state.get("trace", ()), "x"][-2:]}

        async def main() -> None:
            edges = [("a", "a", lambda state: True), ("a", "b")]
            graph = make_graph({"a": count, "b": count}, edges, store=MemoryStore(), max_iterations=200_000)
            task = asyncio.create_task(graph.aexecute(State()))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        in_time(main)
