"""SaveQueue: with durability "async", a run goes on while another thread saves its States."""

from __future__ import annotations

import copy
import os
import threading
import time
import weakref
from collections.abc import Sequence
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import TypeAlias

import attrs

from stategraph._owners.holds import Hold, acting, on_behalf_of
from stategraph._values.frozen import are_settled, freeze, is_settled
from stategraph._values.progress import Part
from stategraph.state import State, data_of
from stategraph.stores.base import CheckpointStore

QUEUE_BOUND = 1024
"""Saves that may be queued, and that a killed process may lose. A run that is further ahead waits."""

_GATHER = 0.002  # seconds for which a save waits for those of other runs
_IDLE = 1.0  # seconds after which the thread of a store ends that has nothing to save


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


class SaveQueue:
    """The saves of one run, which return at once. A thread makes them in order, together with those of other runs.

    The next save, and `flush`, raise the error of an earlier one.

    Args:
        store: The store.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self.hold: Hold | None = None
        self.saving = threading.Lock()  # held by the thread that saves
        self._lock = threading.Lock()  # several threads may be at work on parts of a step
        self._writes: list[_Write] = []
        self._count = 0
        self._error: BaseException | None = None

    def has_room_for(self, state: State) -> bool:
        """Return whether `save` would only queue the State: it neither waits nor calls its values."""
        return self._count < QUEUE_BOUND and self._error is None and are_settled(data_of(state).values())

    def save(self, states: Sequence[State]) -> None:
        """Queue States; wait while `QUEUE_BOUND` saves are queued."""
        try:
            copies = copy.deepcopy(states)  # objects in them may change before they are saved; most States have none
        except Exception:  # noqa: BLE001 - a State that cannot be copied can hardly be kept: the store raises why
            self.flush()
            self.store.save_many(states)
        else:
            for state in copies:
                self._put(state)

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        """Queue finished parts; wait as `save` does."""
        try:
            copies = [_copy_of(part) for part in parts]
        except Exception:  # noqa: BLE001 - as in `save`
            self.flush()
            self.store.save_parts(run_id, parts)
        else:
            self._put(_SaveParts(run_id, copies))

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool) -> None:
        """Queue that parts are dropped, after the State that has joined them is saved."""
        self._put(_DropParts(run_id, step, newer_too))

    def _put(self, write: _Write) -> None:
        self.hold = acting.hold
        while self._count >= QUEUE_BOUND and self._error is None:
            save_queued([self])
        self._raise_error()
        with self._lock:
            self._count += _count(write)
            self._writes.append(write)
            is_first = len(self._writes) == 1
        if is_first and not _saver_of(self.store).call(self):
            self.flush()

    def flush(self) -> None:
        """Save everything that is queued, in this thread, and raise what went wrong."""
        save_queued([self])
        self._raise_error()

    def _raise_error(self) -> None:
        with self._lock:
            error, self._error = self._error, None
            if error is not None:
                self._writes.clear()  # later writes build on the one that failed
                self._count = 0
        if error is not None:
            raise error

    @staticmethod
    def save_with(queues: Sequence[SaveQueue]) -> None:
        """Save everything that is queued of several runs of a store, in one go; their flush raises what went wrong."""
        save_queued(queues)

    # ------------------------------------------------------------------ in the thread that saves

    def waiting(self) -> list[_Write]:
        """Return what is to be saved."""
        return [] if self._error is not None else list(self._writes)

    def end(self, writes: Sequence[_Write], error: BaseException | None) -> None:
        """Forget writes that have been made, or note why they could not be."""
        with self._lock:
            if error is not None:
                self._error = error
            else:
                del self._writes[: len(writes)]
                self._count -= sum(map(_count, writes))


def save_queued(queues: Sequence[SaveQueue]) -> None:
    """Save what is queued of some runs of a store, in one go as far as the store can do that."""
    if len(queues) == 1:
        with queues[0].saving:
            _save_begun(queues)
        return
    begun = [queue for queue in queues if queue.saving.acquire(blocking=False)]
    try:
        _save_begun(begun)
    finally:
        for queue in begun:
            queue.saving.release()


def _save_begun(queues: Sequence[SaveQueue]) -> None:
    waiting = [(queue, writes) for queue in queues if (writes := queue.waiting())]
    together = [(queue, writes) for queue, writes in waiting if all(map(_is_state, writes))]
    save_runs = getattr(waiting[0][0].store, "_save_runs", None) if waiting else None
    if save_runs is not None and together:
        runs = [(queue.hold, list(of_run)) for queue, writes in together for _, of_run in groupby(writes, _run_of)]
        errors = iter(save_runs(runs))
        for queue, writes in together:
            found = [next(errors) for _ in groupby(writes, _run_of)]
            queue.end(writes, next((error for error in found if error is not None), None))
    for queue, writes in waiting:
        if save_runs is None or not all(map(_is_state, writes)):
            _save_apart(queue, writes)


def _is_state(write: _Write) -> bool:
    return isinstance(write, State)


def _run_of(write: _Write) -> str:
    return write.run_id


def _save_apart(queue: SaveQueue, writes: Sequence[_Write]) -> None:
    """Make the writes of one run, one kind after the other."""
    for (kind, run_id), some in groupby(writes, lambda write: (type(write), write.run_id)):
        group = list(some)
        try:
            with on_behalf_of(queue.hold):
                if kind is State:
                    queue.store.save_many([write for write in group if isinstance(write, State)])
                elif kind is _SaveParts:
                    parts = [part for write in group if isinstance(write, _SaveParts) for part in write.parts]
                    queue.store.save_parts(run_id, parts)
                for write in group:
                    if isinstance(write, _DropParts):
                        queue.store.drop_parts(run_id, write.step, newer_too=write.newer_too)
        except Exception as error:  # noqa: BLE001 - raised in the thread of the run
            queue.end(group, error)
            return
        queue.end(group, None)


class _Saver:
    """Has a thread save for all runs of a store that call it. The thread ends when nothing comes for a while."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._called: SimpleQueue[SaveQueue] = SimpleQueue()
        self._is_working = False

    def call(self, queue: SaveQueue) -> bool:
        """Have the saves of a run made soon; return False if no thread can make them: the process may be ending."""
        with self._lock:
            self._called.put(queue)
            if not self._is_working:
                try:
                    threading.Thread(target=self._work, name="stategraph saver", daemon=True).start()
                except RuntimeError:
                    return False
                self._is_working = True
        return True

    def _work(self) -> None:
        while True:
            try:
                queues = dict.fromkeys((self._called.get(timeout=_IDLE),))
            except Empty:
                with self._lock:
                    if self._called.empty():
                        self._is_working = False
                        return
                continue
            time.sleep(_GATHER)
            while not self._called.empty():
                queues[self._called.get()] = None
            self._save_all(list(queues))
            del queues

    def _save_all(self, queues: list[SaveQueue]) -> None:
        try:
            save_queued(queues)
        except BaseException as error:  # noqa: BLE001 - raised in the threads of the runs
            for queue in queues:
                queue.end([], error)
        for queue in queues:
            if queue.waiting():  # more has come, or the run was saving itself
                self._called.put(queue)


_savers: weakref.WeakKeyDictionary[object, _Saver] = weakref.WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=_savers.clear)  # a child has none of the threads


def _saver_of(store: object) -> _Saver:
    saver = _savers.get(store)
    return _savers.setdefault(store, _Saver()) if saver is None else saver
