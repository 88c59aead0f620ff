"""The loop that awaits."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate, isgenerator
from operator import call
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import attrs

from stategraph._drivers.calls import Shown
from stategraph._drivers.cancellations import Cancellations
from stategraph._drivers.limits import Limits, StopSignal
from stategraph._drivers.threads import begun_apart, threads_of_loop
from stategraph._protocol import (
    BLOCKING,
    Amend,
    Await,
    Cache,
    Command,
    CommandType,
    Delete,
    Finish,
    Flush,
    Gather,
    Gathered,
    Limit,
    Load,
    Notify,
    Own,
    Parts,
    Perform,
    Report,
    Reports,
    RunNode,
    Save,
    Show,
    Sleep,
    StartNode,
    Task,
    Unlimit,
)
from stategraph._util.callables import is_async_callable
from stategraph._values.provenance import RunStatus
from stategraph.errors import ExecutionError
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._drivers.gathering import OnLoop

_Answer = TypeVar("_Answer")
_POLL = 0.05  # seconds between two checks of a cancel event: a thread that sets it does not wake the event loop
_TURN = 0.001  # seconds after which a run that never waits yields to the loop
_LATER, _CARRIED_ON = object(), object()
_STORE = (Own, Load, Save, Amend, Flush, Parts)  # all store commands except Delete
_CARRIED = frozenset((RunNode, *_STORE))
_Function: TypeAlias = Callable[[Any], Any]


async def adrive(
    task: Task[_Answer],
    signal: StopSignal | None,
    store: Any = None,
    limits: Limits | None = None,
    part_of: OnLoop | None = None,
) -> _Answer:
    """Run a task on this event loop, with blocking calls in worker threads; return its answer. Skip shown States.

    Args:
        task: The task.
        signal: May stop the run.
        store: The store of the run.
        limits: The limits of the run, if this task is a part of it.
        part_of: The gathered tasks, if this is one of them.
    """
    try:
        performer = AsyncPerformer(task, signal, store, limits, part_of)
        return cast(_Answer, await performer.carry_out(task.send, None))
    except ExecutionError as error:
        raise error.with_traceback(None) from error.__cause__  # as in `drive`


class AsyncPerformer:
    """Execute commands without blocking the event loop.

    A cancellation that arrives while a thread works takes effect when the work is done, before the next node: a sync
    node that has run counts, and no thread is left behind.
    """

    def __init__(
        self,
        task: Task[Any],
        signal: StopSignal | None,
        store: Any,
        limits: Limits | None = None,
        part_of: OnLoop | None = None,
    ) -> None:
        self._run, self._store = task, store
        self._cancellations = Cancellations(part_of)
        self._is_cancelled, self._check_cancelled = self._cancellations.has_come, self._cancellations.check
        self._limits = Limits(signal) if limits is None else attrs.evolve(limits, signal=signal, stack=[*limits.stack])
        self.clock = self._limits.clock
        self._deleted: object = None
        self._others_wait_since = 0.0
        self._asks_at_once = store is not None and store.never_waits
        self._carried_to: tuple[Command | None, BaseException | None] = None, None
        self.at_once: Perform = {
            Notify: call,
            Show: _pass_over,
            StartNode: self._start_at_once,
            Limit: self._limits.push,
            Unlimit: self._limits.pop,
            Gather: self._gather,
        }
        if part_of is not None:
            self.at_once[Report] = lambda _, report: part_of.report(report)
        if self._asks_at_once:
            self.at_once |= dict.fromkeys(_STORE, call)
        self.at_once[Save] = self._save_at_once

    async def carry_out(self, go_on: Callable[[Any], Command], value: Any) -> Any:
        """Execute the commands of the task until it ends; return its answer or raise its exception.

        Args:
            go_on: Resumes the task: ``task.send`` or ``task.throw``.
            value: The value to send or the exception to throw.

        Raises:
            Shown: the task shows a State. It has not ended.
        """
        self._enter()
        at_once, send = self.at_once, self._run.send
        try:
            while True:
                try:
                    kind, function, argument = go_on(value)
                    while True:
                        perform = at_once.get(kind)
                        value = _LATER if perform is None else perform(function, argument)
                        if value is _LATER:
                            value = await _PERFORM[kind](self, function, argument)
                        kind, function, argument = send(value) if value is not _CARRIED_ON else self._carried()
                except Shown:
                    raise
                except BaseException as error:
                    if getgeneratorstate(self._run) == GEN_CLOSED:  # the task itself has ended
                        # A deleted run is an exception: its State would be lost. A nested run is deleted as well.
                        is_lost = isinstance(error, StopIteration) and error.value is self._deleted
                        if isinstance(error, Exception) and not is_lost:
                            await self._cancellations.check_at_the_end(error)
                        if isinstance(error, StopIteration):
                            return error.value
                        raise
                    go_on, value = self._run.throw, await self._cancellations.failure_of(error)
        finally:
            self._leave()

    def show(self) -> None:
        """Make `carry_out` raise Shown for each State that the task shows."""
        self.at_once[Show] = self._show_at_once

    def pass_over(self) -> None:
        """Skip all further States that the task shows."""
        self.at_once[Show] = _pass_over

    def _enter(self) -> None:
        self._threads = threads_of_loop()
        self._call_of_store = self._threads.calls_of(self._store)
        self._cancellations.begin()

    def _leave(self) -> None:
        """Release the threads: an exception may keep this object alive until garbage collection."""
        self._threads.keep()
        del self._threads, self._call_of_store

    # ------------------------------------------------------------------ immediately, or _LATER

    def _save_at_once(self, function: Any, argument: State) -> Any:
        """Save a State, if the save only queues it or if the store never waits."""
        queue: Any = function.__self__.queue
        is_quick = self._asks_at_once if queue is None else queue.has_room_for(argument)
        return function(argument) if is_quick else _LATER

    def _start_at_once(self, function: _Function, argument: Any) -> Any:
        limits = self._limits
        if limits.stack or limits.signal is not None or self._is_cancelled() or self._is_turn_over():
            return _LATER
        return function(argument)

    def _show_at_once(self, _: None, state: State) -> Any:
        """Show a State, even to a cancelled caller if it is the last State: no other copy may exist."""
        if self._is_cancelled() and state.status is RunStatus.ACTIVE:
            return _LATER
        self._deleted = None  # the answer is not lost
        raise Shown(state)

    def _is_turn_over(self) -> bool:
        """Return whether to let other tasks of the loop run: neither nodes nor stores have to wait for anything."""
        return time.monotonic() - self._others_wait_since > _TURN

    def _gather(self, _: None, about: tuple[Iterator[Task[Any]], int, str]) -> Gathered:
        from stategraph._drivers.gathering import OnLoop  # imported when used: most graphs have no parts

        return OnLoop(*about[:2], self._limits, partial(adrive, store=self._store), self._is_cancelled)

    # ------------------------------------------------------------------ in threads

    async def _call_store(self, function: _Function, argument: Any) -> Any:
        return await self._cancellations.result_of(self._call_of_store(function, argument))

    async def _call_thread(self, function: _Function, argument: Any) -> Any:
        return await self._cancellations.result_of(self._threads.call_node(function, argument))

    async def _run_node(self, function: _Function, argument: Any) -> Any:
        await self._check()
        limit = self._limits.of_node()
        if limit is None and self._asks_at_once:
            return await self._carry_on((RunNode, function, argument))
        if limit is None:
            return await self._call_thread(function, argument)
        work = begun_apart(function, argument)
        for seconds in limit.waits():
            await self._cancellations.outlast(work, seconds)
            if work.done():
                break
        else:
            await self._check_cancelled()
            raise limit.passed()
        return await self._cancellations.result_of(work)

    async def _carry_on(self, command: Command) -> object:
        """Run a node in a thread, and continue the run there until a command needs the event loop.

        This saves a hand-over for each sync node. Only one thread executes the run at any time.
        """
        loop = asyncio.get_running_loop()
        is_left = False

        def go_on(command: Command) -> Any:
            kind, function, argument = command
            while True:
                function = cast(_Function, function)  # every command executed here is a call
                value = contextvars.copy_context().run(function, argument) if kind is RunNode else function(argument)
                if is_left or isgenerator(value):  # a generator belongs to no worker thread
                    return value
                try:
                    kind, function, argument = self._run.send(value)
                except BaseException as end:
                    return None, end
                if kind not in _CARRIED or (kind is RunNode and self._is_to_stop(loop)):
                    return (kind, function, argument), None

        try:
            carried_to = await self._call_thread(go_on, command)
        except BaseException:
            is_left = True
            raise
        if isgenerator(carried_to):
            return carried_to
        self._carried_to = carried_to
        self._others_wait_since = time.monotonic()
        return _CARRIED_ON

    def _carried(self) -> Command:
        """Return the first command that the thread has not executed, or raise the exception that ended the task."""
        (command, end), self._carried_to = self._carried_to, (None, None)
        if end is not None:
            raise end
        return cast(Command, command)

    def _is_to_stop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a thread must not run another node: the run should stop, or the loop is closed."""
        signal = self._limits.signal
        return self._is_cancelled() or (signal is not None and signal.is_due()) or not loop.is_running()

    # ------------------------------------------------------------------ awaited

    async def _start_node(self, function: _Function, argument: Any) -> Any:
        if self._is_turn_over():
            await asyncio.sleep(0)
            self._others_wait_since = time.monotonic()
        await self._check()
        return function(argument)

    async def _wait_for(self, awaitable: Awaitable[Any], node_name: str) -> Any:
        if self._is_cancelled():
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # otherwise Python warns that it was never awaited
            await self._check_cancelled()
        answer = await self._limits.limited(awaitable)
        if self._is_cancelled():
            await self._cancellations.forget_strays()
        return answer

    async def _reports(self, reports: _Function, _: None) -> Any:
        await self._check()
        return await reports(None)

    async def _finish(self, function: _Function, argument: Any) -> Any:
        """Call a function that a node needs for its end, uninterrupted: a cancellation waits for it."""
        if not is_async_callable(function):
            return await self._call_thread(function, argument)
        work = asyncio.ensure_future(function(argument))
        await self._cancellations.outlast(work)
        return work.result()

    async def _sleep(self, _: None, seconds: float) -> None:
        """Sleep, but no longer than the limits of the run allow."""
        await self._check()
        until = time.monotonic() + seconds
        while (left := self._limits.until_check(until - time.monotonic())) > 0:
            await asyncio.sleep(left if self._limits.cancel is None else min(left, _POLL))
            await self._check()

    async def _show_cancelled(self, _: None, __: State) -> None:
        await self._check_cancelled()

    async def _check(self) -> None:
        await self._check_cancelled()
        self._limits.check()

    async def _delete(self, function: _Function, argument: Any) -> None:
        """Delete a run that has completed, unless it was cancelled: then its result would be lost."""
        await self._check_cancelled()
        if self._asks_at_once:
            function(argument)
        else:
            await self._call_store(function, argument)
        self._deleted = argument


def _pass_over(_: None, __: State) -> None:
    """Skip a State that the task shows."""


_PERFORM: dict[type[CommandType], Callable[[AsyncPerformer, Any, Any], Awaitable[Any]]] = {
    **dict.fromkeys(BLOCKING, AsyncPerformer._call_store),
    Cache: AsyncPerformer._call_thread,
    RunNode: AsyncPerformer._run_node,
    StartNode: AsyncPerformer._start_node,
    Await: AsyncPerformer._wait_for,
    Finish: AsyncPerformer._finish,
    Reports: AsyncPerformer._reports,
    Sleep: AsyncPerformer._sleep,
    Show: AsyncPerformer._show_cancelled,
    Delete: AsyncPerformer._delete,
}
