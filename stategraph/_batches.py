"""Batches: run many States, several at the same time."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Self, TypeVar, cast

from stategraph._calls import RunCall
from stategraph._drivers.calls import Outcome, Threads
from stategraph._drivers.limits import EitherEvent, StopSignal
from stategraph._engine.calling import Recovered
from stategraph._engine.loop import id_of
from stategraph._util.validators import is_count
from stategraph.errors import ConfigError
from stategraph.state import State

_Job = TypeVar("_Job")

_AHEAD = 2  # States taken per worker before the result of the first of them is needed
_ABANDONED = "a batch of runs was neither closed nor exhausted; iterate within 'with graph.run_many(...) as results'"


def _checked_workers(max_workers: int) -> int:
    """Return the number of workers. Raises ConfigError if it is not a positive integer."""
    if not is_count(max_workers, at_least=1):
        raise ConfigError("max_workers", max_workers, "a positive integer: how many run at the same time")
    return max_workers


def _failed(state: State, error: Exception) -> Recovered:
    return Recovered(state.run_id, getattr(error, "state", None), error)


def _twice(state: State) -> Recovered:
    """Return the result of a State whose run id belongs to an unfinished run of the batch."""
    problem = f"run id {state.run_id!r} comes twice in this batch: give each State a run_id of its own"
    return _failed(state, ValueError(problem))


def _in_order(
    states: Iterable[State], begin: Callable[[State], _Job], max_workers: int
) -> Generator[_Job | Recovered, None, None]:
    """Begin jobs for States and yield them in order, or the result of a State that is not run.

    If iterating over the States raises, the exception follows the jobs of the States before.
    """
    ahead: deque[tuple[str, _Job | Recovered]] = deque()
    if isinstance(states, Mapping):
        raise TypeError("the States are an iterable of States, not one State: [state]")
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
    """Runs of many States in threads. Iterating yields their results in the order of the States.

    Closing the batch, or leaving its ``with`` block, stops the active runs and waits for them. A batch that is neither
    closed nor exhausted is abandoned: its runs stop before their next nodes, and Python emits a ResourceWarning.
    """

    _is_open = False

    def __init__(self, run: Callable[..., State], states: Iterable[State], max_workers: int, how: RunCall) -> None:
        self._threads = Threads(_checked_workers(max_workers), "stategraph batch")
        self._stop = EitherEvent(StopSignal.of(how.get("cancel"), None).cancel)
        begin = partial(_begin, self._threads, partial(run, **{**how, "cancel": self._stop}))
        self._jobs = _in_order(states, begin, max_workers)

    def __next__(self) -> Recovered:
        self._is_open = True
        try:
            job = next(self._jobs)
            return job if isinstance(job, Recovered) else _result(job.get())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop the active runs before their next nodes and wait for them; begin no others."""
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


def _begin(threads: Threads, run: Callable[[State], State], state: State) -> SimpleQueue[Outcome]:
    """Begin a run; return a queue for its outcome. Unlike a Future, it has no lock that Ctrl-C could leave locked."""
    job = SimpleQueue[Outcome]()
    threads.call(partial(_result_of, run), state, job.put)
    return job


def _result(outcome: Outcome) -> Recovered:
    result, raised = outcome
    if raised is not None:
        raise raised
    return cast(Recovered, result)


def _result_of(run: Callable[[State], State], state: State) -> Recovered:
    try:
        return Recovered(state.run_id, run(state))
    except Exception as error:
        return _failed(state, error)


def abatch(
    run: Callable[[State], Awaitable[State]], states: Iterable[State], max_workers: int
) -> AsyncGenerator[Recovered, None]:
    """Run many States in tasks; yield their results in the order of the States."""
    return _results(run, states, _checked_workers(max_workers))


async def _results(
    run: Callable[[State], Awaitable[State]], states: Iterable[State], max_workers: int
) -> AsyncGenerator[Recovered, None]:
    import asyncio  # imported when used: 20 ms

    from stategraph._util.cancellation import outlast

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
            if isinstance(job, Recovered):
                yield job
                continue
            cancelled = await outlast(job, hands_on_to=job)
            if cancelled is None or not job.cancelled():  # a deleted run ends all the same: its State would be lost
                yield job.result()
            if cancelled is not None:
                raise cancelled
    finally:
        active = list(tasks)
        for task in active:
            task.cancel()
        await asyncio.gather(*active, return_exceptions=True)
