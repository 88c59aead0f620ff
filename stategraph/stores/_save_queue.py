"""SaveQueue: with durability "async", a run continues while another thread saves its States."""

from __future__ import annotations

import copy
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import attrs

from stategraph._owners.base import Ownership, current, on_behalf_of
from stategraph._util.callables import start
from stategraph._values.entries import Entry
from stategraph._values.frozen import are_settled, freeze, is_settled
from stategraph._values.progress import Part
from stategraph.state import State, data_of
from stategraph.stores.base import CheckpointStore

QUEUE_BOUND = 1024
"""The most queued saves, which a killed process may lose. A run that is further ahead waits."""

_GATHER = 0.002  # seconds that a save waits for saves of other runs
_IDLE = 1.0  # seconds without work after which the thread of a store ends


class _Write(NamedTuple):
    """A queued State, part of a step, entry, or call of `drop_parts`.

    Attributes:
        method: The method of the store to call, once for consecutive writes of the same run.
        run_id: The run.
        value: The State, the part, the entry, or the step and whether to drop newer parts too.
    """

    method: str
    run_id: str
    value: Any


def _copy_of(part: Part) -> Part:
    """Return the part with a copy of its value that later changes do not affect."""
    value = freeze(part.value)
    return attrs.evolve(part, value=value if is_settled(value) else copy.deepcopy(value))


class SaveQueue:
    """The saves of one run, which return at once. A thread makes them in order, and for several runs at a time.

    The next save, or `flush`, raises the error of an earlier one.

    Args:
        store: The store.
        gather: Seconds that a write waits for others.
    """

    def __init__(self, store: CheckpointStore, gather: float = _GATHER) -> None:
        self.store, self.gather = store, gather
        self.ownership: Ownership | None = None
        self.saving = threading.Lock()  # held by the thread that saves
        self._lock = threading.Lock()  # several threads may save parts of a step
        self._writes: list[_Write] = []
        self._error: BaseException | None = None

    def has_room_for(self, state: State) -> bool:
        """Return whether `save` would only queue the State, without waiting or calling methods of its values."""
        is_free = len(self._writes) < QUEUE_BOUND and self._error is None
        return is_free and are_settled(data_of(state).values())

    def save(self, states: Sequence[State]) -> None:
        """Queue States; wait while `QUEUE_BOUND` saves are queued."""
        self._queue_copies("save_many", states[0].run_id, states, copy.deepcopy)

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        """Queue finished parts; wait as `save` does."""
        self._queue_copies("save_parts", run_id, parts, _copy_of)

    def append(self, run_id: str, entries: Sequence[Entry]) -> None:
        """Queue entries of a journal; wait as `save` does."""
        self._queue([_Write("append", run_id, entry) for entry in entries])

    def _queue_copies(self, method: str, run_id: str, values: Sequence[Any], copy_of: Callable[[Any], Any]) -> None:
        """Queue copies of values: objects in them may change before they are saved; most have none."""
        try:
            writes = [_Write(method, run_id, copy_of(value)) for value in values]
        except Exception:  # noqa: BLE001 - a value that cannot be copied can hardly be kept: the store raises why
            self.flush()
            self.call_store(method, run_id, values)
        else:
            self._queue(writes)

    def call_store(self, method: str, run_id: str, values: Sequence[Any]) -> None:
        """Make writes with these values."""
        if method == "save_many":
            self.store.save_many(values)
        elif method == "save_parts":
            self.store.save_parts(run_id, values)
        elif method == "append":
            self.store.append(run_id, values)
        else:
            for step, newer_too in values:
                self.store.drop_parts(run_id, step, newer_too=newer_too)

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool) -> None:
        """Queue a call of `drop_parts`, to run after the State that has joined the parts is saved."""
        self._queue([_Write("drop_parts", run_id, (step, newer_too))])

    def _queue(self, writes: Sequence[_Write]) -> None:
        self.ownership = current.ownership
        while len(self._writes) >= QUEUE_BOUND and self._error is None:
            self._save_here()
        if self._error is not None:
            self._raise_error()
        with self._lock:
            was_empty = not self._writes
            self._writes += writes
        if was_empty and not _saver_of(self.store).call(self):
            self.flush()

    def flush(self) -> None:
        """Save everything in the queue, in this thread, and raise the first error."""
        self._save_here()
        self._raise_error()

    def _save_here(self) -> None:
        """Save everything in the queue, in this thread. The `with` releases the lock even after Ctrl-C."""
        with self.saving:
            _save_begun([self])

    def _raise_error(self) -> None:
        with self._lock:
            error, self._error = self._error, None
            if error is not None:
                self._writes.clear()  # later writes build on the one that failed
        if error is not None:
            raise error

    @staticmethod
    def save_all(queues: Collection[SaveQueue]) -> None:
        """Save the queues of some runs of a store, in one transaction if the store can. The next save or flush of a run
        raises its error."""
        begun = [queue for queue in queues if queue.saving.acquire(blocking=len(queues) == 1)]
        try:
            _save_begun(begun)
        finally:
            for queue in begun:
                queue.saving.release()

    # ------------------------------------------------------------------ in the thread that saves

    def next_writes(self) -> list[_Write]:
        """Return the writes for the next call of the store."""
        with self._lock:  # not while `_raise_error` discards the writes after a failed one
            if self._error is not None or not self._writes:
                return []
            first = self._writes[0]
            return [*takewhile(lambda write: write[:2] == first[:2], self._writes)]

    def end(self, writes: Sequence[_Write], error: BaseException | None) -> None:
        """Remove writes that were made, or keep their error."""
        with self._lock:
            self._error = error
            if error is None:
                del self._writes[: len(writes)]


