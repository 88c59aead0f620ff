"""Awaiting what async nodes return, from a thread that blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from typing import Any


class OwnLoop:
    """Awaits one thing after the other on an event loop of its own, in one task.

    A task for each would take twice as long. Between two of them the loop stands still, and none is running in this
    thread. A Ctrl-C while something is awaited cancels that, and is raised once it has ended; a second one is raised at
    once. A task that was cancelled, or in which something was raised, is not used again.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._task: Any = None  # an asyncio.Task
        self._awaitable: Awaitable[Any] | None = None
        self._answer: Any = None  # in a tuple
        self._next: asyncio.Future[None] | None = None

    def run(self, awaitable: Awaitable[Any]) -> Any:
        """Return what an awaitable gives, or raise what it raises."""
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
            self._end_task()
            raise
        if self._answer is not None:
            answer, self._answer = self._answer, None
            return answer[0]
        task, self._task = self._task, None
        if not task.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return task.result()

    def close(self) -> None:
        """Close the event loop."""
        self._task = None
        self._runner.close()

    async def _work(self) -> Any:
        task = asyncio.current_task()
        while task is not None and task is self._task:
            awaitable, self._awaitable = self._awaitable, None
            answer = await awaitable  # type: ignore[misc]  # there is one whenever it goes on
            del awaitable
            if task.cancelling():
                return answer  # or asyncio raises a cancellation in its place that is on its way
            self._answer = (answer,)
            del answer
            self._next = self._loop.create_future()
            self._loop.stop()
            await self._next
        return None

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task is self._task:  # and none that was cut off, or is cancelled as the loop is closed
            self._loop.stop()

    def _end_task(self) -> None:
        """End the task that an interrupt has cut off: what it awaits is cancelled, and may clean up."""
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
            self._awaitable.close()  # the task had not come to it: or Python warns that nobody awaited it
