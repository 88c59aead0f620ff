"""Batches on an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator

from stategraph._capabilities.batch import AHEAD, checked_workers, failed, twice
from stategraph._engine.calling import Recovered
from stategraph._engine.start import id_of
from stategraph.state import State

_Run = Callable[[State], Awaitable[State]]


def abatch(run: _Run, states: Iterable[State], max_workers: int) -> AsyncGenerator[Recovered, None]:
    """Run many States in tasks; yield what came of each, in the order of the States."""
    return _results(run, iter(states), checked_workers(max_workers))


async def _results(run: _Run, states: Iterator[State], max_workers: int) -> AsyncGenerator[Recovered, None]:
    under_way, ids = deque[asyncio.Task[Recovered]](), deque[str]()
    free, raised, has_more = asyncio.Semaphore(max_workers), None, True
    try:
        while True:
            while has_more and len(under_way) < AHEAD * max_workers:
                try:
                    state = next(states)
                    id_of(state)
                except StopIteration:
                    has_more = False
                except Exception as error:  # raised after the results of those before
                    raised, has_more = error, False
                else:
                    result = _twice(state) if state.run_id in ids else _result_of(run, state, free)
                    under_way.append(asyncio.create_task(result))
                    ids.append(state.run_id)
            if not under_way:
                break
            yield await under_way[0]
            under_way.popleft()
            ids.popleft()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    if raised is not None:
        raise raised


async def _twice(state: State) -> Recovered:
    return twice(state)


async def _result_of(run: _Run, state: State, free: asyncio.Semaphore) -> Recovered:
    async with free:
        try:
            return Recovered(state.run_id, await run(state))
        except Exception as error:
            return failed(state, error)
