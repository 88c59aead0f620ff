"""Pools: they do jobs, the parts of a step, at the same time, in threads or on an event loop."""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from stategraph._protocol.commands import escaped
from stategraph._util.callables import is_async_callable
from stategraph.nodes._parts.jobs import Job, Outcome, count_over, outcome_of_error
from stategraph.nodes._parts.trying import Trying

if TYPE_CHECKING:
    import asyncio


LOOK = 0.05
"""Seconds after which a run whose parts may wait is asked whether it is to stop."""


class Pool(Protocol):
    """Does jobs. `next` and `stop` block or, where `is_async`, have to be awaited.

    Every job that has begun has an outcome, however it ends; a failure is one as well. Each is done in a context of its
    own, a copy of that of the run, and an async one in a task of its own. Where failures stop the others, no job begins
    once one has failed. To ask for the next outcomes says that those before are saved: at most twice as many jobs as
    there are workers have begun and are not saved, so that a crash repeats no more than these. No thread, task or
    process is left once `stop` has returned; if it was told not to wait, threads may be.
    """

    is_async: bool

    def next(self, _: object = None) -> Any:
        """Return outcomes that have come since the last call; there must be jobs left.

        There is at least one, unless the parts have policies: then whoever asks is asked again, once in a while.
        """

    def halt(self) -> None:
        """Begin nothing more, without waiting. It comes before `stop`, which may be interrupted before it has begun."""

    def stop(self, wait: bool) -> Any:
        """Begin nothing more, wait for what is being done, and return the outcomes since the last call."""


def _outcome(job: Job) -> Outcome:
    began = time.monotonic()
    try:
        return Outcome(job.label, job.function(job.argument), took=time.monotonic() - began)
    except BaseException as error:  # noqa: BLE001 - raised in the thread of the run
        return outcome_of_error(job, error, time.monotonic() - began)


def _at_once(outcome: Outcome) -> Outcome:
    """Return the outcome, or an error if it has to be awaited: there is no event loop."""
    try:
        if not isawaitable(outcome.result):
            return outcome
        if hasattr(outcome.result, "close"):
            outcome.result.close()  # or Python warns that nobody awaited it
    except BaseException as error:  # noqa: BLE001 - a result may do anything when it is looked at
        return Outcome(outcome.label, error=escaped(error))
    reason = "it returned something to be awaited, but it is no async function: define it with async def"
    return Outcome(outcome.label, error=TypeError(reason))


def _drained(done: SimpleQueue[Outcome | None]) -> list[Outcome]:
    outcomes: list[Outcome | None] = []
    with suppress(Empty):
        while True:
            outcomes.append(done.get_nowait())
    return [outcome for outcome in outcomes if outcome is not None]


class ThreadPool:
    """Sync functions in threads of its own."""

    is_async = False

    def __init__(self, jobs: Sequence[Job], workers: int, *, stops: bool, trying: Trying | None = None) -> None:
        self._jobs, self._stops, self._trying = deque(jobs), stops, trying
        self._halted: SimpleQueue[None] = SimpleQueue()  # something, once it is; as below
        self._done: SimpleQueue[Outcome | None] = SimpleQueue()  # None: nothing more will come
        self._room: SimpleQueue[None] = SimpleQueue()  # a job for each; `halt`, of a finaliser too, puts without a lock
        self._taken = 2 * workers
        self._threads = [
            threading.Thread(target=self._work, name="stategraph part", daemon=True)
            for _ in range(min(workers, len(jobs)))
        ]
        self._started = False
        self._context = contextvars.Context()

    def next(self, _: object = None) -> list[Outcome]:
        if not self._started:
            self._started = True
            self._context = contextvars.copy_context()  # with what is put around the node
            for thread in self._threads:
                thread.start()
        self._make_room(self._taken)
        try:  # parts that wait may do so for hours: meanwhile the run is asked whether it is to stop
            first = self._done.get(timeout=None if self._trying is None else LOOK)
        except Empty:
            self._taken = 0
            return []
        outcomes = _drained(self._done) if first is None else [first, *_drained(self._done)]
        self._taken = count_over(outcomes)
        return outcomes

    def halt(self) -> None:
        self._jobs.clear()
        self._halted.put(None)
        self._make_room(len(self._threads))
        self._done.put(None)  # a thread may be in `next` for whom nobody waits any more

    def stop(self, wait: bool) -> list[Outcome]:
        self.halt()
        if wait:
            for thread in self._threads:
                if thread.ident is not None:
                    thread.join()
        outcomes = _drained(self._done)
        self._done.put(None)  # what `halt` has put there may be gone
        return outcomes

    def _make_room(self, count: int) -> None:
        for _ in range(count):
            self._room.put(None)

    def _work(self) -> None:
        while True:
            self._room.get()
            if self._trying is not None and self._jobs and self._is_halted_in(self._trying.begins_in()):
                return
            try:
                job = self._jobs.popleft()
            except IndexError:
                return
            outcome = Outcome(job.label, error=RuntimeError("its thread ended before it did"))
            try:
                outcome = self._once(job) if self._trying is None else self._tried(job, self._trying)
            finally:  # whatever ends this thread: the run waits for an outcome
                if self._stops and outcome.error is not None:  # before the thread of the run hears of it
                    self._jobs.clear()
                self._done.put(outcome)

    def _once(self, job: Job) -> Outcome:
        return _at_once(self._context.copy().run(_outcome, job))

    def _tried(self, job: Job, trying: Trying) -> Outcome:
        """Do a job as often as it takes, and return its outcome; those of attempts that failed are told on the way."""
        while True:
            outcome = trying.in_time(partial(self._once, job), partial(outcome_of_error, job, took=trying.timeout))
            again = trying.again(job, outcome)
            if again is None:
                return outcome
            job, told = again
            self._done.put(told)
            if self._is_halted_in(told.delay or 0) or self._is_halted_in(trying.begins_in()):
                return outcome

    def _is_halted_in(self, seconds: float) -> bool:
        """Wait so long, unless nothing more is to begin; return whether that is so."""
        try:
            self._halted.put(self._halted.get(timeout=min(seconds, threading.TIMEOUT_MAX)))  # for the others who wait
        except Empty:
            return False
        return True


