"""The "memory" store: for tests, and for runs that need not outlive their process."""

from __future__ import annotations

import builtins
import threading
from typing import TYPE_CHECKING

from stategraph.errors import CheckpointNotFoundError
from stategraph.frozen import are_settled
from stategraph.ids import check_run_id
from stategraph.state import State, data_of
from stategraph.stores.base import CheckpointStore, check_follows

if TYPE_CHECKING:
    from stategraph.stores.records import Record


class MemoryStore(CheckpointStore):
    """Keeps the newest State of each run.

    A State is immutable, so it is kept as it is, whatever its size. Only one with objects inside that may still change is
    kept as a record, as in a durable store.
    """

    def __init__(self) -> None:
        self._runs: dict[str, State | Record] = {}
        self._lock = threading.Lock()

    def save(self, state: State) -> None:
        self._keep(state)

    def amend(self, state: State) -> None:
        self._keep(state, may_change_data=True)

    def load(self, run_id: str, step: int | None = None) -> State:
        saved = self._runs.get(check_run_id(run_id))
        if saved is None or step not in (None, saved.step):
            raise CheckpointNotFoundError(run_id, str(self), step)
        return saved if isinstance(saved, State) else saved.state()

    def delete(self, run_id: str) -> None:
        self._runs.pop(check_run_id(run_id), None)

    def list(self) -> builtins.list[str]:
        return sorted(self._runs)

    def _keep(self, state: State, may_change_data: bool = False) -> None:
        kept = state if are_settled(data_of(state).values()) else _record_of(state)
        self._lock.acquire()  # not "with", which takes twice as long
        try:
            saved = self._runs.get(state.run_id)
            if saved is not None and saved.step >= state.step:
                same_data = may_change_data or _bytes_of(saved) == _bytes_of(state)
                check_follows(state.run_id, saved.step, state.step, same_data)
            self._runs[state.run_id] = kept
        finally:
            self._lock.release()

    def __str__(self) -> str:
        return "memory store"


def _record_of(state: State) -> Record:
    from stategraph.stores.records import Record  # imported when used: 20 ms

    return Record.of(state)


def _bytes_of(saved: State | Record) -> bytes:
    return (_record_of(saved) if isinstance(saved, State) else saved).data
