"""Claims: going on with runs that were left unfinished, such that no two sweepers try the same one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Protocol

import attrs

from stategraph._owners.holds import Hold, let_go
from stategraph._owners.leases import LeaseHolds, Worker, new_fence
from stategraph.errors import RunBusyError


@attrs.frozen
class Claim:
    """A run that a sweeper has come to.

    Attributes:
        number: How old the run is: older ones have lower numbers.
        run_id: The run; None if somebody else was faster.
        is_cancelled: Whether it is cancelled.
    """

    number: int
    run_id: str | None
    is_cancelled: bool


class Claims(Protocol):
    """Leases runs that were left unfinished."""

    def claim(self, graph: str, worker: Worker, fence: int, after: int) -> Claim | None:
        """Lease the oldest active run of a graph that nobody has, with a higher number than this one.

        Whoever claims at the same time is not waited for, but comes to another run. None if there is no such run.
        """

    def workers_at(self, machine: str) -> list[Worker]:
        """Return the processes of a machine that have said that they are there."""


def claimed(claims: Claims, owners: LeaseHolds, graph: str) -> Iterator[Hold]:
    """Own one run after the other that was left unfinished; each is let go of before the next at the latest."""
    owners.forget_ended(claims.workers_at)
    number = 0
    while True:
        hold = Hold("")
        try:
            worker, hold.holds, hold.fence = owners.present(), owners, new_fence()
            claim = claims.claim(graph, worker, hold.fence, number)
            if claim is None or claim.run_id is None:
                hold.fence = 0
            if claim is None:
                return
            number, hold.run_id = claim.number, claim.run_id or ""
            if _is_taken(hold, owners):
                hold.is_settled, hold.is_cancelled = True, claim.is_cancelled
                yield hold
        finally:
            let_go(hold)


def _is_taken(hold: Hold, owners: LeaseHolds) -> bool:
    """Make this the hold on its run, if it has come to one, and nobody in this process writes to that by hand."""
    with suppress(RunBusyError):
        return bool(hold.run_id) and owners.take(hold, take_over=False) is None
    return False
