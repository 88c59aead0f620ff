"""The writer of a store: one thread that saves behind all runs of it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from _queue import Empty, SimpleQueue
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from stategraph._util.dropped import is_started, reaper
from stategraph.state import State
from stategraph.stores.base import CheckpointStore

_GATHER = 0.002  # seconds for which a save waits for others to save together
_IDLE = 1.0  # seconds after which the thread ends if nobody calls


class Queued(Protocol):
    """Saves of a run that wait; see `stategraph.stores.write_behind.WriteBehindStore`."""

    behind_of: CheckpointStore

    def begun(self) -> list[State]: ...
    def save_begun(self, states: Sequence[State], /) -> None: ...
    def end(self, states: Sequence[State], saved: bool | BaseException, /) -> None: ...

    @property
    def has_queued(self) -> bool:
        """Whether there are any."""

    def save_queued(self) -> None:
        """Make them. This never raises."""


class Writer:
    """Has a thread save for all runs that call it, those of some time in one go.

    The thread comes with the first call, and ends when nobody has called for a while: a run that is over before its
    saves have gathered makes them itself, and waits for no thread.
    """

    def __init__(self) -> None:
        self._lock = reaper.known_lock()  # the end of a dropped run may wait for it
        self._waiting: dict[int, Queued] = {}
        self._thread: threading.Thread | None = None
        self._rests = False
        self._wake: SimpleQueue[None] = SimpleQueue()  # no event: an interrupt in one leaves it locked

    def call(self, queued: Queued) -> bool:
        """Have saves made soon; return False if nobody can make them.

        While a dropped run is ended, or the process is ending, the thread of the run saves.
        """
        if reaper.is_at_work:
            return False
        with self._lock:
            self._waiting[id(queued)] = queued
            if self._thread is None or not self._thread.is_alive():  # as when an interrupt has come at its start
                return self._start()
            if self._rests:
                self._rests = False
                self._wake.put(None)
        return True

    def _start(self) -> bool:
        thread = threading.Thread(target=self._work, name="stategraph writer", daemon=True)
        self._thread, self._rests = thread, False  # first: an interrupt may come when it is there already
        if not is_started(thread):
            self._thread = None
        return self._thread is not None

    # ------------------------------------------------------------------ in the thread

    def _work(self) -> None:
        reaper.waited_for.add(threading.get_ident())
        try:
            while self._is_called():
                time.sleep(_GATHER)
                self.save()
        finally:
            reaper.waited_for.discard(threading.get_ident())
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _is_called(self) -> bool:
        """Wait for a call; return False if none comes."""
        with self._lock:
            self._rests = not self._waiting
        if self._rests:
            with suppress(Empty):
                self._wake.get(timeout=_IDLE)
        with self._lock:
            self._rests = False
            if not self._waiting:
                self._thread = None  # whoever calls from now on starts another
            return bool(self._waiting)

    def save(self) -> None:
        """Save for all runs that have called, in one go as far as the store can do that; any thread may do so."""
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        if not waiting:
            return
        store = waiting[0].behind_of
        is_server = getattr(store, "_is_server", False)  # where a stranger may have locked a run, which is found out
        is_together = (len(waiting) > 1 or is_server) and hasattr(store, "_save_together")
        saved = _saved_together(store, waiting) if is_together else ()
        for queued in waiting:
            if queued.has_queued and id(queued) not in saved:
                self._save_apart(queued) if is_server else self._save_alone(queued)
            elif queued.has_queued:  # more has come meanwhile
                self.call(queued)

    def _save_alone(self, queued: Queued) -> None:
        queued.save_queued()
        if queued.has_queued:  # more has come meanwhile
            self.call(queued)

    def _save_apart(self, queued: Queued) -> None:
        """Save for a run that may have to wait for others, which the other runs of the store must not."""

        def work() -> None:
            reaper.waited_for.add(threading.get_ident())
            try:
                self._save_alone(queued)
            finally:
                reaper.waited_for.discard(threading.get_ident())

        if not is_started(threading.Thread(target=work, name="stategraph writer", daemon=True)):
            self._save_alone(queued)


def _saved_together(store: Any, waiting: Sequence[Queued]) -> set[int]:
    """Save in one go what waits; return whose saves are made, by the ids of their objects."""
    begun = [(queued, states) for queued in waiting if (states := queued.begun())]
    saved: Sequence[bool | BaseException] = [False] * len(begun)
    try:
        calls = [({state.run_id for state in states}, partial(queued.save_begun, states)) for queued, states in begun]
        saved = store._save_together(calls)
    finally:
        for (queued, states), is_saved in zip(begun, saved, strict=True):
            queued.end(states, is_saved)
    return {id(queued) for (queued, _), is_saved in zip(begun, saved, strict=True) if is_saved is True}


_writers: weakref.WeakKeyDictionary[object, Writer] = weakref.WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=_writers.clear)  # a child has none of the threads


def writer_of(store: object) -> Writer:
    """Return the writer of a store."""
    writer = _writers.get(store)
    return _writers.setdefault(store, Writer()) if writer is None else writer
