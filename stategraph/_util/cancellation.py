"""Cancellations of asyncio: wait through them for work that must not be interrupted, and distinguish failures."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any


class CancelledError(asyncio.CancelledError, Exception):
    """A CancelledError from a node whose run was not cancelled: a failure.

    The exception of the node is its ``__cause__``.
    """


async def outlast(
    work: asyncio.Future[Any],
    seconds: float | None = None,
    *,
    hands_on_to: asyncio.Task[Any] | None = None,
    cancelled: asyncio.CancelledError | None = None,
) -> asyncio.CancelledError | None:
    """Wait until work is done, even if this task is cancelled.

    Args:
        work: The work. It is not cancelled.
        seconds: The longest time to wait.
        hands_on_to: A task that is cancelled whenever this task is: the work, or the task that does it.
        cancelled: An earlier cancellation. A cancel scope of anyio repeats it.

    Returns:
        The newest cancellation, which the caller must raise at the end.
    """
    if work.done():
        return cancelled
    loop = asyncio.get_running_loop()
    until = float("inf") if seconds is None else loop.time() + seconds

    async def wait() -> asyncio.CancelledError | None:
        try:
            await asyncio.wait([work], timeout=None if seconds is None else max(0.0, until - loop.time()))
        except asyncio.CancelledError as error:
            if hands_on_to is not None:
                hands_on_to.cancel(*error.args)
            return error
        return None

    cancelled = cancelled or await wait()
    if cancelled is None:
        return None
    with _shield():  # only after a cancellation, because a scope makes waiting slower
        while not work.done() and loop.time() < until:
            cancelled = await wait() or cancelled
    return cancelled


def _shield() -> AbstractContextManager[object]:
    """Return a shield against a cancel scope of anyio, which otherwise cancels this task in every turn of the loop.

    If anyio was never imported, there is no scope.
    """
    if "anyio" not in sys.modules:
        return nullcontext()
    import anyio

    scope: AbstractContextManager[object] = anyio.CancelScope(shield=True)
    return scope


def from_any_thread(function: Callable[[Any], object]) -> Callable[[Any], None]:
    """Return a function that calls another on the running event loop: at once, or from another thread soon."""
    loop = asyncio.get_running_loop()

    def call(argument: Any) -> None:
        if asyncio._get_running_loop() is loop:
            function(argument)
        else:
            with suppress(RuntimeError):  # the loop is closed: the call has ended
                loop.call_soon_threadsafe(function, argument)

    return call
