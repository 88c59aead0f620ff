"""Shared commits: threads that write at the same time share one transaction, and its one sync.

The first to come leads: it commits what has gathered, its own write among it, while those who come meanwhile wait and
are led by the next. A caller that is alone commits at once in its own thread; a hand-over to another thread would take
as long as the sync itself.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from stategraph.errors import CheckpointError, CheckpointSaveError, describe_exception
from stategraph.stores.rows import Write

MOST_TOGETHER = 256  # writes in one transaction: a reader of a network file system still sees steady progress


@attrs.define(eq=False)
class _Waiting:
    """A caller: its write, whether it is its turn to lead, and what became of the write."""

    write: Write
    woken: threading.Event | None = None
    leads: bool = False
    outcome: bool | BaseException | None = None


class SharedCommits:
    """Commits writes together.

    Args:
        apply: Makes several writes in one transaction -> which of them were made.
    """

    def __init__(self, apply: Callable[[Sequence[Write]], Sequence[bool]]) -> None:
        self._apply = apply
        self._lock = threading.Lock()
        self._queue: deque[_Waiting] = deque()
        self._leading = False

    def commit(self, write: Write) -> bool:
        """Make a write -> whether it was made. When this returns it is durable.

        Raises whatever `apply` raises; then it is not known to be made.
        """
        waiting = _Waiting(write)
        try:
            with self._lock:
                self._queue.append(waiting)
                if self._leading:
                    waiting.woken = threading.Event()
                else:
                    waiting.leads = self._leading = True
            if waiting.woken is not None:
                waiting.woken.wait()
            if waiting.leads:
                self._lead()
        finally:  # an interrupt may come anywhere, and nobody may wait for a leader that is gone
            if waiting.leads or waiting.outcome is None:
                self._leave(waiting)
        if isinstance(waiting.outcome, BaseException):
            raise waiting.outcome
        return bool(waiting.outcome)

    def _lead(self) -> None:
        """Commit what has gathered and tell its callers."""
        batch: list[_Waiting] = []
        outcomes: Sequence[bool | BaseException] = ()
        try:
            with self._lock:
                while self._queue and len(batch) < MOST_TOGETHER:
                    batch.append(self._queue[0])
                    self._queue.popleft()
            outcomes = self._apply([waiting.write for waiting in batch])
        except Exception as error:  # noqa: BLE001 - each caller raises it
            outcomes = [error] if len(batch) == 1 else [_copy(error) for _ in batch]
        finally:
            for waiting, outcome in itertools.zip_longest(batch, outcomes):
                waiting.outcome = _interrupted() if outcome is None else outcome
                if waiting.woken is not None:
                    waiting.woken.set()

    def _leave(self, waiting: _Waiting) -> None:
        """Wait no longer, and lead no longer: the first of those who came meanwhile does."""
        with self._lock:
            if waiting in self._queue:
                self._queue.remove(waiting)
            if not waiting.leads:
                return
            waiting.leads = False
            following = self._queue[0] if self._queue else None
            self._leading = following is not None
            if following is not None and following.woken is not None:
                following.leads = True
                following.woken.set()


def _copy(error: Exception) -> Exception:
    """-> the error of a shared commit as one of the callers is to see it: an exception object belongs to one thread."""
    reason = error.reason if isinstance(error, CheckpointError) else describe_exception(error)
    copy = CheckpointSaveError("", reason)  # of which run, the caller knows
    copy.__cause__ = error
    return copy


def _interrupted() -> CheckpointSaveError:
    return CheckpointSaveError("", "the thread that committed for this one was interrupted")
