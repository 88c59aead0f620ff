"""The cancellations of the task of a run: which are meant for the run, and when they are raised."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from stategraph._drivers.threads import Work
from stategraph._util.callables import failure_of
from stategraph._util.cancellation import outlast

if TYPE_CHECKING:
    from stategraph._drivers.gathering import OnLoop

_GROUPS_LEAVE_CANCELLATIONS = sys.version_info < (3, 13)  # a failed task group does not uncancel its task


class Cancellations:
    """The cancellations of the task that drives a run.

    A thread cannot be stopped. So a cancellation that arrives while a thread works is kept until the work is done.

    Args:
        part_of: The gathered tasks, if the task is one of them.
    """

    def __init__(self, part_of: OnLoop | None) -> None:
        self._part_of = part_of
        self._newest: asyncio.CancelledError | None = None

    async def begin(self) -> None:
        """Begin to count. Cancellations that the task has received are not meant for the run; a pending one is."""
        self._task = asyncio.current_task()
        if self._task is not None and self._task.cancelling():
            await self._receive_pending()
        self._before = self._task.cancelling() if self._task else 0

    async def _receive_pending(self) -> None:
        """Keep a cancellation that was counted and has interrupted nothing yet: it arrives at the next await."""
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            self._newest = error

    def has_come(self) -> bool:
        """Return whether the task of the run was cancelled since it began: a CancelledError alone does not prove it."""
        if self._newest is None and (self._task is None or self._task.cancelling() <= self._before):
            return False
        return self._part_of is None or self._part_of.is_stopping()

    async def check(self) -> None:
        """Raise the newest cancellation, if one has come."""
        if not self.has_come():
            return
        if self._newest is None:
            await asyncio.sleep(0)  # a pending cancellation arrives here, with its message
        raise self._newest or asyncio.CancelledError

    async def check_at_the_end(self, end: Exception) -> None:
        """Raise a cancellation that came after the last node had begun, however the task ended."""
        try:
            await self.check()
        except asyncio.CancelledError as cancelled:
            raise cancelled from (None if isinstance(end, StopIteration) else end)

    async def outlast(self, work: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait until work is done, even if this task is cancelled, but no longer than some seconds."""
        self._newest = await outlast(work, seconds) or self._newest

    async def result_of(self, work: Work) -> Any:
        """Wait for a thread's work, cancelled or not; return its result or raise its exception."""
        try:
            answer, raised = await work
        except asyncio.CancelledError as error:
            rest = work.rest or work
            self._newest = await outlast(rest, cancelled=error)
            answer, raised = rest.result()
        if raised is None:
            return answer
        try:
            raise raised
        finally:
            del raised, work  # otherwise this frame, and a stream that it works for, stay until a garbage collection

    async def failure_of(self, error: BaseException) -> BaseException:
        """Return the exception to throw into the task of the run for a failed command.

        A CancelledError is a failure of the called function, unless the run was cancelled.
        """
        if isinstance(error, asyncio.CancelledError):
            return error if self.has_come() else failure_of(error)
        if isinstance(error, Exception | BaseExceptionGroup) and self.has_come() and not _replaces_cancellation(error):
            await self.forget_strays()
        return error

    async def forget_strays(self) -> None:
        """Ignore cancellations that were counted but interrupted nothing: they came from task groups of a node."""
        if _GROUPS_LEAVE_CANCELLATIONS and self._task is not None:
            await self._receive_pending()
            self._before = self._task.cancelling()


def _replaces_cancellation(error: BaseException) -> bool:
    """Return whether an error was raised in place of a CancelledError.

    An error from a task group does not count: the group cancels its own task.
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
