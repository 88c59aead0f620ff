"""Run several tasks concurrently, in threads or on an event loop; and an event loop for a thread that blocks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Final

import attrs

from stategraph._drivers.calls import Outcome, Threads
from stategraph._drivers.limits import LOOK_OUT, EitherEvent, Limits, StopSignal
from stategraph._protocol import Task
from stategraph._util.cancellation import from_any_thread, outlast

_Tasks = Iterator[Task[Any]]
_LOOK = 0.05  # seconds between two checks whether cancelled tasks can end
_OVER: Final = object()  # reported at the end of each task


class _Gathering:
    """Tasks that run concurrently, and their reports.

    Args:
        tasks: The tasks.
        most: How many of them run at the same time.
        limits: The limits of the run that they are part of.
        reports: A queue for their reports.
    """

    def __init__(
        self, tasks: _Tasks, most: int, limits: Limits, reports: SimpleQueue[Any] | asyncio.Queue[Any]
    ) -> None:
        self._tasks, self._limits = tasks, limits
        self._halted = EitherEvent(limits.cancel)
        self._signal = StopSignal(self._halted, None if limits.signal is None else limits.signal.timeout)
        self._is_halted = False
        self._error: BaseException | None = None
        self._at_work, self._room = 0, 2 * most
        self._queue = reports

    def halt(self) -> None:
        """Begin no other task, and stop the running ones."""
        self._tasks, self._is_halted = iter(()), True
        self._halted.set()

    def _fail(self, error: BaseException) -> None:
        """Stop all tasks because one has raised."""
        self._error = self._error or error
        self.halt()

    def _next_tasks(self) -> Iterator[Task[Any]]:
        """Yield the tasks to begin: those that wait or run are at most twice as many as can run."""
        for task in islice(self._tasks, self._room):
            self._at_work += 1
            yield task
        self._room = 0

    def _taken(self, *first: Any) -> list[Any]:
        """Return the available reports; each finished task makes room for another one."""
        found = [*first]
        while not self._queue.empty():
            found.append(self._queue.get_nowait())
        ended = sum(report is _OVER for report in found)
        self._at_work -= ended
        self._room += ended
        return [report for report in found if report is not _OVER]


class InThreads(_Gathering):
    """Tasks that run in threads.

    Args:
        tasks: As above.
        most: As above.
        limits: As above.
        new_driver: Makes a driver for each thread, a `Performer`, from the stop signal and limits of its tasks, and
            from the function that takes their reports.
    """

    def __init__(self, tasks: _Tasks, most: int, limits: Limits, new_driver: Callable[..., Any]) -> None:
        self._reports: SimpleQueue[Any] = SimpleQueue()
        super().__init__(
            tasks, most, attrs.evolve(limits, notifying=limits.notifying or threading.RLock()), self._reports
        )
        self.emit = self._reports.put
        self._threads = Threads(most, "stategraph part")
        self._new_driver = partial(new_driver, self._signal, self._limits, self._reports.put)
        self._of_thread = threading.local()  # its driver: to make one takes longer than many a task

    def reports(self, _: object = None) -> list[Any]:
        """Wait for reports and return them."""
        for task in self._next_tasks():
            self._threads.call(self._drive, task, self._over)
        if not self._reports.empty():
            time.sleep(0)  # other threads get the GIL: what they finish now is saved in the same commit
        found: list[Any] = []
        while self._at_work and not found:
            found = self._taken(self._next_report())
        if not found:
            self.stop()
            if self._error is not None:
                raise self._error
        return found

    def _next_report(self) -> Any:
        look = self._limits.look
        while look is not None:
            with suppress(Empty):
                return self._reports.get(timeout=LOOK_OUT)
            look(None)
        return self._reports.get()

    def stop(self, _: object = None) -> list[Any]:
        """Stop all tasks and wait for their end; return their reports."""
        self.halt()
        self._threads.end()
        self._threads.join()
        return self._taken()

    def _drive(self, task: Task[Any]) -> None:
        if self._is_halted:
            return
        if not hasattr(self._of_thread, "driver"):
            self._of_thread.driver = self._new_driver()
        driver = self._of_thread.driver
        try:
            driver.drive(task)
        finally:
            driver.close()

    def _over(self, outcome: Outcome) -> None:
        if outcome[1] is not None:
            self._fail(outcome[1])
        self._reports.put(_OVER)


class OnLoop(_Gathering):
    """Tasks that run on the running event loop.

    Args:
        tasks: As above.
        most: As above.
        limits: As above.
        drive: Drives a task: `adrive`.
        is_stopping: Whether the run that they are part of was cancelled.
    """

    def __init__(
        self,
        tasks: _Tasks,
        most: int,
        limits: Limits,
        drive: Callable[..., Awaitable[Any]],
        is_stopping: Callable[[], bool] = bool,
    ) -> None:
        self._reports: asyncio.Queue[Any] = asyncio.Queue()
        super().__init__(tasks, most, limits, self._reports)
        self.report = self._reports.put_nowait
        self.emit: Callable[[Any], object] = self.report
        self._drive, self._is_run_stopping = drive, is_stopping
        self._free = asyncio.Semaphore(most)
        self._works: set[asyncio.Task[None]] = set()

    async def reports(self, _: object = None) -> list[Any]:
        """Wait for reports and return them."""
        if not self._works:
            self.emit = from_any_thread(self._reports.put_nowait)
        for task in self._next_tasks():
            work = asyncio.create_task(self._work(task))
            self._works.add(work)
            work.add_done_callback(self._works.discard)
        found: list[Any] = []
        while self._at_work and not found and self._error is None:
            found = self._taken(await self._reports.get())
        if not found and self._error is not None:
            raise self._error
        return found

    async def stop(self, _: object = None) -> list[Any]:
        """Stop all tasks and wait for their end; return their reports."""
        self.halt()
        works, cancelled = [*self._works], None
        for work in works:
            work.cancel()
        for work in works:
            cancelled = await outlast(work) or cancelled
        if cancelled is not None:
            raise cancelled
        return self._taken()

    async def _work(self, task: Task[Any]) -> None:
        async with self._free:
            try:
                if not self._is_halted:
                    await self._drive(task, self._signal, limits=self._limits, part_of=self)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt) and _is_in_loop(error):
                    raise  # it ends the loop: nothing may wake the task that waits for reports
                if not self.is_stopping():
                    self._fail(error)
            finally:
                self.report(_OVER)

    def is_stopping(self) -> bool:
        """Return whether a cancellation of a task is meant for it; otherwise something in the task raised it."""
        return self._is_halted or self._is_run_stopping()


# --------------------------------------------------------------------------- awaiting in a thread that blocks


class OwnLoop:
    """Awaits one awaitable after the other on its own event loop, in one task.

    A task for each would take twice as long. Between two awaitables the loop stands still, and no loop is running in
    this thread. A task that was cancelled, or in which an exception was raised, is not used again.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._task: Any = None  # an asyncio.Task
        self._awaitable: Awaitable[Any] | None = None
        self._answer: Any = None  # in a tuple
        self._next: asyncio.Future[None] | None = None
        self._interrupt: BaseException = asyncio.CancelledError()

    def check(self, awaitable: Awaitable[Any]) -> None:
        """Raise the interrupt with which the loop was closed, if it was: nothing can be awaited any more."""
        if self._loop.is_closed():
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # otherwise Python warns that it was never awaited
            raise self._interrupt

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
        except BaseException as error:  # it stops the loop, not only the task
            self._interrupt = error
            self._cancel()
            raise
        if self._answer is not None:
            answer, self._answer = self._answer, None
            return answer[0]
        task, self._task = self._task, None
        return task.result()

    def close(self) -> None:
        """Cancel the tasks of the event loop, wait for them, and close it."""
        self._task = None
        if not self._loop.is_closed():
            self._runner.close()

    async def _work(self) -> Any:
        task = self._task
        while True:
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

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if task is self._task:  # otherwise the loop waits for more than this task
            self._loop.stop()

    def _cancel(self) -> None:
        """Cancel the task and wait: its awaitable may clean up.

        If the interrupt came in code of the loop, it may have lost the callback that would wake a task. Such a task
        never ends, so the loop is closed with all of its tasks.
        """
        task, self._task = self._task, None
        if _is_in_loop(self._interrupt):
            lost: Collection[asyncio.Task[Any]] = asyncio.all_tasks(self._loop)
        elif task is None:
            return
        else:
            task.cancel()
            lost = self._loop.run_until_complete(_ended(task))
        for each in lost:
            each._log_destroy_pending = False  # type: ignore[attr-defined]
        if lost:
            self._loop.close()
        elif task is not None:
            with suppress(asyncio.CancelledError):
                task.exception()  # raised already: asyncio need not report it as lost


def _is_in_loop(interrupt: BaseException) -> bool:
    """Return whether an interrupt was raised in code of an event loop, or of a driver, which has callbacks of it."""
    last, began = interrupt.__traceback__, interrupt.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    name = "" if last is None or last is began else str(last.tb_frame.f_globals.get("__name__"))
    return name.startswith(("asyncio.", "stategraph._drivers."))


async def _ended(task: asyncio.Task[Any]) -> Collection[asyncio.Task[Any]]:
    """Wait for the end of a cancelled task; return all tasks if one of them cannot be woken by its cancellation."""
    while not task.done():
        for _ in range(2):
            await asyncio.sleep(0)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if any(each._must_cancel for each in others):  # type: ignore[attr-defined]  # as anyio does
            return others
        await asyncio.wait([task], timeout=_LOOK)
    return ()
