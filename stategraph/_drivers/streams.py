"""Iterating over a run on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Self

import attrs

from stategraph._drivers.aio import adrive, end_of
from stategraph._drivers.endings import is_plain_stop, left, raised_after
from stategraph._drivers.limits import StopSignal
from stategraph._protocol.commands import Task
from stategraph._protocol.store import Store
from stategraph._util.cancellation import outlast
from stategraph._util.dropped import reaper, report
from stategraph._values.provenance import RunStatus
from stategraph.state import State


@attrs.define(eq=False)
class _Turns:
    """Whose turn it is: that of the run, or of the caller who iterates over it.

    Nothing else holds the run while it waits for its turn: a collection that finds it would close it, on its thread,
    while its loop goes on with it. So it is held then, and only then: while the caller waits for the run, that would
    hold the caller as well.
    """

    store: object
    states: deque[State | None] = attrs.field(factory=deque)
    shown: asyncio.Event = attrs.field(factory=asyncio.Event)  # a Queue asks its loop when a waiting task is dropped
    seen: asyncio.Event = attrs.field(factory=asyncio.Event)
    last: State | None = None
    is_left: bool = False
    is_dropped: bool = False

    async def show(self, state: State) -> None:
        """Wait until the next State is asked for: the run is never ahead of the caller."""
        if state.status is not RunStatus.ACTIVE:  # there is no next
            self._put(state)
            return
        if not self.is_left:
            self.seen.clear()
            self._put(state)
            reaper.hold(self, (self, self.store))
            await self.seen.wait()
        if self.is_left:
            raise left()

    async def next(self) -> State | None:
        """Wait for the next State; there is none any more once the run has ended."""
        if not self.states:  # one is there already where a task begins when it is created (asyncio.eager_task_factory)
            reaper.hold(self, self.store)
            self.seen.set()
        while not self.states:
            self.shown.clear()
            await self.shown.wait()
        self.last = self.states.popleft()
        return self.last

    def _put(self, state: State | None) -> None:
        self.states.append(state)
        self.shown.set()

    def leave(self) -> None:
        """Have the run stopped at the point where it shows a State, now or later."""
        self.is_left = True
        self.seen.set()

    def end(self, run: asyncio.Task[Any]) -> None:
        """Say that there are no more States. What the run raised is raised in the caller who asks for one."""
        reaper.let_go(self)
        self._put(None)
        error = None if run.cancelled() else run.exception()
        if self.is_dropped and error is not None and not is_plain_stop(error):
            report(error)


class AsyncStream(AsyncGenerator[State, None]):
    """A run on the running event loop that goes on when its next State is asked for.

    To close it, to leave its ``async with`` or to throw an error into it stops the run at a checkpoint, from which
    `StateGraph.aresume` goes on. One that is merely dropped is stopped soon after: by its event loop or, if that is not
    running any more, by a thread.
    """

    _run: asyncio.Task[State] | None = None

    def __init__(self, task: Task[State], signal: StopSignal | None, store: Store) -> None:
        self._task, self._signal, self._store = task, signal, store
        self._turns = _Turns(store)
        self._is_asked = self._is_over = False
        self._raised_last: list[BaseException] = []  # what is raised when there is no State any more

    async def __anext__(self) -> State:
        self._check_not_asked()
        if self._is_over:
            raise self._raised_last.pop() if self._raised_last and _is_cancelled() else StopAsyncIteration
        self._is_asked = True
        try:
            state = await self._asked()
        except BaseException as error:
            self._is_over = True
            state = await self._cancelled(error)
        finally:
            self._is_asked = False
        if state is None:
            self._is_over = True
            raise StopAsyncIteration
        return state

    async def asend(self, value: None, /) -> State:
        return await self.__anext__()

    async def athrow(self, typ: Any, val: object = None, tb: object = None, /) -> State:
        """Stop the run as an error of the caller's loop does, and raise that error."""
        if isinstance(typ, BaseException):
            thrown: BaseException = typ
        else:
            thrown = val if isinstance(val, typ) else typ() if val is None else typ(val)
        ended = await self._stopped()
        raise thrown if ended is None else raised_after(thrown, ended)

    async def aclose(self) -> None:
        """Stop the run, if it has begun and has not ended.

        Raises:
            RunCancelledError: its last State could not be saved; the notes say why.
        """
        ended = await self._stopped()
        if ended is not None and not is_plain_stop(ended):
            raise ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def drop(self) -> None:
        """Have the run stopped, without waiting for it: a finaliser may do this on any thread, at any time."""
        run, turns = self._run, self._turns
        if run is None or run.done():
            return
        reaper.let_go(turns)
        turns.is_dropped = True
        loop = run.get_loop()
        if not loop.is_running():
            with suppress(ValueError, RuntimeError):  # it has just begun to run
                self._task.close()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(turns.leave)

    def __del__(self) -> None:
        self.drop()

    async def _asked(self) -> State | None:
        """Return the next State; None if the run has ended."""
        if self._run is None:
            self._run = self._begun()
        state = await self._turns.next()
        if state is None:
            await self._run
        return state

    def _begun(self) -> asyncio.Task[State]:
        reaper.watch(self)
        reaper.hold(self._turns, self._turns.store)
        run = asyncio.create_task(adrive(self._task, self._signal, self._store, self._turns.show))
        run.add_done_callback(self._turns.end)
        # asyncio need not tell that a run which was dropped is found by a collection: it is ended all the same.
        run._log_destroy_pending = False  # type: ignore[attr-defined]
        return run

    async def _stopped(self) -> BaseException | None:
        """Stop the run, and return what it ended with; None if nothing was running."""
        self._check_not_asked()
        self._is_over, run = True, self._run
        if run is None:
            self._task.close()
        if run is None or run.done():
            return None
        self._turns.leave()
        cancelled = await outlast(run, hands_on_to=run)
        if cancelled is not None:
            raise cancelled from end_of(run)
        return None if run.cancelled() else run.exception()

    async def _cancelled(self, error: BaseException) -> State:
        """Cancel the run, unless it has ended, and wait for its end.

        Returns:
            The last State, if the run completed all the same and nobody has seen it: it may be nowhere else.

        Raises:
            BaseException: the error, or a cancellation that came meanwhile.
        """
        run = self._run
        if isinstance(error, GeneratorExit):  # the caller is dropped: nobody can wait
            self.drop()
        if isinstance(error, GeneratorExit) or run is None:
            raise error
        run.cancel()
        self._turns.leave()
        came = error if isinstance(error, asyncio.CancelledError) else None
        cancelled = await outlast(run, hands_on_to=run, cancelled=came) or error
        end = end_of(run)
        if end is None and run.result() is not self._turns.last:
            self._raised_last.append(cancelled)
            return run.result()
        if end is error:
            raise error
        raise cancelled from end

    def _check_not_asked(self) -> None:
        if self._is_asked:
            raise RuntimeError("somebody else waits for the next State of this stream: one at a time iterates over it")


def _is_cancelled() -> bool:
    """Return whether a cancellation of this task is still in effect.

    It may have been taken back meanwhile, such as by a timeout that has been left.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
