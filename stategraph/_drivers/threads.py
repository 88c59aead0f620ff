"""Threads for blocking calls: some for nodes, some for stores, so that neither wait for the others."""

from __future__ import annotations

import asyncio
import contextvars
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias, cast

import attrs

from stategraph._drivers.calls import NODES, Outcome, Threads, outcome_of
from stategraph._engine.io import StoreSession
from stategraph._protocol import STORE, Command, RunNode, Task

STORE_CALLS = min(32, (os.cpu_count() or 1) + 4)
"""The maximum number of store calls at the same time: they are short, and some stores open a connection per thread."""

IDLE = 10.0  # seconds for which threads stay after the last run

_Function: TypeAlias = Callable[[Any], Any]
_Call: TypeAlias = tuple[Callable[..., Any], _Function, Any]
"""A function that makes the call in the context of its caller, the function to call, and its argument."""


class Work(asyncio.Future[Outcome]):
    """The future outcome of a call in a thread.

    Attributes:
        rest: The future to wait for if the waiting task is cancelled: the thread cannot be stopped.
    """

    rest: asyncio.Future[Outcome] | None = None

    def cancel(self, msg: object = None) -> bool:
        """Cancel the wait, not the call."""
        if not self.done():
            self.rest = self.get_loop().create_future()
        return super().cancel(msg)

    def finish(self, outcome: Outcome) -> None:
        """Set the outcome of the call."""
        waited_for = self.rest or self
        if not waited_for.done():
            waited_for.set_result(outcome)


class LoopThreads:
    """The threads of an event loop. They stay for a while after a run, but not longer than the loop."""

    def __init__(self) -> None:
        self._nodes = Threads(NODES, "stategraph node")
        self._store = Threads(STORE_CALLS, "stategraph store")
        self._batched: weakref.WeakKeyDictionary[object, _BatchedCalls] = weakref.WeakKeyDictionary()
        self._is_kept = False

    def keep(self) -> None:
        """Keep the threads for a while. Only the timer then references them: a closed loop drops its timers."""
        if not self._is_kept:
            self._is_kept = True
            with suppress(RuntimeError):  # no loop is running: an abandoned run is being collected
                asyncio.get_running_loop().call_later(IDLE, self._let_go)

    def _let_go(self) -> None:
        self._is_kept = False

    def call_node(self, function: _Function, argument: Any) -> Work:
        """Call a function of a node in a thread."""
        return _begun(self._nodes, function, argument)

    def calls_of(self, store: object) -> Callable[[_Function, Any], Work]:
        """Return a function that starts calls of a store. A store that can save several runs in one batch gets batches.

        A server handles several calls at the same time, with a thread for each.
        """
        if getattr(store, "_is_server", not hasattr(store, "_save_runs")):
            return partial(_begun, self._store)
        batched = self._batched.get(store)
        if batched is None:
            batched = self._batched[store] = _BatchedCalls(self._store)
        return batched.begin


def _begun(threads: Threads, function: _Function, argument: Any) -> Work:
    """Start a call in a thread, in the context of the caller."""
    loop = asyncio.get_running_loop()
    work = Work(loop=loop)

    def finish(outcome: Outcome) -> None:
        with suppress(RuntimeError):  # the loop is closed: no task waits
            loop.call_soon_threadsafe(work.finish, outcome)

    threads.call(function, argument, finish)
    return work


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopThreads]] = weakref.WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_of_loops.clear)  # a forked child has none of the threads


def threads_of_loop() -> LoopThreads:
    """Return the threads of the running event loop."""
    loop = asyncio.get_running_loop()
    known = _of_loops.get(loop)
    threads = None if known is None else known()
    if threads is None:
        threads = LoopThreads()
        _of_loops[loop] = weakref.ref(threads)
    return threads


