"""Stores that are used again on a thread which is inside of them, further down its stack.

A finaliser, a signal handler, or what a value does when it is looked at, may call a store from within. It cannot wait
there for itself, nor make a transaction within another one, nor see what is not committed: it is refused at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from stategraph.dropped import reaper
from stategraph.errors import CheckpointError


def held_here(lock: threading.RLock) -> Callable[[], bool]:
    """Return what tells whether the calling thread holds a lock, further down its stack.

    The lock knows, and `threading.Condition` asks it; the type hints do not tell.
    """
    is_owned: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]
    return is_owned


class Inside(threading.local):
    """Whether a thread is inside of something: then it holds the lock, which an interrupt does not leave behind."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


class Access:
    """Access to a connection. One thread at a time has it; a reader may come within a reader of the same thread.

    Attributes:
        guard: Held by the thread that has it.
        is_held_here: Whether that is this thread, further down its stack.
        transaction: Held by that thread while a transaction is open.
    """

    def __init__(self) -> None:
        self.guard, self.transaction = threading.RLock(), threading.Lock()
        self.is_held_here = held_here(self.guard)

    def to_read(self, store: object, run_id: str = "") -> AbstractContextManager[bool]:
        """Return the guard for a reader, who sees all that was dropped before. Raises if this thread is writing."""
        if not self.is_held_here():
            reaper.settle(store)
        elif self.transaction.locked():
            raise used_below(store, run_id)
        return self.guard

    def to_write(
        self, store: object, run_id: str = "", kind: type[CheckpointError] = CheckpointError
    ) -> AbstractContextManager[bool]:
        """Return the guard for a writer. Raises `kind` if this thread is reading or writing."""
        if self.is_held_here():
            raise used_below(store, run_id, kind)
        return self.guard

    def to_close(self, store: object) -> AbstractContextManager[bool]:
        """As `to_write`, once those runs are saved that were dropped."""
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
