"""Runs that go on in a worker thread for a while, so that not each of their sync nodes costs a hand-over."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from stategraph._protocol.commands import Command, RunNode, Task

Ridden: TypeAlias = tuple[Command | None, BaseException | None]
"""The first command that a ride has not carried out, or what the task ended with."""


class Ride:
    """Carries out commands in a worker thread, one after the other, until one has to be carried out on the event loop.

    Only one thread has the task at any time: that of the ride, until `go` returns or `leave` does.

    Args:
        task: The task.
        kinds: The commands to carry out.
        is_to_stop: Whether no further node is to begin.
    """

    def __init__(self, task: Task[Any], kinds: frozenset[type], is_to_stop: Callable[[], bool]) -> None:
        self._task, self._kinds, self._is_to_stop = task, kinds, is_to_stop
        self._lock = threading.RLock()  # held while the task decides
        self._is_left = False

    def go(self, command: Command) -> Ridden:
        """Carry out commands from this one on. What one of them raises is raised: the task has not heard of it."""
        copy = contextvars.copy_context
        kind, function, argument = command
        call: Callable[[Any], Any]
        while True:
            call = function  # type: ignore[assignment]  # all that is carried out here is a call
            value = copy().run(call, argument) if kind is RunNode else call(argument)
            with self._lock:
                if self._is_left:
                    return None, None
                try:
                    command = self._task.send(value)
                except BaseException as end:  # raised on the event loop
                    return None, end
            kind, function, argument = command
            if kind not in self._kinds or (kind is RunNode and self._is_to_stop()):
                return command, None

    def leave(self) -> None:
        """Have the task touched no more: what has the thread now is the last. An interrupt has cut off the wait for it,
        or the event loop is gone."""
        self._is_left = True
        with self._lock:  # if the task is deciding, until it has
            pass
