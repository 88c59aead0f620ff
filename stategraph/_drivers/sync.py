"""The loop that blocks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from operator import call
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import attrs

from stategraph._drivers.endings import is_plain_stop, left, raised_after
from stategraph._protocol.commands import (
    BLOCKING,
    Await,
    Command,
    CommandType,
    Finish,
    LetGo,
    Limit,
    Notify,
    Perform,
    Show,
    Sleep,
    StartNode,
    Task,
    Unlimit,
    escaped,
)
from stategraph._util.dropped import reaper
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._drivers.blocking import Waits
    from stategraph._drivers.limits import StopSignal

_Answer = TypeVar("_Answer")
_CALLS: Perform = dict.fromkeys([*BLOCKING, LetGo, StartNode, Notify], call)
_WAITS = (Await, Finish, Limit, Unlimit, Sleep)  # what `Waits` carries out


def drive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task in this thread, and return its answer."""
    try:
        next(iterate(task, signal))
    except StopIteration as end:
        return cast(_Answer, end.value)
    raise RuntimeError("a task that nobody iterates over shows nothing")


def iterate(task: Task[_Answer], signal: StopSignal | None, store: object = None) -> Generator[State, None, _Answer]:
    """Run a task in this thread, yielding what it shows, and return its answer.

    What is thrown in stops the run at a checkpoint, and is raised then. A GeneratorExit comes from a finaliser, on any
    thread and at any time: the run is dropped, and ended elsewhere.
    """
    thrown: BaseException | None = None
    with _Performer(signal, store) as performer:
        perform = performer.perform
        send: Callable[[Any], Command] = task.send
        go_on, value = send, None
        while True:
            try:
                kind, function, argument = go_on(value)
                while True:
                    value = perform[kind](function, argument)
                    kind, function, argument = send(value)
            except _Shown as shown:
                begun = time.monotonic()
                try:
                    yield shown.state
                    performer.prolong(time.monotonic() - begun)
                    go_on, value = send, None
                except GeneratorExit:
                    try:
                        task.close()
                    finally:
                        performer.drop()
                    raise
                except BaseException as error:
                    thrown = error
                    go_on, value = task.throw, left()
            except BaseException as error:
                if getgeneratorstate(task) != GEN_CLOSED:
                    go_on, value = task.throw, error if isinstance(error, Exception) else escaped(error)
                elif thrown is None:  # it was the task itself that ended
                    if isinstance(error, StopIteration):
                        return cast(_Answer, error.value)
                    raise
                else:
                    thrown = raised_after(thrown, error)
                    break
    try:
        raise thrown
    finally:
        del thrown  # or it would hold this frame, which holds it


@attrs.frozen
class DroppedRuns:
    """Ends runs of a store whose driver is gone.

    Attributes:
        store: The store.
        pid: The process in which they run. In a forked copy of it, nothing is left to do.
    """

    store: object
    pid: int = attrs.field(factory=os.getpid, init=False)

    def hand_over(self, task: Task[Any]) -> None:
        """Have a thread do what is left to do of a run."""
        if self.pid == os.getpid():
            reaper.hand_over(self.store, partial(_end, task))

    def settle(self) -> None:
        """Wait until all runs of the store have ended that were dropped before."""
        reaper.settle(self.store)


def _end(task: Task[Any]) -> None:
    try:
        drive(task, None)
    except BaseException as error:
        if not is_plain_stop(error):
            raise


class _Shown(BaseException):
    """Leads out of the loop to show a State: asking in the loop itself would cost every command."""

    def __init__(self, state: State) -> None:
        self.state = state


def _show(_: None, state: State) -> None:
    raise _Shown(state)


class _Performer:
    """Carries out commands. Most are calls; what waits or limits is imported for the first command that asks for it."""

    def __init__(self, signal: StopSignal | None, store: object) -> None:
        self._store = store
        self._waits: Waits | None = None
        self.perform: Perform = {**_CALLS, Show: _show}
        if signal is None:
            self.perform.update((kind, partial(self._first, kind)) for kind in _WAITS)
        else:
            self._equip(signal)

    def __enter__(self) -> Self:
        if self._store is not None:
            reaper.hold(self, self._store)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._store is not None:
            reaper.let_go(self)
        if self._waits is not None:
            self._waits.close()

    def drop(self) -> None:
        """Leave it to others to close the event loop."""
        if self._waits is not None:
            self._waits.drop()

    def prolong(self, seconds: float) -> None:
        """Extend the limits of nodes by so many seconds."""
        if self._waits is not None:
            self._waits.prolong(seconds)

    def _first(self, kind: type[CommandType], function: Any, argument: Any) -> Any:
        self._equip(None)
        return self.perform[kind](function, argument)

    def _equip(self, signal: StopSignal | None) -> None:
        from stategraph._drivers.blocking import Waits

        self._waits = Waits(signal, self._store, self.perform)
