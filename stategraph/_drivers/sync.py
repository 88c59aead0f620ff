"""The loop that blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from operator import call
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stategraph._protocol.commands import (
    BLOCKING,
    WAITING,
    Command,
    Notify,
    Perform,
    Show,
    StartNode,
    Task,
    escaped,
)
from stategraph.errors import ExecutionError
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._drivers.blocking import Waits
    from stategraph._drivers.limits import Limits, StopSignal

_Answer = TypeVar("_Answer")
_CALLS: Perform = dict.fromkeys([*BLOCKING, StartNode, Notify], call)


class Shown(BaseException):
    """Leads out of the loop to show a State: asking in the loop itself would cost every command."""


def drive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task in this thread, and return its answer. Nobody sees what it shows."""
    performer = Performer(signal)
    try:
        return carry_out(task, performer.perform, task.send, None)
    except ExecutionError as error:
        raise error.with_traceback(None) from error.__cause__  # the calls in here tell whoever reads it nothing
    finally:
        performer.close()


def carry_out(task: Task[_Answer], perform: Perform, go_on: Callable[[Any], Command], value: Any) -> _Answer:
    """Carry out what a task asks for until it ends; return its answer, or raise what it ends with.

    Args:
        task: The task.
        perform: Carries out its commands.
        go_on: How the task goes on: ``task.send`` or ``task.throw``.
        value: What is sent or thrown.

    Raises:
        Shown: the task shows a State. It has not ended.
    """
    send: Callable[[Any], Command] = task.send
    while True:
        try:
            kind, function, argument = go_on(value)
            while True:
                value = perform[kind](function, argument)
                kind, function, argument = send(value)
        except Shown:
            raise
        except BaseException as error:
            if getgeneratorstate(task) == GEN_CLOSED:  # it was the task itself that ended
                if isinstance(error, StopIteration):
                    return cast(_Answer, error.value)
                raise
            go_on, value = task.throw, error if isinstance(error, Exception) else escaped(error)


def _drive_part(task: Task[Any], signal: StopSignal, limits: Limits) -> None:
    """Drive a part of a run in this thread, under the limits that are set to the run."""
    performer = Performer(signal)
    try:
        cast("Waits", performer.waits).inherit(limits)  # it is there, as there is a signal
        carry_out(task, performer.perform, task.send, None)
    finally:
        performer.close()


def _show(_: None, state: State) -> None:
    raise Shown(state)


class Performer:
    """Carries out commands. Most are calls; what waits or limits is imported for the first command that asks for it.

    Args:
        signal: May stop the run.
    """

    def __init__(self, signal: StopSignal | None) -> None:
        self.waits: Waits | None = None
        self.perform: Perform = {**_CALLS, Show: _show}
        if signal is None:
            self.perform.update((kind, partial(self._first, kind)) for kind in WAITING)
        else:
            self._equip(signal)

    def close(self) -> None:
        """Close the event loop, if there is one."""
        if self.waits is not None:
            self.waits.close()

    def _first(self, kind: Any, function: Any, argument: Any) -> Any:
        self._equip(None)
        return self.perform[kind](function, argument)

    def _equip(self, signal: StopSignal | None) -> None:
        from stategraph._drivers.blocking import Waits

        self.waits = Waits(signal, self.perform, _drive_part)
