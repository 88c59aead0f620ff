"""Iterating over a run in this thread."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from inspect import GEN_CREATED, GEN_SUSPENDED, getgeneratorstate
from typing import TYPE_CHECKING, Any, Self

from stategraph._drivers.endings import left
from stategraph._drivers.sync import iterate
from stategraph._protocol.commands import Stopped, Task
from stategraph._util.dropped import reaper
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._drivers.limits import StopSignal


class Stream(Generator[State, None, State]):
    """A run that goes on when its next State is asked for.

    To close it, to leave its ``with`` or to throw an error into it stops the run at a checkpoint, from which
    `StateGraph.resume` goes on. One that is merely dropped is stopped soon after, by a thread.
    """

    def __init__(self, task: Task[State], signal: StopSignal | None, store: object) -> None:
        self._states = iterate(task, signal, store)
        reaper.watch(self)

    def __next__(self) -> State:
        return next(self._states)

    def send(self, value: None, /) -> State:
        return self._states.send(value)

    def throw(self, *error: Any) -> State:
        """Stop the run as an error of the caller's loop does, and raise that error."""
        if isinstance(error[0], GeneratorExit) or error[0] is GeneratorExit:
            self.close()
        return self._states.throw(*error)

    def close(self) -> None:
        """Stop the run, if it has begun and has not ended.

        Raises:
            RunCancelledError: its last State could not be saved; the notes say why.
        """
        if getgeneratorstate(self._states) == GEN_CREATED:
            self._states.close()
        with suppress(StopIteration, Stopped):
            self._states.throw(left())

    def drop(self) -> None:
        """Stop the run as `close` does, at the end of the process. One that a thread is running goes on."""
        if getgeneratorstate(self._states) == GEN_SUSPENDED:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
