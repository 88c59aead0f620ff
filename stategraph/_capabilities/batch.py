"""Batches: running many States, some at the same time, with what came of each in their order."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Self, TypeVar

from stategraph._drivers.calls import Outcome, Threads
from stategraph._drivers.limits import EitherEvent, StopSignal
from stategraph._drivers.options import RunCall
from stategraph._engine.calling import Recovered
from stategraph._engine.loop import id_of
from stategraph._util.validators import is_count
from stategraph.errors import ConfigError
from stategraph.state import State

_Job = TypeVar("_Job")

_AHEAD = 2  # States that are taken for each worker, before the result of the first of them is needed
_ABANDONED = "a batch of runs was neither closed nor exhausted; iterate within 'with graph.run_many(...) as results'"


def _checked_workers(max_workers: int, states: object) -> int:
    """Return how many of the States run at the same time.

    Raises:
        ConfigError: it is no such number.
        TypeError: a State was given in place of several.
    """
    if isinstance(states, Mapping):
        raise TypeError(f"a batch runs several States, not one {type(states).__name__}: [state] makes a list of one")
    if not is_count(max_workers, at_least=1):
        raise ConfigError("max_workers", max_workers, "how many run at the same time, from 1 on")
    return max_workers


def _failed(state: State, error: Exception) -> Recovered:
    return Recovered(state.run_id, getattr(error, "state", None), error)


def _twice(state: State) -> Recovered:
    """Return the result of a State whose run id an earlier State of the batch has, whose run is not over."""
    problem = f"run id {state.run_id!r} comes twice in this batch: give each State a run_id of its own"
    return _failed(state, ValueError(problem))


def _in_order(
    states: Iterable[State], begin: Callable[[State], _Job], max_workers: int
) -> Generator[_Job | Recovered, None, None]:
    """Begin the jobs of States and yield them, the oldest first; or the result of a State that is not run.

    What iterating over the States raises comes after the jobs of those before.
    """
    ahead: deque[tuple[str, _Job | Recovered]] = deque()
    left: Iterator[State] | None = iter(states)
    raised: Exception | None = None
    while True:
        while left is not None and len(ahead) < _AHEAD * max_workers:
            try:
                state = next(left)
                id_of(state)
            except StopIteration:
                left = None
            except Exception as error:
                left, raised = None, error
            else:
                is_twice = any(run_id == state.run_id for run_id, _ in ahead)
                ahead.append((state.run_id, _twice(state) if is_twice else begin(state)))
        if not ahead:
            break
        yield ahead[0][1]
        ahead.popleft()
    if raised is not None:
        raise raised


class Batch(Iterator[Recovered]):
    """Runs of many States in threads; to iterate over it yields what came of each, in the order of the States.

    Closing it, or leaving its ``with`` block, stops the runs under way and waits for them. A batch that is neither
    closed nor exhausted is abandoned: its runs stop before their next nodes, and Python emits a ResourceWarning.
    """

    _is_open = False

    def __init__(self, run: Callable[..., State], states: Iterable[State], max_workers: int, how: RunCall) -> None:
        self._threads = Threads(_checked_workers(max_workers, states), "stategraph batch")
        self._stop = EitherEvent(StopSignal.of(how.get("cancel"), None).cancel)
        begin = partial(_begin, self._threads, partial(run, **{**how, "cancel": self._stop}))
        self._jobs = _in_order(states, begin, max_workers)

    def __next__(self) -> Recovered:
        self._is_open = True
        try:
            job = next(self._jobs)
            return job if isinstance(job, Recovered) else job.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the runs under way before their next nodes, and wait until they have stopped; begin no others."""
        self._is_open = False
        self._jobs.close()
        self._stop.set()
        self._threads.end()
        self._threads.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn(_ABANDONED, ResourceWarning, source=self, stacklevel=2)
            self._stop.set()


def _begin(threads: Threads, run: Callable[[State], State], state: State) -> Future[Recovered]:
    job: Future[Recovered] = Future()
    threads.call(partial(_result_of, run), state, partial(_finish, job))
    return job


def _finish(job: Future[Recovered], outcome: Outcome) -> None:
    result, raised = outcome
    if raised is None:
        job.set_result(result)
    else:
        job.set_exception(raised)


def _result_of(run: Callable[[State], State], state: State) -> Recovered:
    try:
        return Recovered(state.run_id, run(state))
    except Exception as error:
        return _failed(state, error)


def abatch(
    run: Callable[[State], Awaitable[State]], states: Iterable[State], max_workers: int
) -> AsyncGenerator[Recovered, None]:
    """Run many States in tasks; yield what came of each, in the order of the States."""
    return _results(run, states, _checked_workers(max_workers, states))


async def _results(
    run: Callable[[State], Awaitable[State]], states: Iterable[State], max_workers: int
) -> AsyncGenerator[Recovered, None]:
    import asyncio  # imported when used: 20 ms

    free, tasks = asyncio.Semaphore(max_workers), set[asyncio.Task[Recovered]]()

    async def result_of(state: State) -> Recovered:
        async with free:
            try:
                return Recovered(state.run_id, await run(state))
            except Exception as error:
                return _failed(state, error)

    def begin(state: State) -> asyncio.Task[Recovered]:
        task = asyncio.create_task(result_of(state))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    try:
        for job in _in_order(states, begin, max_workers):
            yield job if isinstance(job, Recovered) else await job
    finally:
        under_way = list(tasks)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
