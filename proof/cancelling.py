"""Ways in which a call of a graph is cancelled: its task, a timeout, a sibling, a scope."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias, cast

import attrs

from stategraph import State


@attrs.define(eq=False)
class Target:
    """A call of a graph that is to be cancelled.

    Attributes:
        strike: Cancels it.
        is_over: Whether it has ended: nobody would be cancelled any more.
        is_hit: Whether somebody has begun to cancel it before that.
        is_struck: Whether its task was cancelled before that.
    """

    strike: Callable[[], object] = bool
    is_over: bool = False
    is_hit: bool = False
    is_struck: bool = False

    def hit(self) -> None:
        """Cancel the call, if it has not ended."""
        if not self.is_over:
            self.is_hit = True
            self.strike()

    async def called(self, call: Awaitable[State]) -> State:
        """Wait for the call."""
        task = _current_task()
        try:
            return await call
        finally:
            self.is_over, self.is_struck = True, task.cancelling() > 0


class Heard(Exception):  # noqa: N818 - what is to come
    """Whoever called was told of the cancellation."""


Call: TypeAlias = Callable[[], Awaitable[State]]
"""Calls a graph, each time anew."""


def _current_task() -> asyncio.Task[Any]:
    return cast("asyncio.Task[Any]", asyncio.current_task())


async def by_task(call: Call, target: Target) -> State:
    """Cancel the task that calls."""
    target.strike = _current_task().cancel
    try:
        return await target.called(call())
    except asyncio.CancelledError:
        raise Heard from None


async def by_timeout(call: Call, target: Target) -> State:
    """Let the time of ``asyncio.timeout`` be over."""
    try:
        async with asyncio.timeout(None) as limit:
            target.strike = partial(_expire, limit)
            return await target.called(call())
    except TimeoutError:
        raise Heard from None


def _expire(limit: asyncio.Timeout) -> None:
    if limit.when() is None:
        limit.reschedule(0)


async def by_sibling(call: Call, target: Target) -> State:
    """Let another task of its group fail."""
    failing = asyncio.Event()
    target.strike = failing.set

    async def fail() -> None:
        await failing.wait()
        raise LookupError

    try:
        async with asyncio.TaskGroup() as group:
            sibling = group.create_task(fail())
            final = await target.called(call())
            sibling.cancel()
    except BaseExceptionGroup as errors:
        _, others = errors.split((LookupError, asyncio.CancelledError))
        if others is not None:
            raise others.exceptions[0] from None
        raise Heard from None
    return final


async def by_scope(call: Call, target: Target) -> State:
    """Cancel a scope of anyio."""
    import anyio

    with anyio.CancelScope() as scope:
        target.strike = scope.cancel
        return await target.called(call())
    raise Heard


WAYS: dict[str, Callable[[Call, Target], Awaitable[State]]] = {
    "task": by_task,
    "timeout": by_timeout,
    "group": by_sibling,
    "shutdown": by_task,  # and nobody waits for it: asyncio.run cancels all tasks at once
    **({"scope": by_scope} if importlib.util.find_spec("anyio") else {}),
}
