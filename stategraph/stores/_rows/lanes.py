"""Lanes: group commit where several transactions are made at a time, as a server makes them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from stategraph.stores._rows.access import Inside, SharedCommits
from stategraph.stores._rows.records import WriteBatch
from stategraph.stores._rows.table import Table


class Commits(Protocol):
    """Writes batches, each on behalf of a thread that waits for it."""

    def commit(self, write: WriteBatch) -> bool:
        """Write a batch; return whether it was written. When this returns it is durable."""

    def commit_all(self, writes: Sequence[WriteBatch]) -> list[bool | BaseException]:
        """Write batches of one thread; return for each of them whether it was written, or why that is not known."""


class Gathering(threading.local):
    """What this thread is to write together, where it gathers that.

    Attributes:
        batches: The writes.
        run_ids: The runs whose writes they are. A finaliser may come in between, and save another one: it is told that
            this is saved, so its write is not put off.
    """

    batches: list[WriteBatch] | None = None
    run_ids: Collection[str] = ()


class CommitLanes:
    """Commits in so many transactions at a time. What comes while each of them is under way shares the next.

    A server has one sync for transactions that end at the same time; those that a client lets wait miss it.

    Args:
        apply: As for SharedCommits.
        is_inside: Likewise.
        lanes: How many.
    """

    def __init__(
        self,
        apply: Callable[[Sequence[WriteBatch]], Sequence[bool | BaseException]],
        is_inside: Callable[[], bool],
        lanes: int,
    ) -> None:
        committing = Inside()  # of one for all: who commits in any of them is refused in all
        self._lanes = [SharedCommits(apply, is_inside, committing) for _ in range(lanes)]

    def commit(self, write: WriteBatch) -> bool:
        """Write a batch, as `SharedCommits.commit`: at once where nobody is at it, else with the most who wait."""
        for lane in self._lanes:
            if lane.waiting < 0:
                return lane.commit(write)
        return max(self._lanes, key=_waiting).commit(write)

    def commit_all(self, writes: Sequence[WriteBatch]) -> list[bool | BaseException]:
        """Write batches of one thread, as `SharedCommits.commit_all`: they are together already."""
        return self._lanes[0].commit_all(writes)


def _waiting(lane: SharedCommits) -> int:
    return lane.waiting


def commits_of(table: Table) -> Commits:
    """Return what commits to a table."""
    if table.lanes == 1:
        return SharedCommits(table.apply, table.is_in_use)
    return CommitLanes(table.apply, table.is_in_use, table.lanes)
