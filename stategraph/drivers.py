"""The loops that carry out what the engine asks for: one that blocks, one that awaits.

What a command does is written once, in `Services`; the drivers differ only in where they do it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import attrs

from stategraph.commands import Amend, Await, Command, Delete, Emit, Load, RunNode, Save, Stopped
from stategraph.engine import Task
from stategraph.errors import AsyncNodeError
from stategraph.events import Listener, notify
from stategraph.state import State

_Answer = TypeVar("_Answer")


class _Store(Protocol):
    def save(self, state: State, /) -> None: ...
    def amend(self, state: State, /) -> None: ...
    def load(self, run_id: str, /) -> State: ...
    def delete(self, run_id: str, /) -> None: ...


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


class Services:
    """What commands do to the world, apart from waiting."""

    def __init__(self, store: _Store, observer: Listener | None, source: str) -> None:
        def emit(command: Emit) -> None:
            notify(cast(Listener, observer), command.type, source, command.data)

        self.emit = emit
        self.blocking: dict[type[Command], Callable[[Any], Any]] = {
            RunNode: _run_node,
            Load: lambda command: store.load(command.run_id),
            Save: lambda command: store.save(command.state),
            Amend: lambda command: store.amend(command.state),
            Delete: lambda command: store.delete(command.run_id),
        }


def _run_node(command: RunNode) -> Any:
    return command.node.function(*command.arguments)


async def _wait_for(command: Await, signal: StopSignal | None) -> Any:
    """Await what an async node returned, no longer than the time that is left."""
    if signal is None or signal.timeout is None:
        return await command.awaitable
    try:
        async with asyncio.timeout(signal.deadline - time.monotonic()) as limit:
            return await command.awaitable
    except TimeoutError:
        if limit.expired():
            raise signal.timed_out() from None
        raise  # the node's own


_Perform: TypeAlias = dict[type[Command], Callable[[Any], _Answer]]

# --------------------------------------------------------------------------- sync


def drive(task: Task[_Answer], services: Services, signal: StopSignal | None) -> _Answer:
    """Run a task in this thread -> its answer."""
    with _Loop(signal) as loop:
        perform: _Perform[Any] = {**services.blocking, Emit: services.emit, Await: loop.wait_for}
        if signal is not None:
            perform[RunNode] = _unless_stopped(signal)
        go_on: Callable[[Any], Command] = task.send
        value: Any = None
        while True:
            try:
                while True:
                    command = go_on(value)
                    go_on = task.send
                    value = perform[type(command)](command)
            except BaseException as error:
                if task.gi_frame is None:  # it was the task itself that ended
                    return _answer_of(error)
                go_on, value = task.throw, error


def _answer_of(error: BaseException) -> Any:
    if isinstance(error, StopIteration):
        return error.value
    raise error


def _unless_stopped(signal: StopSignal) -> Callable[[RunNode], Any]:
    def run_node(command: RunNode) -> Any:
        signal.check()
        return _run_node(command)

    return run_node


class _Loop:
    """An event loop for the async nodes of a sync run: one for the whole run, made when the first of them comes."""

    def __init__(self, signal: StopSignal | None) -> None:
        self._signal = signal
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> _Loop:
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


async def adrive(task: Task[_Answer], services: Services, signal: StopSignal | None) -> _Answer:
    """Run a task on this event loop, what blocks in worker threads -> its answer."""
    perform = _Workers(services, signal).perform
    go_on: Callable[[Any], Command] = task.send
    value: Any = None
    while True:
        try:
            while True:
                command = go_on(value)
                go_on = task.send
                value = await perform[type(command)](command)
        except BaseException as error:
            if task.gi_frame is None:  # it was the task itself that ended
                return _answer_of(error)
            go_on, value = task.throw, error


class _Workers:
    """What commands do when the event loop must not be blocked.

    A thread cannot be stopped. So a cancellation that arrives while one works waits until the work is done and takes
    effect before the next node: a sync node that has run counts, and no thread is left behind.
    """

    def __init__(self, services: Services, signal: StopSignal | None) -> None:
        self._services, self._signal = services, signal
        self._cancelled: asyncio.CancelledError | None = None
        self.perform: _Perform[Awaitable[Any]] = {
            **dict.fromkeys(services.blocking, self._in_thread),
            RunNode: self._run_node,
            Await: self._wait_for,
            Emit: self._emit,
        }

    async def _in_thread(self, command: Command) -> Any:
        function = self._services.blocking[type(command)]
        work = asyncio.ensure_future(asyncio.to_thread(function, command))
        while True:
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError as error:
                if work.cancelled():  # raised by the work itself
                    raise
                self._cancelled = error

    async def _run_node(self, command: RunNode) -> Any:
        if self._cancelled is not None:
            raise self._cancelled
        if self._signal is not None:
            self._signal.check()
        return _run_node(command) if command.node.is_async else await self._in_thread(command)

    async def _wait_for(self, command: Await) -> Any:
        return await _wait_for(command, self._signal)

    async def _emit(self, command: Emit) -> None:
        self._services.emit(command)
