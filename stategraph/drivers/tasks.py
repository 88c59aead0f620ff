"""The loop that awaits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeAlias, TypeVar, cast

from stategraph.commands import BLOCKING, Await, Command, Delete, Kind, Notify, RunNode, StartNode
from stategraph.drivers.outcomes import answer_of, escaped
from stategraph.drivers.stop import StopSignal
from stategraph.drivers.waiting import wait_for
from stategraph.engine import Task

_Answer = TypeVar("_Answer")
_Function: TypeAlias = Callable[[Any], Any]


async def adrive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task on this event loop, what blocks in worker threads -> its answer."""
    workers = _Workers(signal)
    perform = workers.perform
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
                answer = cast(_Answer, answer_of(error))
                workers.check_cancelled_at_the_end()
                return answer
            go_on, value = task.throw, error


class _Workers:
    """What commands do when the event loop must not be blocked.

    A thread cannot be stopped. So a cancellation that arrives while one works waits until the work is done and takes
    effect before the next node: a sync node that has run counts, and no thread is left behind.
    """

    def __init__(self, signal: StopSignal | None) -> None:
        self._signal = signal
        self._task = asyncio.current_task()
        self._cancellations = self._task.cancelling() if self._task else 0
        self._cancelled: asyncio.CancelledError | None = None
        self._has_deleted = False
        self.perform: dict[type[Kind], Callable[[Any, Any], Awaitable[Any]]] = {
            **dict.fromkeys(BLOCKING, self._in_thread),
            RunNode: self._run_node,
            StartNode: self._start_node,
            Await: self._wait_for,
            Delete: self._delete,
            Notify: self._notify,
        }

    async def _in_thread(self, function: _Function, argument: Any) -> Any:
        """Call a function in a worker thread and wait for it, cancelled or not."""
        run = contextvars.copy_context().run
        work = asyncio.get_running_loop().run_in_executor(None, run, _outcome_of, function, argument)
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError as error:
                self._cancelled = error
        answer, raised = work.result()
        if raised is not None:
            raise escaped(raised)
        return answer

    async def _run_node(self, function: _Function, argument: Any) -> Any:
        self._check()
        return await self._in_thread(function, argument)

    async def _start_node(self, function: _Function, argument: Any) -> Any:
        self._check()
        return function(argument)

    async def _wait_for(self, awaitable: Awaitable[Any], node_name: str) -> Any:
        try:
            self._check_cancelled()
        except asyncio.CancelledError:
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # or Python warns that nobody awaited it
            raise
        return await wait_for(awaitable, self._signal)

    async def _delete(self, function: _Function, argument: Any) -> None:
        """A run that completes although it was cancelled stays in the store: its result would be nowhere else."""
        self._check_cancelled()
        await self._in_thread(function, argument)
        self._has_deleted = True

    async def _notify(self, function: _Function, argument: Any) -> None:
        function(argument)

    def _check(self) -> None:
        self._check_cancelled()
        if self._signal is not None:
            self._signal.check()

    def _check_cancelled(self) -> None:
        """Raise a cancellation that has not taken effect yet, even one that is not delivered yet."""
        if self._cancelled is not None:
            raise self._cancelled
        if self._task is not None and self._task.cancelling() > self._cancellations:
            raise asyncio.CancelledError

    def check_cancelled_at_the_end(self) -> None:
        """Raise a cancellation that came when the last node had begun, unless the answer would be lost with it."""
        if not self._has_deleted:
            self._check_cancelled()


def _outcome_of(function: _Function, argument: Any) -> tuple[Any, BaseException | None]:
    """-> what a call returns or raises: raised in a thread of a pool, some exceptions stop the loop or get lost."""
    try:
        return function(argument), None
    except BaseException as error:
        return None, error
