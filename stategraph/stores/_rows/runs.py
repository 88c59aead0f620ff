"""Heads: the runs of a store as wholes, and whether they are as they were written."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

from stategraph._values.ids import given_id, is_nested_id
from stategraph.errors import CheckpointError, StepConflictError
from stategraph.stores._rows.integrity import Sealer
from stategraph.stores._rows.known import KnownRuns
from stategraph.stores._rows.operations import RowOperations
from stategraph.stores._rows.records import Head, Unreadable, Write

_INCARNATION = 8  # bytes: no two runs of one id have the same by chance
_MOST_REPORTED = 10_000  # damaged runs that are remembered as reported

_Told = TypeVar("_Told")


@attrs.frozen
class Listing(Generic[_Told]):
    """What is told of the runs of a store, and the ids of those of which nothing can be told."""

    told: list[_Told]
    damaged: list[str]


class Heads:
    """ReadSet the heads of a store, and takes none that is not as it was sealed.

    Args:
        store: Has them.
        sealer: Tells whether they are as they were written.
        known: Has the incarnations of runs as they were saved or loaded here.
    """

    def __init__(self, store: RowOperations, sealer: Sealer, known: KnownRuns) -> None:
        self._store, self._sealer, self._known = store, sealer, known
        self._promised: dict[str, bytes] = {}  # incarnations of runs that have something within them, and no head yet
        self._reported: set[str] = set()

    def find(self, run_id: str) -> Head | None:
        """Return a run as a whole, None if there is none.

        What was left by a run that was deleted is not within one that has begun anew.

        Raises:
            CheckpointCorruptError: its head is not as it was written.
        """
        head = self._store._head(run_id)
        if head is None:
            return None
        self._sealer.check_head(head, run_id)
        return head if not is_nested_id(run_id) or self._is_of_its_run(head) else None

    def _is_of_its_run(self, head: Head) -> bool:
        outer_id = given_id(head.run_id)
        outer = self.find(outer_id)
        return head.incarnation == (self._promised.get(outer_id) if outer is None else outer.incarnation)

    def remove_left_over(self, run_id: str) -> None:
        """Remove what stands in the place of something within a run, and is not of that run."""
        head = self._store._head(run_id) if is_nested_id(run_id) else None
        if head is not None and not self._is_of_its_run(head):
            self._store._remove(run_id, head.version)

    # ------------------------------------------------------------------ incarnations

    def incarnation_for(self, run_id: str) -> bytes:
        """Return the incarnation with which a run begins; what is within a run has that of the run.

        Raises:
            StepConflictError: the run around it is not the one that was saved or loaded here.
        """
        if not is_nested_id(run_id):
            return self._promised.get(run_id) or os.urandom(_INCARNATION)
        outer_id = given_id(run_id)
        outer = self.find(outer_id)
        if outer is not None:
            return self._of_known(outer_id, outer.incarnation)
        if self._known.incarnation_of(outer_id) is not None:
            raise _deleted(outer_id)
        # Durability "exit" saves what is within a run before the run itself.
        return self._promised.setdefault(outer_id, os.urandom(_INCARNATION))

    def incarnation_within(self, head: Head) -> bytes:
        """Return the incarnation of something that is within a run, for what is to be added to it; raises likewise."""
        return self._of_known(given_id(head.run_id), head.incarnation)

    def check_known(self, head: Head) -> None:
        """Raise StepConflictError if a run is another than the one of its id that was saved or loaded here."""
        if self._known.incarnation_of(head.run_id) not in (None, head.incarnation):
            raise _deleted(head.run_id)

    def _of_known(self, outer_id: str, incarnation: bytes) -> bytes:
        known = self._known.incarnation_of(outer_id) or self._promised.get(outer_id)
        if known not in (None, incarnation):
            raise _deleted(outer_id)
        return incarnation

    def within(self, write: Write) -> Write:
        """Return a write to something within a run as one that is made only if that run is there, unless it is this
        handle that has yet to begin it."""
        incarnation = write.head.incarnation
        if self._promised.get(given_id(write.head.run_id)) == incarnation:
            return write
        return Write(write.head, write.old, write.put, write.cut_below, write.cut_above, write.cut_within, incarnation)

    def forget(self, run_id: str) -> None:
        """Forget what a run was to begin with: it has begun, or was deleted."""
        self._promised.pop(run_id, None)

    # ------------------------------------------------------------------ all of them

    def listing(
        self,
        tell: Callable[[Head], _Told],
        status: str | None = None,
        graph: str | None = None,
        limit: int = -1,
        before: int | None = None,
    ) -> Listing[_Told]:
        """Return what is told of runs, the newest first. One that is damaged is left out and reported.

        Args:
            tell: Tells it of a head; raises a CheckpointError if it cannot.
            status: Only runs of this status, as for `RowOperations._heads`.
            graph: Only runs of this graph.
            limit: At most so many runs; all if it is negative.
            before: Only runs with a number below this one.
        """
        listing: Listing[_Told] = Listing([], [])
        while True:
            asked = limit if limit < 0 else limit - len(listing.told)
            found = self._store._heads(status, graph, asked, before)
            for one in found:
                self._add(listing, one, tell)
            numbers = [one.number for one in found if one.number is not None]
            if asked < 0 or len(found) < asked or len(listing.told) == limit or not numbers:
                return listing
            before = min(numbers)

    def _add(self, listing: Listing[_Told], found: Head | Unreadable, tell: Callable[[Head], _Told]) -> None:
        try:
            if isinstance(found, Unreadable):
                raise found.error
            self._sealer.check_head(found)
            listing.told.append(tell(found))
        except CheckpointError as error:
            if found.run_id not in listing.damaged:  # where it cannot be told when it began, it is on every page
                listing.damaged.append(found.run_id)
            self.report(found.run_id, error)

    def report(self, run_id: str, error: CheckpointError) -> None:
        """Log, once for each run, that it is left out."""
        if run_id not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(run_id)
            way_out = f"store.delete({run_id!r})"
            is_said = way_out in error.reason or "sign_with" in error.reason  # with the right key, it may be as it was
            logging.getLogger("stategraph").warning(
                "run %r in the %s is left out (logged once): %s%s",
                run_id,
                self._store,
                error.reason,
                "" if is_said else f"; {way_out} removes it",
            )


def _deleted(run_id: str) -> StepConflictError:
    reason = (
        "others have deleted it since it was saved or loaded here, so neither it nor what is made within it is saved "
        "any more; load the run, if they have begun it anew, or execute it anew"
    )
    return StepConflictError(run_id, reason)