class TaskPool:
    """Async functions as tasks of the running event loop, one for each job; sync ones among them in threads."""

    is_async = True

    def __init__(self, jobs: Sequence[Job], workers: int, *, stops: bool, trying: Trying | None = None) -> None:
        self._jobs, self._stops, self._trying = deque(jobs), stops, trying
        self._retried: list[Outcome] = []
        self._workers, self._unsaved, self._handed_out = min(workers, len(jobs)), 0, 0
        self._tasks: dict[asyncio.Task[Outcome], tuple[Job, float]] = {}
        self._ended: list[tuple[asyncio.Task[Outcome], Outcome]] = []
        self._threads: list[threading.Thread] = []
        self._waits = True

    async def next(self, _: object = None) -> list[Outcome]:
        import asyncio

        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._unsaved -= self._handed_out
        self._begin()
        if not self._ended and not self._retried:
            await self._changed.wait()
        taken, self._ended = self._ended, []
        retried, self._retried = self._retried, []
        self._handed_out = len(taken)
        return [*retried, *(outcome for _, outcome in taken)]

    def halt(self) -> None:
        self._jobs.clear()

    async def stop(self, wait: bool) -> list[Outcome]:
        from stategraph._util.cancellation import outlast

        self.halt()
        self._waits, cancelled = wait, None
        for task in self._tasks:
            task.cancel()
        for task in [*self._tasks]:
            cancelled = await outlast(task) or cancelled
            self._end(task)
        if wait:
            for thread in self._threads:  # each has handed over its outcome: it is about to end
                thread.join()
        if cancelled is not None:
            raise cancelled
        # One that was cancelled together with the run, as at the end of asyncio.run, is not done.
        return [outcome for task, outcome in self._ended if not task.cancelled()]

    def _begin(self) -> None:
        """Begin as many jobs as there are free workers, and room for results that are not saved yet."""
        while self._jobs and len(self._tasks) < self._workers and self._unsaved < 2 * self._workers:
            job = self._jobs.popleft()
            task = self._loop.create_task(self._do(job))
            self._tasks[task] = job, time.monotonic()
            self._unsaved += 1
            task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Outcome]) -> None:
        """Take the outcome of a task, whatever ended it, and begin another."""
        job, began = self._tasks.pop(task, (None, 0.0))
        if job is None:  # `stop` was quicker
            return
        try:
            outcome = task.result()
        except BaseException as error:  # noqa: BLE001 - raised in the task of the run
            outcome = outcome_of_error(job, error, time.monotonic() - began)
        self._ended.append((task, outcome))
        if self._stops and outcome.error is not None:
            self._jobs.clear()
        self._begin()
        self._changed.set()

    async def _do(self, job: Job) -> Outcome:
        return await (self._once(job) if self._trying is None else self._tried(job, self._trying))

    async def _tried(self, job: Job, trying: Trying) -> Outcome:
        """Do a job as often as it takes, and return its outcome; those of attempts that failed are told on the way."""
        import asyncio

        await asyncio.sleep(trying.begins_in())
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(trying.timeout) as timer:
                    outcome = await self._once(job)
            except Exception as error:  # noqa: BLE001 - an error of the job
                late = timer.expired() and isinstance(error, TimeoutError)
                outcome = outcome_of_error(job, trying.too_late() if late else error, time.monotonic() - began)
            again = trying.again(job, outcome)
            if again is None:
                return outcome
            job, told = again
            self._retried.append(told)
            self._changed.set()
            await asyncio.sleep(told.delay or 0)
            await asyncio.sleep(trying.begins_in())

    async def _once(self, job: Job) -> Outcome:
        began = time.monotonic()
        try:
            if is_async_callable(job.function):
                result = await job.function(job.argument)
                return Outcome(job.label, result, took=time.monotonic() - began)
            outcome = await self._in_thread(job)
            if not isawaitable(outcome.result):
                return outcome
            result = await outcome.result
            return Outcome(job.label, result, took=time.monotonic() - began)
        except (KeyboardInterrupt, SystemExit) as error:  # out of a task, these stop the loop
            return outcome_of_error(job, error)

    async def _in_thread(self, job: Job) -> Outcome:
        """Return the outcome of a sync function. It counts even if this is cancelled: a thread cannot be stopped."""
        import asyncio
        from concurrent.futures import Future

        from stategraph._util.cancellation import outlast

        done: Future[Outcome] = Future()
        done.set_running_or_notify_cancel()
        run = contextvars.copy_context().run
        thread = threading.Thread(
            target=lambda: done.set_result(run(_outcome, job)), name="stategraph part", daemon=True
        )
        thread.start()
        self._threads.append(thread)
        work = asyncio.wrap_future(done)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not self._waits:
                raise
            await outlast(work)
            return work.result()
