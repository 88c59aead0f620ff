"""Waiting for what an async node returned."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from stategraph.drivers.stop import StopSignal


async def wait_for(awaitable: Awaitable[Any], signal: StopSignal | None) -> Any:
    """Await what an async node returned, no longer than the time that is left."""
    if signal is None or signal.timeout is None:
        return await awaitable
    try:
        async with asyncio.timeout(signal.deadline - time.monotonic()) as limit:
            return await awaitable
    except TimeoutError:
        if limit.expired():
            raise signal.timed_out()  # noqa: B904 - it has its cause
        raise  # the node's own
