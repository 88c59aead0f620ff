"""The loops that carry out what the engine asks for: one that blocks, one that awaits.

They decide nothing. They differ only in where they make the calls that the commands are.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from operator import call
from typing import Any, Self, TypeAlias, TypeVar, cast

import attrs

from stategraph.commands import BLOCKING, Await, Command, Notify, RunNode, StartNode, Stopped
from stategraph.engine import Task
from stategraph.errors import AsyncNodeError

_Answer = TypeVar("_Answer")


@attrs.frozen
class StopSignal:
    """What may stop a run between two nodes.

    Attributes:
        cancel: Stops the run once it is set.
        timeout: Seconds the call may take.
        deadline: When they are over, as time.monotonic tells it.
    """

    cancel: threading.Event | None
    timeout: float | None
    deadline: float

    @classmethod
    def of(cls, cancel: threading.Event | None, timeout: float | None) -> StopSignal | None:
        """-> the signal, None if nothing can ever stop the run."""
        if cancel is None and timeout is None:
            return None
        return cls(cancel, timeout, float("inf") if timeout is None else time.monotonic() + timeout)

    def check(self) -> None:
        """Raise Stopped if the run is to stop."""
        if self.cancel is not None and self.cancel.is_set():
            raise Stopped("it was cancelled")
        if time.monotonic() >= self.deadline:
            raise self.timed_out()

    def timed_out(self) -> Stopped:
        """-> what says that the time is up."""
        stopped = Stopped(f"its timeout of {self.timeout} s passed")
        stopped.__cause__ = TimeoutError(f"{self.timeout} s")
        return stopped


async def _wait_for(command: Await, signal: StopSignal | None) -> Any:
    """Await what an async node returned, no longer than the time that is left."""
    if signal is None or signal.timeout is None:
        return await command.awaitable
    try:
        async with asyncio.timeout(signal.deadline - time.monotonic()) as limit:
            return await command.awaitable
    except TimeoutError:
        if limit.expired():
            raise signal.timed_out()  # noqa: B904 - it has its cause
        raise  # the node's own


_Perform: TypeAlias = dict[type[Command], Callable[[Any], _Answer]]
_CALLS: _Perform[Any] = dict.fromkeys([*BLOCKING, StartNode, Notify], call)

# --------------------------------------------------------------------------- sync


def drive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task in this thread -> its answer."""
    with _Loop(signal) as loop:
        perform: _Perform[Any] = {**_CALLS, Await: loop.wait_for}
        if signal is not None:
            perform[RunNode] = perform[StartNode] = _unless_stopped(signal)
        send: Callable[[Any], Command] = task.send
        go_on, value = send, None
        while True:
            try:
                command = go_on(value)
                while True:
                    value = perform[type(command)](command)
                    command = send(value)
            except BaseException as error:
                if getgeneratorstate(task) == GEN_CLOSED:  # it was the task itself that ended
                    return cast(_Answer, _answer_of(error))
                go_on, value = task.throw, error


def _answer_of(error: BaseException) -> Any:
    if isinstance(error, StopIteration):
        return error.value  # what the task returned
    raise error


def _unless_stopped(signal: StopSignal) -> Callable[[RunNode], Any]:
    def run_node(command: RunNode) -> Any:
        signal.check()
        return command()

    return run_node


class _Loop:
    """An event loop for the async nodes of a sync run: one for the whole run, made when the first of them comes."""

    def __init__(self, signal: StopSignal | None) -> None:
        self._signal = signal
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._runner is not None:
            self._runner.close()

    def wait_for(self, command: Await) -> Any:
        if is_loop_running():
            if isinstance(command.awaitable, Coroutine):
                command.awaitable.close()  # or Python warns that nobody awaited it
            raise AsyncNodeError(command.node_name)
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_wait_for(command, self._signal))


def is_loop_running() -> bool:
    """Whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# --------------------------------------------------------------------------- async


async def adrive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task on this event loop, what blocks in worker threads -> its answer."""
    perform = _Workers(signal).perform
    send: Callable[[Any], Command] = task.send
    go_on, value = send, None
    while True:
        try:
            command = go_on(value)
            while True:
                value = await perform[type(command)](command)
                command = send(value)
        except BaseException as error:
            if getgeneratorstate(task) == GEN_CLOSED:  # it was the task itself that ended
                return cast(_Answer, _answer_of(error))
            go_on, value = task.throw, error


class _Workers:
    """What commands do when the event loop must not be blocked.

    A thread cannot be stopped. So a cancellation that arrives while one works waits until the work is done and takes
    effect before the next node: a sync node that has run counts, and no thread is left behind.
    """

    def __init__(self, signal: StopSignal | None) -> None:
        self._signal = signal
        self._cancelled: asyncio.CancelledError | None = None
        self.perform: _Perform[Awaitable[Any]] = {
            **dict.fromkeys(BLOCKING, self._in_thread),
            RunNode: self._run_node,
            StartNode: self._start_node,
            Await: self._wait_for,
            Notify: self._notify,
        }

    async def _in_thread(self, command: partial[Any]) -> Any:
        work = asyncio.ensure_future(asyncio.to_thread(command))
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError as error:
                if work.cancelled():  # raised by the work itself
                    raise
                self._cancelled = error

    async def _run_node(self, command: RunNode) -> Any:
        self._check()
        return await self._in_thread(command)

    async def _start_node(self, command: StartNode) -> Any:
        self._check()
        return command()

    def _check(self) -> None:
        if self._cancelled is not None:
            raise self._cancelled
        if self._signal is not None:
            self._signal.check()

    async def _wait_for(self, command: Await) -> Any:
        return await _wait_for(command, self._signal)

    async def _notify(self, command: Notify) -> None:
        command()
