"""Forks of a process while other threads use its stores.

A forked child gets the locks of its parent in their current state, but not the threads that would release them. So a
fork waits for commits and reads of other threads, none begins until it is done, and the child gets new locks. The wait
is long only if a commit waits for another process that has locked the database.

The child could replace the locks when it sees its new process id. But SQLite has locks of its own, shared by all
connections of a process, which the child cannot replace: of 216 children that were forked while three threads wrote, 26
waited forever in the first database that they opened.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import ExitStack

from stategraph.errors import CheckpointError


class ForkSafe:
    """A base for objects with one lock, which other threads must not use while their process is forked.

    Attributes:
        lock: The lock.
    """

    lock: threading.RLock

    def __init__(self) -> None:
        self.renew()
        with _fork:  # otherwise a fork in another thread could not list the objects
            _objects.add(self)

    def renew(self) -> None:
        """Replace the lock, in a forked child as well."""
        self.lock = threading.RLock()

    def alone(self, run_id: str = "", kind: type[CheckpointError] = CheckpointError) -> threading.RLock:
        """Return the lock of a store. Raise `kind` if this thread already has it."""
        if self.lock._is_owned():  # type: ignore[attr-defined]  # as threading.Condition does
            raise reentered_error(self, run_id, kind)
        return self.lock


def reentered_error(store: object, run_id: str, kind: type[CheckpointError]) -> CheckpointError:
    """Return the error for a call to a store from a thread that is already inside it."""
    reason = (
        f"this thread is inside of the {store} already: a finaliser, a signal handler or a method of a value has "
        "called it, where it would wait for itself; call it from another thread, or later"
    )
    return kind(run_id, reason)


_objects: weakref.WeakSet[ForkSafe] = weakref.WeakSet()
_resting = ExitStack()
_fork = threading.RLock()  # held during a fork


def _before() -> None:
    _fork.acquire()
    for each in list(_objects):
        _resting.enter_context(each.lock)


def _after_in_parent() -> None:
    _resting.close()
    _fork.release()


def _after_in_child() -> None:
    global _fork  # noqa: PLW0603 - the lock of the parent is of no use here
    _resting.pop_all()
    _fork = threading.RLock()
    for each in list(_objects):
        each.renew()


if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
