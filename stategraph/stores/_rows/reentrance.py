"""Stores that are used again on a thread which is inside of them, further down its stack.

A finaliser, a signal handler, or what a value does when it is looked at, may call a store from within. It cannot wait
there for itself, nor make a transaction within another one, nor see what is not committed: it is refused at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from stategraph._util.dropped import reaper
from stategraph.errors import CheckpointError


class Inside(threading.local):
    """Whether a thread is inside of something: then it holds the lock, which an interrupt does not leave behind.

    Attributes:
        lock: That of this thread, if it was made yet.
    """

    lock: threading.RLock | None = None

    def made_lock(self) -> threading.RLock:
        """Make the lock of this thread. `__init__` does not: it is called once, and an interrupt may come there."""
        self.lock = reaper.known_lock()
        return self.lock


class Access:
    """Access to a connection. One thread at a time has it; a reader may come within a reader of the same thread.

    Attributes:
        guard: Held by the thread that has it.
        is_held_here: Whether that is this thread, further down its stack.
        transaction: Held by that thread while a transaction is open.
    """

    def __init__(self) -> None:
        self.guard, self.transaction = reaper.known_lock(), threading.Lock()
        self.is_held_here: Callable[[], bool] = self.guard._is_owned  # type: ignore[attr-defined]

    def to_read(self, store: object, run_id: str = "") -> AbstractContextManager[bool]:
        """Return the guard for a reader, who sees all that was dropped before. Raises if this thread is writing."""
        if self.is_held_here() and self.transaction.locked():
            raise used_below(store, run_id)
        reaper.settle(store)
        return self.guard

    def to_write(
        self, store: object, run_id: str = "", kind: type[CheckpointError] = CheckpointError
    ) -> AbstractContextManager[bool]:
        """Return the guard for a writer. Raises `kind` if this thread is reading or writing."""
        if self.is_held_here():
            raise used_below(store, run_id, kind)
        return self.guard

    def to_change(self, store: object) -> AbstractContextManager[bool]:
        """As `to_write`, for whoever removes or closes what was dropped before: once that is saved."""
        guard = self.to_write(store)
        reaper.settle(store)
        return guard


def used_below(store: object, run_id: str = "", kind: type[CheckpointError] = CheckpointError) -> CheckpointError:
    """Return the error for a call from within."""
    reason = (
        f"the {store} is being used by this thread further down its stack: a finaliser, a signal handler or a value "
        "has called it from within, where it would wait for itself; call it from another thread, or later"
    )
    return kind(run_id, reason)
