"""Await the results of async nodes from a blocking thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any


class OwnLoop:
    """Awaits one awaitable after the other on its own event loop, in one task.

    A task for each would take twice as long. Between two awaitables the loop stands still, and no loop is running in
    this thread. A Ctrl-C cancels the current awaitable, and is raised once that has ended; a second one is raised at
    once. A task that was cancelled, or in which an exception was raised, is not used again.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._task: Any = None  # an asyncio.Task
        self._awaitable: Awaitable[Any] | None = None
        self._answer: Any = None  # in a tuple
        self._next: asyncio.Future[None] | None = None
        self._is_interrupted = self._is_left = False

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Return the result of an awaitable, or raise its exception."""
        self._awaitable, self._answer = awaitable, None
        try:
            if self._task is None or self._next is None:
                self._task = self._loop.create_task(self._work())
                self._task.add_done_callback(self._ended)
            else:
                self._next.set_result(None)
                self._next = None
            self._loop.run_forever()
        except BaseException:
            self._is_left = True
            if not self._is_interrupted:
                self._is_interrupted = True
                self._end_task()
                self._is_left = False
            raise
        if self._answer is not None:
            answer, self._answer = self._answer, None
            return answer[0]
        task, self._task = self._task, None
        if not task.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return task.result()

    def close(self) -> None:
        """Close the event loop, after its tasks have ended; at once after a second interrupt."""
        self._task = None
        if self._is_left:
            asyncio.set_event_loop(None)
            self._loop.close()
        else:
            self._runner.close()

    async def _work(self) -> Any:
        task = asyncio.current_task()
        while task is not None and task is self._task:
            awaitable, self._awaitable = self._awaitable, None
            answer = await awaitable  # type: ignore[misc]  # one is set whenever the task resumes
            del awaitable
            if task.cancelling():
                return answer  # otherwise asyncio would raise a pending cancellation in its place
            self._answer = (answer,)
            del answer
            self._next = self._loop.create_future()
            self._loop.stop()
            await self._next
        return None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task is self._task:  # not a task that was cut off, or is cancelled as the loop closes
            self._loop.stop()

    def _end_task(self) -> None:
        """End the task that an interrupt has cut off: its awaitable is cancelled, and may clean up."""
        task, self._task = self._task, None
        if task is None or self._answer is not None:
            return
        if task.done():
            task.cancelled() or task.exception()  # raised here: asyncio need not report it as lost
            return
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            self._loop.run_until_complete(task)
        if isinstance(self._awaitable, Coroutine):
            self._awaitable.close()  # the task never reached it; otherwise Python warns that it was never awaited
