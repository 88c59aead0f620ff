"""Run the code of nodes inside the observer's context managers, in the thread or task that executes it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from stategraph._engine.context import RunContext
from stategraph._protocol.commands import Await, Command, Gather, RunNode, StartNode, Task
from stategraph._util.callables import failures
from stategraph._values.events import report

_Answer = TypeVar("_Answer")
_Inside: TypeAlias = Callable[[], AbstractContextManager[None]]


def placed(run: RunContext, task: Task[_Answer]) -> Task[_Answer]:
    """Run a task whose nodes the observer wraps in a context manager."""
    inside = partial(_inside, run.services.observer, run.services.place.get("call_id", ""), run.state.run_id)
    go_on, value = task.send, None
    while True:
        try:
            command = go_on(value)
        except StopIteration as end:
            return cast(_Answer, end.value)
        try:
            value = yield _placed(run, command, inside)
            go_on = task.send
        except GeneratorExit:
            task.close()
            raise
        except BaseException as error:
            go_on, value = task.throw, error


def _placed(run: RunContext, command: Command, inside: _Inside) -> Command:
    kind, function, argument = command
    if kind is Gather:
        tasks, *how = argument
        return kind, function, ((placed(run, task) for task in tasks), *how)
    if kind is Await:
        return kind, _Awaited(inside, function), argument  # type: ignore[arg-type]
    if kind is RunNode or kind is StartNode:
        return kind, partial(_call, inside, cast(Callable[[Any], Any], function)), argument
    return command


def _call(inside: _Inside, function: Callable[[Any], Any], argument: Any) -> Any:
    with inside():
        return function(argument)


class _Awaited(Coroutine[Any, Any, Any]):
    """Await the result of an async node. Closing this closes the node's coroutine if it was never awaited."""

    def __init__(self, inside: _Inside, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable
        self._work = self._go(inside)

    async def _go(self, inside: _Inside) -> Any:
        with inside():
            return await self._awaitable

    def __await__(self) -> Any:
        return self._work.__await__()

    def send(self, value: Any) -> Any:
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()
        if isinstance(self._awaitable, Coroutine):
            self._awaitable.close()


@contextmanager
def _inside(observer: Any, call_id: str, run_id: str) -> Iterator[None]:
    """Enter the observer's context manager around a node. An exception it raises is logged once."""
    leave: Callable[[], object] = bool
    try:
        leave = observer.enter_node(call_id, run_id)
    except failures() as error:
        report(observer, error)
    try:
        yield
    finally:
        try:
            leave()
        except failures() as error:
            report(observer, error)
