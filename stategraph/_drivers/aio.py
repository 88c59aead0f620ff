"""The loop that awaits."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate, isgenerator
from operator import call
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, cast

import attrs

from stategraph._drivers.calls import Shown
from stategraph._drivers.limits import Limits, MakeError, StopSignal
from stategraph._drivers.threads import Work, begun_apart, threads_of_loop
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
    escaped,
)
from stategraph._util.callables import failure_of, is_async_callable
from stategraph._util.cancellation import outlast
from stategraph._values.provenance import RunStatus
from stategraph.errors import ExecutionError
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._drivers.gathering import OnLoop

_Answer = TypeVar("_Answer")
_POLL = 0.05  # seconds after which a cancel event is looked at: threads set it, and no event loop is told
_GROUPS_LEAVE_CANCELLATIONS = sys.version_info < (3, 13)  # in the count of their task, when one of theirs failed
_TURN = 0.001  # seconds for which a run that never waits has the loop for itself
_LATER, _CARRIED_ON = object(), object()
_STORE = (Own, Load, Save, Amend, Flush, Parts)  # what a store is asked for, but for Delete
_CARRIED = frozenset((RunNode, *_STORE))
_Function: TypeAlias = Callable[[Any], Any]


async def adrive(
    task: Task[_Answer],
    signal: StopSignal | None,
    store: Any = None,
    limits: Limits | None = None,
    part_of: OnLoop | None = None,
) -> _Answer:
    """Run a task on this event loop, with what blocks in worker threads; return its answer. Nobody sees what it shows.

    Args:
        task: The task.
        signal: May stop the run.
        store: The store of the run.
        limits: What limits the run that this is a part of.
        part_of: The tasks that were gathered, of which this is one.
    """
    try:
        performer = AsyncPerformer(task, signal, store, limits, part_of)
        return cast(_Answer, await performer.carry_out(task.send, None))
    except ExecutionError as error:
        raise error.with_traceback(None) from error.__cause__  # as `drive`


class AsyncPerformer:
    """Carries out commands without blocking the event loop.

    A thread cannot be stopped. So a cancellation that arrives while one works waits until the work is done and takes
    effect before the next node: a sync node that has run counts, and no thread is left behind.
    """

    def __init__(
        self,
        task: Task[Any],
        signal: StopSignal | None,
        store: Any,
        limits: Limits | None = None,
        part_of: OnLoop | None = None,
    ) -> None:
        self._run, self._store, self._part_of = task, store, part_of
        self._limits = Limits(signal) if limits is None else attrs.evolve(limits, signal=signal, stack=[*limits.stack])
        self._cancelled: asyncio.CancelledError | None = None
        self._deleted: object = None
        self._others_wait_since = 0.0
        self._asks_at_once = store is not None and store.never_waits
        self._carried_to: tuple[Command | None, BaseException | None] = None, None
        self.at_once: Perform = {
            **_AT_ONCE,
            StartNode: self._start_at_once,
            Limit: self._limit,
            Unlimit: self._unlimit,
            Gather: self._gather,
        }
        if part_of is not None:
            self.at_once[Report] = lambda _, report: part_of.report(report)
        if self._asks_at_once:
            self.at_once |= dict.fromkeys(_STORE, self._ask_at_once)
        self.at_once[Save] = self._save_at_once

    async def carry_out(self, go_on: Callable[[Any], Command], value: Any) -> Any:
        """Carry out what the task asks for until it ends; return its answer, or raise what it ends with.

        Args:
            go_on: How the task goes on: ``task.send`` or ``task.throw``.
            value: What is sent or thrown.

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
                        value = at_once[kind](function, argument)
                        if value is _LATER:
                            value = await _PERFORM[kind](self, function, argument)
                        kind, function, argument = send(value) if value is not _CARRIED_ON else self._carried()
                except Shown:
                    raise
                except BaseException as error:
                    if getgeneratorstate(self._run) == GEN_CLOSED:  # it was the task itself that ended
                        await self._check_cancelled_at_the_end(error)
                        if isinstance(error, StopIteration):
                            return error.value
                        raise
                    go_on, value = self._run.throw, await self._thrown(error)
        finally:
            self._leave()

    def prolong(self, seconds: float) -> None:
        """Extend the limits of nodes by so many seconds."""
        self._limits.prolong(seconds)

    def show(self) -> None:
        """Have `carry_out` raise Shown for each State that the task shows."""
        self.at_once[Show] = self._show_at_once

    def pass_over(self) -> None:
        """Show no State any more."""
        self.at_once[Show] = _AT_ONCE[Show]

    def _enter(self) -> None:
        self._threads = threads_of_loop()
        self._call_of_store = self._threads.calls_of(self._store)
        self._task = asyncio.current_task()
        self._cancellations = self._task.cancelling() if self._task else 0

    def _leave(self) -> None:
        """Let go of the threads: an exception may keep this until the garbage collector comes."""
        self._threads.keep()
        del self._threads, self._call_of_store

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
        queue: Any = function.__self__.queue
        is_quick = self._asks_at_once if queue is None else queue.has_room_for(argument)
        return self._ask_at_once(function, argument) if is_quick else _LATER

    def _start_at_once(self, function: _Function, argument: Any) -> Any:
        limits = self._limits
        if limits.stack or limits.signal is not None or self._is_cancelled() or self._is_turn_over():
            return _LATER
        return function(argument)

    def _show_at_once(self, _: None, state: State) -> Any:
        """Show a State, also to a caller who was cancelled if it is the last one: it may be nowhere else."""
        if self._is_cancelled() and state.status is RunStatus.ACTIVE:
            return _LATER
        self._deleted = None  # the answer is not lost
        raise Shown(state)

    def _is_turn_over(self) -> bool:
        """Return whether it is time to let others run on the loop: neither nodes nor stores need wait for anything."""
        return time.monotonic() - self._others_wait_since > _TURN

    def _limit(self, error: MakeError, seconds: float) -> None:
        self._limits.push(error, seconds)

    def _unlimit(self, _: None, __: None) -> None:
        self._limits.stack.pop()

    def _gather(self, _: None, about: tuple[Iterator[Task[Any]], int, str]) -> Gathered:
        from stategraph._drivers.gathering import OnLoop  # imported when used: most graphs have no parts

        return OnLoop(*about[:2], self._limits, partial(adrive, store=self._store), self._is_cancelled)

    # ------------------------------------------------------------------ in threads

    async def _call_store(self, function: _Function, argument: Any) -> Any:
        return await self._outcome(self._call_of_store(function, argument))

    async def _call_thread(self, function: _Function, argument: Any) -> Any:
        return await self._outcome(self._threads.call_node(function, argument))

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

    async def _run_node(self, function: _Function, argument: Any) -> Any:
        await self._check()
        limit = self._limits.of_node()
        if limit is None and self._asks_at_once:
            return await self._carry_on((RunNode, function, argument))
        if limit is None:
            return await self._call_thread(function, argument)
        work = begun_apart(function, argument)
        self._cancelled = await outlast(work, limit.left()) or self._cancelled
        if not work.done():
            if self._is_cancelled():
                await self._raise_cancellation()
            raise limit.passed()
        return await self._outcome(work)

    async def _carry_on(self, command: Command) -> object:
        """Have a thread run a node, and go on with the run until something has to be done on the event loop.

        So not each sync node costs a hand-over. Only one thread has the run at any time.
        """
        loop = asyncio.get_running_loop()
        is_left = False

        def go_on(command: Command) -> Any:
            kind, function, argument = command
            while True:
                function = cast(_Function, function)  # all that is carried out here is a call
                value = contextvars.copy_context().run(function, argument) if kind is RunNode else function(argument)
                if is_left or isgenerator(value):  # which is at home in no thread of these
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
        """Return the first command that the thread has not carried out, or raise what the task ended with."""
        (command, end), self._carried_to = self._carried_to, (None, None)
        if end is not None:
            raise end
        return cast(Command, command)

    def _is_to_stop(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether a thread is to run no further node: the run is to stop, or the loop is gone."""
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
                awaitable.close()  # or Python warns that nobody awaited it
            await self._raise_cancellation()
        answer = await self._limits.limited(awaitable)
        if self._is_cancelled():
            await self._forget_stray_cancellations()
        return answer

    async def _reports(self, reports: _Function, _: None) -> Any:
        await self._check()
        return await reports(None)

    async def _finish(self, function: _Function, argument: Any) -> Any:
        """Call what a node needs for its end, uninterrupted: a cancellation waits for it."""
        if not is_async_callable(function):
            return await self._call_thread(function, argument)
        work = asyncio.ensure_future(function(argument))
        self._cancelled = await outlast(work) or self._cancelled
        return work.result()

    async def _sleep(self, _: None, seconds: float) -> None:
        """Wait, but not beyond what stops the run."""
        await self._check()
        limit = self._limits.of_all()
        until = asyncio.get_running_loop().time() + (seconds if limit is None else min(seconds, limit.left()))
        while (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left if self._limits.cancel is None else min(left, _POLL))
            await self._check()
        await self._check()

    async def _show_cancelled(self, _: None, __: State) -> NoReturn:
        await self._raise_cancellation()

    async def _delete(self, function: _Function, argument: Any) -> None:
        """Delete a run that has completed, unless it was cancelled: then its result would be nowhere else."""
        if self._is_cancelled():
            await self._raise_cancellation()
        if self._asks_at_once:
            self._ask_at_once(function, argument)
        else:
            await self._call_store(function, argument)
        self._deleted = argument

    # ------------------------------------------------------------------ cancellations

    async def _check(self) -> None:
        if self._is_cancelled():
            await self._raise_cancellation()
        self._limits.check()

    def _is_cancelled(self) -> bool:
        """Return whether the task of the run was cancelled since it began: not every CancelledError means that."""
        if self._cancelled is None and (self._task is None or self._task.cancelling() <= self._cancellations):
            return False
        return self._part_of is None or self._part_of.is_stopping()

    async def _raise_cancellation(self) -> NoReturn:
        """Raise the newest cancellation."""
        if self._cancelled is None:
            await asyncio.sleep(0)  # where it is not delivered yet, it comes now, with what is said in it
        raise self._cancelled or asyncio.CancelledError

    async def _thrown(self, error: BaseException) -> BaseException:
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

    async def _check_cancelled_at_the_end(self, end: BaseException) -> None:
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
    **dict.fromkeys((*BLOCKING, *WAITING, Delete), _later),
    Notify: call,
    Show: lambda _, __: None,
}
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
