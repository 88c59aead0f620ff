"""Following a run that others are at work on: looking at the store, as often as that costs little."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from stategraph._util.validators import is_duration
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import CheckpointNotFoundError, ConfigError

if TYPE_CHECKING:
    from stategraph.state import State
    from stategraph.stores.base import CheckpointStore
    from stategraph.stores.summaries import Summary

_SOONEST, _LATEST = 0.005, 0.25  # seconds between two looks: while the run goes on, and while it does not
_SLOWER = 1.5  # times the pause before, while nothing happens
_SHARE = 4  # times as long as a look takes is the pause after it, at least
_SHOWN = frozenset({Kind.STEP, Kind.PAUSE, Kind.FAILURE, Kind.CANCEL, Kind.END})


def follow(store: CheckpointStore, run_id: str, wait: float | None, timeout: float | None) -> Iterator[State]:
    """Return the States of a run as they are saved, as `StateGraph.follow` says."""
    _check(wait, timeout)
    return _blocking(_looks(store, run_id, wait, timeout))


def afollow(
    store: CheckpointStore, run_id: str, wait: float | None, timeout: float | None
) -> AsyncGenerator[State, None]:
    """Return what `follow` returns, for an event loop: the store is read in a thread."""
    _check(wait, timeout)
    return _awaiting(_looks(store, run_id, wait, timeout))


def fresh_rows(store: CheckpointStore, run_id: str) -> Iterator[list[Summary]]:
    """Yield the checkpoints that came since the last look; end once the run is gone.

    Each iteration looks once, and reads the history only if the store says that it may have changed.
    """
    token, last = None, None
    while True:
        newer = store.changed_since(token, run_id)
        if newer is None:
            yield []
            continue
        token, rows = newer, store.history(run_id)
        if not rows:
            return
        yield _after(last, rows)
        last = rows[-1]


def _check(wait: float | None, timeout: float | None) -> None:
    for name, seconds in (("wait", wait), ("timeout", timeout)):
        if seconds is not None and not is_duration(seconds):
            raise ConfigError(name, seconds, "a number of seconds from 0 on")


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
        is_owned = store.owner(run_id) is not None  # first: the owner's last saves are seen below
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
    """Yield the seconds to wait before each look, until the run is there."""
    given_up, pause = time.monotonic() + (wait or 0), _SOONEST
    while not store.history(run_id):
        left = given_up - time.monotonic()
        if left <= 0:
            raise CheckpointNotFoundError(run_id, str(store))
        pause = min(_LATEST, pause * _SLOWER)
        yield min(pause, left)


def _states(store: CheckpointStore, run_id: str, rows: Sequence[Summary]) -> Iterator[State]:
    """Yield the States that a stream would show, except those that are gone by now."""
    followed_by_its_end = {
        (one.step, one.revision)
        for one, after in pairwise(rows)
        if after.kind is Kind.END and (one.kind, one.step) == (Kind.STEP, after.step)
    }
    for row in rows:
        if row.kind in _SHOWN and (row.step, row.revision) not in followed_by_its_end:
            try:
                state = store.load(run_id, row.step, row.revision)
            except CheckpointNotFoundError:
                continue
            yield state


def _after(last: Summary | None, rows: list[Summary]) -> list[Summary]:
    """Return the rows that came after the last one, which may not be kept any longer."""
    if last is None:
        return rows
    keys = [_key(row) for row in rows]
    if _key(last) in keys:
        return rows[keys.index(_key(last)) + 1 :]
    return [row for row in rows if row.timestamp > last.timestamp] or rows[-1:]


def _key(row: Summary) -> tuple[object, ...]:
    return row.step, row.revision, row.kind, row.timestamp
