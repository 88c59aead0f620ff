"""The driver that awaits: it runs a task on an event loop, and blocking calls in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate, isawaitable
from operator import call
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from stategraph._drivers.calls import Shown
from stategraph._drivers.cancellations import Cancellations
from stategraph._drivers.limits import Limits, StopSignal
from stategraph._drivers.lookout import Lookout
from stategraph._drivers.threads import CARRIED_ON, CarriedRun, Work, threads_of_loop
from stategraph._protocol import (
    BLOCKING,
    STORE,
    Assist,
    Await,
    Command,
    CommandType,
    Delete,
    Gather,
    Gathered,
    Limit,
    Notify,
    Perform,
    Report,
    RunHere,
    RunNode,
    Save,
    Show,
    Sleep,
    Task,
    Unlimit,
    Until,
    Watch,
)
from stategraph._util.callables import is_async_callable, without_calls
from stategraph._values.provenance import RunStatus
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._drivers.gathering import OnLoop

_Answer = TypeVar("_Answer")
_TURN = 0.001  # seconds after which a run that never waits yields to the loop
_LATER = object()
_Function: TypeAlias = Callable[[Any], Any]


async def adrive(
    task: Task[_Answer],
    signal: StopSignal | None,
    store: Any = None,
    limits: Limits | None = None,
    part_of: OnLoop | None = None,
) -> _Answer:
    """Run a task on this event loop, with blocking calls in worker threads; return its answer.

    A task that is a part of a run has the limits of the run, and is one of the tasks in `part_of`.
    """
    performer = AsyncPerformer(task, signal, store, limits, part_of)
    with without_calls:
        return cast(_Answer, await performer.carry_out(task.send, None))


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
        self._limits = Limits(signal) if limits is None else limits.of_part(signal)
        self._lookout: Lookout | None = None
        self.clock = self._limits.clock
        self._deleted: object = None
        self._others_wait_since = 0.0
        self._asks_at_once = store is not None and store.never_waits
        self.at_once: Perform = {
            Notify: call,
            Show: self._show,
            Limit: self._limits.push,
            Until: self._until,
            Unlimit: self._limits.pop,
            Gather: self._gather,
            Watch: self._look_out,
        }
        if part_of is not None:
            self.at_once[Report] = lambda _, report: part_of.report(report)
        if self._asks_at_once:
            self.at_once |= dict.fromkeys(STORE, call)
        self.at_once[Save] = self._save_at_once

    async def carry_out(self, go_on: Callable[[Any], Command], value: Any) -> Any:
        """Resume the task with a value, and execute its commands; return its answer or raise its exception.

        Raises:
            Shown: the task shows a State. It has not ended.
        """
        await self._cancellations.begin()
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
                        is_sent = value is not CARRIED_ON
                        kind, function, argument = send(value) if is_sent else self._carried.next_command()
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

    def _enter(self) -> None:
        self._threads = threads_of_loop()
        self._call_of_store = self._threads.calls_of(self._store)

    def _leave(self) -> None:
        """Release the threads: an exception may keep this object alive until garbage collection."""
        self._threads.keep()
        del self._threads, self._call_of_store
        if self._lookout is not None:
            self._lookout.end()

    # ------------------------------------------------------------------ immediately, or _LATER

    def _save_at_once(self, function: Any, argument: State) -> Any:
        """Save a State, if the save only queues it or if the store never waits."""
        queue: Any = function.__self__.queue
        is_quick = self._asks_at_once if queue is None else queue.has_room_for(argument)
        return function(argument) if is_quick else _LATER

    def _show(self, _: None, state: State) -> Any:
        """Show a State, even to a cancelled caller if it is the last State: no other copy may exist."""
        if self._is_cancelled() and state.status is RunStatus.ACTIVE:
            return _LATER
        self._deleted = None  # the answer is not lost
        raise Shown(state)

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
        if limit is None:
            run_node = self._carry_on if self._asks_at_once else self._call_thread
            return await run_node(function, argument)
        work = self._threads.call_node(function, argument)
        for seconds in limit.waits():
            await self._cancellations.outlast(work, seconds)
            if work.done():
                break
        else:
            await self._check_cancelled()
            raise limit.passed()
        return await self._cancellations.result_of(work)

    async def _carry_on(self, function: _Function, argument: Any) -> Any:
        """Run a node in a thread, which continues the run until a command needs the event loop."""
        is_to_stop = partial(self._is_to_stop, asyncio.get_running_loop())
        self._carried = carried = CarriedRun(self._run, is_to_stop)
        try:
            value = await self._call_thread(carried.go_on, (RunNode, function, argument))
        except BaseException:
            carried.is_left = True
            raise
        self._others_wait_since = time.monotonic()
        return value

    def _is_to_stop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a thread must not run another node: the run should stop, or the loop is closed."""
        signal = self._limits.signal
        return self._is_cancelled() or (signal is not None and signal.is_due()) or not loop.is_running()

    # ------------------------------------------------------------------ awaited

    async def _run_here(self, function: _Function, argument: Any) -> Any:
        if time.monotonic() - self._others_wait_since > _TURN:
            await asyncio.sleep(0)  # for other tasks of the loop: neither nodes nor stores may have to wait
            self._others_wait_since = time.monotonic()
        if self._is_cancelled():
            await self._check_cancelled()
        self._limits.check()
        result = function(argument)
        return await self._result_of(result) if isawaitable(result) else result

    async def _wait_for(self, awaitable: Awaitable[Any], node_name: str) -> Any:
        if self._is_cancelled():
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # otherwise Python warns that it was never awaited
            await self._check_cancelled()
        return await self._result_of(awaitable)

    async def _result_of(self, awaitable: Awaitable[Any]) -> Any:
        answer = await self._watched(self._limits.limited(awaitable))
        if self._is_cancelled():
            await self._cancellations.forget_strays()
        return answer

    def _look_out(self, look: _Function, _: None) -> None:
        self._lookout = Lookout(look, None if self._asks_at_once else self._begin_call_of_store)

    def _begin_call_of_store(self, function: _Function, argument: Any) -> Work:
        return self._call_of_store(function, argument)

    def _watched(self, awaitable: Awaitable[Any]) -> Awaitable[Any]:
        return awaitable if self._lookout is None else self._lookout.over(awaitable)

    async def _assist(self, function: _Function, argument: Any) -> Any:
        """Call a function that serves a node, uninterrupted: a cancellation waits for it."""
        if not is_async_callable(function):
            return await self._call_thread(function, argument)
        work = asyncio.ensure_future(function(argument))
        await self._cancellations.outlast(work)
        return work.result()

    def _until(self, _: None, deadline_ns: int) -> StopSignal | None:
        self._limits = self._limits.until(deadline_ns)
        return self._limits.signal

    async def _sleep(self, _: None, seconds: float) -> None:
        """Sleep, but no longer than the limits of the run allow."""
        await self._check()
        until = time.monotonic() + seconds
        while (left := self._limits.until_check(until - time.monotonic())) > 0:
            await self._watched(asyncio.sleep(left))
            await self._check()

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


_PERFORM: dict[type[CommandType], Callable[[AsyncPerformer, Any, Any], Awaitable[Any]]] = {
    **dict.fromkeys(BLOCKING, AsyncPerformer._call_store),
    RunNode: AsyncPerformer._run_node,
    RunHere: AsyncPerformer._run_here,
    Await: AsyncPerformer._wait_for,
    Assist: AsyncPerformer._assist,
    Sleep: AsyncPerformer._sleep,
    Show: lambda performer, _, __: performer._check_cancelled(),
    Delete: AsyncPerformer._delete,
}
