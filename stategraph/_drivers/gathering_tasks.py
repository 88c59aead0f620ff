"""Several tasks at the same time, each with a driver of its own, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from stategraph._drivers.gathering import Gathering
from stategraph._drivers.limits import Limits, StopSignal
from stategraph._protocol.commands import Task
from stategraph._util.cancellation import outlast


class Tasks(Gathering):
    """Tasks that are done on the event loop.

    Args:
        about: As for `Threads`.
        limits: As for `Threads`.
        drive: As for `Threads`.
    """

    def __init__(
        self,
        about: tuple[Sequence[Task[Any]], int],
        limits: Limits,
        drive: Callable[[Task[Any], StopSignal], Awaitable[Any]],
    ) -> None:
        super().__init__(about, limits)
        self._drive, self._ended = drive, asyncio.Event()
        self._all: Any = None

    async def one_ends(self) -> bool:
        """Wait until one more task is over; return whether there may be more, or raise what the first has raised."""
        if self._all is None:
            self._all = asyncio.gather(*(self._work() for _ in range(self._most)))
            self._all.add_done_callback(self._over)
        try:
            await self._ended.wait()
        except asyncio.CancelledError as error:
            self._all.cancel(*error.args)
            raise await outlast(self._all, hands_on_to=self._all, cancelled=error) or error from None
        self._ended.clear()
        if not self._all.done():
            return True
        self._end()
        return False

    async def stop(self, _: object) -> None:
        """Stop all tasks, and wait for their end."""
        self.halt()
        if self._all is not None:
            self._all.cancel()
            await asyncio.wait([self._all])
        self._forget()

    def _over(self, all_tasks: asyncio.Future[Any]) -> None:
        if not all_tasks.cancelled():
            all_tasks.exception()  # or asyncio says that nobody asked for it: what came of each task is noted
        self._ended.set()

    async def _work(self) -> None:
        while (task := self.next()) is not None:
            try:
                await self._drive(task, self.signal)
            except BaseException as error:
                self.fail(error)
            self._ended.set()
