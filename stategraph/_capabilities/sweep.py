"""Sweep: going on, one after the other, with the runs of a store that were left unfinished."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING

import attrs

from stategraph._drivers.sync import drive
from stategraph._engine.calling import Recovered, recover
from stategraph._engine.context import RunContext
from stategraph._engine.saving import check_saves
from stategraph._owners.base import Ownership
from stategraph._protocol import Load, Task
from stategraph._util.validators import is_count
from stategraph._values.provenance import RunStatus
from stategraph.errors import ConfigError
from stategraph.stores.base import CheckpointStore

if TYPE_CHECKING:
    from stategraph._drivers.limits import StopSignal

_PAGE = 1000  # runs that are listed at a time


@attrs.frozen
class Sweep:
    """Goes on with runs of a graph; to iterate over it yields what came of each.

    Args:
        store: The store.
        graph: The name of the graph.
        new_run: Makes what is known of a call.
        limit: How many runs to go on with at most; None for all.
        max_recoveries: How many owners one step of a run may take down.
        signal: Stops the run under way, and the sweep.

    Raises:
        ConfigError: a number is not allowed.
        CheckpointingDisabledError: the graph saves nothing.
    """

    store: CheckpointStore
    graph: str
    new_run: Callable[[], RunContext]
    limit: int | None
    max_recoveries: int
    signal: StopSignal | None

    def __attrs_post_init__(self) -> None:
        if self.limit is not None and not is_count(self.limit, at_least=1):
            raise ConfigError("limit", self.limit, "how many runs to go on with, from 1 on, or None for all")
        if not is_count(self.max_recoveries, at_least=1):
            raise ConfigError("max_recoveries", self.max_recoveries, "how many owners a step may take down, from 1 on")
        check_saves(self.new_run().plan)  # now, not with the first run: there would be none

    def __iter__(self) -> Iterator[Recovered]:
        ownerships = self._ownerships()
        for _ in count() if self.limit is None else range(self.limit):
            recovered = drive(self._next(ownerships), self.signal)
            if recovered is None:
                return
            yield recovered

    async def __aiter__(self) -> AsyncIterator[Recovered]:
        from stategraph._drivers.aio import adrive  # imported when used: asyncio takes 20 ms

        ownerships = self._ownerships()
        for _ in count() if self.limit is None else range(self.limit):
            recovered = await adrive(self._next(ownerships), self.signal, self.store)
            if recovered is None:
                return
            yield recovered

    def _next(self, ownerships: Iterator[Ownership]) -> Task[Recovered | None]:
        """Go on with one run after the other until there is a result; return None if there are no more runs."""
        while self.signal is None or not self.signal.is_due():
            ownership: Ownership | None = yield (Load, lambda _: next(ownerships, None), None)
            if ownership is None:
                return None
            recovered = yield from recover(self.new_run(), ownership, self.max_recoveries)
            if recovered is not None:
                return recovered
        return None

    def _ownerships(self) -> Iterator[Ownership]:
        """Yield what the runs are owned by: already, where the store has a way for it, or once each is tried."""
        orphans: Callable[[str], Iterator[Ownership] | None] | None = getattr(self.store, "_orphans", None)
        claimed = None if orphans is None else orphans(self.graph)
        yield from map(Ownership, self._unfinished(self.graph)) if claimed is None else claimed

    def _unfinished(self, graph: str) -> list[str]:
        """Return the ids of the runs of a graph that are active, the oldest first."""
        found: list[str] = []
        cursor = None
        while page := self.store.runs(RunStatus.ACTIVE, graph, _PAGE, cursor):
            found += (summary.run_id for summary in page)
            cursor = page[-1].cursor
        found.reverse()
        return found
