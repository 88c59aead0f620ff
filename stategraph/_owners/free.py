"""Owning a run for a single write, if nobody does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stategraph._owners.holds import Grip, Hold, Owning, let_go, on_behalf_of
from stategraph.errors import RunBusyError


@contextmanager
def held_if_free(store: Owning, run_id: str) -> Iterator[Hold | None]:
    """Own a run for a single write by hand, if nobody does."""
    hold = Hold(run_id, is_brief=True, is_by_hand=True)
    grip = Grip(hold)  # noqa: F841 - let go of with this frame
    try:
        try:
            store._own(hold, take_over=False)
        except RunBusyError:
            yield None
        else:
            with on_behalf_of(hold):
                yield hold
    finally:
        let_go(hold)
