"""Forks: a child process has the locks of its parent as they were, but not the threads that held them.

So nothing may be under way in a store while its process is forked, and the child begins with locks of its own. A fork
waits for the commits and reads that are under way in other threads; none begins until it is done.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import AbstractContextManager, ExitStack
from typing import Protocol


class Forkable(Protocol):
    """What must be at rest while its process is forked."""

    def at_rest(self) -> AbstractContextManager[object]:
        """-> keeps it at rest: no other thread is inside of it, or comes into it."""

    def renew(self) -> None:
        """In the child: have locks of its own, free ones."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()
_resting = ExitStack()
_fork = threading.Lock()  # held by the thread that forks


def take_care_of(forkable: Forkable) -> None:
    """See to it at every fork from now on, as long as it is used."""
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
