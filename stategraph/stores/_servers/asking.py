"""Asking a server: again where that may go well then, and no longer than patience lasts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from stategraph._owners.leases import LAST_TRY, LeaseOwners
from stategraph.errors import CheckpointError

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


@contextmanager
def while_sure(owners: LeaseOwners | None, patience: float, run_ids: Sequence[str]) -> Iterator[float]:
    """Ask for runs for so many seconds, and no longer than this process surely has those of them that it owns.

    Raises:
        CheckpointError: others may have taken them.
    """
    if owners is None:
        yield patience
        return
    try:
        yield min(patience, *map(owners.patience, run_ids))
        if not owners.is_sure():
            owners.make_sure()
    except CheckpointError as error:
        if min(map(owners.patience, run_ids)) > LAST_TRY:
            raise
        raise owners.in_doubt(error) from error.__cause__
