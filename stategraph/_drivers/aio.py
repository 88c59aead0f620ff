"""The loop that awaits."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from operator import call
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

from stategraph._drivers.calls import Outcome, call_apart
from stategraph._drivers.limits import Limits, MakeError, StopSignal
from stategraph._drivers.rides import Ridden, Ride
from stategraph._drivers.threads import LoopThreads, Work, threads_of_loop
from stategraph._engine.io import Queue
from stategraph._protocol.commands import (
    BLOCKING,
    WAITING,
    Amend,
    Await,
    Cache,
    Command,
    CommandType,
    Delete,
    Finish,
    Flush,
    Gather,
    Limit,
    Load,
    Notify,
    OneEnds,
    Own,
    Parts,
    Perform,
    RunNode,
    Save,
    Show,
    Sleep,
    StartNode,
    Task,
    Unlimit,
    escaped,
)
from stategraph._protocol.store import Store
from stategraph._util.callables import failure_of, is_async_callable
from stategraph._util.cancellation import outlast
from stategraph.errors import ExecutionError
from stategraph.state import State

_Answer = TypeVar("_Answer")
_POLL = 0.05  # seconds after which a cancel event is looked at: threads set it, and no event loop is told
_GROUPS_LEAVE_CANCELLATIONS = sys.version_info < (3, 13)  # in the count of their task, when one of theirs failed
_TURN = 0.001  # seconds for which a run that never waits has the loop for itself
_LATER, _RIDDEN = object(), object()
_STORE = (Own, Load, Save, Amend, Flush, Parts)  # what is asked of a store, but for Delete
_RIDES = frozenset((RunNode, *_STORE))
_Function: TypeAlias = Callable[[Any], Any]
_Show: TypeAlias = Callable[[State], Awaitable[None]]


async def adrive(
    task: Task[_Answer],
    signal: StopSignal | None,
    store: Store | None = None,
    show: _Show | None = None,
    limits: Limits | None = None,
) -> _Answer:
    """Run a task on this event loop, with what blocks in worker threads; return its answer.

    Args:
        task: The task.
        signal: May stop the run.
        store: The store of the run, if it may be asked on the event loop what it answers without waiting.
        show: Gets the States that the task shows.
        limits: What another driver has set that this is part of.
    """
    with threads_of_loop() as threads:
        workers = _Workers(task, Limits(signal, [*limits.stack] if limits else []), store, show, threads)
        at_once = workers.at_once
        send: Callable[[Any], Command] = task.send
        go_on, value = send, None
        while True:
            try:
                kind, function, argument = go_on(value)
                while True:
                    value = at_once[kind](function, argument)
                    if value is _LATER:
                        value = await _PERFORM[kind](workers, function, argument)
                    kind, function, argument = send(value) if value is not _RIDDEN else workers.ridden()
            except BaseException as error:
                if getgeneratorstate(task) == GEN_CLOSED:  # it was the task itself that ended
                    await workers.check_cancelled_at_the_end(error)
                    if isinstance(error, StopIteration):
                        return cast(_Answer, error.value)
                    if isinstance(error, ExecutionError):
                        raise error.with_traceback(None) from error.__cause__  # as `drive`
                    raise
                go_on, value = task.throw, await workers.thrown(error)


class _Workers:
    """Carries out commands without blocking the event loop.

    A thread cannot be stopped. So a cancellation that arrives while one works waits until the work is done and takes
    effect before the next node: a sync node that has run counts, and no thread is left behind.
    """

    def __init__(
        self, task: Task[Any], limits: Limits, store: Store | None, show: _Show | None, threads: LoopThreads
    ) -> None:
        self._run, self._asks, self._store = task, threads.of(store), store
        self._limits = limits
        self._show = show
        self._threads = threads
        self._task = asyncio.current_task()
        self._cancellations = self._task.cancelling() if self._task else 0
        self._cancelled: asyncio.CancelledError | None = None
        self._deleted: object = None
        self._others_wait_since = 0.0
        self._asks_at_once = store is not None and store.never_waits
        self._rides = self._asks_at_once and show is None
        self._ridden: Ridden = None, None
        self.at_once: Perform = {
            **_AT_ONCE,
            StartNode: self._start_at_once,
            Limit: self._limit,
            Unlimit: self._unlimit,
        }
        if self._asks_at_once:
            self.at_once.update(dict.fromkeys(_STORE, self._ask_at_once))
        self.at_once[Save] = self._save_at_once

    # ------------------------------------------------------------------ at once, or _LATER

    def _ask_at_once(self, function: _Function, argument: Any) -> Any:
        """Ask a store that never waits."""
        try:
            return function(argument)
        except Exception:
            raise
        except BaseException as error:
            raise escaped(error) from None

    def _save_at_once(self, function: Any, argument: State) -> Any:
        """Save a State, if that is only to queue it, or if the store never waits."""
        queue: Queue | None = function.__self__.queue
        is_quick = self._asks_at_once if queue is None else queue.has_room_for(argument)
        return self._ask_at_once(function, argument) if is_quick else _LATER

    def _start_at_once(self, function: _Function, argument: Any) -> Any:
        limits = self._limits
        if limits.stack or limits.signal is not None or self._is_cancelled() or self._is_turn_over():
            return _LATER
        return function(argument)

    def _is_turn_over(self) -> bool:
        """Return whether it is time to let others run on the loop: neither nodes nor stores need wait for anything."""
        return time.monotonic() - self._others_wait_since > _TURN

    # ------------------------------------------------------------------ awaited

    def ridden(self) -> Command:
        """Return the first command that a ride has not carried out, or raise what the task ended with."""
        (command, end), self._ridden = self._ridden, (None, None)
        if end is not None:
            raise end
        return cast(Command, command)

    async def _ask_store(self, function: _Function, argument: Any) -> Any:
        return await self._outcome(self._asks.begin(function, argument))

    async def _ask_cache(self, function: _Function, argument: Any) -> Any:
        return await self._outcome(self._threads.store.begin(function, argument))

    async def _in_thread(self, function: _Function, argument: Any) -> Any:
        return await self._outcome(self._threads.nodes.begin(function, argument))

    async def _outcome(self, work: Work) -> Any:
        """Wait for what a thread does, cancelled or not; return what it returns, or raise what it raises."""
        try:
            answer, raised = await work
        except asyncio.CancelledError as error:
            rest = work.rest or work
            self._cancelled = await outlast(rest, cancelled=error)
            answer, raised = rest.result()
        if raised is not None:
            raise escaped(raised)
        return answer

    async def _outlast(self, work: asyncio.Future[Any], seconds: float | None = None) -> None:
        self._cancelled = await outlast(work, seconds) or self._cancelled

    async def _run_node(self, function: _Function, argument: Any) -> Any:
        await self._check()
        limit = self._limits.of_node()
        if limit is None and self._rides:
            return await self._ride((RunNode, function, argument))
        if limit is None:
            return await self._in_thread(function, argument)
        work = _begun_apart(function, argument)
        await self._outlast(work, limit.left())
        if not work.done():
            if self._is_cancelled():
                await self._raise_cancellation()
            raise limit.passed()
        return await self._outcome(work)

    async def _ride(self, command: Command) -> object:
        """Have a thread run the node, and go on with the run until something has to be done on the event loop."""
        ride = Ride(self._run, _RIDES, partial(self._is_to_stop, asyncio.get_running_loop()))
        try:
            self._ridden = await self._in_thread(ride.go, command)
        except BaseException:
            ride.leave()
            raise
        self._others_wait_since = time.monotonic()
        return _RIDDEN

    def _is_to_stop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a ride is to go no further: the run is to stop, or nobody may be waiting for it any more."""
        signal = self._limits.signal
        return self._is_cancelled() or (signal is not None and signal.is_due()) or not loop.is_running()

    async def _start_node(self, function: _Function, argument: Any) -> Any:
        if self._is_turn_over():
            await asyncio.sleep(0)
            self._others_wait_since = time.monotonic()
        await self._check()
        return function(argument)

    async def _wait_for(self, awaitable: Awaitable[Any], node_name: str) -> Any:
        if self._is_cancelled():
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # or Python warns that nobody awaited it
            await self._raise_cancellation()
        answer = await self._limits.limited(awaitable)
        if self._is_cancelled():
            await self._forget_stray_cancellations()
        return answer

    async def _finish(self, function: _Function, argument: Any) -> Any:
        """Call what a node needs for its end, uninterrupted: a cancellation waits for it."""
        if not is_async_callable(function):
            return await self._in_thread(function, argument)
        work = asyncio.ensure_future(function(argument))
        await self._outlast(work)
        return work.result()

    def _limit(self, error: MakeError, seconds: float) -> None:
        self._limits.push(error, seconds)

    def _unlimit(self, _: None, __: None) -> None:
        self._limits.stack.pop()

    async def _sleep(self, _: None, seconds: float) -> None:
        """Wait, but not beyond what stops the run."""
        await self._check()
        limit = self._limits.of_all()
        until = asyncio.get_running_loop().time() + (seconds if limit is None else min(seconds, limit.left()))
        while (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left if self._limits.cancel is None else min(left, _POLL))
            await self._check()
        await self._check()

    async def _gather(self, _: None, about: tuple[Sequence[Task[Any]], int]) -> Any:
        from stategraph._drivers.gathering_tasks import Tasks  # imported when used: few graphs are parts

        return Tasks(about, self._limits, partial(adrive, store=self._store, limits=self._limits))

    async def _show_state(self, _: None, state: State) -> None:
        if self._show is not None:
            begun = time.monotonic()
            await self._show(state)
            self._limits.prolong(time.monotonic() - begun)

    async def _delete(self, function: _Function, argument: Any) -> None:
        """Delete a run that has completed, unless it was cancelled: then its result would be nowhere else."""
        if self._is_cancelled():
            await self._raise_cancellation()
        if self._asks_at_once:
            self._ask_at_once(function, argument)
        else:
            await self._ask_store(function, argument)
        self._deleted = argument

    async def _check(self) -> None:
        if self._is_cancelled():
            await self._raise_cancellation()
        self._limits.check()

    def _is_cancelled(self) -> bool:
        """Return whether the task of the run was cancelled since it began: not every CancelledError means that."""
        return self._cancelled is not None or (self._task is not None and self._task.cancelling() > self._cancellations)

    async def _raise_cancellation(self) -> NoReturn:
        """Raise the newest cancellation."""
        if self._cancelled is None:
            await asyncio.sleep(0)  # where it is not delivered yet, it comes now, with what is said in it
        raise self._cancelled or asyncio.CancelledError

    async def thrown(self, error: BaseException) -> BaseException:
        """Return what to throw into the task for what a command raised.

        A CancelledError is a failure of what was called, unless the run was cancelled.
        """
        if isinstance(error, asyncio.CancelledError):
            return error if self._is_cancelled() else failure_of(error)
        if isinstance(error, Exception) and self._is_cancelled() and not _replaces_cancellation(error):
            await self._forget_stray_cancellations()
        return error

    async def _forget_stray_cancellations(self) -> None:
        """Ignore cancellations that were counted but have interrupted nothing: those of task groups of a node."""
        if _GROUPS_LEAVE_CANCELLATIONS and self._task is not None:
            try:
                await asyncio.sleep(0)  # one that is not delivered yet comes now
            except asyncio.CancelledError as error:
                self._cancelled = error
            self._cancellations = self._task.cancelling()

    async def check_cancelled_at_the_end(self, end: BaseException) -> None:
        """Raise a cancellation that came after the last node had begun, however the task ended.

        Only if the answer is a State whose run was deleted, it is not raised: the answer would be lost. A nested run is
        deleted as well, but it is not the answer.
        """
        if not self._is_cancelled() or not isinstance(end, Exception):
            return
        is_answer = isinstance(end, StopIteration)
        if is_answer and cast(StopIteration, end).value is self._deleted:
            return
        try:
            await self._raise_cancellation()
        except asyncio.CancelledError as cancelled:
            raise cancelled from (None if is_answer else end)


