"""Asking a server: again where that may go well then, and no longer than patience lasts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_Answer = TypeVar("_Answer")

_AGAIN = 0.05  # seconds after which a server that was not there is asked once more


def until_answered(ask: Callable[[float], _Answer], patience: float, may_pass: Callable[[Exception], bool]) -> _Answer:
    """Return what is asked for; raise whatever asking raises that does not pass in time.

    Args:
        ask: Asks; called with when to give up, by the monotonic clock.
        patience: For how many seconds.
        may_pass: Whether it may go well to ask again after this error.
    """
    give_up = time.monotonic() + patience
    while True:
        try:
            return ask(give_up)
        except Exception as error:
            if not may_pass(error) or time.monotonic() + _AGAIN > give_up:
                raise
        time.sleep(_AGAIN)
