"""Following: watch a run that another call owns, from any process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from stategraph._calls import Call, FollowCall, checked_options
from stategraph._engine.chunks import emitted
from stategraph._values.clock import to_ns
from stategraph._values.progress import evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import CheckpointNotFoundError, ConfigError
from stategraph.state import S, State, evolve
from stategraph.stores.base import CheckpointStore

if TYPE_CHECKING:
    import asyncio

    from stategraph.stores.summaries import Summary

_SOONEST, _LATEST = (
    0.005,
    0.25,
)  # seconds between two looks, while the run progresses and while it does not
_SLOWER = 1.5  # factor between two pauses while nothing happens
_SHARE = 4  # a pause takes at least so many times as long as a look
_SHOWN = frozenset({Kind.STEP, Kind.PAUSE, Kind.FAILURE, Kind.CANCEL, Kind.END})


class Following(Iterator[State[S]]):
    """The States of a run that another call may own, as they are saved; see `StateGraph.follow`.

    Attributes:
        cursor: Where the iteration stands: `after` continues it, in any process. None before the first State.
    """

    def __init__(self, looks: Looks) -> None:
        self._looks, self.cursor = looks, looks.cursor

    def __next__(self) -> State[S]:
        for found in self._looks.found:
            if isinstance(found, State):
                self.cursor = self._looks.cursor
                return found
            time.sleep(found)
        raise StopIteration

    def close(self) -> None:
        """End the iteration."""
        self._looks.found.close()


class AsyncFollowing(AsyncIterator[State[S]]):
    """What `Following` is, on the running event loop: a thread reads the store."""

    def __init__(self, looks: Looks) -> None:
        self._looks, self.cursor = looks, looks.cursor
        self._look: asyncio.Task[State[S] | float | None] | None = None

    async def __anext__(self) -> State[S]:
        import asyncio  # imported when used: 20 ms

        while True:
            look = self._look = self._look or asyncio.create_task(asyncio.to_thread(next, self._looks.found, None))
            await asyncio.wait([look])  # a cancellation leaves it to the next call: what it reads is not lost
            self._look = None
            if (found := look.result()) is None:
                raise StopAsyncIteration
            if isinstance(found, State):
                self.cursor = self._looks.cursor
                return found
            await asyncio.sleep(found)

    async def aclose(self) -> None:
        """End the iteration."""
        with suppress(ValueError):  # a thread that still reads lets it go after that
            self._looks.found.close()


def fresh_rows(store: CheckpointStore, run_id: str, after: str | None = None) -> Iterator[list[Summary]]:
    """Yield the checkpoints since the last look; end when the run is gone.

    Each iteration looks once. It reads only new checkpoints, and only if the store reports a change.
    """
    token, last = None, None
    while True:
        newer = store.changed_since(token, run_id)
        if newer is None:
            yield []
            continue
        rows = store.history(run_id, after=after) if after and last is None else _rows_after(store, run_id, last)
        token = newer
        if not rows and not ((last or after) and _exists(store, run_id)):
            return
        yield rows
        last = rows[-1] if rows else last


def _exists(store: CheckpointStore, run_id: str) -> bool:
    return next(store.iter_history(run_id), None) is not None


class Looks:
    """The looks at a run, and where they stand: at a row of its history, and at a chunk of the step under way then.

    Args:
        store: The store.
        run_id: The run.
        how: The options of `StateGraph.follow`.

    Attributes:
        found: States, and the seconds to wait before the next look.
    """

    def __init__(self, store: CheckpointStore, run_id: str, how: FollowCall) -> None:
        checked_options(cast(Call, how), FollowCall)
        self._store, self._run_id = store, run_id
        self._shows_chunks = how.get("chunks", False) and store.keeps_entries
        self._row, self._step, self._seq, self._began = _place_in(how.get("after"))
        self._newest: State | None = None
        timeout = how.get("timeout")
        self.found: Generator[State | float, None, None] = self._looks(
            how.get("wait"), float("inf") if timeout is None else timeout
        )

    @property
    def cursor(self) -> str | None:
        """The text that `after` takes."""
        return f"{self._row}.{self._step}.{self._seq}.{self._began}" if self._row or self._seq else None

    def _looks(self, wait: float | None, timeout: float) -> Generator[State | float, None, None]:
        store, run_id, given_up = self._store, self._run_id, time.monotonic() + timeout
        yield from _until_begun(store, run_id, wait, is_known=bool(self._row))
        pause, status = _SOONEST, None
        rows = fresh_rows(store, run_id, self._row or None)
        while True:
            began = time.monotonic()
            is_owned = store.owner(run_id) is not None  # before the rows, so that they include the owner's last saves
            fresh = next(rows, None)
            if fresh is None:
                return
            shown = 0
            for state in self._states(fresh):
                shown += 1
                yield state
            status = fresh[-1].status if fresh else status or self._base().status
            if status is not RunStatus.ACTIVE and not is_owned:
                return
            now = time.monotonic()
            if now >= given_up:
                raise TimeoutError(f"run {run_id!r} has not ended within {timeout} s")
            pause = _SOONEST if fresh or shown else min(_LATEST, pause * _SLOWER)
            yield min(max(pause, _SHARE * (now - began)), given_up - now)

    def _states(self, rows: Sequence[Summary]) -> Iterator[State]:
        """Yield the States that a stream would show, except those that no longer exist; before each, its chunks."""
        completing = {
            (row.step, row.revision)
            for row, after in pairwise(rows)
            if after.kind is Kind.END and (row.kind, row.step) == (Kind.STEP, after.step)
        }
        began = str(to_ns(rows[0].created)) if rows and rows[0].created else self._began
        if self._began not in ("", began):  # another run has begun under this id
            self._step, self._seq, self._newest = 1, 0, None
        self._began = began
        left = sum(row.kind is Kind.ROLLBACK for row in rows)
        for row in rows:
            left -= row.kind is Kind.ROLLBACK
            if row.step >= self._step and not left:  # otherwise its chunks are gone
                yield from self._chunks(row.step)
            if row.step + 1 != self._step or row.kind is Kind.ROLLBACK:
                self._step, self._seq = row.step + 1, 0
            self._row = row.cursor or ""
            if row.kind in _SHOWN and (row.step, row.revision) not in completing:
                with suppress(CheckpointNotFoundError):
                    self._newest = self._store.load(self._run_id, row.step, row.revision)
                    yield self._newest
        yield from self._chunks(self._step)

    def _chunks(self, last: int) -> Iterator[State]:
        """Yield a State for each new chunk up to a step."""
        if not self._shows_chunks:
            return
        step, first = (last, self._step) if last == self._step else (None, self._step)
        after = self._seq if step is not None else 0
        for entry in self._store.entries(self._run_id, step=step, kinds=("chunk",), after=after):
            if (first, self._seq) < (entry.step, entry.seq) and entry.step <= last:
                self._step, self._seq = entry.step, entry.seq
                base = self._base()
                partial = evolved(base.progress, partial=emitted(entry))
                yield evolve(base, status=RunStatus.ACTIVE, pause=None, error=None, progress=partial)

    def _base(self) -> State:
        """Return the newest State that was read."""
        if self._newest is None:
            self._newest = self._store.load(self._run_id)
        return self._newest


def _place_in(cursor: str | None) -> tuple[str, int, int, str]:
    """Return the row, the step under way and its newest chunk in a cursor, and when the run began, which older versions
    did not write. Raises ConfigError."""
    if cursor is None:
        return "", 1, 0, ""
    try:
        row, step, seq, *began = cursor.split(".", 3)
        return row, int(step), int(seq), "".join(began)
    except (ValueError, AttributeError):
        raise ConfigError("after", cursor, "the cursor of an earlier iteration over this run") from None


def _until_begun(store: CheckpointStore, run_id: str, wait: float | None, *, is_known: bool) -> Iterator[float]:
    """Yield the seconds to wait before each look, until the run exists."""
    given_up, pause = time.monotonic() + (wait or 0), _SOONEST
    while not (_exists(store, run_id) if is_known else store.history(run_id)):
        left = given_up - time.monotonic()
        if left <= 0:
            raise CheckpointNotFoundError(run_id, str(store))
        pause = min(_LATEST, pause * _SLOWER)
        yield min(pause, left)


def _rows_after(store: CheckpointStore, run_id: str, last: Summary | None) -> list[Summary]:
    """Return the rows after the last one, which may no longer exist."""
    if last is not None and last.cursor is not None:
        return store.history(run_id, after=last.cursor)
    rows = store.history(run_id)  # a history of a store of one's own need not have cursors
    if last in rows:
        return rows[rows.index(last) + 1 :]
    return rows if last is None else [row for row in rows if row.timestamp > last.timestamp] or rows[-1:]
