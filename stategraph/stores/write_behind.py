"""Write-behind: with durability "async", a run goes on while another thread saves its States."""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import TypeAlias

import attrs

from stategraph._owners.holds import Hold, acting, on_behalf_of
from stategraph._util.dropped import WeakObjects, is_held_here, reaper
from stategraph._values.frozen import are_settled, freeze, is_settled
from stategraph._values.progress import KeptParts, Part
from stategraph.state import State, data_of
from stategraph.stores.base import CheckpointStore, RetentionPolicy
from stategraph.stores.writer import writer_of

QUEUE_BOUND = 1024
"""Saves that may be queued, and that a killed process may lose. A run that is further ahead waits."""


@attrs.frozen
class _SaveParts:
    """A queued call of `save_parts`."""

    run_id: str
    parts: list[Part]


@attrs.frozen
class _DropParts:
    """A queued call of `drop_parts`."""

    run_id: str
    step: int
    newer_too: bool


_Write: TypeAlias = State | _SaveParts | _DropParts


def _count(write: _Write) -> int:
    """Return how many saves a write counts as."""
    return len(write.parts) if isinstance(write, _SaveParts) else 1


def _copy_of(part: Part) -> Part:
    """Return the part with a value that no later change of its objects reaches."""
    value = freeze(part.value)
    return attrs.evolve(part, value=value if is_settled(value) else copy.deepcopy(value))


