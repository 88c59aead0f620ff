"""Threads for what would block an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from stategraph.drivers.outcomes import Outcome, outcome_of

NODES = 1000
"""Nodes that work in threads at the same time, at most: far more than any one of them should have to wait for."""

STORE_CALLS = min(32, (os.cpu_count() or 1) + 4)
"""Calls of stores at the same time, at most: these are short, and some stores open a connection for each thread."""

IDLE = 10.0  # seconds after which a thread that has nothing to do ends

_Call: TypeAlias = tuple[asyncio.Future[Outcome], Callable[..., Outcome], Callable[[Any], Any], Any]
_Calls: TypeAlias = SimpleQueue[_Call | None]


class Threads:
    """Threads that make calls for an event loop: begun when they are needed, and used again.

    Which of them are idle is known to the thread of the loop alone, so that there are no locks.

    Args:
        name: Their name.
        most: How many there are at most. Further calls wait.
    """

    def __init__(self, name: str, most: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._name, self._most = name, most
        self._threads: dict[_Calls, threading.Thread] = {}
        self._idle: list[_Calls] = []
        self._waiting: deque[_Call] = deque()
        self._is_closed = False

    def begin(self, function: Callable[[Any], Any], argument: Any) -> asyncio.Future[Outcome]:
        """Call a function in a thread, in the context of the caller -> what will come of it."""
        work: asyncio.Future[Outcome] = self._loop.create_future()
        call = (work, contextvars.copy_context().run, function, argument)
        if self._idle:
            self._idle.pop().put(call)
        elif len(self._threads) < self._most:
            self._start(call)
        else:
            self._waiting.append(call)
        return work

    def close(self) -> None:
        """Let all threads go that are idle, and each of the others when it has finished."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for calls in idle:
            calls.put(None)
        for calls in idle:
            self._threads.pop(calls).join()

    def _start(self, call: _Call) -> None:
        calls: _Calls = SimpleQueue()
        thread = threading.Thread(target=self._work, args=(calls,), name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more
            if not self._threads:
                raise
            self._waiting.append(call)
            return
        self._threads[calls] = thread
        calls.put(call)

    def _finished(self, calls: _Calls, work: asyncio.Future[Outcome], outcome: Outcome) -> None:
        if not work.done():
            work.set_result(outcome)
        if self._waiting:
            calls.put(self._waiting.popleft())
        elif self._is_closed:
            self._let_go(calls)
        else:
            self._idle.append(calls)

    def _retire(self, calls: _Calls) -> None:
        if calls in self._idle:  # it may have been given something meanwhile
            self._idle.remove(calls)
            self._let_go(calls)

    def _let_go(self, calls: _Calls) -> None:
        del self._threads[calls]
        calls.put(None)

    # ------------------------------------------------------------------ in a thread

    def _work(self, calls: _Calls) -> None:
        while self._do_next(calls):
            pass

    def _do_next(self, calls: _Calls) -> bool:
        """Make a call -> whether there may be another. While it waits for that, nothing of the last one is held."""
        try:
            call = calls.get(timeout=IDLE)
        except Empty:
            return self._tell(self._retire, calls)
        if call is None:
            return False
        work, run, function, argument = call
        return self._tell(self._finished, calls, work, run(outcome_of, function, argument))

    def _tell(self, callback: Callable[..., object], *arguments: Any) -> bool:
        """Have something done in the thread of the loop -> whether there is one any more."""
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError:  # it is closed: nobody waits
            return False
        return True


class LoopThreads:
    """The threads of an event loop: those of nodes and those of stores, so that neither wait for the others."""

    def __init__(self) -> None:
        self.nodes, self.store = Threads("stategraph node", NODES), Threads("stategraph store", STORE_CALLS)
        self.users = 0

    def close(self) -> None:
        """Let them go."""
        self.nodes.close()
        self.store.close()


_of_loops: dict[asyncio.AbstractEventLoop, LoopThreads] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_loops.clear)  # a child has none of the threads


@contextmanager
def threads_of_loop() -> Iterator[LoopThreads]:
    """Use the threads of the running event loop, shared by all who do so at the same time; the last lets them go."""
    loop = asyncio.get_running_loop()
    threads = _of_loops.get(loop)
    if threads is None:
        threads = _of_loops[loop] = LoopThreads()
    threads.users += 1
    try:
        yield threads
    finally:
        threads.users -= 1
        if not threads.users:
            _of_loops.pop(loop, None)
            threads.close()
