"""stategraph, in a store that has very many runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import scratch
from benchmarks.measure import Run
from stategraph import RunStatus, State
from stategraph._owners.base import new_incarnation
from stategraph.stores import SqliteStore
from stategraph.stores._rows.records import WriteBatch
from stategraph.stores._rows.run_log import RunLog

_FIRST = datetime(2024, 1, 1, tzinfo=UTC)
_TOGETHER = 10_000
_STATUSES = {0: RunStatus.FAILED, 1: RunStatus.ACTIVE}  # of a thousand runs, one each


def opened(steps: int) -> Run:
    """The store, opened."""
    folder = _store(steps)

    def run() -> None:
        store = SqliteStore(folder / "store")
        scratch.at_end(store.close)

    return run


def saved_first(steps: int) -> Run:
    """The first State that a process saves, of a run that begins."""
    store = _opened(steps)
    return lambda: store.save(State({"n": 1}, step=1))


def loaded_first(steps: int) -> Run:
    """The first State that a process loads."""
    store = _opened(steps)
    return lambda: store.load(_id(steps // 2))


def page(steps: int) -> Run:
    """The newest runs."""
    return _page(steps)


def page_by_status(steps: int) -> Run:
    """Runs that failed: one in a thousand."""
    return _page(steps, status=RunStatus.FAILED)


def page_by_no_status(steps: int) -> Run:
    """Runs that wait: none."""
    return _page(steps, status=RunStatus.PAUSED)


def page_by_graph(steps: int) -> Run:
    """Runs of a graph: one in ten."""
    return _page(steps, graph="graph-3")


def page_by_graph_and_status(steps: int) -> Run:
    """Runs of a graph that failed: none."""
    return _page(steps, graph="graph-3", status=RunStatus.FAILED)


def page_by_prefix(steps: int) -> Run:
    """Runs whose ids begin alike: a hundred, and old."""
    return _page(steps, prefix=_id(100)[:-2])


def page_by_common_prefix(steps: int) -> Run:
    """Runs whose ids begin alike: all."""
    return _page(steps, prefix="run-")


def page_by_parent(steps: int) -> Run:
    """Runs that were forked from a run: none."""
    return _page(steps, parent=_id(100))


def page_by_label(steps: int) -> Run:
    """Runs with a label that one in a thousand has."""
    return _page(steps, labels={"customer": "c5"})


def page_by_common_label(steps: int) -> Run:
    """Runs with a label that all have."""
    return _page(steps, labels={"team": "a"})


def page_by_no_label(steps: int) -> Run:
    """Runs with a label that no run has."""
    return _page(steps, labels={"team": "z"})


def page_since_lately(steps: int) -> Run:
    """Runs that began lately: a hundred."""
    return _page(steps, since=_began(steps - 100))


def page_since_ever(steps: int) -> Run:
    """Runs that began since a day on which no run began later: none."""
    return _page(steps, since=datetime(2099, 1, 1, tzinfo=UTC))


def page_of_owned(steps: int) -> Run:
    """List the runs that have an owner: none."""
    return _page(steps, owned=True)


def page_of_unowned(steps: int) -> Run:
    """List the runs without an owner: all."""
    return _page(steps, owned=False)


def page_of_orphans(steps: int) -> Run:
    """Runs that are left unfinished: one in a thousand."""
    return _page(steps, owned=False, status=RunStatus.ACTIVE)


def _page(steps: int, **filters: Any) -> Run:
    store = _opened(steps)
    return lambda: store.runs(**filters)


def _opened(steps: int) -> SqliteStore:
    store = SqliteStore(_store(steps) / "store")
    scratch.at_end(store.close)
    return store


def _id(number: int) -> str:
    return f"run-{number:08}"


def _began(number: int) -> datetime:
    return _FIRST + timedelta(seconds=number)


def _fill(folder: Path, steps: int) -> None:
    """Make the store, thousands of runs in a transaction: each in its own would take an hour."""
    with SqliteStore(folder / "store") as store:
        batches = _batches(store._log, steps)
        while some := list(islice(batches, _TOGETHER)):
            store._log.table.apply(some)


def _batches(log: RunLog, steps: int) -> Iterator[WriteBatch]:
    for number in range(steps):
        state = State(
            {"n": number},
            run_id=_id(number),
            step=3,
            graph=f"graph-{number % 10}",
            status=_STATUSES.get(number % 1_000, RunStatus.COMPLETED),
            timestamp=_began(number),
            labels={"team": "a", "customer": f"c{number % 1_000}"},
        )
        incarnation = new_incarnation()
        row, _ = log.encoder.encode(state, incarnation)
        yield WriteBatch(log.next_run(None, row, state, incarnation), None, (row,))


_store = scratch.prepared(_fill)
