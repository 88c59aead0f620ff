"""Batches, sweeps and follow: run many States, recover unfinished runs, and watch a run that others own."""

from __future__ import annotations

import os
import time
import warnings
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from itertools import chain, count, pairwise
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self, TypeVar, cast

from stategraph._calls import RunCall
from stategraph._drivers.calls import Outcome, Threads
from stategraph._drivers.limits import EitherEvent, StopSignal
from stategraph._drivers.sync import drive
from stategraph._engine.calling import LeftAloneError, Recovered, recover
from stategraph._engine.context import RunContext
from stategraph._engine.loop import id_of
from stategraph._engine.saving import check_saves
from stategraph._owners.base import Orphan, Ownership, Refused
from stategraph._protocol import Load, Task
from stategraph._util.validators import is_count, is_duration
from stategraph._values import clock
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    ConfigError,
    FormatError,
    GraphMismatchError,
    SchemaError,
)
from stategraph.state import State
from stategraph.stores.base import CheckpointStore

if TYPE_CHECKING:
    from stategraph.stores.summaries import Summary

# --------------------------------------------------------------------------- batches

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


# --------------------------------------------------------------------------- sweeps


def sweep(
    store: CheckpointStore,
    new_run: Callable[[], RunContext],
    limit: int | None,
    max_recoveries: int,
    signal: StopSignal | None,
    refusals: tuple[Refused, Refused],
) -> Iterator[Task[Recovered | None]]:
    """Return tasks that each recover one run of a graph. A task returns None if no run is left.

    Args:
        store: The store.
        new_run: Makes the context of a call.
        limit: The most runs to recover; None for all.
        max_recoveries: The most owners that one step of a run may lose.
        signal: Stops the sweep.
        refusals: The runs that were refused by earlier sweeps, unfinished ones and those that were due. They are left
            alone until they change.

    Raises:
        ConfigError: An option of the call is not allowed.
        CheckpointingDisabledError: The graph saves nothing.
    """
    plan = new_run().plan
    check_saves(plan)
    refused, refused_due = refusals
    orphans = chain(_due(store, plan.graph, refused_due), _orphans(store, plan.graph, refused))

    def recover_one() -> Task[Recovered | None]:
        while signal is None or not signal.is_due():
            orphan: Orphan | None = yield (Load, lambda _: next(orphans, None), None)
            if orphan is None:
                return None
            ownership, key, mark = orphan
            recovered = yield from recover(new_run(), ownership, max_recoveries)
            if recovered is not None:
                if isinstance(recovered.error, _REFUSALS):
                    (refused_due if isinstance(mark, _Due) else refused)[key] = mark, recovered
                if not isinstance(recovered.error, LeftAloneError):
                    return recovered
        return None

    return (recover_one() for _ in (count() if limit is None else range(limit)))


_REFUSALS = (GraphMismatchError, SchemaError, CheckpointCorruptError, FormatError, LeftAloneError)
"""Errors of a run that does not fit its graph, or cannot be read: it would fail again until one of them changes."""


class _Due(int):
    """The time at which a run is due, in nanoseconds since 1970. It changes with the run."""


_PAGE = 100  # runs that are due and are read at a time


def _due(store: CheckpointStore, graph: str, refused: Refused) -> Iterator[Orphan]:
    """Yield the runs of a graph that are due, the first ones first, a page at a time; owned by no one yet.

    Sweeps of other processes begin at other runs of the page.
    """
    tried: set[str] = set()
    while True:
        now = store._now_ns()
        page = [(at, run_id) for at, run_id in store._due(graph, _PAGE + len(tried)) if at <= now]
        tried &= {run_id for _, run_id in page}
        ahead = [(at, run_id) for at, run_id in page if run_id not in tried]
        if not ahead:
            break
        first = os.getpid() % len(ahead) if len(ahead) == _PAGE else 0
        for at, run_id in ahead[first:] + ahead[:first]:
            tried.add(run_id)
            if refused.get(run_id, (None,))[0] != at:
                yield Ownership(run_id), run_id, _Due(at)
    for run_id in refused.keys() - tried:
        refused.pop(run_id, None)


def until_due(store: CheckpointStore, graph: str, seconds: float) -> float:
    """Return the seconds until the next run of a graph is due, at most so many; all of them if one is overdue."""
    ahead = [(at - store._now_ns()) / 1e9 for at, _ in store._due(graph, 1)]
    return min([seconds, *(left for left in ahead if left > 0)])


def _orphans(store: CheckpointStore, graph: str, refused: Refused) -> Iterator[Orphan]:
    """Yield unfinished runs: claimed by the store if it can, otherwise still to be claimed."""
    orphans: Callable[[str, Refused], Iterator[Orphan] | None] | None = getattr(store, "_orphans", None)
    claimed = None if orphans is None else orphans(graph, refused)
    yield from _unfinished(store, graph, refused) if claimed is None else claimed


def _unfinished(store: CheckpointStore, graph: str, refused: Refused) -> Iterator[Orphan]:
    """Yield the active runs of a graph, the oldest first, as `Owners.orphans`."""
    now = clock.to_datetime(store._now_ns())
    active = store.iter_runs(status=RunStatus.ACTIVE, graph=graph)
    found = [run.run_id for run in active if run.due is None or run.due <= now]
    for run_id in refused.keys() - set(found):
        refused.pop(run_id, None)
    for run_id in reversed(found):
        mark = store._change_token(run_id)
        if refused.get(run_id, (None,))[0] != mark:
            yield Ownership(run_id), run_id, mark


