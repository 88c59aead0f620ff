"""Access: which thread has the connection of a store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from stategraph.errors import CheckpointError


class Access:
    """Access to a connection. One thread at a time has it; a reader may come within a reader of the same thread.

    Attributes:
        guard: Held by the thread that has it.
        is_held_here: Whether that is this thread, further down its stack.
        transaction: Held by that thread while a transaction is open.
    """

    def __init__(self) -> None:
        self.guard, self.transaction = threading.RLock(), threading.Lock()
        self.is_held_here: Callable[[], bool] = self.guard._is_owned  # type: ignore[attr-defined]

    def to_read(self, store: object, run_id: str = "") -> AbstractContextManager[bool]:
        """Return the guard for a reader. Raises if this thread is writing."""
        if self.is_held_here() and self.transaction.locked():
            raise used_below(store, run_id)
        return self.guard

    def to_write(
        self, store: object, run_id: str = "", kind: type[CheckpointError] = CheckpointError
    ) -> AbstractContextManager[bool]:
        """Return the guard for a writer. Raises `kind` if this thread is reading or writing."""
        if self.is_held_here():
            raise used_below(store, run_id, kind)
        return self.guard


def used_below(store: object, run_id: str = "", kind: type[CheckpointError] = CheckpointError) -> CheckpointError:
    """Return the error for a store that is called while this thread is inside of it."""
    reason = (
        f"this thread is inside of the {store} already: a finaliser, a signal handler or a method of a value has "
        "called it, where it would wait for itself; call it from another thread, or later"
    )
    return kind(run_id, reason)
