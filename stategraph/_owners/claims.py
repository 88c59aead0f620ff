"""Claims: going on with runs that were left unfinished, such that no two sweepers try the same one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
        run_id: The run; None if another sweeper was faster.
        is_cancelled: Whether it is cancelled.
        left: The numbers, of those that the sweeper has tried, whose runs are still active.
    """

    number: int
    run_id: str | None
    is_cancelled: bool
    left: list[int]


class Claims(Protocol):
    """Leases runs that were left unfinished."""

    def claim(self, graph: str, worker: Worker, fence: int, tried: Sequence[int]) -> Claim | None:
        """Lease the oldest active run of a graph that no process owns which is there, but for those with these numbers.

        Runs that others claim at the same time are not waited for. None if there is no such run.
        """

    def workers_at(self, machine: str) -> list[Worker]:
        """Return the processes of a machine that have said that they are there."""


def claimed(claims: Claims, owners: LeaseHolds, graph: str) -> Iterator[Hold]:
    """Own one run after the other that was left unfinished; each is let go of before the next at the latest.

    Each is the oldest there is by then, those of processes that have died since included. No run is tried twice.
    """
    tried: list[int] = []
    while True:
        hold = Hold("")
        try:
            owners.forget_ended(claims.workers_at)
            worker, hold.holds, hold.fence = owners.present(), owners, new_fence()
            claim = claims.claim(graph, worker, hold.fence, tried)
            if claim is None or claim.run_id is None:
                hold.fence = 0
            if claim is None:
                return
            if claim.run_id is None:
                continue
            tried, hold.run_id = [*claim.left, claim.number], claim.run_id
            if _is_taken(hold, owners):
                hold.is_settled, hold.is_cancelled = True, claim.is_cancelled
                yield hold
        finally:
            let_go(hold)


def _is_taken(hold: Hold, owners: LeaseHolds) -> bool:
    """Make this the hold on its run, unless another thread of this process writes to that by hand."""
    with suppress(RunBusyError):
        return owners.take(hold, take_over=False) is None
    return False
