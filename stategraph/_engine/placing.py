"""Doing what nodes do inside of what an observer puts around it, in whatever thread or task that is."""

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
    """Do a task whose nodes an observer wants to put something around."""
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
    """Awaits what an async node has returned. That is closed with this, if nobody has awaited it."""

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
    """Do something inside of what the observer puts around a node. What that raises is logged once."""
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