def recovered_by(tasks: Iterable[Task[Recovered | None]], signal: StopSignal | None) -> Iterator[Recovered]:
    """Carry out the tasks of a sweep; yield their results."""
    for task in tasks:
        recovered = drive(task, signal)
        if recovered is None:
            return
        yield recovered


async def arecovered_by(
    tasks: Iterable[Task[Recovered | None]], signal: StopSignal | None, store: CheckpointStore
) -> AsyncIterator[Recovered]:
    """Carry out the tasks of a sweep on the running event loop; yield their results."""
    from stategraph._drivers.aio import adrive  # imported when used: asyncio takes 20 ms

    for task in tasks:
        recovered = await adrive(task, signal, store)
        if recovered is None:
            return
        yield recovered


# --------------------------------------------------------------------------- following

_SOONEST, _LATEST = (
    0.005,
    0.25,
)  # seconds between two looks, while the run progresses and while it does not
_SLOWER = 1.5  # factor between two pauses while nothing happens
_SHARE = 4  # a pause takes at least so many times as long as a look
_SHOWN = frozenset({Kind.STEP, Kind.PAUSE, Kind.FAILURE, Kind.CANCEL, Kind.END})


def follow(store: CheckpointStore, run_id: str, wait: float | None, timeout: float | None) -> Iterator[State]:
    """Return the States of a run as they are saved; see `StateGraph.follow`."""
    _check(wait, timeout)
    return _blocking(_looks(store, run_id, wait, timeout))


def afollow(
    store: CheckpointStore, run_id: str, wait: float | None, timeout: float | None
) -> AsyncGenerator[State, None]:
    """Return the States that `follow` returns, on the running event loop: a thread reads the store."""
    _check(wait, timeout)
    return _awaiting(_looks(store, run_id, wait, timeout))


def fresh_rows(store: CheckpointStore, run_id: str) -> Iterator[list[Summary]]:
    """Yield the checkpoints since the last look; end when the run is gone.

    Each iteration looks once. It reads only new checkpoints, and only if the store reports a change.
    """
    token, last = None, None
    while True:
        newer = store.changed_since(token, run_id)
        if newer is None:
            yield []
            continue
        token, rows = newer, _rows_after(store, run_id, last)
        if not rows and not (last and store.history(run_id)):
            return
        yield rows
        last = rows[-1] if rows else last


def _check(wait: float | None, timeout: float | None) -> None:
    for name, seconds in (("wait", wait), ("timeout", timeout)):
        if seconds is not None and not is_duration(seconds):
            raise ConfigError(name, seconds, "a non-negative number of seconds")


def _blocking(looks: Iterator[State | float]) -> Iterator[State]:
    for found in looks:
        if isinstance(found, float):
            time.sleep(found)
        else:
            yield found


async def _awaiting(looks: Iterator[State | float]) -> AsyncGenerator[State, None]:
    import asyncio  # imported when used: 20 ms

    while (found := await asyncio.to_thread(next, looks, None)) is not None:
        if isinstance(found, float):
            await asyncio.sleep(found)
        else:
            yield found


def _looks(
    store: CheckpointStore, run_id: str, wait: float | None, timeout: float | None
) -> Generator[State | float, None, None]:
    """Yield States, and the seconds to wait before the next look."""
    given_up = time.monotonic() + (float("inf") if timeout is None else timeout)
    yield from _until_begun(store, run_id, wait)
    pause, newest = _SOONEST, None
    rows = fresh_rows(store, run_id)
    while True:
        began = time.monotonic()
        is_owned = store.owner(run_id) is not None  # before the rows, so that they include the owner's last saves
        fresh = next(rows, None)
        if fresh is None:
            return
        yield from _states(store, run_id, fresh)
        newest = fresh[-1] if fresh else newest
        if newest is not None and newest.status is not RunStatus.ACTIVE and not is_owned:
            return
        now = time.monotonic()
        if now >= given_up:
            raise TimeoutError(f"run {run_id!r} has not ended within {timeout} s")
        pause = _SOONEST if fresh else min(_LATEST, pause * _SLOWER)
        yield min(max(pause, _SHARE * (now - began)), given_up - now)


def _until_begun(store: CheckpointStore, run_id: str, wait: float | None) -> Iterator[float]:
    """Yield the seconds to wait before each look, until the run exists."""
    given_up, pause = time.monotonic() + (wait or 0), _SOONEST
    while not store.history(run_id):
        left = given_up - time.monotonic()
        if left <= 0:
            raise CheckpointNotFoundError(run_id, str(store))
        pause = min(_LATEST, pause * _SLOWER)
        yield min(pause, left)


def _states(store: CheckpointStore, run_id: str, rows: Sequence[Summary]) -> Iterator[State]:
    """Yield the States that a stream would show, except those that no longer exist."""
    completing = {
        (row.step, row.revision)
        for row, after in pairwise(rows)
        if after.kind is Kind.END and (row.kind, row.step) == (Kind.STEP, after.step)
    }
    for row in rows:
        if row.kind in _SHOWN and (row.step, row.revision) not in completing:
            try:
                state = store.load(run_id, row.step, row.revision)
            except CheckpointNotFoundError:
                continue
            yield state


def _rows_after(store: CheckpointStore, run_id: str, last: Summary | None) -> list[Summary]:
    """Return the rows after the last one, which may no longer exist."""
    if last is not None and last.cursor is not None:
        return store.history(run_id, after=last.cursor)
    rows = store.history(run_id)  # a history of a store of one's own need not have cursors
    if last in rows:
        return rows[rows.index(last) + 1 :]
    return rows if last is None else [row for row in rows if row.timestamp > last.timestamp] or rows[-1:]
