"""Forks of a process while other threads use its stores.

A forked child has the locks of its parent in the state they were in, but not the threads that would release them. So a
fork waits for the commits and reads that are under way in other threads, none begins until it is done, and the child
gets new locks. It waits for long only where a commit does: while another process has locked the database.

The child could find out by its process id that it needs new locks. But SQLite has locks of its own, shared by all
connections of a process, which nothing in the child can replace: of 216 children that were forked while three threads
wrote, 26 waited forever in the first database that they opened.
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
        """Return a context in which no other thread uses the object: it waits for those that do."""

    def renew(self) -> None:
        """Replace the locks of the object, in the child."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
_resting = ExitStack()
_fork = threading.Lock()  # held by the thread that forks


def protect_at_fork(forkable: Forkable) -> None:
    """Protect an object at every fork from now on, as long as it is referred to."""
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
