"""Calls whose outcome is passed from one thread to another."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from stategraph._util.callables import start

NODES = 1000
"""The maximum number of nodes in threads at the same time: high enough that a node seldom waits."""

Outcome: TypeAlias = tuple[Any, BaseException | None]
"""The result of a call, and the exception it raised."""


class Shown(BaseException):
    """Leaves the loop of a driver to show a State: a check in the loop itself would slow every command."""


def outcome_of(function: Callable[[Any], Any], argument: Any) -> Outcome:
    """Return the result or exception of a call.

    Some exceptions would stop the loop, or get lost, if they were raised in a thread of a pool.
    """
    try:
        return function(argument), None
    except BaseException as error:
        return None, error


class Threads:
    """Threads that make calls. They end once nothing refers to this object.

    The process does not wait for them at its end, as it does for those of a ThreadPoolExecutor: a node that hangs
    cannot be stopped.

    Args:
        most: The maximum number of threads.
        name: Begins the name of each.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._threads: list[threading.Thread] = []
        self._idle: list[None] = []  # an item for each thread that is free; a Semaphore takes far longer
        self._calls: SimpleQueue[Any] = SimpleQueue()

    def call(self, function: Callable[[Any], Any], argument: Any, done: Callable[[Outcome], object]) -> None:
        """Call a function in a thread, once one is free. The thread passes the outcome to `done`."""
        self._calls.put((contextvars.copy_context().run, function, argument, done))
        try:
            self._idle.pop()
        except IndexError:
            if len(self._threads) < self._most:
                self._begin_thread()

    def _begin_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_make_calls, args=(self._calls, self._idle), name=name, daemon=True)
        self._threads.append(thread)  # before it starts: it is joined even if an interrupt comes here
        if not start(thread):  # this thread makes the call, unless another one has it
            self._threads.remove(thread)
            with suppress(Empty):
                run, function, argument, done = self._calls.get_nowait()
                done(run(outcome_of, function, argument))

    def end(self) -> None:
        """Begin no more calls, and have each thread end after the one that it makes."""
        with suppress(Empty):
            while True:
                self._calls.get_nowait()
        for _ in self._threads:
            self._calls.put(None)

    __del__ = end

    def join(self) -> None:
        """Wait until the threads have ended."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join()


def _make_calls(calls: SimpleQueue[Any], idle: list[None]) -> None:
    """Make one call after the other. An idle thread keeps nothing of a call alive."""
    while (call := calls.get()) is not None:
        run, function, argument, done = call
        outcome = run(outcome_of, function, argument)
        del call, run, function, argument
        idle.append(None)  # `done` takes no time
        done(outcome)
        del outcome, done
