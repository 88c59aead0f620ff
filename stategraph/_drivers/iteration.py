"""Iterating over a run in this thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from inspect import GEN_CLOSED, GEN_CREATED, GEN_SUSPENDED, getgeneratorstate
from typing import TYPE_CHECKING, Any, Self, TypeVar

from stategraph._drivers.endings import left, raised_after
from stategraph._drivers.sync import Performer, Shown, carry_out
from stategraph._protocol.commands import Command, Show, Stopped, Task
from stategraph._util.dropped import reaper
from stategraph.errors import ExecutionError
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._drivers.limits import StopSignal

_Answer = TypeVar("_Answer")


def _iterate(task: Task[_Answer], signal: StopSignal | None, store: object) -> Generator[State, None, _Answer]:
    """Run a task in this thread, yielding what it shows, and return its answer.

    What is thrown in stops the run at a checkpoint, and is raised then. A GeneratorExit comes from a finaliser, on any
    thread and at any time: the run is dropped, and ended elsewhere.
    """
    thrown: BaseException | None = None
    go_on: Callable[[Any], Command] = task.send
    value: Any = None
    with _performer(signal, store) as performer:
        while True:
            try:
                answer = carry_out(task, performer.perform, go_on, value)
                if thrown is None:
                    return answer
                break
            except Shown as shown:
                begun = time.monotonic()
                try:
                    yield shown.args[0]
                    _prolong_limits(performer, time.monotonic() - begun)
                    go_on, value = task.send, None
                except GeneratorExit:
                    try:
                        task.close()
                    finally:
                        _drop_loop(performer)
                    raise
                except BaseException as error:
                    thrown = error
                    performer.perform[Show] = _pass_over
                    go_on, value = task.throw, left()
            except BaseException as error:
                if getgeneratorstate(task) != GEN_CLOSED:  # an interrupt, on the way to the task
                    go_on, value = task.throw, error
                elif thrown is None:
                    if isinstance(error, ExecutionError):
                        raise error.with_traceback(None) from error.__cause__  # as `drive`
                    raise
                else:
                    thrown = raised_after(thrown, error)
                    break
    try:
        raise thrown
    finally:
        del thrown  # or it would hold this frame, which holds it


def _pass_over(_: object, __: State) -> None:
    """Go on at once: the run is stopping, and no caller looks at it."""


def _prolong_limits(performer: Performer, seconds: float) -> None:
    if performer.waits is not None:
        performer.waits.prolong(seconds)


def _drop_loop(performer: Performer) -> None:
    if performer.waits is not None:
        performer.waits.drop()


@contextmanager
def _performer(signal: StopSignal | None, store: object) -> Iterator[Performer]:
    """Give what carries out the commands of a run. While it is there, it keeps the store alive."""
    performer = Performer(signal, store)
    reaper.hold(performer, store)
    try:
        yield performer
    finally:
        reaper.let_go(performer)
        performer.close()


class Stream(Generator[State, None, State]):
    """A run that goes on when its next State is asked for.

    To close it, to leave its ``with`` or to throw an error into it stops the run at a checkpoint, from which
    `StateGraph.resume` goes on. One that is merely dropped is stopped soon after, by a thread.
    """

    def __init__(self, task: Task[State], signal: StopSignal | None, store: object) -> None:
        self._states = _iterate(task, signal, store)
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
