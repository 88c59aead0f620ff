"""Owning runs for a single write, as far as nobody does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from stategraph._owners.holds import Hold, Owning, let_go
from stategraph.errors import RunBusyError


@contextmanager
def held_if_free(store: Owning, run_ids: Sequence[str]) -> Iterator[Mapping[str, Hold]]:
    """Own those of these runs that nobody owns, for a single write by hand; return what there is of them, by run."""
    holds: dict[str, Hold] = {}
    try:
        for run_id in run_ids:
            hold = Hold(run_id, is_brief=True, is_by_hand=True)
            try:
                store._own(hold, take_over=False)
            except RunBusyError:
                continue
            holds[run_id] = hold
        yield holds
    finally:
        for hold in holds.values():
            let_go(hold)