class _BatchedCalls:
    """Collects store calls made at the same time; one thread makes each batch, and saves all its States in one call."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._waiting: list[tuple[Work, _Call]] = []
        self._is_busy = False

    def begin(self, function: _Function, argument: Any) -> Work:
        """Start a call, in one batch with the calls that wait when the thread becomes free."""
        work = Work(loop=asyncio.get_running_loop())
        self._waiting.append((work, (contextvars.copy_context().run, function, argument)))
        if not self._is_busy:
            self._begin_batch()
        return work

    def _begin_batch(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._is_busy = True
        batch = _begun(self._threads, _outcomes, [call for _, call in waiting])
        batch.add_done_callback(lambda batch: self._finish(waiting, *batch.result()))

    def _finish(
        self, waiting: Sequence[tuple[Work, _Call]], outcomes: Sequence[Outcome], raised: BaseException | None
    ) -> None:
        """Pass each call its outcome. An exception that ends the batch, such as SystemExit, is the outcome of each."""
        self._is_busy = False
        if self._waiting:
            self._begin_batch()
        for (work, _), outcome in zip(waiting, outcomes or [(None, raised)] * len(waiting), strict=True):
            work.finish(outcome)


def _outcomes(calls: Sequence[_Call]) -> list[Outcome]:
    """Make the calls of several runs, with one save for all; return the outcome of each."""
    queues = [_session(call).queue for call in calls if _is_of(StoreSession.flush, call)]
    queues = [queue for queue in queues if queue is not None]
    if len(queues) > 1:
        queues[0].save_all(queues)  # each flush raises its own failure
    saves = [n for n, call in enumerate(calls) if _is_of(StoreSession.save, call) and _session(call).queue is None]
    saved = dict(zip(saves, _saved([calls[n] for n in saves]), strict=True)) if len(saves) > 1 else {}
    return [
        saved[n] if n in saved else run(outcome_of, function, argument)
        for n, (run, function, argument) in enumerate(calls)
    ]


def _is_of(method: Callable[..., Any], call: _Call) -> bool:
    """Return whether a call is one of this method of a StoreSession."""
    return getattr(call[1], "__func__", None) is method


def _session(call: _Call) -> StoreSession:
    """Return the session whose method is called."""
    session: StoreSession = call[1].__self__  # type: ignore[attr-defined]
    return session


def _saved(calls: Sequence[_Call]) -> list[Outcome]:
    """Save the States of several runs in one batch; return the outcome of each call of `StoreSession.save`."""
    prepared = [call[0](outcome_of, _session(call).to_save, call[2]) for call in calls]
    ready = [
        (_session(call).ownership, states)
        for call, (states, failure) in zip(calls, prepared, strict=True)
        if failure is None
    ]
    errors = iter(_session(calls[0]).store._save_runs(ready))
    return [
        call[0](outcome_of, _session(call).end_save, (call[2], next(errors) if failure is None else failure))
        for call, (_, failure) in zip(calls, prepared, strict=True)
    ]


# --------------------------------------------------------------------------- runs that go on in a thread

CARRIED_ON = object()
_CARRIED = frozenset((RunNode, *STORE))


@attrs.define(eq=False)
class CarriedRun:
    """A run that a thread continues after a node, until a command needs the event loop.

    This saves a hand-over for each sync node. Only one thread executes the run at any time.

    Attributes:
        task: The task of the run.
        is_to_stop: Returns whether the thread must not run another node.
        is_left: Whether the caller does not wait any more: the thread then ends after the node.
    """

    _task: Task[Any]
    _is_to_stop: Callable[[], bool]
    is_left: bool = False
    _next: tuple[Command | None, BaseException | None] = (None, None)

    def go_on(self, command: Command) -> object:
        """Execute commands in this thread; return CARRIED_ON."""
        kind, function, argument = command
        while True:
            function = cast(_Function, function)  # every command executed here is a call
            value = contextvars.copy_context().run(function, argument) if kind is RunNode else function(argument)
            if self.is_left:
                return CARRIED_ON
            try:
                kind, function, argument = self._task.send(value)
            except BaseException as end:
                self._next = None, end
                return CARRIED_ON
            if kind not in _CARRIED or (kind is RunNode and self._is_to_stop()):
                self._next = (kind, function, argument), None
                return CARRIED_ON

    def next_command(self) -> Command:
        """Return the first command that the thread has not executed, or raise the exception that ended the task."""
        (command, end), self._next = self._next, (None, None)
        if end is not None:
            raise end
        return cast(Command, command)
