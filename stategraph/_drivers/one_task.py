"""Awaiting what async nodes return, from a thread that blocks."""

from __future__ import annotations

import asyncio
import contextvars
import threading

# The module `signal` makes an enum of each answer, which takes longer than all else here.
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]
from collections.abc import Awaitable, Coroutine
from types import FrameType
from typing import Any


class OneTask:
    """Awaits one thing after the other on an event loop of its own, in one task: a task for each would take six times
    as long. Between two of them the loop stands still, and none is running in this thread.

    As with ``asyncio.run``, the first Ctrl-C cancels what is awaited and is raised then, the second is raised at once.
    A task that was cancelled, or in which something was raised, is not used again.
    """

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self._loop = self.runner.get_loop()
        self._context = contextvars.copy_context()
        self._task: asyncio.Task[Any] | None = None
        self._awaitable: Awaitable[Any] | None = None
        self._answer: tuple[Any] | None = None
        self._wanted: asyncio.Future[None] | None = None
        self._interrupts = 0
        self._is_running = False

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Return what an awaitable gives, or raise what it raises."""
        self._awaitable, self._interrupts = awaitable, 0
        before = None
        try:
            before = self._heed_interrupts()  # first: within `set_result`, one would keep the task from going on
            if self._task is None or self._wanted is None or self._wanted.done():
                self._task = self._loop.create_task(self._work(), context=self._context)
                self._task.add_done_callback(self._ended)
            else:
                self._wanted.set_result(None)
            self._is_running = True
            self._loop.run_forever()
        finally:
            self._is_running = False
            self._leave_interrupts(before)
            task, answer = self._task, self._answer
            self._answer = None
            if self._awaitable is not None:  # the task was cancelled before it came to it
                self._forget()
            if answer is None or self._interrupts or (task is not None and task.done()):
                self._task = None
            if task is not None and task.done() and not task.cancelled():
                task.exception()  # is raised here: asyncio need not report it as lost
        if answer is not None and self._interrupts:  # it came when the awaitable was done already
            raise KeyboardInterrupt
        return answer[0] if answer is not None else self._end_of(task)

    def _forget(self) -> None:
        if isinstance(self._awaitable, Coroutine):
            self._awaitable.close()  # or Python warns that nobody awaited it
        self._awaitable = None

    def close(self) -> None:
        """Close the event loop."""
        self._leave_interrupts(default_int_handler)
        self.runner.close()

    async def _work(self) -> Any:
        task = asyncio.current_task()
        while task is not None and task is self._task:  # one that an interrupt has cut off is none of this any more
            awaitable, self._awaitable = self._awaitable, None
            answer = await awaitable  # type: ignore[misc]  # there is one whenever it goes on
            del awaitable
            if task.cancelling():
                return answer  # or asyncio raises a cancellation in its place that is on its way
            self._answer = (answer,)
            del answer
            self._wanted = self._loop.create_future()
            self._loop.stop()
            await self._wanted
        return None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task is self._task and self._is_running:  # and no former one, of which asyncio tells late
            self._loop.stop()

    def _end_of(self, task: asyncio.Task[Any] | None) -> Any:
        if task is None or not task.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        try:
            return task.result()
        except asyncio.CancelledError:
            if self._interrupts and task.uncancel() == 0:
                raise KeyboardInterrupt from None
            raise

    def _heed_interrupts(self) -> Any:
        """Handle Ctrl-C while the loop runs; return the handler to put back, None if this one is not needed."""
        if threading.current_thread() is not threading.main_thread():
            return None
        before = getsignal(SIGINT)
        if before is not default_int_handler:
            return None
        try:
            signal(SIGINT, self._on_interrupt)
        except ValueError:  # there is no main thread that hears of signals
            return None
        return before

    def _leave_interrupts(self, before: Any) -> None:
        if before is not None and getsignal(SIGINT) == self._on_interrupt:
            signal(SIGINT, before)

    def _on_interrupt(self, _: int, __: FrameType | None) -> None:
        self._interrupts += 1
        is_awaited = self._task is not None and self._answer is None and not self._task.done()
        if self._interrupts == 1 and self._task is not None and is_awaited:
            self._task.cancel()
            self._loop.call_soon_threadsafe(bool)  # wakes it up
            return
        raise KeyboardInterrupt
