"""The loop that awaits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeAlias, TypeVar, cast

from stategraph.commands import BLOCKING, Await, Command, Kind, Notify, RunNode, StartNode
from stategraph.drivers.stop import StopSignal
from stategraph.drivers.sync import answer_of
from stategraph.engine import Task

_Answer = TypeVar("_Answer")
_Function: TypeAlias = Callable[[Any], Any]


async def adrive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task on this event loop, what blocks in worker threads -> its answer."""
    perform = _Workers(signal).perform
    send: Callable[[Any], Command] = task.send
    go_on, value = send, None
    while True:
        try:
            kind, function, argument = go_on(value)
            while True:
                value = await perform[kind](function, argument)
                kind, function, argument = send(value)
        except BaseException as error:
            if getgeneratorstate(task) == GEN_CLOSED:  # it was the task itself that ended
                return cast(_Answer, answer_of(error))
            go_on, value = task.throw, error


class _Workers:
    """What commands do when the event loop must not be blocked.

    A thread cannot be stopped. So a cancellation that arrives while one works waits until the work is done and takes
    effect before the next node: a sync node that has run counts, and no thread is left behind.
    """

    def __init__(self, signal: StopSignal | None) -> None:
        self._signal = signal
        self._cancelled: asyncio.CancelledError | None = None
        self.perform: dict[type[Kind], Callable[[Any, Any], Awaitable[Any]]] = {
            **dict.fromkeys(BLOCKING, self._in_thread),
            RunNode: self._run_node,
            StartNode: self._start_node,
            Await: self._wait_for,
            Notify: self._notify,
        }

    async def _in_thread(self, function: _Function, argument: Any) -> Any:
        work = asyncio.ensure_future(asyncio.to_thread(function, argument))
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError as error:
                if work.cancelled():  # raised by the work itself
                    raise
                self._cancelled = error

    async def _run_node(self, function: _Function, argument: Any) -> Any:
        self._check()
        return await self._in_thread(function, argument)

    async def _start_node(self, function: _Function, argument: Any) -> Any:
        self._check()
        return function(argument)

    def _check(self) -> None:
        if self._cancelled is not None:
            raise self._cancelled
        if self._signal is not None:
            self._signal.check()

    async def _wait_for(self, awaitable: Awaitable[Any], node_name: str) -> Any:
        return await wait_for(awaitable, self._signal)

    async def _notify(self, function: _Function, argument: Any) -> None:
        function(argument)


async def wait_for(awaitable: Awaitable[Any], signal: StopSignal | None) -> Any:
    """Await what an async node returned, no longer than the time that is left."""
    if signal is None or signal.timeout is None:
        return await awaitable
    try:
        async with asyncio.timeout(signal.deadline - time.monotonic()) as limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            raise signal.timed_out()  # noqa: B904 - it has its cause
        raise  # the node's own
