"""Pools: where the parts of a step are done at the same time, in threads, on an event loop, or in processes."""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future, ProcessPoolExecutor


@attrs.frozen
class Job:
    """A part to be done: what to call with what."""

    label: str
    function: Callable[[Any], Any]
    argument: Any


@attrs.frozen
class Outcome:
    """What came of a job: a result, or what was raised."""

    label: str
    result: Any = None
    error: BaseException | None = None


class Pool(Protocol):
    """Does jobs. `next` and `stop` block or, where `is_async`, have to be awaited.

    A failing job is an outcome as well. No thread, task or process is left once `stop` has returned, unless it was told
    not to wait.
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
        return Outcome(job.label, error=error)


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

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        self._jobs = deque(jobs)
        self._done: SimpleQueue[Outcome] = SimpleQueue()
        self._threads = [
            threading.Thread(
                target=contextvars.copy_context().run, args=(self._work,), name="stategraph part", daemon=True
            )
            for _ in range(min(workers, len(jobs)))
        ]
        self._started = False

    def next(self, _: object = None) -> list[Outcome]:
        if not self._started:
            self._started = True
            for thread in self._threads:
                thread.start()
        return [self._done.get(), *_drained(self._done)]

    def stop(self, wait: bool) -> list[Outcome]:
        self._jobs.clear()
        if wait:
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()
        return _drained(self._done)

    def _thread(self) -> threading.Thread:
        run = contextvars.copy_context().run
        return threading.Thread(target=run, args=(self._work,), name="stategraph part", daemon=True)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return
            self._done.put(_outcome(job))


class ProcessPool:
    """Sync functions in processes: they, their arguments and their results go there and back by pickle."""

    is_async = False

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        self._jobs = deque(jobs)
        self._workers = min(workers, len(jobs))
        self._running: dict[Future[Any], str] = {}
        self._executor: ProcessPoolExecutor | None = None

    def next(self, _: object = None) -> list[Outcome]:
        from concurrent.futures import FIRST_COMPLETED, wait

        self._fill()
        done, _rest = wait(self._running, return_when=FIRST_COMPLETED)
        outcomes = [self._outcome_of(future) for future in done]
        self._fill()
        return outcomes

    def stop(self, wait: bool) -> list[Outcome]:
        self._jobs.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=wait, cancel_futures=True)
        return [self._outcome_of(future) for future in list(self._running) if future.done() and not future.cancelled()]

    def _fill(self) -> None:
        """Have a job for each process, and one more in its queue."""
        if self._executor is None:
            import multiprocessing  # imported when used
            from concurrent.futures import ProcessPoolExecutor

            # Not forked: a lock that another thread of this process holds would stay locked in the child.
            self._executor = ProcessPoolExecutor(self._workers, multiprocessing.get_context("spawn"))
        while self._jobs and len(self._running) < 2 * self._workers:
            job = self._jobs.popleft()
            self._running[self._executor.submit(job.function, job.argument)] = job.label

    def _outcome_of(self, future: Future[Any]) -> Outcome:
        label = self._running.pop(future)
        error = future.exception()
        return Outcome(label, error=error) if error is not None else Outcome(label, future.result())


class TaskPool:
    """Async functions as tasks of the running event loop; sync ones among them in threads."""

    is_async = True

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        self._jobs = deque(jobs)
        self._workers = min(workers, len(jobs))
        self._tasks: list[asyncio.Task[None]] | None = None
        self._done: list[Outcome] = []
        self._threads: list[threading.Thread] = []

    async def next(self, _: object = None) -> list[Outcome]:
        import asyncio

        if self._tasks is None:
            self._changed = asyncio.Event()
            self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]
        while not self._done:
            self._changed.clear()
            await self._changed.wait()
        return self._taken()

    async def stop(self, wait: bool) -> list[Outcome]:
        import asyncio

        self._jobs.clear()
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
        while self._jobs:
            outcome = await self._do(self._jobs.popleft())
            self._done.append(outcome)
            self._changed.set()

    async def _do(self, job: Job) -> Outcome:
        from inspect import isawaitable

        from stategraph.callables import is_async_callable

        try:
            if is_async_callable(job.function):
                return Outcome(job.label, await job.function(job.argument))
            outcome = await self._in_thread(job)
            return Outcome(job.label, await outcome.result) if isawaitable(outcome.result) else outcome
        except BaseException as error:
            import asyncio

            if isinstance(error, asyncio.CancelledError):
                raise
            return Outcome(job.label, error=error)

    async def _in_thread(self, job: Job) -> Outcome:
        """-> what comes of a sync function. It cannot be stopped: `stop` waits for its thread, or leaves it alone."""
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
        return await asyncio.wrap_future(done)


def make_pool(jobs: Sequence[Job], workers: int, *, is_async: bool, processes: bool) -> Pool:
    """-> what does these jobs."""
    if processes:
        return ProcessPool(jobs, workers)
    return TaskPool(jobs, workers) if is_async else ThreadPool(jobs, workers)