def _save_begun(queues: Sequence[SaveQueue]) -> None:
    """Save the queues of some runs, whose locks this thread has."""
    while writes := [(queue, some) for queue in queues if (some := queue.next_writes())]:
        _make(writes)


def _make(writes: Sequence[tuple[SaveQueue, Sequence[_Write]]]) -> None:
    """Make writes of several runs: States in one call, parts run by run."""
    states = [(queue, some) for queue, some in writes if some[0].method == "save_many"]
    if states:
        saves = [(queue.ownership, [write.value for write in some]) for queue, some in states]
        errors = states[0][0].store._save_runs(saves)
        for (queue, some), error in zip(states, errors, strict=True):
            queue.end(some, error)
    for queue, some in writes:
        if some[0].method != "save_many":
            queue.end(some, _error_of(queue, some))


def _error_of(queue: SaveQueue, writes: Sequence[_Write]) -> Exception | None:
    """Save or delete parts of a run; return the error."""
    method, run_id, _ = writes[0]
    try:
        with on_behalf_of(queue.ownership):
            queue.call_store(method, run_id, [write.value for write in writes])
    except Exception as error:  # noqa: BLE001 - raised in the thread of the run
        return error
    return None


class _Saver:
    """Saves for all runs of a store in one thread, which ends after a while without work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._called: SimpleQueue[SaveQueue] = SimpleQueue()
        self._is_working = False

    def call(self, queue: SaveQueue) -> bool:
        """Schedule the saves of a run; return False if no thread can start, because the process may be ending."""
        with self._lock:
            self._called.put(queue)
            if not self._is_working:
                self._is_working = start(threading.Thread(target=self._work, name="stategraph saver", daemon=True))
            return self._is_working

    def _work(self) -> None:
        while True:
            try:
                queues = {self._called.get(timeout=_IDLE)}
            except Empty:
                with self._lock:
                    if self._called.empty():
                        self._is_working = False
                        return
                continue
            time.sleep(max(queue.gather for queue in queues))
            while not self._called.empty():
                queues.add(self._called.get())
            self._save_all(queues)
            del queues

    def _save_all(self, queues: Collection[SaveQueue]) -> None:
        try:
            SaveQueue.save_all(queues)
        except BaseException as error:  # noqa: BLE001 - raised in the threads of the runs
            for queue in queues:
                queue.end([], error)
        for queue in queues:
            if queue.next_writes():  # a flush of the run held `saving`, so its queue was skipped: try again
                self._called.put(queue)


_savers: weakref.WeakKeyDictionary[object, _Saver] = weakref.WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=_savers.clear)  # a child has none of the threads


def _saver_of(store: object) -> _Saver:
    saver = _savers.get(store)
    return _savers.setdefault(store, _Saver()) if saver is None else saver
