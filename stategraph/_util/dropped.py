"""Runs that were dropped: what becomes of a stream that nobody closes.

Python finds out in a finaliser: on any thread, at any line, inside a store or while a lock is held. There nothing can
be saved, and nothing waited for. So a finaliser hands over what is left to do, and a thread does it.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from _queue import Empty, SimpleQueue  # not from queue, which takes 2 ms more
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import attrs

PATIENCE = 30.0
"""Seconds to wait until what was dropped has ended.

All of them pass only if what was dropped waits for the waiting thread.
"""

_SOON = 0.5  # seconds in which a thread begins that was called


class Stream(Protocol):
    """What is left early if nothing else happens to it."""

    def drop(self) -> None:
        """Leave it, if it has begun and has not ended."""


@attrs.define(eq=False)
class _Dropped:
    """What is left to do.

    Attributes:
        store: The store of the run.
        end: Does it.
        is_ended: Whether that is over.
    """

    store: object
    end: Callable[[], object]
    is_ended: bool = attrs.field(default=False, init=False)
    # No event: an interrupt in one leaves it locked, and whoever sets it waits for ever.
    _signs: SimpleQueue[None] = attrs.field(factory=SimpleQueue, init=False)

    def tell(self) -> None:
        """Tell whoever waits for it that it is over."""
        self.is_ended = True
        self._signs.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait until it is over, not much longer than so many seconds; return whether it is."""
        if not self.is_ended:
            with suppress(Empty):
                self._signs.put(self._signs.get(timeout=seconds))  # for others who wait
        return self.is_ended


_Known = TypeVar("_Known")


class WeakObjects(Generic[_Known]):
    """Objects that are known as long as somebody else has them. Any thread and any finaliser may change it.

    A WeakSet is told in Python code that one is gone: an interrupt that comes there is not raised, but lost.
    """

    def __init__(self) -> None:
        self._references: set[weakref.ref[_Known]] = set()

    def add(self, one: _Known) -> None:
        """Know one more."""
        self._references.add(weakref.ref(one, self._references.discard))

    def __iter__(self) -> Iterator[_Known]:
        found = [reference() for reference in list(self._references)]
        return iter([one for one in found if one is not None])


class Reaper:
    """Ends what was dropped, one after the other, in a thread that is there only while there is something to do.

    Attributes:
        waited_for: The threads for which a run may wait at its end.
    """

    def __init__(self) -> None:
        self._locks = WeakObjects[threading.RLock]()
        self.renew()

    def renew(self) -> None:
        """Start afresh in a child process: what was dropped in the parent is ended there."""
        self._dropped: deque[_Dropped] = deque()
        self._at_work = threading.Lock()  # held by the thread that ends what was dropped
        self._worker: int | None = None  # that thread
        self._is_called = False  # one is on its way
        self.waited_for: set[int] = set()
        self._held: dict[int, object] = {}
        self._streams = WeakObjects[Stream]()

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
        if not is_started(threading.Thread(target=self._work, name="stategraph dropped runs", daemon=True)):
            self._is_called = False

    def _work(self) -> None:
        # In this order, here and in `hand_over`: a caller that sees that a thread is called is seen by that thread.
        self._is_called = False
        while self._dropped:
            with self._at_work:
                self._worker = threading.get_ident()
                while self._dropped:
                    try:
                        _end(self._dropped[0])
                    finally:
                        self._dropped.popleft().tell()

    @property
    def has_dropped(self) -> bool:
        """Whether anything is left to do of what was dropped."""
        return bool(self._dropped)

    def settle(self, store: object) -> None:
        """Wait until all runs of a store have ended that were dropped before now.

        Every question about what a store holds begins with this. A thread that a run may wait for does not wait.
        """
        if not self._dropped or self._is_waited_for():
            return
        give_up = time.monotonic() + PATIENCE
        for one in [one for one in list(self._dropped) if one.store is store]:
            while not self._has_ended(one) and time.monotonic() < give_up:
                pass

    def _has_ended(self, one: _Dropped) -> bool:
        """Wait a while for an end. Where no thread comes, as when the process is ending, this one does the work."""
        if not (self._is_called or self._at_work.locked() or one.is_ended):
            self._work()
        if one.wait(_SOON):
            return True
        if not self._at_work.locked():  # the thread that is to come may be this one, in a finaliser at its start
            self._work()
        return False

    def _is_waited_for(self) -> bool:
        """Return whether a run may wait for this thread when it ends: it ends runs, saves for them, or is in one."""
        return self.is_at_work or threading.get_ident() in self.waited_for or any(map(is_held_here, self._locks))

    @property
    def is_at_work(self) -> bool:
        """Whether this thread ends what was dropped."""
        return self._at_work.locked() and self._worker == threading.get_ident()

    def known_lock(self) -> threading.RLock:
        """Return a lock that the end of a run may wait for: a thread that holds it never waits for such an end."""
        lock = threading.RLock()
        self._locks.add(lock)
        return lock

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


def is_held_here(lock: threading.RLock) -> bool:
    """Return whether this thread holds a lock, further down its stack. `threading.Condition` asks it that way, too."""
    return lock._is_owned()  # type: ignore[attr-defined, no-any-return]


def is_started(thread: threading.Thread) -> bool:
    """Start a thread, and return whether that could be done: the process may be ending, or have no more threads."""
    try:
        thread.start()
    except RuntimeError as error:
        # It has been started: an interrupt within the wait for its first sign has found a lock that is not held.
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        return False
    return True


def _end(one: _Dropped) -> None:
    try:
        one.end()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        report(error)


def report(error: BaseException) -> None:
    """Log a failure to end a run that was dropped: there is nobody left to whom it could be raised."""
    import logging  # imported when used: 5 ms

    logging.getLogger("stategraph").error("a run that was dropped has not ended well", exc_info=error)


reaper = Reaper()
atexit.register(reaper.finish)
if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=reaper.renew)
