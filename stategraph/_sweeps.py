"""Sweeps: continue the runs of a graph that have no owner, those that are due first; and check all runs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain, count, product, repeat

from stategraph._drivers.limits import StopSignal
from stategraph._drivers.sync import drive
from stategraph._engine.calling import LeftAloneError, Recovered, RunCheck, check_run, recover
from stategraph._engine.context import RunContext
from stategraph._engine.owning import check_saves
from stategraph._owners.base import Orphan, Ownership, Refused
from stategraph._protocol import Load, Task
from stategraph._values import clock
from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointCorruptError, EffectsError, FormatError, GraphMismatchError, SchemaError
from stategraph.stores.base import CheckpointStore


def sweep(
    store: CheckpointStore,
    new_run: Callable[[], RunContext],
    limit: int | None,
    max_recoveries: int,
    signal: StopSignal | None,
    refusals: Callable[[str], Refused],
) -> Iterator[Task[Recovered | None]]:
    """Return tasks that each recover one run of a graph. A task returns None if no run is left.

    Args:
        store: The store.
        new_run: Makes the context of a call.
        limit: The most runs to recover; None for all.
        max_recoveries: The most owners that one step of a run may lose.
        signal: Stops the sweep.
        refusals: Returns the runs that were refused by earlier sweeps of a kind. They are left alone until they change.

    Raises:
        ConfigError: An option of the call is not allowed.
        CheckpointingDisabledError: The graph saves nothing.
    """
    plan = new_run().plan
    check_saves(plan)
    ways = [(find, name, refusals(f"{find.__name__} {name}")) for find in (_due, _orphans) for name in plan.names]
    found_by = (zip(repeat(refused), find(store, name, refused), strict=False) for find, name, refused in ways)
    orphans = chain.from_iterable(found_by)

    def recover_one() -> Task[Recovered | None]:
        while signal is None or not signal.is_due():
            found: tuple[Refused, Orphan] | None = yield (Load, lambda _: next(orphans, None), None)
            if found is None:
                return None
            aside, (ownership, key, mark) = found
            recovered = yield from recover(new_run(), ownership, max_recoveries)
            if recovered is not None:
                if isinstance(recovered.error, EffectsError):  # after its recovery was counted
                    mark = yield (Load, store._change_token, ownership.run_id)
                if isinstance(recovered.error, _REFUSALS):
                    aside[key] = mark, recovered
                if not isinstance(recovered.error, LeftAloneError):
                    return recovered
        return None

    return (recover_one() for _ in (count() if limit is None else range(limit)))


_REFUSALS = (GraphMismatchError, SchemaError, EffectsError, CheckpointCorruptError, FormatError, LeftAloneError)
"""Errors of a run that does not fit its graph, or cannot be read: it would fail again until one of them changes."""


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
                yield Ownership(run_id), run_id, at
    for run_id in refused.keys() - tried:
        refused.pop(run_id, None)


def until_due(store: CheckpointStore, graphs: Iterable[str], seconds: float) -> float:
    """Return the seconds until the next run of some graphs is due, at most so many; all of them if one is overdue."""
    ahead = [(at - store._now_ns()) / 1e9 for graph in graphs for at, _ in store._due(graph, 1)]
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


def checked_runs(new_run: Callable[[], RunContext]) -> Iterator[RunCheck]:
    """Check each run of a graph that is not complete."""
    run = new_run()
    for name, status in product(run.plan.names, (each for each in RunStatus if each is not RunStatus.COMPLETED)):
        for found in run.session.store._loads(status=status.value, graph=name):
            check = drive(check_run(new_run(), *found), None)
            if check is not None:
                yield check


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
