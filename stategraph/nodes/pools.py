"""Pools: where the parts of a step are done at the same time, in threads or on an event loop."""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque
from collections.abc import Sequence
from inspect import isawaitable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from stategraph.callables import is_async_callable
from stategraph.nodes.jobs import Job, Outcome, outcome_of_error

if TYPE_CHECKING:
    import asyncio


class Pool(Protocol):
    """Does jobs. `next` and `stop` block or, where `is_async`, have to be awaited.

    Every job is done in a context of its own, a copy of that of the run, and an async one in a task of its own. A
    failing job is an outcome as well; where failures stop the others, no job begins once one has failed. To ask for
    the next outcomes says that those before are saved: at most twice as many jobs as there are workers have begun and
    are not saved, so that a crash repeats no more than these. No thread, task or process is left once `stop` has
    returned; if it was told not to wait, threads may be.
    """

    is_async: bool

    def next(self, _: object = None) -> Any:
        """-> outcomes that have come since, at least one; there must be jobs left."""

    def stop(self, wait: bool) -> Any:
        """Begin nothing more, and wait for what is being done -> outcomes that have come since."""


def default_workers() -> int:
    """-> how many jobs are done at the same time, where nobody says."""
    return min(32, (os.cpu_count() or 1) + 4)


def _outcome(job: Job) -> Outcome:
    try:
        return Outcome(job.label, job.function(job.argument))
    except BaseException as error:  # noqa: BLE001 - raised in the thread of the run
        return outcome_of_error(job, error)


def _at_once(outcome: Outcome) -> Outcome:
    """-> the outcome, or the error if it has to be awaited, for which there is no event loop."""
    if not isawaitable(outcome.result):
        return outcome
    if hasattr(outcome.result, "close"):
        outcome.result.close()  # or Python warns that nobody awaited it
    reason = "it returned something to be awaited, but it is no async function: define it with async def"
    return Outcome(outcome.label, error=TypeError(reason))


def _drained(done: SimpleQueue[Outcome]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    try:
        while True:
            outcomes.append(done.get_nowait())
    except Empty:
        return outcomes


class ThreadPool:
    """Sync functions in threads of its own."""

    is_async = False

    def __init__(self, jobs: Sequence[Job], workers: int, *, stops: bool) -> None:
        self._jobs, self._stops = deque(jobs), stops
        self._done: SimpleQueue[Outcome] = SimpleQueue()
        self._room, self._taken = threading.Semaphore(2 * workers), 0
        self._threads = [
            threading.Thread(target=self._work, name="stategraph part", daemon=True)
            for _ in range(min(workers, len(jobs)))
        ]
        self._started = False
        self._context = contextvars.copy_context()

    def next(self, _: object = None) -> list[Outcome]:
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        if self._taken:
            self._room.release(self._taken)
        outcomes = [self._done.get(), *_drained(self._done)]
        self._taken = len(outcomes)
        return outcomes

    def stop(self, wait: bool) -> list[Outcome]:
        self._jobs.clear()
        self._room.release(len(self._threads))
        if wait:
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()
        return _drained(self._done)

    def _work(self) -> None:
        while True:
            self._room.acquire()
            try:
                job = self._jobs.popleft()
            except IndexError:
                return
            outcome = _at_once(self._context.copy().run(_outcome, job))
            if self._stops and outcome.error is not None:  # before the thread of the run hears of it
                self._jobs.clear()
            self._done.put(outcome)


class TaskPool:
    """Async functions as tasks of the running event loop; sync ones among them in threads."""

    is_async = True

    def __init__(self, jobs: Sequence[Job], workers: int, *, stops: bool) -> None:
        self._jobs, self._stops, self._handed_out = deque(jobs), stops, 0
        self._workers = min(workers, len(jobs))
        self._tasks: list[asyncio.Task[None]] | None = None
        self._done: list[Outcome] = []
        self._threads: list[threading.Thread] = []
        self._waits = True

    async def next(self, _: object = None) -> list[Outcome]:
        import asyncio

        if self._tasks is None:
            self._changed, self._room = asyncio.Event(), asyncio.Semaphore(2 * self._workers)
            self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        for _ in range(self._handed_out):
            self._room.release()
        while not self._done:
            self._changed.clear()
            await self._changed.wait()
        self._handed_out = len(self._done)
        return self._taken()

    async def stop(self, wait: bool) -> list[Outcome]:
        import asyncio

        self._jobs.clear()
        self._waits = wait
        tasks = self._tasks or []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if wait and self._threads:
            await asyncio.to_thread(self._join)
        return self._taken()

    def _join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _taken(self) -> list[Outcome]:
        taken, self._done = self._done, []
        return taken

    async def _work(self) -> None:
        import asyncio

        while self._jobs:
            await self._room.acquire()
            if not self._jobs:
                return
            outcome = await asyncio.create_task(self._do(self._jobs.popleft()))
            if _is_cancellation(outcome.error):
                return
            if self._stops and outcome.error is not None:
                self._jobs.clear()
            self._done.append(outcome)
            self._changed.set()

    async def _do(self, job: Job) -> Outcome:
        try:
            if is_async_callable(job.function):
                return Outcome(job.label, await job.function(job.argument))
            outcome = await self._in_thread(job)
            return Outcome(job.label, await outcome.result) if isawaitable(outcome.result) else outcome
        except BaseException as error:  # noqa: BLE001 - raised in the task of the run
            return outcome_of_error(job, error)

    async def _in_thread(self, job: Job) -> Outcome:
        """-> what comes of a sync function. It counts even if this is cancelled: a thread cannot be stopped."""
        import asyncio
        from concurrent.futures import Future

        done: Future[Outcome] = Future()
        done.set_running_or_notify_cancel()
        run = contextvars.copy_context().run
        thread = threading.Thread(
            target=lambda: done.set_result(run(_outcome, job)), name="stategraph part", daemon=True
        )
        self._threads.append(thread)
        thread.start()
        work = asyncio.wrap_future(done)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not self._waits:
                raise
            return await work


def _is_cancellation(error: BaseException | None) -> bool:
    """Whether the task is cancelled; a CancelledError may also come from the function itself."""
    import asyncio

    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def make_pool(jobs: Sequence[Job], workers: int, *, is_async: bool, processes: bool, stops: bool) -> Pool:
    """-> what does these jobs."""
    if processes:
        from stategraph.nodes.processes import ProcessPool  # imported when used

        return ProcessPool(jobs, workers)
    return (TaskPool if is_async else ThreadPool)(jobs, workers, stops=stops)
