"""The driver that blocks: it runs a task in the thread of its caller."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate, isawaitable
from operator import call
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs

from stategraph._drivers.calls import NODES, Outcome, Shown, Threads
from stategraph._drivers.limits import LOOK_OUT, Limits, MakeError, StopSignal
from stategraph._protocol import (
    BLOCKING,
    Assist,
    Await,
    CannotAwait,
    Command,
    Gather,
    Gathered,
    Limit,
    Notify,
    Perform,
    Report,
    RunHere,
    RunNode,
    Show,
    Sleep,
    Task,
    Unlimit,
    Until,
    Watch,
)
from stategraph._util.callables import failure_of, is_loop_running, without_calls
from stategraph.errors import AsyncNodeError
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._drivers.gathering import OwnLoop
    from stategraph._drivers.lookout import Lookout

_Answer = TypeVar("_Answer")
_CALLS: Perform = dict.fromkeys([*BLOCKING, Notify], call)
_ASYNC_STREAMS = "'graph.astream(...)' or 'graph.astream_resume(...)' with 'async for', or 'await graph.aexecute(...)'"


def drive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task in this thread, and return its answer."""
    performer = Performer(signal)
    try:
        with without_calls:
            return performer.drive(task)
    finally:
        task.close()  # if an interrupt of the driver itself has left it, it crashes here
        performer.close()


def carry_out(task: Task[_Answer], perform: Perform, go_on: Callable[[Any], Command], value: Any) -> _Answer:
    """Execute the commands of a task until it ends; return its answer or raise its exception.

    Args:
        task: The task.
        perform: Executes its commands.
        go_on: Resumes the task: ``task.send`` or ``task.throw``.
        value: The value to send or the exception to throw.

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
            if getgeneratorstate(task) == GEN_CLOSED:  # the task itself has ended
                if isinstance(error, StopIteration):
                    return cast(_Answer, error.value)
                raise
            go_on, value = task.throw, failure_of(error)


def _show(_: None, state: State) -> None:
    raise Shown(state)


class Performer:
    """Executes commands, most of which are calls. Async nodes share one event loop, made for the first of them.

    Args:
        signal: May stop the run.
        outer: The limits of the run, if this executes parts of it in another thread.
        report: Takes the reports of these parts.
    """

    def __init__(
        self, signal: StopSignal | None, outer: Limits | None = None, report: Callable[[Any], None] | None = None
    ) -> None:
        self._limits = Limits(signal) if outer is None else outer.of_part(signal)
        self.clock = self._limits.clock
        self._loop: OwnLoop | None = None
        self._lookout: Lookout | None = None
        self._threads: Threads | None = None
        self.perform: Perform = {
            **_CALLS,
            Show: _show,
            RunHere: self._run_here,
            Await: self._wait_for,
            Assist: self._assist,
            Gather: self._gather,
            Limit: self._limit,
            Unlimit: self._limits.pop,
            Sleep: self._sleep,
            Watch: self._look_out,
            Until: self._until,
        }
        if signal is not None:
            self.perform[RunNode] = self._run_node
        if outer is not None and outer.notifying is not None:
            self.perform[Notify] = partial(_locked, outer.notifying)
        if report is not None:
            self.perform[Report] = lambda _, reported: report(reported)

    def drive(self, task: Task[_Answer]) -> _Answer:
        """Run a task, and return its answer."""
        return carry_out(task, self.perform, task.send, None)

    def close(self) -> None:
        """Close the event loop, and abandon threads that are still at work."""
        self._threads = None
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    # ------------------------------------------------------------------ limits

    def _limit(self, error: MakeError, seconds: float) -> None:
        self._limits.push(error, seconds)
        self.perform[RunNode] = self._run_node  # from now on: a run without limits does not pay for checks

    def _until(self, _: None, deadline_ns: int) -> StopSignal | None:
        self.perform[RunNode] = self._run_node
        self._limits = self._limits.until(deadline_ns)
        return self._limits.signal

    def _run_node(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call a node, in a thread if its time is limited. An overdue thread is abandoned: it cannot be stopped."""
        self._limits.check()
        limit = self._limits.of_node()
        if limit is None:
            return function(argument)
        self._threads = self._threads or Threads(NODES, "stategraph node")
        done: SimpleQueue[Outcome] = SimpleQueue()
        self._threads.call(function, argument, done.put)
        for seconds in limit.waits():
            with suppress(Empty):
                answer, raised = done.get(timeout=min(seconds, threading.TIMEOUT_MAX))
                if raised is not None:
                    raise raised
                return answer
        raise limit.passed()

    def _sleep(self, _: None, seconds: float) -> None:
        """Sleep, but no longer than the limits of the run allow."""
        until = time.monotonic() + seconds
        self._limits.check()
        look_at = time.monotonic() + LOOK_OUT
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(self._limits.until_check(left), threading.TIMEOUT_MAX))
            self._limits.check()
            if self._limits.look is not None and time.monotonic() >= look_at:
                look_at = time.monotonic() + LOOK_OUT
                self._limits.look(None)

    # ------------------------------------------------------------------ awaiting

    def _look_out(self, look: Callable[[Any], object], _: None) -> None:
        self._limits, self._lookout = attrs.evolve(self._limits, look=look), None

    def _run_here(self, function: Callable[[Any], Any], argument: Any) -> Any:
        self._limits.check()
        result = function(argument)
        if isawaitable(result) and not is_loop_running():
            return self._run(self._limits.limited(result))
        return result

    def _assist(self, function: Callable[[Any], Any], argument: Any) -> Any:
        result = function(argument)
        return self._run(result) if isawaitable(result) else result

    def _wait_for(self, awaitable: Awaitable[Any], node_name: str) -> Any:
        if is_loop_running() and isinstance(awaitable, Coroutine):
            awaitable.close()  # otherwise Python warns that it was never awaited
        _check_awaiting(node_name)
        return self._run(self._limits.limited(awaitable))

    def _run(self, awaitable: Any) -> Any:
        if self._loop is None:
            from stategraph._drivers.gathering import OwnLoop  # imported when used: asyncio takes 20 ms

            self._loop = OwnLoop()
        self._loop.check(awaitable)
        if self._lookout is None and self._limits.look is not None:
            from stategraph._drivers.lookout import Lookout  # the same

            self._lookout = Lookout(self._limits.look)
        if self._lookout is not None:
            awaitable = self._lookout.over(awaitable)
        return self._loop.run(awaitable)

    def _gather(self, __: None, about: tuple[Iterator[Task[Any]], int, str]) -> Gathered:
        from stategraph._drivers.gathering import InThreads, OnLoop  # imported when used: most graphs have no parts

        tasks, most, async_node = about
        if not async_node:
            return InThreads(tasks, most, self._limits, Performer)
        from stategraph._drivers.aio import adrive

        _check_awaiting(async_node)
        return OnLoop(tasks, most, self._limits, adrive)


def _locked(lock: threading.RLock, function: Callable[[Any], Any], argument: Any) -> None:
    with lock:
        function(argument)


def check_no_loop(node: str, *, shows: bool) -> None:
    """Raise AsyncNodeError if an event loop is running in this thread: the async node would block it.

    Args:
        node: The name of the node.
        shows: Whether the caller iterates over the run.
    """
    if is_loop_running():
        raise AsyncNodeError(node, _ASYNC_STREAMS) if shows else AsyncNodeError(node)


def _check_awaiting(node: str) -> None:
    """Raise CannotAwait, which is not a failure of the node, if an event loop is running in this thread."""
    try:
        check_no_loop(node, shows=False)
    except AsyncNodeError as error:
        raise CannotAwait from error
