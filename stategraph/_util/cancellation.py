"""Handling cancellations of asyncio: outlasting them where work must not be cut off, and telling them from failures."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any


class CancelledError(asyncio.CancelledError, Exception):
    """A CancelledError of a node whose run was not cancelled: a failure like any other.

    What the node raised is its ``__cause__``.
    """


async def outlast(
    work: asyncio.Future[Any],
    seconds: float | None = None,
    *,
    hands_on_to: asyncio.Task[Any] | None = None,
    cancelled: asyncio.CancelledError | None = None,
) -> asyncio.CancelledError | None:
    """Wait until something is done, however often this task is cancelled.

    Args:
        work: What to wait for. It is not cancelled.
        seconds: How long to wait at most.
        hands_on_to: The task to cancel as often as this one is cancelled: the work, or the task that does it.
        cancelled: A cancellation that has come already. A cancel scope of anyio raises it again and again.

    Returns:
        The newest cancellation that came, which the caller has to raise in the end.
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
    with _shield():  # only now: a scope for every wait would slow down every wait
        while not work.done() and loop.time() < until:
            cancelled = await wait() or cancelled
    return cancelled


def _shield() -> AbstractContextManager[object]:
    """Return what keeps a cancel scope of anyio from cancelling this task again in every turn of the loop.

    A scope does that until the task has left it. Where anyio was never imported there is no scope.
    """
    if "anyio" not in sys.modules:
        return nullcontext()
    import anyio

    scope: AbstractContextManager[object] = anyio.CancelScope(shield=True)
    return scope
