"""The loop that blocks."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine
from inspect import GEN_CLOSED, getgeneratorstate
from operator import call
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

from stategraph.commands import BLOCKING, Await, Command, Kind, Notify, RunNode, StartNode
from stategraph.drivers.outcomes import answer_of, escaped
from stategraph.drivers.stop import StopSignal
from stategraph.engine import Task
from stategraph.errors import AsyncNodeError

if TYPE_CHECKING:
    import asyncio

_Answer = TypeVar("_Answer")
_Perform: TypeAlias = dict[type[Kind], Callable[[Any, Any], Any]]
_CALLS: _Perform = dict.fromkeys([*BLOCKING, StartNode, Notify], call)


def drive(task: Task[_Answer], signal: StopSignal | None) -> _Answer:
    """Run a task in this thread -> its answer."""
    with _Loop(signal) as loop:
        perform: _Perform = {**_CALLS, Await: loop.wait_for}
        if signal is not None:
            perform[RunNode] = perform[StartNode] = _unless_stopped(signal)
        send: Callable[[Any], Command] = task.send
        go_on, value = send, None
        while True:
            try:
                kind, function, argument = go_on(value)
                while True:
                    value = perform[kind](function, argument)
                    kind, function, argument = send(value)
            except BaseException as error:
                if getgeneratorstate(task) == GEN_CLOSED:  # it was the task itself that ended
                    return cast(_Answer, answer_of(error))
                go_on, value = task.throw, escaped(error)


def _unless_stopped(signal: StopSignal) -> Callable[[Any, Any], Any]:
    def run_node(function: Callable[[Any], Any], argument: Any) -> Any:
        signal.check()
        return function(argument)

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

    def wait_for(self, awaitable: Awaitable[Any], node_name: str) -> Any:
        if is_loop_running():
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # or Python warns that nobody awaited it
            raise AsyncNodeError(node_name)
        import asyncio  # imported when used: 20 ms

        from stategraph.drivers.waiting import wait_for

        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(wait_for(awaitable, self._signal))


def is_loop_running() -> bool:
    """Whether an event loop is running in this thread."""
    asyncio = sys.modules.get("asyncio")  # where it was never imported, none is
    return asyncio is not None and asyncio.events._get_running_loop() is not None
