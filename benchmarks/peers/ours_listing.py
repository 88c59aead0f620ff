"""stategraph, listing what a store has."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import scratch
from benchmarks.measure import Run
from benchmarks.peers.ours_pruning import many_runs
from stategraph import RunStatus, State
from stategraph.stores import SqliteStore
from stategraph.stores.base import RetentionPolicy

_TOGETHER = 1_000


def history(steps: int) -> Run:
    """All checkpoints of a run of so many steps."""
    store = _opened(_story(steps))
    return lambda: store.history("run")


def iterated_history(steps: int) -> Run:
    """The same, a page at a time."""
    store = _opened(_story(steps))
    return lambda: deque(store.iter_history("run"), maxlen=0)


def page(steps: int) -> Run:
    """The newest runs."""
    return _page(steps)


def page_by_status(steps: int) -> Run:
    """Runs that failed: none."""
    return _page(steps, status=RunStatus.FAILED)


def page_by_graph_and_status(steps: int) -> Run:
    """Runs of a graph that are complete: none."""
    return _page(steps, graph="g", status=RunStatus.COMPLETED)


def page_by_prefix(steps: int) -> Run:
    """Runs whose ids begin alike: few, and old."""
    return _page(steps, prefix="run-10")


def page_by_parent(steps: int) -> Run:
    """Runs that were forked from a run: none."""
    return _page(steps, parent="run-10")


def page_by_labels(steps: int) -> Run:
    """Runs with a label: none."""
    return _page(steps, labels={"team": "a"})


def page_by_since(steps: int) -> Run:
    """Runs that began lately: none."""
    return _page(steps, since=datetime(2099, 1, 1, tzinfo=UTC))


def _page(steps: int, **filters: Any) -> Run:
    store = _opened(many_runs(steps))
    return lambda: store.runs(**filters)


def _opened(folder: Path) -> SqliteStore:
    store = SqliteStore(folder / "store", read_only=True)
    scratch.at_end(store.close)
    return store


def _tell(folder: Path, steps: int) -> None:
    with SqliteStore(folder / "store") as store:
        store.retain("run", RetentionPolicy("full"))
        for first in range(0, steps, _TOGETHER):
            last = min(first + _TOGETHER, steps)
            store.save_many(
                [State({"n": n}, run_id="run", step=n, checkpoint_node="count") for n in range(first, last)]
            )


_story = scratch.prepared(_tell)
