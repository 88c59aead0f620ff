"""A CancelledError that a node raises by itself, in a run that is not cancelled, is a failure of the node."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from stategraph import ExecutionError, MapNode, ParallelNode, RetryPolicy, RunStatus, State
from tests.scenarios import RUN, Scene, as_async, make_graph, traces
from tests.test_cancellations import PATIENCE, in_time

pytestmark = pytest.mark.timeout(600)


def cancelled(argument: Any) -> Any:
    """Raise the CancelledError of something else."""
    raise asyncio.CancelledError("its own")


def futures_cancelled(argument: Any) -> Any:
    """Raise that of a thread pool."""
    raise concurrent.futures.CancelledError("its own")


async def waits_for_cancelled(argument: Any) -> Any:
    """Wait for a cancelled task."""
    other = asyncio.create_task(asyncio.sleep(PATIENCE))
    asyncio.get_running_loop().call_soon(other.cancel, "its own")
    await other


async def cancels_itself(argument: Any) -> Any:
    """Cancel the task that it runs in."""
    asyncio.current_task().cancel("its own")  # type: ignore[union-attr]
    await asyncio.sleep(PATIENCE)


def generator(state: State) -> Iterator[int]:
    """Raise it after a chunk."""
    yield 1
    cancelled(state)


async def async_generator(state: State) -> AsyncIterator[int]:
    """The same."""
    yield 1
    cancelled(state)


OWN = {
    "sync": cancelled,
    "futures": futures_cancelled,
    "async": as_async(cancelled),
    "awaited": waits_for_cancelled,
    "generator": generator,
    "async generator": async_generator,
}


@pytest.mark.parametrize("kind", OWN)
class TestOwnErrors:
    """A CancelledError that comes out of a node in a run that is not cancelled."""

    def test_it_is_a_failure(self, memory_play: Scene, kind: str) -> None:
        """Like any other: of the run, which is saved as failed."""
        with pytest.raises(ExecutionError, match="CancelledError: its own") as caught:
            memory_play.execute(make_graph({"a": OWN[kind], **traces("b")}, store=memory_play.store))

        kinds = concurrent.futures.CancelledError if kind == "futures" else asyncio.CancelledError
        assert isinstance(caught.value.__cause__, kinds)
        saved = memory_play.store.load(RUN)
        assert saved.status is RunStatus.FAILED
        assert saved.error is not None
        assert (saved.error.type, saved.error.message, saved.error.node) == ("CancelledError", "its own", "a")
        assert memory_play.resume(make_graph(traces("ab"), store=memory_play.store))["trace"] == ["a", "b"]

    @pytest.mark.parametrize("timeout", [None, 60])
    def test_it_is_tried_again(self, memory_play: Scene, kind: str, timeout: float | None) -> None:
        """A CancelledError is retried like any failure, and `retry_on` gets it."""
        seen: list[Exception] = []
        retry = RetryPolicy(initial_delay=0, retry_on=lambda error: seen.append(error) or True)  # type: ignore[func-returns-value]
        policies = {"a": {"retry": retry, "timeout": timeout}}
        with pytest.raises(ExecutionError, match="failed after 3 attempts: CancelledError"):
            memory_play.execute(make_graph({"a": OWN[kind]}, store=memory_play.store, policies=policies))

        assert all(isinstance(error, asyncio.CancelledError | concurrent.futures.CancelledError) for error in seen)
        assert len(seen) == 2


PARTS: dict[str, Callable[[Any], Any]] = {
    "branch": lambda function: ParallelNode({"0": function, "1": as_async(lambda _: {})}, on_failure="finish"),
    "item": lambda function: MapNode(function, over="items", into="results"),
    "one worker": lambda function: MapNode(function, over="items", into="results", max_workers=1),
}


@pytest.mark.parametrize("function", [cancelled, waits_for_cancelled, cancels_itself])
class TestOwnErrorsOfParts:
    """A part that raises one, or is cancelled by itself, has failed; the run waits for no outcome that never comes."""

    @pytest.mark.parametrize("make", PARTS.values(), ids=list(PARTS))
    def test_it_has_failed(self, memory_play: Scene, function: Any, make: Callable[[Any], Any]) -> None:
        """A part that raised CancelledError is one of the group of failures."""
        graph = make_graph({"a": make(function)}, store=memory_play.store)
        task_wise = threading.Thread(target=lambda: ends.append(execute()), daemon=True)
        ends: list[Any] = []

        def execute() -> Any:
            try:
                return memory_play.execute(graph, State({"items": [1, 2, 3]}, run_id=RUN))
            except BaseException as error:
                return error

        task_wise.start()
        task_wise.join(PATIENCE)

        (failure,) = ends
        assert isinstance(failure, ExecutionError)
        group = failure.__cause__
        assert isinstance(group, ExceptionGroup)
        assert all(isinstance(error, asyncio.CancelledError) for error in group.exceptions)
        assert "0: CancelledError: its own" in str(group)
        assert memory_play.store.load(RUN).status is RunStatus.FAILED


def test_a_cancellation_is_none_of_the_node(memory_play: Scene) -> None:
    """A run that is cancelled while a node works is neither failed nor tried again."""
    started, calls = asyncio.Event(), list[int]()

    async def endless(state: State) -> None:
        calls.append(1)
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        policies = {"a": {"retry": RetryPolicy(initial_delay=0), "on_error": "b"}}
        graph = make_graph({"a": endless, **traces("b")}, store=memory_play.store, policies=policies)
        task = asyncio.create_task(graph.aexecute(State(run_id=RUN)))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_time(main)
    assert (calls, memory_play.store.load(RUN).status) == ([1], RunStatus.ACTIVE)
