"""The loop that blocks."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from inspect import GEN_CLOSED, GEN_CREATED, GEN_SUSPENDED, getgeneratorstate, isawaitable
from operator import call
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

import attrs

from stategraph._drivers.limits import Limits, MakeError, StopSignal
from stategraph._drivers.outcomes import Outcome, answer_of, call_apart, is_plain_stop, left, raised_after
from stategraph._protocol.commands import (
    BLOCKING,
    Await,
    CannotAwait,
    Command,
    CommandType,
    Finish,
    Limit,
    Notify,
    RunNode,
    Show,
    Sleep,
    StartNode,
    Stopped,
    Task,
    Unlimit,
    escaped,
)
from stategraph._util.dropped import reaper
from stategraph.errors import AsyncNodeError
from stategraph.state import State

if TYPE_CHECKING:
    import asyncio

_Answer = TypeVar("_Answer")
_Perform: TypeAlias = dict[type[CommandType], Callable[[Any, Any], Any]]
_TO_END = 1.0  # seconds in which tasks of a run that was dropped may end by themselves
_CALLS: _Perform = dict.fromkeys([*BLOCKING, StartNode, Notify], call)


def drive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task in this thread -> its answer."""
    try:
        next(iterate(task, signal))
    except StopIteration as end:
        return cast(_Answer, end.value)
    raise RuntimeError("a task that nobody iterates over shows nothing")


def iterate(task: Task[_Answer], signal: StopSignal | None, store: object = None) -> Generator[State, None, _Answer]:
    """Run a task in this thread, yielding what it shows -> its answer.

    What is thrown in stops the run at a checkpoint, and is raised then. A GeneratorExit is what a finaliser throws, on
    any thread and at any time: the run is dropped, and ended elsewhere.
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
                    go_on, value = task.throw, escaped(error)
                elif thrown is None:  # it was the task itself that ended
                    return cast(_Answer, answer_of(error))
                else:
                    thrown = raised_after(thrown, error)
                    break
    try:
        raise thrown
    finally:
        del thrown  # or it would hold this frame, which holds it


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
        """Stop the run as an error of whoever iterates over it does, and raise that error."""
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
        """As `close`, at the end of the process: a thread that is running it goes on."""
        if getgeneratorstate(self._states) == GEN_SUSPENDED:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@attrs.frozen
class DroppedRuns:
    """Has runs of a store ended whose driver is gone.

    Attributes:
        store: The store.
        pid: The process in which they run. In a copy of it that was forked, nothing is left to do.
    """

    store: object
    pid: int = attrs.field(factory=os.getpid, init=False)

    def hand_over(self, task: Task[Any]) -> None:
        """Have it done what is left to do of a run."""
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
    """Carries out commands. Async nodes get an event loop, one for the whole run, made when the first of them comes."""

    def __init__(self, signal: StopSignal | None, store: object) -> None:
        self._limits = Limits(signal)
        self._store = store
        self._runner: asyncio.Runner | None = None
        self.perform: _Perform = {
            **_CALLS,
            Await: self._wait_for,
            Finish: self._finish,
            Limit: self._limit,
            Unlimit: self._unlimit,
            Sleep: self._sleep,
            Show: _show,
        }
        if signal is not None:
            self.perform[RunNode] = self.perform[StartNode] = self._run_checked

    def __enter__(self) -> Self:
        reaper.hold(self, self._store)
        return self

    def __exit__(self, *exception: object) -> None:
        reaper.let_go(self)
        if self._runner is not None:
            self._runner.close()

    def drop(self) -> None:
        """Leave it to others to close the event loop."""
        if self._runner is not None:
            reaper.hand_over(self._store, partial(_close, self._runner))
            self._runner = None

    def prolong(self, seconds: float) -> None:
        """Give nodes so much longer."""
        self._limits.prolong(seconds)

    def _run_checked(self, function: Callable[[Any], Any], argument: Any) -> Any:
        self._limits.check()
        return function(argument)

    def _run_limited(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call a function in a thread of its own, which cannot be stopped: if it takes too long, it is left."""
        self._limits.check()
        limit = self._limits.of_node()
        done: SimpleQueue[Outcome] = SimpleQueue()
        call_apart(function, argument, done.put)
        try:
            answer, raised = done.get(timeout=None if limit is None else min(limit.left(), threading.TIMEOUT_MAX))
        except Empty:
            raise cast(Any, limit).passed() from None
        if raised is not None:
            raise raised
        return answer

    def _limit(self, error: MakeError, seconds: float) -> None:
        if not self._limits.stack:
            self._unlimited: _Perform = {kind: self.perform[kind] for kind in (RunNode, StartNode)}
            self.perform.update({RunNode: self._run_limited, StartNode: self._run_checked})
        self._limits.push(error, seconds)

    def _unlimit(self, _: None, __: None) -> None:
        self._limits.stack.pop()
        if not self._limits.stack:
            self.perform.update(self._unlimited)

    def _sleep(self, _: None, seconds: float) -> None:
        """Wait, but not beyond what stops the run."""
        self._limits.check()
        limit = self._limits.of_all()
        wait = min(seconds, threading.TIMEOUT_MAX, threading.TIMEOUT_MAX if limit is None else limit.left())
        if self._limits.cancel is None:
            time.sleep(wait)
        else:
            self._limits.cancel.wait(wait)
        self._limits.check()

    def _finish(self, function: Callable[[Any], Any], argument: Any) -> Any:
        result = function(argument)
        return self._run(result) if isawaitable(result) else result

    def _wait_for(self, awaitable: Awaitable[Any], node_name: str) -> Any:
        if is_loop_running():
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # or Python warns that nobody awaited it
            raise CannotAwait from AsyncNodeError(node_name)
        from stategraph._drivers.waiting import wait_for

        return self._run(wait_for(awaitable, self._limits))

    def _run(self, awaitable: Any) -> Any:
        import asyncio  # imported when used: 20 ms

        if self._runner is None:
            self._runner = asyncio.Runner()
            reaper.hold(self, (self._store, self._runner))
        return self._runner.run(awaitable)


def is_loop_running() -> bool:
    """Whether an event loop is running in this thread."""
    asyncio = sys.modules.get("asyncio")  # where it was never imported, none is
    return asyncio is not None and asyncio.events._get_running_loop() is not None


def _close(runner: asyncio.Runner) -> None:
    """Close an event loop that was dropped."""
    with runner:
        runner.run(_end_tasks())


async def _end_tasks() -> None:
    """Wait for what has begun on the event loop, such as the end of an async generator that was dropped.

    What a node has left at work may never end by itself: it is cancelled after some time, as at the end of
    ``asyncio.run``.
    """
    import asyncio

    await asyncio.sleep(0)  # what finalisers have asked for begins
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, others = await asyncio.wait(others, timeout=_TO_END)
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
