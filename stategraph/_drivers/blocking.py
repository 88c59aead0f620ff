"""What makes a thread wait: async nodes, limits of time, and delays."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from inspect import isawaitable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import attrs

from stategraph._drivers.calls import Outcome, call_apart
from stategraph._drivers.limits import Limits, MakeError, StopSignal
from stategraph._protocol.commands import (
    Await,
    CannotAwait,
    Finish,
    Gather,
    Limit,
    Notify,
    OneEnds,
    Perform,
    RunNode,
    Sleep,
    StartNode,
    Task,
    Unlimit,
)
from stategraph.errors import AsyncNodeError

if TYPE_CHECKING:
    from stategraph._drivers.gathering import Threads
    from stategraph._drivers.one_task import OneTask

_ASYNC_STREAMS = "'graph.astream(...)' or 'graph.astream_resume(...)' with 'async for', or 'await graph.aexecute(...)'"


class Waits:
    """Carries out the commands that wait. Async nodes get one event loop for the whole run, made for the first of them.

    Args:
        signal: May stop the run.
        perform: What carries out commands: this puts itself in there.
        drive_part: Drives a part of the run in another thread, under the limits of the run.
    """

    def __init__(
        self,
        signal: StopSignal | None,
        perform: Perform,
        drive_part: Callable[[Task[Any], StopSignal, Limits], Any],
    ) -> None:
        self._limits = Limits(signal)
        self._perform = perform
        self._drive_part = drive_part
        self._awaiting: OneTask | None = None
        perform |= {
            Await: self._wait_for,
            Finish: self._finish,
            Limit: self._limit,
            Unlimit: self._unlimit,
            Sleep: self._sleep,
            Gather: self._gather,
            OneEnds: lambda _, gathered: gathered.one_ends(),
        }
        if signal is not None:
            perform[RunNode] = perform[StartNode] = self._run_checked

    def close(self) -> None:
        """Close the event loop."""
        if self._awaiting is not None:
            self._awaiting.close()

    def prolong(self, seconds: float) -> None:
        """Extend the limits of nodes by so many seconds."""
        self._limits.prolong(seconds)

    def inherit(self, limits: Limits) -> None:
        """Take over what limits the run, of which this carries out a part; tell observers of one thing at a time."""
        for limit in limits.stack:
            self._limit(limit.error, limit.seconds)
        self._limits = attrs.evolve(limits, signal=self._limits.signal, stack=[*limits.stack])
        self._perform[Notify] = partial(_locked, limits.telling or threading.RLock())

    def _gather(self, _: None, about: tuple[Sequence[Task[Any]], int]) -> Threads:
        from stategraph._drivers.gathering import Threads  # imported when used: few graphs are parts

        return Threads(about, self._limits, self._drive_part)

    def _run_checked(self, function: Callable[[Any], Any], argument: Any) -> Any:
        self._limits.check()
        return function(argument)

    def _run_limited(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Call a function in a thread of its own, which cannot be stopped: if it takes too long, it is left."""
        self._limits.check()
        limit = self._limits.of_node()
        done: SimpleQueue[Outcome] = SimpleQueue()
        call_apart(function, argument, done.put)
        try:
            answer, raised = done.get(timeout=None if limit is None else min(limit.left(), threading.TIMEOUT_MAX))
        except Empty:
            raise cast(Any, limit).passed() from None
        if raised is not None:
            raise raised
        return answer

    def _limit(self, error: MakeError, seconds: float) -> None:
        if not self._limits.stack:
            self._unlimited: Perform = {kind: self._perform[kind] for kind in (RunNode, StartNode)}
            self._perform.update({RunNode: self._run_limited, StartNode: self._run_checked})
        self._limits.push(error, seconds)

    def _unlimit(self, _: None, __: None) -> None:
        self._limits.stack.pop()
        if not self._limits.stack:
            self._perform.update(self._unlimited)

    def _sleep(self, _: None, seconds: float) -> None:
        """Wait, but not beyond what stops the run."""
        self._limits.check()
        limit = self._limits.of_all()
        wait = min(seconds, threading.TIMEOUT_MAX, threading.TIMEOUT_MAX if limit is None else limit.left())
        if self._limits.cancel is None:
            time.sleep(wait)
        else:
            self._limits.cancel.wait(wait)
        self._limits.check()

    def _finish(self, function: Callable[[Any], Any], argument: Any) -> Any:
        result = function(argument)
        return self._run(result) if isawaitable(result) else result

    def _wait_for(self, awaitable: Awaitable[Any], node_name: str) -> Any:
        if _is_loop_running():
            if isinstance(awaitable, Coroutine):
                awaitable.close()  # or Python warns that nobody awaited it
            raise CannotAwait from AsyncNodeError(node_name)
        return self._run(self._limits.limited(awaitable))

    def _run(self, awaitable: Any) -> Any:
        if self._awaiting is None:
            from stategraph._drivers.one_task import OneTask  # imported when used: asyncio takes 20 ms

            self._awaiting = OneTask()
        return self._awaiting.run(awaitable)


def _locked(lock: threading.RLock, function: Callable[[Any], Any], argument: Any) -> None:
    with lock:
        function(argument)


def check_no_loop(node: str, *, shows: bool) -> None:
    """Raise AsyncNodeError if an event loop is running in this thread: it would wait for an async node of that name.

    Args:
        node: The name of the node.
        shows: Whether the caller iterates over the run.
    """
    if _is_loop_running():
        raise AsyncNodeError(node, _ASYNC_STREAMS) if shows else AsyncNodeError(node)


def _is_loop_running() -> bool:
    """Return whether an event loop is running in this thread."""
    asyncio = sys.modules.get("asyncio")  # where it was never imported, none is
    return asyncio is not None and asyncio.events._get_running_loop() is not None
