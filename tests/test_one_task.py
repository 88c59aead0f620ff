"""Async nodes under `execute`: one event loop and one task for all of them, and nobody notices."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading
from typing import Any

import pytest

from stategraph import ExecutionError, RetryPolicy, State
from stategraph._drivers.one_task import OneTask
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, make_graph, trace, traces

pytestmark = pytest.mark.timeout(60)

_word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="none")


async def nothing(state: State) -> dict[str, Any]:
    """Do nothing."""
    return {}


def executed(nodes: dict[str, Any], **options: Any) -> State:
    """Return the State that a chain of nodes ends with."""
    return make_graph(nodes, store=MemoryStore(), **options).execute(State(run_id=RUN))


class TestOneTask:
    """All that nodes return is awaited in it."""

    def test_one_task_and_one_loop(self) -> None:
        """Each node finds the same ones."""
        found: list[Any] = []

        async def node(state: State) -> dict[str, Any]:
            found.append((asyncio.current_task(), asyncio.get_running_loop()))
            await asyncio.sleep(0)
            return {}

        executed(dict.fromkeys("abc", node))

        assert len(set(found)) == 1

    def test_between_nodes_no_loop_is_running(self) -> None:
        """A sync node, a predicate and a store may run a loop of their own."""

        def node(state: State) -> dict[str, Any]:
            return {"found": asyncio.run(asyncio.sleep(0, "something"))}

        class Store(MemoryStore):
            def save(self, state: State) -> None:
                asyncio.run(asyncio.sleep(0))
                super().save(state)

        edges = [("a", "b", lambda state: asyncio.run(asyncio.sleep(0, True))), ("b", "c")]
        graph = make_graph({"a": nothing, "b": node, "c": nothing}, edges, store=Store())

        assert graph.execute(State())["found"] == "something"

    def test_what_is_left_at_work(self) -> None:
        """A task that a node has begun goes on with the next one, and is cancelled at the end of the run."""
        seen: list[str] = []

        async def at_work() -> None:
            try:
                while True:
                    seen.append("turn")
                    await asyncio.sleep(0)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        async def begins(state: State) -> dict[str, Any]:
            begins.task = asyncio.create_task(at_work())  # type: ignore[attr-defined]
            return {}

        async def waits(state: State) -> dict[str, Any]:
            for _ in range(5):
                await asyncio.sleep(0)
            return {}

        executed({"a": begins, "b": waits, "c": nothing})

        assert seen.count("turn") >= 5
        assert seen[-1] == "cancelled"

    def test_context(self) -> None:
        """What an async node sets in its context is seen by the next one, not by the caller."""
        found: list[str] = []

        async def node(state: State) -> dict[str, Any]:
            found.append(_word.get())
            _word.set(f"{_word.get()}, set")
            return {}

        executed(dict.fromkeys("ab", node))

        assert found == ["none", "none, set"]
        assert _word.get() == "none"

    def test_failure_and_retry(self) -> None:
        """A node that raises fails or is tried again, as if it had a task of its own."""
        left = [ValueError("first"), asyncio.CancelledError("second")]

        async def node(state: State) -> dict[str, Any]:
            await asyncio.sleep(0)
            if left:
                raise left.pop(0)
            return {"trace": [*state["trace"], "b"]}

        policies = {"b": {"retry": RetryPolicy(max_attempts=3, initial_delay=0)}}
        nodes = {"a": trace("a"), "b": node, "c": nothing}

        assert list(executed(nodes, policies=policies)["trace"]) == ["a", "b"]

    def test_node_that_cancels_its_task(self) -> None:
        """It has failed, whether or not it waits for anything afterwards; no other node is cancelled by that."""

        async def node(state: State) -> dict[str, Any]:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return {}

        with pytest.raises(ExecutionError, match="Cancelled"):
            executed({"a": nothing, "b": node, "c": nothing})
        handled = {"b": {"on_error": "c"}}
        edges = [("a", "b"), ("b", "d"), ("c", "d")]
        nodes = {"a": nothing, "b": node, "c": nothing, "d": nothing}
        graph = make_graph(nodes, edges, store=MemoryStore(), policies=handled)
        assert graph.execute(State()).checkpoint_node == "d"

    def test_loop_that_a_node_stops(self) -> None:
        """Its node fails, and the next one has a task of its own."""

        async def node(state: State) -> dict[str, Any]:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(60)
            return {}

        nodes = {"a": nothing, "b": node, "c": nothing, "d": nothing}
        graph = make_graph(
            nodes, [("a", "b"), ("b", "d"), ("c", "d")], store=MemoryStore(), policies={"b": {"on_error": "c"}}
        )

        assert graph.execute(State()).checkpoint_node == "d"


class TestInterrupts:
    """Ctrl-C while something is awaited, and in between."""

    def test_awaited(self) -> None:
        """What is awaited is cancelled and may end, and the interrupt is raised then; the State before is saved."""
        seen: list[str] = []
        store = MemoryStore()

        async def node(state: State) -> dict[str, Any]:
            os.kill(os.getpid(), signal.SIGINT)
            try:
                await asyncio.sleep(60)
            finally:
                seen.append("cleaned up")
            return {}

        with pytest.raises(KeyboardInterrupt):
            make_graph({**traces("a"), "b": node, "c": nothing}, store=store).execute(State(run_id=RUN))

        assert seen == ["cleaned up"]
        assert list(store.load(RUN)["trace"]) == ["a"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_second(self) -> None:
        """The second one is raised at once."""
        one = OneTask()

        async def stubborn() -> None:
            while True:
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    continue

        with pytest.raises(KeyboardInterrupt):
            one.run(stubborn())
        assert one.run(asyncio.sleep(0, "next")) == "next"
        one.close()

    def test_while_the_task_is_called_to_go_on(self) -> None:
        """The loop is closed all the same."""
        one, seen = OneTask(), list[str]()
        loop: Any = one.runner.get_loop()
        call_soon = loop.call_soon

        def interrupted(*arguments: Any, **options: Any) -> Any:
            loop.call_soon = call_soon
            os.kill(os.getpid(), signal.SIGINT)
            return call_soon(*arguments, **options)

        async def awaited() -> None:
            seen.append("begun")

        one.run(asyncio.sleep(0))
        loop.call_soon = interrupted
        with pytest.raises(KeyboardInterrupt):
            one.run(awaited())
        assert one.run(asyncio.sleep(0, "next")) == "next"
        one.close()
        assert not seen
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_in_between(self) -> None:
        """It is raised where it comes, as ever."""

        def node(state: State) -> dict[str, Any]:
            os.kill(os.getpid(), signal.SIGINT)
            return {}

        with pytest.raises(KeyboardInterrupt):
            executed({"a": nothing, "b": node, "c": nothing})

    def test_handler_of_a_user(self) -> None:
        """A handler that is set is left alone, be it set before or by a node."""
        heard: list[int] = []

        async def node(state: State) -> dict[str, Any]:
            signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
            return {}

        async def interrupted(state: State) -> dict[str, Any]:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.01)
            return {}

        before = signal.getsignal(signal.SIGINT)
        try:
            executed({"a": node, "b": interrupted, "c": nothing})
        finally:
            signal.signal(signal.SIGINT, before)

        assert heard == [signal.SIGINT]

    def test_other_threads(self) -> None:
        """They hear of no signals, and run all the same."""
        found: list[State] = []
        thread = threading.Thread(target=lambda: found.append(executed(dict.fromkeys("ab", nothing))))
        thread.start()
        thread.join()

        assert found[0].checkpoint_node == "b"
