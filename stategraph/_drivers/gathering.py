"""Several tasks at the same time, each with a driver of its own: in threads or, on an event loop, in its tasks."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from typing import Any, cast

import attrs

from stategraph._drivers.limits import Limits, StopSignal
from stategraph._protocol.commands import Task

_LOOK = 0.05  # seconds after which a wait looks whether it is to end
GATHERED = "it stops with another part of its step"
"""Why a task is stopped that others have ended."""


class Either:
    """A cancel event that is set once one of two is: that of the call, or that of the tasks that are gathered."""

    def __init__(self, of_call: threading.Event | None, halted: threading.Event) -> None:
        self._of_call, self._halted = of_call, halted

    def is_set(self) -> bool:
        """Return whether one of them is set."""
        return self._halted.is_set() or (self._of_call is not None and self._of_call.is_set())

    def wait(self, seconds: float) -> bool:
        """Wait for so long, or until one of them is set; return whether one is."""
        left = seconds
        while left > 0 and not self.is_set():
            self._halted.wait(min(left, _LOOK))
            left -= _LOOK
        return self.is_set()


class Gathering:
    """Tasks that are done at the same time, and what has come of them.

    Args:
        tasks: The tasks.
        signal: May stop the call that they are part of.
    """

    def __init__(self, tasks: Sequence[Task[Any]], signal: StopSignal | None) -> None:
        self._left = deque(tasks)
        self._halted = threading.Event()
        self._errors: list[BaseException] = []
        of_call, timeout, deadline = (
            (None, None, float("inf")) if signal is None else (signal.cancel, signal.timeout, signal.deadline)
        )
        self.signal = StopSignal(Either(of_call, self._halted), timeout, deadline)  # type: ignore[arg-type]

    def next(self) -> Task[Any] | None:
        """Return a task that has not begun, if one is to begin."""
        try:
            return None if self._halted.is_set() else self._left.popleft()
        except IndexError:
            return None

    def fail(self, error: BaseException) -> None:
        """Stop all tasks because one has raised."""
        self._errors.append(error)
        self._halted.set()

    def halt(self) -> None:
        """Stop all tasks."""
        self._halted.set()

    def end(self) -> None:
        """Raise what was raised first, if anything was, once all tasks are over."""
        for task in self._left:
            task.close()
        if self._errors:
            raise self._errors[0]


def gather_in_threads(
    tasks: Sequence[Task[Any]], most: int, limits: Limits, drive: Callable[[Task[Any], StopSignal, Limits], Any]
) -> None:
    """Do tasks in threads, so many at the same time, each by `drive`; raise what the first has raised."""
    gathering, done = Gathering(tasks, limits.signal), SimpleQueue[None]()
    limits = attrs.evolve(limits, telling=limits.telling or threading.RLock())

    def work() -> None:
        while (task := gathering.next()) is not None:
            try:
                drive(task, gathering.signal, limits)
            except BaseException as error:
                gathering.fail(error)

    def in_context(context: contextvars.Context) -> None:
        try:
            context.run(work)
        finally:
            done.put(None)

    threads = [
        threading.Thread(target=in_context, args=[contextvars.copy_context()], name="stategraph part", daemon=True)
        for _ in range(min(most, len(tasks)))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in threads:
            done.get()
    except BaseException:  # an interrupt: what is at work ends first
        gathering.halt()
        for thread in threads:
            thread.join()
        raise
    gathering.end()


async def gather_in_tasks(
    tasks: Sequence[Task[Any]], most: int, limits: Limits, drive: Callable[[Task[Any], StopSignal], Awaitable[Any]]
) -> None:
    """Do tasks on the event loop, so many at the same time, each by `drive`; raise what the first has raised."""
    import asyncio  # imported when used: 20 ms

    from stategraph._util.cancellation import outlast

    gathering = Gathering(tasks, limits.signal)

    async def work() -> None:
        while (task := gathering.next()) is not None:
            try:
                await drive(task, gathering.signal)
            except BaseException as error:
                gathering.fail(error)

    all_done = asyncio.gather(*(work() for _ in range(min(most, len(tasks)))))
    cancelled = await outlast(all_done, hands_on_to=cast("asyncio.Task[Any]", all_done))
    if cancelled is not None:
        raise cancelled
    gathering.end()
