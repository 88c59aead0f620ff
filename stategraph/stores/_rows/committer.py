"""Committer: threads that commit at the same time share one transaction and its one sync (group commit).

The first thread commits at once, in its own thread: a hand-over would take as long as the sync. Threads that arrive
during that commit wait, and one of them commits for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import TypeAlias

import attrs

from stategraph._text.shown import describe_exception
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.stores._rows.records import Write
from stategraph.stores._rows.table import used_below

MOST_TOGETHER = 256  # batches in one transaction, so that a reader of a network file system sees steady progress

Outcome: TypeAlias = bool | Exception
"""Whether a batch was written, or the error that leaves it unknown."""


@attrs.define(eq=False)
class _Waiting:
    """A batch to write, and its outcome."""

    batch: Write
    outcome: Outcome | None = None


class Committer:
    """Commits batches of several threads together.

    Args:
        apply: Writes several batches and returns the outcome of each. If it raises a CheckpointSaveError, that concerns
            all of them: the store is locked, full or broken. After any other error they are written one by one, so
            that only the faulty batch fails.
        is_shared: Whether threads share a transaction. Threads that write to a server each have their own, and the
            server shares a sync between them.
    """

    def __init__(self, apply: Callable[[Sequence[Write]], Sequence[Outcome]], *, is_shared: bool = True) -> None:
        self._apply, self._is_shared = apply, is_shared
        self._turn = threading.RLock()  # held by the thread that commits
        self._waiting: list[_Waiting] = []

    def commit(self, batches: Sequence[Write]) -> list[Outcome]:
        """Write batches; return the outcome of each. Written batches are durable when this returns."""
        writes = list(map(_Waiting, batches))
        if not self._is_shared:
            self._write(writes)
        else:
            if self._turn._is_owned():  # type: ignore[attr-defined]  # as threading.Condition does
                raise used_below("store", kind=CheckpointSaveError)
            self._waiting += writes
            try:
                with self._turn:
                    while writes[-1].outcome is None:
                        together = self._waiting[:MOST_TOGETHER]
                        self._write(together)
                        self._forget(together)
            finally:
                if writes[-1].outcome is None:  # an interrupt
                    self._forget(writes)
        return [write.outcome or False for write in writes]

    def _forget(self, writes: Sequence[_Waiting]) -> None:
        """Remove writes from the queue, one by one: another thread may add some, or remove its own, at any time."""
        for write in writes:
            with suppress(ValueError):
                self._waiting.remove(write)

    def _write(self, writes: Sequence[_Waiting]) -> None:
        outcomes: Sequence[Outcome]
        try:
            outcomes = self._apply([write.batch for write in writes])
        except Exception as error:  # noqa: BLE001 - each caller raises it
            if len(writes) == 1:
                outcomes = [error]
            elif _concerns_all(error):
                outcomes = [_copy(error) for _ in writes]
            else:
                for write in writes:
                    self._write([write])
                return
        for write, outcome in zip(writes, outcomes, strict=True):
            write.outcome = outcome


_DATA_ERROR = "DataError"  # the name of errors in the data alone, in all drivers (PEP 249, Python's database API)
_name_of = attrgetter("__name__")


def _concerns_all(error: Exception) -> bool:
    """Return whether the store failed, rather than one batch, such as one with a value that is too large."""
    cause = error.__cause__
    is_of_one = isinstance(cause, OverflowError | ValueError) or _DATA_ERROR in map(_name_of, type(cause).__mro__)
    return isinstance(error, CheckpointSaveError) and not is_of_one


def _copy(error: Exception) -> Exception:
    """Return a copy of a shared error for one caller: threads must not share an exception."""
    reason = error.reason if isinstance(error, CheckpointError) else describe_exception(error)
    copy = CheckpointSaveError("", reason)  # its caller adds the run
    copy.__cause__ = error
    return copy
