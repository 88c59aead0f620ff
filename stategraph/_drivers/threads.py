"""Threads for what would block an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Self, TypeAlias

from stategraph._drivers.calls import Asked, Outcome, outcome_of

NODES = 1000
"""Nodes that work in threads at the same time, at most: far more than any one of them should have to wait for."""

STORE_CALLS = min(32, (os.cpu_count() or 1) + 4)
"""Calls of stores at the same time, at most: these are short, and some stores open a connection for each thread."""

IDLE = 10.0  # seconds after which threads that were not needed end

_Call: TypeAlias = tuple["Work", Callable[..., Outcome], Callable[[Any], Any], Any]


class Work(asyncio.Future[Outcome]):
    """What a thread does for a task that waits for it.

    Attributes:
        rest: What is to be waited for once the task is cancelled: the thread cannot be stopped.
    """

    rest: asyncio.Future[Outcome] | None = None

    def cancel(self, msg: object = None) -> bool:
        """Tell the task that it is cancelled."""
        if not self.done():
            self.rest = self.get_loop().create_future()
        return super().cancel(msg)

    def finish(self, outcome: Outcome) -> None:
        """Tell whoever waits what the thread's call returns or raises."""
        waited_for = self if self.rest is None else self.rest
        if not waited_for.done():
            waited_for.set_result(outcome)


class Threads:
    """Threads that make calls for an event loop: begun when they are needed, and used again.

    All of them take their calls from one queue, so that one that is awake takes the next without waking another. How
    many are needed is known to the thread of the loop alone, so that there are no locks.

    Args:
        name: Their name.
        most: How many there are at most. Further calls wait.
        answers: Makes all calls that wait at the same time, if there is one thread that does.
    """

    def __init__(self, name: str, most: int, answers: Callable[[Sequence[Asked]], list[Outcome]] | None = None) -> None:
        self._name, self._most, self._answers = name, most, answers
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._count = 0  # threads that are to be there
        self._busy = self._peak = 0  # calls that have not finished, and the most of them since threads were let go
        self._threads: set[threading.Thread] = set()
        self._is_watched = False

    def begin(self, function: Callable[[Any], Any], argument: Any) -> Work:
        """Call a function in a thread, in the context of the caller; return the future of its outcome."""
        work = Work(loop=asyncio.get_running_loop())
        if self._busy >= self._count and self._count < self._most:
            self._start()
            if not self._count:  # no thread can be had: this one makes the call
                work.set_result(outcome_of(function, argument))
                return work
        self._busy += 1
        self._peak = max(self._peak, self._busy)
        self._calls.put((work, contextvars.copy_context().run, function, argument))
        return work

    def close(self) -> None:
        """End all threads; those that are busy end when they have finished."""
        # One sign for all of them: an interrupt at the start of a thread may leave it uncounted.
        ended, self._calls, self._count = self._calls, SimpleQueue(), 0
        threads = self._threads - {threading.current_thread()}
        ended.put(None)
        if not self._busy and not sys.is_finalizing():  # when the interpreter ends, threads are not waited for
            for thread in threads:
                if thread.is_alive():  # and not one that such an interrupt has kept from starting
                    thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, args=(self._calls,), name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:  # the system has no more: one of those that there are makes the call
            self._threads.discard(thread)
            return
        self._count += 1
        self._watch()

    def _watch(self) -> None:
        if not self._is_watched:
            self._is_watched = True
            asyncio.get_running_loop().call_later(IDLE, self._shrink)

    def _shrink(self) -> None:
        """End those threads that were not needed since the last call."""
        self._is_watched = False
        self._let_go(self._count - self._peak)
        self._peak = self._busy
        if self._count:
            self._watch()

    def _let_go(self, count: int) -> None:
        for _ in range(count):
            self._count -= 1
            self._calls.put(None)

    def _finished(self, works: list[Work], outcomes: list[Outcome]) -> None:
        self._busy -= len(works)
        for work, outcome in zip(works, outcomes, strict=True):
            work.finish(outcome)
        works.clear()  # the thread may still have the lists
        outcomes.clear()

    # ------------------------------------------------------------------ in a thread

    def _work(self, waiting: SimpleQueue[_Call | None]) -> None:
        while self._do_next(waiting):
            pass
        if waiting is not self._calls:  # closed
            waiting.put(None)
        self._threads.discard(threading.current_thread())

    def _do_next(self, waiting: SimpleQueue[_Call | None]) -> bool:
        """Make calls, and return whether there may be others. While it waits, it holds nothing of the last ones."""
        call = waiting.get()
        if call is None:
            return False
        calls, goes_on = [call], True
        while self._answers is not None and goes_on and not waiting.empty():
            call = waiting.get()
            goes_on = call is not None
            calls += [call] if call is not None else ()
        asked = [(run, function, argument) for _, run, function, argument in calls]
        outcomes = [run(outcome_of, *about) for run, *about in asked] if self._answers is None else self._answers(asked)
        works = [work for work, *_ in calls]
        loop = works[0].get_loop()
        del call, calls, asked
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(self._finished, works, outcomes)
        return goes_on


class LoopThreads:
    """The threads of an event loop: those of nodes and those of stores, so that neither wait for the others.

    They are there for some time after the last run has ended, so that the next one finds them, but not longer than the
    loop. To be entered by each run that uses them.
    """

    def __init__(self) -> None:
        self.nodes, self.store = Threads("stategraph node", NODES), Threads("stategraph store", STORE_CALLS)
        self._of_stores: weakref.WeakKeyDictionary[object, Threads] = weakref.WeakKeyDictionary()
        self.users = 0
        self._timer: weakref.ref[asyncio.TimerHandle] | None = None

    def of(self, store: object) -> Threads:
        """Return the threads that ask a store: a single one if that can save for several runs in one go, but several
        if it is a server that they wait for, which answers them at the same time."""
        if getattr(store, "_is_server", not hasattr(store, "_save_runs")):
            return self.store
        threads = self._of_stores.get(store)
        if threads is None:
            from stategraph._drivers.store_calls import make_calls  # imported when used: with stores that can do that

            threads = self._of_stores[store] = Threads("stategraph store", 1, make_calls)
        return threads

    def __enter__(self) -> Self:
        self.users += 1
        timer = None if self._timer is None else self._timer()
        if timer is not None:
            timer.cancel()
        return self

    def __exit__(self, *exception: object) -> None:
        self.users -= 1
        if self.users:
            return
        closes = _ClosesThreads(self)
        with suppress(RuntimeError):  # no loop is running: a run that nobody waits for is being dropped
            self._timer = weakref.ref(asyncio.get_running_loop().call_later(IDLE, closes))

    def close(self) -> None:
        """End them."""
        for threads in (self.nodes, self.store, *self._of_stores.values()):
            threads.close()


class _ClosesThreads:
    """Held by a timer of a loop and by nothing else.

    It is collected when the time is up, or when the loop is closed and drops its timers, which is the only sign of
    that. The threads end with it.
    """

    def __init__(self, threads: LoopThreads) -> None:
        self._threads = threads

    def __call__(self) -> None: ...

    def __del__(self) -> None:
        if not self._threads.users:
            self._threads.close()


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopThreads] = weakref.WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_loops.clear)  # a child has none of the threads


def threads_of_loop() -> LoopThreads:
    """Return the threads of the running event loop."""
    loop = asyncio.get_running_loop()
    threads = _of_loops.get(loop)
    if threads is None:
        threads = _of_loops[loop] = LoopThreads()
    return threads
