"""Shared commits: threads that write at the same time share one transaction, and its one sync.

The first to come leads: it commits what has gathered, its own write among it, while those who come meanwhile wait and are
led by the next. A caller that is alone commits at once in its own thread; a hand-over to another thread would take as long
as the sync itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import attrs

from stategraph.stores.rows import Write

MOST_TOGETHER = 256  # writes in one transaction: a reader of a network file system still sees steady progress


@attrs.define(eq=False)
class _Waiting:
    write: Write
    woken: threading.Event | None = None
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
        with self._lock:
            self._queue.append(waiting)
            if self._leading:
                waiting.woken = threading.Event()
            self._leading = True
        if waiting.woken is None or self._is_to_lead(waiting, waiting.woken):
            self._lead(waiting)
        if isinstance(waiting.outcome, BaseException):
            raise waiting.outcome
        return bool(waiting.outcome)

    def _is_to_lead(self, waiting: _Waiting, woken: threading.Event) -> bool:
        """Wait to be served -> whether this caller is to lead instead."""
        try:
            woken.wait()
        except BaseException:  # an interrupt: nobody may wait for a leader that is gone
            with self._lock:
                is_to_lead = woken.is_set() and waiting.outcome is None
                if waiting in self._queue:
                    self._queue.remove(waiting)
            if is_to_lead:
                self._hand_over()
            raise
        return waiting.outcome is None

    def _lead(self, own: _Waiting) -> None:
        """Commit what has gathered and tell its callers."""
        with self._lock:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), MOST_TOGETHER))]
        outcomes: Sequence[bool | BaseException]
        try:
            outcomes = self._apply([waiting.write for waiting in batch])
        except Exception as error:  # noqa: BLE001 - each caller raises it
            outcomes = [error] * len(batch)
        except BaseException as interrupt:
            own.outcome = interrupt
            outcomes = [InterruptedError("the thread that committed for this one was interrupted")] * len(batch)
        finally:
            self._hand_over()
        for waiting, outcome in zip(batch, outcomes, strict=True):
            waiting.outcome = waiting.outcome or outcome
            if waiting.woken is not None:
                waiting.woken.set()

    def _hand_over(self) -> None:
        """Let the first of those who came meanwhile lead."""
        with self._lock:
            self._leading = bool(self._queue)
            if self._queue and self._queue[0].woken is not None:
                self._queue[0].woken.set()
