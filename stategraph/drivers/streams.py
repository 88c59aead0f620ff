"""Iterating over a run on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Self, cast

import attrs

from stategraph.commands import Task
from stategraph.drivers.outcomes import is_plain_stop, left, raised_after
from stategraph.drivers.stop import StopSignal
from stategraph.drivers.tasks import adrive
from stategraph.dropped import reaper, report
from stategraph.state import State


@attrs.define(eq=False)
class _Turns:
    """Whose turn it is: that of the run, or of whoever iterates over it."""

    shown: asyncio.Event = attrs.field(factory=asyncio.Event)
    seen: asyncio.Event = attrs.field(factory=asyncio.Event)
    state: State | None = None
    is_left: bool = False
    is_dropped: bool = False
    is_found: bool = False

    async def drive(self, task: Task[Any], signal: StopSignal | None) -> None:
        """Run a task, turn by turn. That it is left is no error."""
        try:
            await adrive(task, signal, self.show)
        except GeneratorExit:  # a collection has found it, and a thread ends it
            self.is_found = True
            raise
        except BaseException as error:
            if not (self.is_left and is_plain_stop(error)):
                raise

    async def show(self, state: State) -> None:
        """Wait until the next State is asked for: the run is never ahead of whoever iterates over it."""
        self.state = state
        self.seen.clear()
        self.shown.set()
        if not self.is_left:
            await self.seen.wait()
        if self.is_left:
            raise left()

    async def next(self) -> State | None:
        """Wait for the next State; there is none any more once the run has ended."""
        self.seen.set()
        await self.shown.wait()
        self.shown.clear()
        return self.state

    def leave(self) -> None:
        """Have the run stopped where it waits, or when it comes there."""
        self.is_left = True
        self.seen.set()

    def end(self, run: asyncio.Task[None]) -> None:
        """Tell that there is no State any more. What the run raised is raised by whoever asked for one."""
        reaper.let_go(self)
        self.state = None
        self.shown.set()
        error = None if run.cancelled() else run.exception()
        if self.is_dropped and not self.is_found and error is not None:
            report(error)


class AsyncStream(AsyncGenerator[State, None]):
    """A run on the running event loop that goes on when its next State is asked for.

    To close it, to leave its ``async with`` or to throw an error into it stops the run at a checkpoint, from which
    `StateGraph.aresume` goes on. One that is merely dropped is stopped soon after: by its event loop or, if that is not
    running any more, by a thread.
    """

    _run: asyncio.Task[None] | None = None

    def __init__(self, task: Task[State], signal: StopSignal | None, store: object) -> None:
        self._task, self._signal, self._store = task, signal, store
        self._turns = _Turns()
        self._is_asked = self._is_over = False

    async def __anext__(self) -> State:
        self._check_not_asked()
        if self._is_over:
            raise StopAsyncIteration
        self._is_asked = True
        try:
            state = await self._asked()
        except BaseException as error:
            self._is_over = True
            await self._cancelled(error)
            raise
        finally:
            self._is_asked = False
        if state is None:
            self._is_over = True
            raise StopAsyncIteration
        return state

    async def asend(self, value: None, /) -> State:
        return await self.__anext__()

    async def athrow(self, typ: Any, val: object = None, tb: object = None, /) -> State:
        """Stop the run as an error of whoever iterates over it does, and raise that error."""
        thrown = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        ended = await self._stopped()
        raise cast(BaseException, thrown if ended is None else raised_after(thrown, ended))

    async def aclose(self) -> None:
        """Stop the run, if it has begun and has not ended.

        Raises:
            RunCancelledError: its last State could not be saved; the notes say why.
        """
        ended = await self._stopped()
        if ended is not None:
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
        """-> the next State; None if the run has ended."""
        if self._run is None:
            self._run = self._begun()
        state = await self._turns.next()
        if state is None:
            await self._run
        return state

    def _begun(self) -> asyncio.Task[None]:
        reaper.watch(self)
        reaper.hold(self._turns, self._store)
        run = asyncio.create_task(self._turns.drive(self._task, self._signal))
        run.add_done_callback(self._turns.end)
        # asyncio need not tell that a run which was dropped is found by a collection: it is ended all the same.
        run._log_destroy_pending = False  # type: ignore[attr-defined]
        return run

    async def _stopped(self) -> BaseException | None:
        """Stop the run -> what went wrong with that, if anything did."""
        self._check_not_asked()
        self._is_over, run = True, self._run
        if run is None:
            self._task.close()
        if run is None or run.done():
            return None
        self._turns.leave()
        try:
            await asyncio.wait([run])
        except BaseException as error:
            await self._cancelled(error)
            raise
        return None if run.cancelled() else run.exception()

    async def _cancelled(self, error: BaseException) -> None:
        """Cancel the run, unless it has ended, and wait for its end; but not if whoever asks for that is dropped."""
        if isinstance(error, GeneratorExit):
            self.drop()
        elif self._run is not None and not self._run.done():
            self._run.cancel()
            await asyncio.wait([self._run])

    def _check_not_asked(self) -> None:
        if self._is_asked:
            raise RuntimeError("somebody else waits for the next State of this stream: one at a time iterates over it")
