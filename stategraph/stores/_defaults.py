"""What a store can do that has only the four methods of its own: the defaults of CheckpointStore."""

from __future__ import annotations

import builtins
import itertools
from typing import Protocol

from stategraph.errors import CheckpointNotFoundError, RunExistsError
from stategraph.state import State
from stategraph.stores._checks import check_limit, check_number, check_status, from_cursor
from stategraph.stores._time_travel import forked_from, rolled_back
from stategraph.stores.summaries import Difference, Summary


class Store(Protocol):
    """What the defaults ask of a store."""

    def save(self, state: State) -> None:
        """Keep a State."""

    def amend(self, state: State) -> None:
        """Keep a State in place of the newest one."""

    def load(self, run_id: str, step: int | None = None) -> State:
        """Return a State of a run."""

    def list(self) -> builtins.list[str]:
        """Return the ids of all runs."""


def history(store: Store, run_id: str) -> list[Summary]:
    """Return the newest checkpoint of a run, if there is one."""
    try:
        return [Summary.of(store.load(run_id))]
    except CheckpointNotFoundError:
        return []


def runs(store: Store, status: str | None, graph: str | None, limit: int, after: str | None) -> list[Summary]:
    """Return the newest checkpoint of each run, in the order of their ids."""
    check_status(status)
    first = from_cursor(after) or 0
    numbered = list(enumerate(store.list()))[first:]
    found = (Summary.of(store.load(run_id), str(number + 1)) for number, run_id in numbered)
    wanted = (run for run in found if status in (None, run.status) and graph in (None, run.graph))
    return list(itertools.islice(wanted, check_limit(limit)))


def fork(store: Store, run_id: str, new_run_id: str, step: int | None) -> State:
    """Save a State of a run as the newest of another one."""
    forked = forked_from(store.load(run_id, step), new_run_id)
    if new_run_id in store.list():
        raise RunExistsError(new_run_id, str(store))
    store.save(forked)
    return forked


def rollback(store: Store, run_id: str, step: int) -> State:
    """Put the State of a step in place of the newest one."""
    state = rolled_back(store.load(run_id, step))
    store.amend(state)
    return state


def diff(store: Store, run_id: str, a: int, b: int) -> Difference:
    """Load two steps of a run and compare their data."""
    for name, step in (("a", a), ("b", b)):
        check_number(step, name)
    return Difference.between(store.load(run_id, a), store.load(run_id, b))
