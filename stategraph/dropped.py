"""Runs that were dropped: what becomes of a stream that nobody closes.

Python finds out in a finaliser: on whatever thread, at whatever line, within a store or while somebody holds a lock.
There nothing can be saved, and nothing waited for. So a finaliser hands over what is left to do, and a thread does it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import attrs

PATIENCE = 60.0
"""Seconds to wait until what was dropped has ended. It is never that long, unless the end waits for whoever waits."""


class Stream(Protocol):
    """What is left early if nothing else happens to it."""

    def drop(self) -> None:
        """Leave it, if it has begun and has not ended."""


class Lock(Protocol):
    """What an end may wait for."""

    def is_held_here(self) -> bool:
        """Whether this thread holds it, further down its stack."""


@attrs.define(eq=False)
class _Dropped:
    """What is left to do.

    Attributes:
        store: The store of the run.
        end: Does it.
        is_ended: Set once that is over.
    """

    store: object
    end: Callable[[], object]
    is_ended: threading.Event = attrs.field(factory=threading.Event, init=False)


_Known = TypeVar("_Known")


class _Weak(Generic[_Known]):
    """Objects that are known as long as somebody else has them. Any thread and any finaliser may change it."""

    def __init__(self) -> None:
        self._references: set[weakref.ref[_Known]] = set()

    def add(self, one: _Known) -> None:
        self._references.add(weakref.ref(one, self._references.discard))

    def __iter__(self) -> Iterator[_Known]:
        found = [reference() for reference in list(self._references)]
        return iter([one for one in found if one is not None])


class _Here(threading.local):
    """What is known of a thread: whether it may be one that a run waits for at its end."""

    is_waited_for = False


class Reaper:
    """Ends what was dropped, one after the other, in a thread that is there only while there is something to do."""

    def __init__(self) -> None:
        self._locks = _Weak[Lock]()
        self.renew()

    def renew(self) -> None:
        """Begin anew, in a child process: what was dropped in the parent is ended there."""
        self._dropped: deque[_Dropped] = deque()
        self._at_work = threading.Lock()  # held by the thread that ends what was dropped
        self._worker: int | None = None  # that thread
        self._is_called = False  # one is on its way
        self._held: dict[int, object] = {}
        self._streams = _Weak[Stream]()

    def hand_over(self, store: object, end: Callable[[], object]) -> None:
        """Have a function called soon that ends a run. A finaliser may ask for it: this takes no lock."""
        self._dropped.append(_Dropped(store, end))
        if not (self._is_called or self._at_work.locked()):
            self._is_called = True
            try:
                start_new_thread(self._begin, ())
            except RuntimeError:  # the process is ending, or may have no more threads: see `settle` and `finish`
                self._is_called = False

    def _begin(self) -> None:
        """Begin a thread that others know: that takes locks, which a finaliser must not."""
        try:
            threading.Thread(target=self._work, name="stategraph dropped runs", daemon=True).start()
        except RuntimeError:
            self._is_called = False

    def _work(self) -> None:
        # In this order, here and in `hand_over`: whoever sees that a thread is called is seen by that thread.
        self._is_called = False
        while self._dropped:
            with self._at_work:
                self._worker = threading.get_ident()
                while self._dropped:
                    try:
                        _end(self._dropped[0])
                    finally:
                        self._dropped.popleft().is_ended.set()

    def settle(self, store: object) -> None:
        """Wait until all runs of a store have ended that were dropped before now.

        Whoever asks what a store holds asks for this first. A thread that a run may wait for at its end does not wait.
        """
        if not self._dropped or self._is_waited_for():
            return
        if not (self._is_called or self._at_work.locked()):
            self._work()
        give_up = time.monotonic() + PATIENCE
        for one in list(self._dropped):
            if one.store is store:
                one.is_ended.wait(max(0.0, give_up - time.monotonic()))

    def _is_waited_for(self) -> bool:
        """Whether the end of a run may wait for this thread: it ends runs, saves for them, or is inside of a store."""
        is_at_work = self._at_work.locked() and self._worker == threading.get_ident()
        return is_at_work or here.is_waited_for or any(lock.is_held_here() for lock in self._locks)

    def know(self, lock: Lock) -> None:
        """Have threads that hold a lock never wait for the end of a run."""
        self._locks.add(lock)

    def hold(self, holder: object, held: object) -> None:
        """Keep an object alive for another one: a collection that finds both would finalise it first."""
        self._held[id(holder)] = held

    def let_go(self, holder: object) -> None:
        """Keep it alive no longer."""
        self._held.pop(id(holder), None)

    def watch(self, stream: Stream) -> None:
        """Drop a stream at the end of the process, when no finaliser can have it ended any more."""
        self._streams.add(stream)

    def finish(self) -> None:
        """End all that has begun: the process is about to end."""
        self._dropped += [_Dropped(None, stream.drop) for stream in self._streams]
        self._work()


def _end(one: _Dropped) -> None:
    try:
        one.end()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        report(error)


def report(error: BaseException) -> None:
    """Tell of a failure to end a run that was dropped: there is nobody left to whom it could be raised."""
    import logging  # imported when used: 5 ms

    logging.getLogger("stategraph").error("a run that was dropped has not ended well", exc_info=error)


here = _Here()
reaper = Reaper()
atexit.register(reaper.finish)
if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=reaper.renew)