class WriteBehindStore:
    """A store for one run whose writes return at once: the writer of the store makes them in order, those that gather
    together. Whoever waits for them makes them itself.

    What goes wrong is raised by the next write, and by `flush`. All other methods first wait until everything is saved.

    Args:
        store: The store to write to.

    Attributes:
        behind_of: That store.
    """

    never_waits = False

    def __init__(self, store: CheckpointStore) -> None:
        self._store = self.behind_of = store
        self._queue: deque[_Write] = deque()  # kept until it is saved: an interrupt that cuts off a save loses nothing
        self._queued = 0  # saves in the queue
        self._writer = writer_of(store)
        self._error: BaseException | None = None
        self._hold = acting.hold  # of the run whose saves these are
        self.renew()
        _all.add(self)

    def renew(self) -> None:
        """Take locks of its own, also in a forked child: the threads that had them are not there."""
        # The end of a dropped run may wait for them: whoever holds one must not wait for such an end.
        self._lock = reaper.known_lock()
        self._saving = reaper.known_lock()  # held by the thread that saves

    def has_room_for(self, state: State) -> bool:
        """Return whether `save` would do no more than queue the State: neither wait, nor call its values."""
        return self._queued < QUEUE_BOUND and self._error is None and are_settled(data_of(state).values())

    def save(self, state: State) -> None:
        """Queue a State; wait while `QUEUE_BOUND` saves are queued."""
        try:
            state = copy.deepcopy(state)  # objects in it may change meanwhile; most States have none
        except Exception:  # noqa: BLE001 - what cannot be copied can hardly be kept: the store raises why
            self.flush()
            self._store.save(state)
            return
        self._enqueue(state)

    def save_many(self, states: Sequence[State]) -> None:
        """Queue several States, as `save` does."""
        for state in states:
            self.save(state)

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        """Queue finished parts; wait as `save` does."""
        try:
            copies = [_copy_of(part) for part in parts]
        except Exception:  # noqa: BLE001 - as in `save`
            self.flush()
            self._store.save_parts(run_id, parts)
            return
        self._enqueue(_SaveParts(run_id, copies))

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        """Queue that parts are dropped: after the State that has joined them is saved."""
        self._enqueue(_DropParts(run_id, step, newer_too))

    def _enqueue(self, write: _Write) -> None:
        self._hold = acting.hold
        while self._queued >= QUEUE_BOUND and self._error is None:
            self._save_gathered()
        with self._lock:
            self._raise_error()
            self._queue.append(write)
            self._queued += _count(write)
            is_first = len(self._queue) == 1
        if is_first and not self._writer.call(self):
            self.flush()

    @property
    def has_queued(self) -> bool:
        """Whether there is anything to be saved."""
        return bool(self._queue) and self._error is None

    def flush(self) -> None:
        """Save everything that is not saved yet, and raise what went wrong."""
        self._save_gathered()
        with self._lock:
            self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self._queue.clear()  # later writes build on the one that failed
            self._queued = 0
            raise error

    def begun(self) -> list[State]:
        """Return what is queued, if it is only States and nobody saves them: `end` is to follow then."""
        if is_held_here(self._saving) or not self._saving.acquire(blocking=False):
            return []
        with self._lock:
            states = [write for write in list(self._queue) if isinstance(write, State)]
            if states and len(states) == len(self._queue) and self._error is None:
                return states
        self._saving.release()
        return []

    def save_begun(self, states: Sequence[State]) -> None:
        """Save States that were begun with, on behalf of the run."""
        for _, together in groupby(states, lambda state: state.run_id):
            self._save_group(list(together))

    def end(self, states: Sequence[State], saved: bool | BaseException) -> None:
        """Go on once it is known whether States are saved, which is False if they have to be saved alone."""
        if saved is True:
            self._forget(states)
        elif isinstance(saved, BaseException) and self._is_queued(states):
            self._error = saved
        self._saving.release()

    def save_all(self) -> None:
        """Save what is queued of all runs that are saved behind the store."""
        self._writer.save()

    def save_queued(self) -> None:
        """Save what is queued, on behalf of the run. What goes wrong is raised in the thread of the run."""
        if is_held_here(self._saving):  # a finaliser has others saved: this thread does so already, further down
            return
        try:
            self._save_gathered()
        except BaseException as error:  # noqa: BLE001
            self._error = error

    def _save_gathered(self) -> None:
        """Make the queued writes, unless one before them has failed. Of several threads, one after the other does."""
        with self._saving:
            with self._lock:
                writes = [] if self._error is not None else list(self._queue)
            try:
                for _, together in groupby(writes, lambda write: (type(write), write.run_id)):
                    group = list(together)
                    try:
                        self._save_group(group)
                    except Exception:
                        if self._is_queued(group):
                            raise
                    self._forget(group)  # at once: what is saved is not saved again after an interrupt
            except Exception as error:  # noqa: BLE001 - raised in the thread of the run
                self._error = error

    def _forget(self, saved: Sequence[_Write]) -> None:
        with self._lock:
            for write in saved:
                if self._queue and self._queue[0] is write:
                    self._queue.popleft()
                    self._queued -= _count(write)

    def _is_queued(self, writes: Sequence[_Write]) -> bool:
        """Return whether writes are still to be made: a finaliser may have ended the run, further up in this thread."""
        with self._lock:
            return bool(self._queue) and self._queue[0] is writes[0]

    def _save_group(self, group: Sequence[_Write]) -> None:
        with on_behalf_of(self._hold):
            self._make(group)

    def _make(self, group: Sequence[_Write]) -> None:
        states = [write for write in group if isinstance(write, State)]
        if states:
            self._store.save_many(states)
        parts = [part for write in group if isinstance(write, _SaveParts) for part in write.parts]
        if parts:
            self._store.save_parts(group[0].run_id, parts)
        for write in group:
            if isinstance(write, _DropParts):
                self._store.drop_parts(write.run_id, write.step, newer_too=write.newer_too)

    # ------------------------------------------------------------------ everything else

    def _own(self, hold: Hold, *, take_over: bool = False) -> None:
        """Own a run of the store."""
        self._store._own(hold, take_over=take_over)

    def _has_lost(self, hold: Hold) -> bool:
        """Return whether a run was taken from its owner."""
        return self._store._has_lost(hold)

    def _cancel(self, run_id: str, by: str | None) -> None:
        """Tell whoever owns a run of the store that it is cancelled."""
        self._store._cancel(run_id, by)

    def _is_cancelled(self, hold: Hold) -> bool:
        """Return whether a run was cancelled."""
        return self._store._is_cancelled(hold)

    def _cancelled_by(self, run_id: str) -> str | None:
        """Return who has cancelled a run."""
        return self._store._cancelled_by(run_id)

    def _take_up(self, hold: Hold) -> None:
        """Forget that a run was cancelled."""
        self._store._take_up(hold)

    def amend(self, state: State) -> None:
        """Amend a State as the store does, once everything is saved."""
        self.flush()
        self._store.amend(state)

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:
        """Set what is kept of a run, as the store does."""
        self._store.retain(run_id, policy)

    def load(self, run_id: str) -> State:
        """Return the newest State of a run, once everything is saved."""
        self.flush()
        return self._store.load(run_id)

    def delete(self, run_id: str) -> None:
        """Delete a run as the store does, once everything is saved."""
        self.flush()
        self._store.delete(run_id)

    def _discard(self, run_id: str) -> None:
        """Discard a run as the store does, once everything is saved."""
        self.flush()
        self._store._discard(run_id)

    @property
    def keeps_parts(self) -> bool:
        """Whether the store keeps finished parts."""
        return self._store.keeps_parts

    def load_parts(self, run_id: str, step: int, node: str) -> KeptParts:
        """Return finished parts as the store does, once everything is saved."""
        self.flush()
        return self._store.load_parts(run_id, step, node)

    def __str__(self) -> str:
        return str(self._store)


_all = WeakObjects[WriteBehindStore]()


def _renew_all() -> None:
    for behind in _all:
        behind.renew()


if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=_renew_all)
