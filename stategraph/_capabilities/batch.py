"""Batches: running many States, some at the same time, with what came of each in their order."""

from __future__ import annotations

import contextvars
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Self

from stategraph._drivers.limits import EitherEvent, StopSignal
from stategraph._drivers.options import RunCall
from stategraph._engine.calling import Recovered
from stategraph._engine.start import id_of
from stategraph._util.validators import is_count
from stategraph.errors import ConfigError
from stategraph.state import State

AHEAD = 2
"""States that are taken for each worker, before the result of the first of them is asked for."""

_ABANDONED = "a batch of runs was neither closed nor exhausted; iterate within 'with graph.run_many(...) as results'"


def checked_workers(max_workers: int) -> int:
    """Return how many run at the same time. Raises ConfigError if that is no such number."""
    if not is_count(max_workers, at_least=1):
        raise ConfigError("max_workers", max_workers, "how many run at the same time, from 1 on")
    return max_workers


def failed(state: State, error: Exception) -> Recovered:
    """Return what came of a run that failed."""
    return Recovered(state.run_id, getattr(error, "state", None), error)


def twice(state: State) -> Recovered:
    """Return what comes of a State whose run id another State of the batch has, whose run is not over."""
    problem = f"run id {state.run_id!r} comes twice in this batch: give each State a run_id of its own"
    return failed(state, ValueError(problem))


class Batch(Iterator[Recovered]):
    """Runs of many States in threads; to iterate over it yields what came of each, in the order of the States.

    Closing it, or leaving its ``with`` block, stops the runs under way and waits for them. A batch that is neither
    closed nor exhausted is abandoned: its runs stop before their next nodes, and Python emits a ResourceWarning.
    """

    _threads: ThreadPoolExecutor | None = None

    def __init__(self, run: Callable[..., State], states: Iterable[State], max_workers: int, how: RunCall) -> None:
        self._max_workers = checked_workers(max_workers)
        self._states = iter(states)
        self._under_way: deque[Future[Recovered]] = deque()
        self._ids: deque[str] = deque()  # of the runs under way
        self._stop = EitherEvent(StopSignal.of(how.get("cancel"), None).cancel)
        self._run = partial(run, **{**how, "cancel": self._stop})
        self._has_more = True

    def __next__(self) -> Recovered:
        try:
            self._begin()
            if self._under_way:
                self._ids.popleft()
                return self._under_way.popleft().result()
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def close(self) -> None:
        """Stop the runs under way before their next nodes, and wait until they have stopped; begin no others."""
        self._has_more = False
        self._under_way.clear()
        self._ids.clear()
        threads, self._threads = self._threads, None
        if threads is not None:
            self._stop.set()
            threads.shutdown(cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._threads is not None:
            warnings.warn(_ABANDONED, ResourceWarning, source=self, stacklevel=2)
            self._stop.set()

    def _begin(self) -> None:
        """Begin as many runs as may be ahead of the results. What the States raise comes after the results before."""
        while self._has_more and len(self._under_way) < AHEAD * self._max_workers:
            try:
                state = next(self._states)
                id_of(state)
            except StopIteration:
                self._has_more = False
            except Exception as error:
                self._has_more = False
                self._under_way.append(Future())
                self._under_way[-1].set_exception(error)
                self._ids.append("")
            else:
                self._under_way.append(self._submit(state))
                self._ids.append(state.run_id)

    def _submit(self, state: State) -> Future[Recovered]:
        if state.run_id in self._ids:
            done = Future[Recovered]()
            done.set_result(twice(state))
            return done
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._max_workers, "stategraph batch")
        context = contextvars.copy_context()
        return self._threads.submit(context.run, _result_of, self._run, state)


def _result_of(run: Callable[[State], State], state: State) -> Recovered:
    try:
        return Recovered(state.run_id, run(state))
    except Exception as error:
        return failed(state, error)
