"""Following: watch a run that another call owns, from any process."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from stategraph._util.validators import is_duration
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import CheckpointNotFoundError, ConfigError
from stategraph.state import State
from stategraph.stores.base import CheckpointStore

if TYPE_CHECKING:
    from stategraph.stores.summaries import Summary

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
