"""Several tasks at the same time, each with a driver of its own, in threads."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import attrs

from stategraph._drivers.limits import Limits, StopSignal
from stategraph._protocol.commands import Task

_LOOK = 0.05  # seconds after which a wait looks whether it is to end


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
    """Tasks that are done at the same time, and what has come of them: a `Gathered`.

    Args:
        about: The tasks, and how many of them are done at the same time.
        limits: What limits the call that they are part of.
    """

    def __init__(self, about: tuple[Sequence[Task[Any]], int], limits: Limits) -> None:
        tasks, most = about
        self._left, self._most = deque(tasks), min(most, len(tasks))
        self._halted = threading.Event()
        self._errors: list[BaseException] = []
        signal = limits.signal
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

    def _end(self) -> None:
        """Raise what was raised first, if anything was, once all tasks are over."""
        self._forget()
        if self._errors:
            raise self._errors[0]

    def _forget(self) -> None:
        """Forget tasks that have not begun."""
        for task in self._left:
            task.close()
        self._left.clear()


class Threads(Gathering):
    """Tasks that are done in threads.

    Args:
        about: The tasks, and how many of them are done at the same time.
        limits: What limits the run.
        drive: Does a task.
    """

    def __init__(
        self,
        about: tuple[Sequence[Task[Any]], int],
        limits: Limits,
        drive: Callable[[Task[Any], StopSignal, Limits], Any],
    ) -> None:
        super().__init__(about, limits)
        self._drive, self._limits = drive, attrs.evolve(limits, telling=limits.telling or threading.RLock())
        self._ends = SimpleQueue[bool]()  # of tasks and, False, of threads
        self._threads: list[threading.Thread] = []
        self._at_work = 0

    def one_ends(self) -> bool:
        """Wait until one more task is over; return whether there may be more, or raise what the first has raised."""
        try:
            if not self._threads:
                self._begin()
            while self._at_work:
                if self._ends.get():
                    return True
                self._at_work -= 1
        except BaseException:  # an interrupt: what is at work ends first
            self.stop(None)
            raise
        self._end()
        return False

    def stop(self, _: object) -> None:
        """Stop all tasks, and wait for their end."""
        self.halt()
        for thread in self._threads:
            thread.join()
        self._forget()

    def _begin(self) -> None:
        for _ in range(self._most):
            context = contextvars.copy_context()
            thread = threading.Thread(target=self._work_in, args=[context], name="stategraph part", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads: those that there are do it
                if not self._threads:
                    raise
                return
            self._threads.append(thread)
            self._at_work += 1

    def _work_in(self, context: contextvars.Context) -> None:
        try:
            context.run(self._work)
        finally:
            self._ends.put(False)

    def _work(self) -> None:
        while (task := self.next()) is not None:
            try:
                self._drive(task, self.signal, self._limits)
            except BaseException as error:
                self.fail(error)
            self._ends.put(True)
