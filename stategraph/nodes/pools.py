"""Pools: where the parts of a step are done at the same time, in threads, on an event loop, or in processes."""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from inspect import isawaitable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from stategraph.callables import is_async_callable, name_of

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing.connection import Connection


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

    A failing job is an outcome as well; where failures stop the others, no job begins once one has failed, but for
    those that wait in the queue of a process already. To ask for the next outcomes says that those before are saved: at
    most twice as many jobs as there are workers have begun and are not saved, so that a crash repeats no more than
    these. No thread, task or process is left once `stop` has returned; if it was told not to wait, threads may be.
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
            outcome = _at_once(_outcome(job))
            if self._stops and outcome.error is not None:  # before the thread of the run hears of it
                self._jobs.clear()
            self._done.put(outcome)


def _end_with_pool(wanted: Connection) -> None:
    """In a process that does jobs: let it end, even amid a job, when the other end of this connection is closed.

    The pool closes it when it does not wait; and so does the end of the process that has the pool, even if it is
    killed. Else this one would wait for ever for work from there."""
    from multiprocessing.connection import wait

    def watch() -> None:
        wait([wanted])
        os._exit(1)

    threading.Thread(target=watch, name="stategraph parent", daemon=True).start()


def _check_importable(functions: Iterable[Callable[[Any], Any]]) -> None:
    """Raise TypeError where a function cannot be sent to a process: before one is started, which may wait for ever."""
    import pickle

    for function in functions:
        try:
            pickle.dumps(function)
        except Exception as error:
            raise TypeError(
                f"processes: {name_of(function)} cannot be sent to a process ({error}): "
                "define it at the top of a module that can be imported"
            ) from error


class ProcessPool:
    """Sync functions in processes: they, their arguments and their results go there and back by pickle."""

    is_async = False

    def __init__(self, jobs: Sequence[Job], workers: int) -> None:
        _check_importable({job.function for job in jobs})
        self._jobs = deque(jobs)
        self._workers = min(workers, len(jobs))
        self._running: dict[Future[Any], str] = {}
        self._executor: ProcessPoolExecutor | None = None
        self._ends: tuple[Connection, ...] = ()

    def next(self, _: object = None) -> list[Outcome]:
        from concurrent.futures import FIRST_COMPLETED, wait

        self._fill()
        done, _rest = wait(self._running, return_when=FIRST_COMPLETED)
        return self._outcomes_of(done)

    def stop(self, wait: bool) -> list[Outcome]:
        self._jobs.clear()
        if self._executor is not None:
            self._executor.shutdown(wait=wait, cancel_futures=True)
        outcomes = self._outcomes_of([one for one in list(self._running) if one.done() and not one.cancelled()])
        for end in self._ends:  # what is still being done ends now
            end.close()
        return outcomes

    def _fill(self) -> None:
        """Have a job for each process, and one more in its queue."""
        if self._executor is None:
            import multiprocessing  # imported when used
            from concurrent.futures import ProcessPoolExecutor

            # Not forked: a lock that another thread of this process holds would stay locked in the child.
            context = multiprocessing.get_context("spawn")
            self._ends = context.Pipe(duplex=False)
            self._executor = ProcessPoolExecutor(self._workers, context, _end_with_pool, self._ends[:1])
        while self._jobs and len(self._running) < 2 * self._workers:
            job = self._jobs.popleft()
            self._running[self._executor.submit(job.function, job.argument)] = job.label

    def _outcomes_of(self, done: Iterable[Future[Any]]) -> list[Outcome]:
        outcomes = []
        for future in done:
            label = self._running.pop(future, None)
            if label is not None:  # else a thread that was left in `next` when the time was up has taken it
                error = future.exception()
                outcomes.append(Outcome(label, None if error else future.result(), error))
        return outcomes


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
        while self._jobs:
            await self._room.acquire()
            if not self._jobs:
                return
            outcome = await self._do(self._jobs.popleft())
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
        except BaseException as error:
            if _is_cancellation(error):
                raise
            return Outcome(job.label, error=error)

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


def _is_cancellation(error: BaseException) -> bool:
    """Whether the task is cancelled; a CancelledError may also come from the function itself."""
    import asyncio

    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def make_pool(jobs: Sequence[Job], workers: int, *, is_async: bool, processes: bool, stops: bool) -> Pool:
    """-> what does these jobs."""
    if processes:
        return ProcessPool(jobs, workers)
    return (TaskPool if is_async else ThreadPool)(jobs, workers, stops=stops)
