"""Waiting for what an async node returned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from stategraph._drivers.limits import Limits


async def wait_for(awaitable: Awaitable[Any], limits: Limits) -> Any:
    """Await what an async node returned, no longer than the time that is left."""
    limit = limits.of_all()
    if limit is None:
        return await awaitable
    try:
        async with asyncio.timeout(limit.left()) as timer:
            return await awaitable
    except TimeoutError:
        if timer.expired():
            raise limit.passed()  # noqa: B904 - it has its cause
        raise  # the node's own
