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
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol


class Forkable(Protocol):
    """An object that other threads must not use while its process is forked."""

    def at_rest(self) -> AbstractContextManager[object]:
        """Return a lock that keeps other threads out."""

    def renew(self) -> None:
        """Replace the locks of the object, in the child."""


class ForkSafe:
    """A base for objects with one lock, which is protected at forks.

    Attributes:
        lock: The lock.
    """

    lock: threading.RLock

    def __init__(self) -> None:
        self.renew()
        protect_at_fork(self)

    def at_rest(self) -> AbstractContextManager[object]:
        """Return the lock."""
        return self.lock

    def renew(self) -> None:
        """Replace the lock."""
        self.lock = threading.RLock()


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
_resting = ExitStack()
_fork = threading.Lock()  # held during a fork


def protect_at_fork(forkable: Forkable) -> None:
    """Protect an object at every later fork, as long as there is a reference to it."""
    _forkables.add(forkable)


def _before() -> None:
    _fork.acquire()
    for forkable in list(_forkables):
        _resting.enter_context(forkable.at_rest())


def _after_in_parent() -> None:
    _resting.close()
    _fork.release()


def _after_in_child() -> None:
    global _fork  # noqa: PLW0603 - the lock of the parent is of no use here
    _resting.pop_all()
    _fork = threading.Lock()
    for forkable in list(_forkables):
        forkable.renew()


if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
