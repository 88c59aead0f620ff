"""The loop that blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from inspect import GEN_CLOSED, getgeneratorstate
from operator import call
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from stategraph.commands import BLOCKING, Await, Command, Notify, RunNode, StartNode
from stategraph.drivers.stop import StopSignal
from stategraph.engine import Task
from stategraph.errors import AsyncNodeError

if TYPE_CHECKING:
    import asyncio

_Answer = TypeVar("_Answer")
_CALLS: dict[type[Command], Callable[[Any], Any]] = dict.fromkeys([*BLOCKING, StartNode, Notify], call)


def drive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task in this thread -> its answer."""
    with _Loop(signal) as loop:
        perform: dict[type[Command], Callable[[Any], Any]] = {**_CALLS, Await: loop.wait_for}
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
                    return cast(_Answer, answer_of(error))
                go_on, value = task.throw, error


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
        import asyncio  # imported when used: 20 ms

        from stategraph.drivers.tasks import wait_for

        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(wait_for(command, self._signal))


def is_loop_running() -> bool:
    """Whether an event loop is running in this thread."""
    asyncio = sys.modules.get("asyncio")  # where it was never imported, none is
    return asyncio is not None and asyncio.events._get_running_loop() is not None


def answer_of(error: BaseException) -> Any:
    """-> what a task returned, from the StopIteration that ended it; raises whatever else ended it."""
    if isinstance(error, StopIteration):
        return error.value
    raise error