def _later(_: object, __: object) -> object:
    return _LATER


_AT_ONCE: Perform = {
    **dict.fromkeys((*BLOCKING, *WAITING, Show, Delete), _later),
    Notify: call,
}
_PERFORM: dict[type[CommandType], Callable[[_Workers, Any, Any], Awaitable[Any]]] = {
    **dict.fromkeys(BLOCKING, _Workers._ask_store),
    Cache: _Workers._ask_cache,
    RunNode: _Workers._run_node,
    StartNode: _Workers._start_node,
    Await: _Workers._wait_for,
    Finish: _Workers._finish,
    Gather: _Workers._gather,
    OneEnds: lambda _, __, gathered: gathered.one_ends(),
    Sleep: _Workers._sleep,
    Show: _Workers._show_state,
    Delete: _Workers._delete,
}


def _replaces_cancellation(error: BaseException) -> bool:
    """Return whether an error was raised in place of a CancelledError.

    One from a task group is none: the group cancels its own task.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    found = False
    while link is not None and id(link) not in seen:
        if isinstance(link, BaseExceptionGroup):
            return False
        found = found or isinstance(link, asyncio.CancelledError)
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return found


def end_of(run: asyncio.Task[Any]) -> BaseException | None:
    """Return the exception that a task ended with, None if it returned."""
    try:
        return run.exception()
    except asyncio.CancelledError as error:
        return error


def _begun_apart(function: _Function, argument: Any) -> Work:
    """Return what a thread of its own does."""
    loop = asyncio.get_running_loop()
    work = Work(loop=loop)

    def done(outcome: Outcome) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody has waited for it
            loop.call_soon_threadsafe(work.finish, outcome)

    call_apart(function, argument, done)
    return work
