"""The loop that awaits."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from inspect import GEN_CLOSED, getgeneratorstate
from typing import Any, TypeAlias, TypeVar, cast

from stategraph.callables import is_async_callable
from stategraph.commands import (
    BLOCKING,
    Await,
    Command,
    Delete,
    Finish,
    Kind,
    Limit,
    Notify,
    RunNode,
    Show,
    Sleep,
    StartNode,
    Task,
    Unlimit,
)
from stategraph.drivers.outcomes import Outcome, answer_of, call_apart, escaped, outcome_of
from stategraph.drivers.stop import Limits, MakeError, StopSignal
from stategraph.drivers.waiting import wait_for
from stategraph.state import State

_Answer = TypeVar("_Answer")
_POLL = 0.05  # seconds after which a cancel event is looked at: threads set it, and no event loop is told
_Function: TypeAlias = Callable[[Any], Any]
_Show: TypeAlias = Callable[[State], Awaitable[None]]


async def adrive(task: Task[_Answer], signal: StopSignal | None, show: _Show | None = None) -> _Answer:
    """Run a task on this event loop, what blocks in worker threads -> its answer; `show` gets what it shows."""
    workers = _Workers(signal, show)
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
                workers.check_cancelled_at_the_end(answer)
                return answer
            go_on, value = task.throw, error


class _Workers:
    """What commands do when the event loop must not be blocked.

    A thread cannot be stopped. So a cancellation that arrives while one works waits until the work is done and takes
    effect before the next node: a sync node that has run counts, and no thread is left behind.
    """

    def __init__(self, signal: StopSignal | None, show: _Show | None) -> None:
        self._limits = Limits(signal)
        self._show = show
        self._task = asyncio.current_task()
        self._cancellations = self._task.cancelling() if self._task else 0
        self._cancelled: asyncio.CancelledError | None = None
        self._deleted: object = None
        self.perform: dict[type[Kind], Callable[[Any, Any], Awaitable[Any]]] = {
            **dict.fromkeys(BLOCKING, self._in_thread),
            RunNode: self._run_node,
            StartNode: self._start_node,
            Await: self._wait_for,
            Finish: self._finish,
            Limit: self._limit,
            Unlimit: self._unlimit,
            Sleep: self._sleep,
            Show: self._show_state,
            Delete: self._delete,
            Notify: self._notify,
        }

    async def _in_thread(self, function: _Function, argument: Any) -> Any:
        """Call a function in a worker thread and wait for it, cancelled or not."""
        work = self._begun(function, argument)
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError as error:
                self._cancelled = error
        return self._result_of(work)

    def _begun(self, function: _Function, argument: Any) -> asyncio.Future[Outcome]:
        run = contextvars.copy_context().run
        return asyncio.get_running_loop().run_in_executor(None, run, outcome_of, function, argument)

    def _result_of(self, work: asyncio.Future[Outcome]) -> Any:
        answer, raised = work.result()
        if raised is not None:
            raise escaped(raised)
        return answer

    async def _run_node(self, function: _Function, argument: Any) -> Any:
        self._check()
        limit = self._limits.of_node()
        if limit is None:
            return await self._in_thread(function, argument)
        work = _begun_apart(function, argument)
        while not work.done() and limit.left() > 0:
            try:
                await asyncio.wait([work], timeout=limit.left())
            except asyncio.CancelledError as error:
                self._cancelled = error
        if not work.done():
            self._check_cancelled()
            raise limit.passed()
        return self._result_of(work)

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
        return await wait_for(awaitable, self._limits)

    async def _finish(self, function: _Function, argument: Any) -> Any:
        """Nothing cuts this off: a cancellation waits for it."""
        if not is_async_callable(function):
            return await self._in_thread(function, argument)
        work = asyncio.ensure_future(function(argument))
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError as error:
                self._cancelled = error
        return work.result()

    async def _limit(self, error: MakeError, seconds: float) -> None:
        self._limits.push(error, seconds)

    async def _unlimit(self, _: None, __: None) -> None:
        self._limits.stack.pop()

    async def _sleep(self, _: None, seconds: float) -> None:
        """Wait, but not beyond what stops the run."""
        self._check()
        limit = self._limits.of_all()
        until = asyncio.get_running_loop().time() + (seconds if limit is None else min(seconds, limit.left()))
        while (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left if self._limits.cancel is None else min(left, _POLL))
            self._check()
        self._check()

    async def _show_state(self, _: None, state: State) -> None:
        if self._show is not None:
            begun = time.monotonic()
            await self._show(state)
            self._limits.prolong(time.monotonic() - begun)

    async def _delete(self, function: _Function, argument: Any) -> None:
        """A run that completes although it was cancelled stays in the store: its result would be nowhere else."""
        self._check_cancelled()
        await self._in_thread(function, argument)
        self._deleted = argument

    async def _notify(self, function: _Function, argument: Any) -> None:
        function(argument)

    def _check(self) -> None:
        self._check_cancelled()
        self._limits.check()

    def _check_cancelled(self) -> None:
        """Raise a cancellation that has not taken effect yet, even one that is not delivered yet."""
        if self._cancelled is not None:
            raise self._cancelled
        if self._task is not None and self._task.cancelling() > self._cancellations:
            raise asyncio.CancelledError

    def check_cancelled_at_the_end(self, answer: object) -> None:
        """Raise a cancellation that came when the last node had begun, unless the answer would be lost with it: it is
        the State whose run was deleted. The run of a graph within is deleted as well, but it is not the answer."""
        if answer is not self._deleted:
            self._check_cancelled()


def _begun_apart(function: _Function, argument: Any) -> asyncio.Future[Outcome]:
    """-> what will come of a call in a thread of its own."""
    loop = asyncio.get_running_loop()
    work: asyncio.Future[Outcome] = loop.create_future()

    def settle(outcome: Outcome) -> None:
        if not work.done():
            work.set_result(outcome)

    def done(outcome: Outcome) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody has waited for it
            loop.call_soon_threadsafe(settle, outcome)

    call_apart(function, argument, done)
    return work
