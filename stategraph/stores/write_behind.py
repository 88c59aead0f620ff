"""Saving behind the run: what durability "async" does to any store."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import attrs

from stategraph._util.dropped import is_started, reaper
from stategraph._values.frozen import freeze, is_settled
from stategraph._values.provenance import Part
from stategraph.state import State
from stategraph.stores.base import CheckpointStore
from stategraph.stores.retention import Policy

QUEUE_BOUND = 1024
"""Saves that may wait to be done, and that a killed process may lose. A run that is further ahead waits."""

_GATHER = 0.002  # seconds in which States gather before they are saved together


@attrs.frozen
class _Parts:
    """Finished parts of a run, to be saved in their turn."""

    run_id: str
    parts: list[Part]


@attrs.frozen
class _Dropped:
    """Parts to be dropped in their turn."""

    run_id: str
    step: int
    newer_too: bool


_Waiting: TypeAlias = State | _Parts | _Dropped


def _weight(one: _Waiting) -> int:
    """-> how many saves it is."""
    return len(one.parts) if isinstance(one, _Parts) else 1


def _groups(waiting: Sequence[_Waiting]) -> Iterator[list[_Waiting]]:
    """-> what waits, in order, with what follows each other and can be saved together in one list."""
    group: list[_Waiting] = []
    for one in waiting:
        if group and (type(one), one.run_id) != (type(group[0]), group[0].run_id):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _copied(part: Part) -> Part:
    """-> the part, with a value that does not change whatever happens to objects in it."""
    value = freeze(part.value)
    return Part(part.step, part.node, part.label, value if is_settled(value) else copy.deepcopy(value))


class WriteBehindStore:
    """A store whose `save` returns at once, for one run: a thread saves what has gathered, in order.

    A State that could not be saved is raised by the next `save`, and by `flush`. Everything else that is asked of the
    store waits until all is saved.

    Args:
        store: Where the States go in the end.
    """

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._queue: deque[_Waiting] = deque()  # what is not saved: an interrupt that cuts off a save loses none of it
        self._queued = 0  # saves in it
        self._lock = threading.RLock()  # entered as it is: an interrupt on the way into a condition leaves it locked
        self._changed = threading.Condition(self._lock)
        self._turn = threading.Lock()  # held by who saves
        self._thread: threading.Thread | None = None  # any other one that saves is to end
        self._error: BaseException | None = None

    def save(self, state: State) -> None:
        """Take a State to be saved; wait while `QUEUE_BOUND` others are waiting."""
        try:
            state = copy.deepcopy(state)  # of objects in it that may change meanwhile; most States have none
        except Exception:  # noqa: BLE001 - what cannot be copied can hardly be kept: the store will say
            self.flush()
            self._store.save(state)
            return
        self._take(state)

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        """Take parts to be saved; wait as `save` does."""
        try:
            copies = [_copied(part) for part in parts]
        except Exception:  # noqa: BLE001 - as in `save`
            self.flush()
            self._store.save_parts(run_id, parts)
            return
        self._take(_Parts(run_id, copies))

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        """Drop them once the State that has joined them is saved."""
        self._take(_Dropped(run_id, step, newer_too))

    def _take(self, saved: _Waiting) -> None:
        with self._lock:
            while self._queued >= QUEUE_BOUND and self._error is None:
                self._changed.wait()
            self._raise_error()
            self._queue.append(saved)
            self._queued += _weight(saved)
            if self._thread is None:
                self._begin()
            elif len(self._queue) == 1:
                self._changed.notify_all()
        if self._thread is None:
            self.flush()

    def _begin(self) -> None:
        """Begin a thread. At the end of a run that was dropped, or where there can be none, as when the process is
        ending, this one saves."""
        if reaper.is_at_work:
            return
        thread = threading.Thread(target=self._work, name="stategraph saves", daemon=True)
        if is_started(thread):
            self._thread = thread

    def flush(self) -> None:
        """Wait until everything is saved, and raise what went wrong. No thread is left when this returns."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join()
        # A thread may be at it all the same: to `threading`, one that was joined when an interrupt came has ended.
        self._save_gathered()
        with self._lock:
            self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            self._queue.clear()  # what waits builds on what was not saved
            self._queued = 0
            raise error

    def _work(self) -> None:
        """Save what gathers until it is time to go."""
        me = threading.current_thread()
        reaper.waited_for.add(threading.get_ident())
        try:
            while self._has_gathered(me):
                self._save_gathered()
        except BaseException as error:  # noqa: BLE001 - raised in the thread of the run
            self._error = error
        finally:
            reaper.waited_for.discard(threading.get_ident())
            with self._lock:
                self._thread = None if self._thread is me else self._thread
                self._changed.notify_all()

    def _has_gathered(self, me: threading.Thread) -> bool:
        """Wait until there is something to be saved; return False if this thread is to end."""
        with self._lock:
            while not self._queue and self._thread is me:
                self._changed.wait()
            if not self._queue or self._error is not None:
                return False
            in_hurry = self._thread is not me
        if not in_hurry:
            time.sleep(_GATHER)
        return True

    def _save_gathered(self) -> None:
        """Save what waits, unless something before it was not saved. Threads that do this do it one after the other."""
        with self._turn:
            with self._lock:
                waiting = [] if self._error is not None else list(self._queue)
            try:
                for group in _groups(waiting):
                    self._save_group(group)
                    self._let_go(group)  # at once: what is saved is not saved again after an interrupt
            except Exception as error:  # noqa: BLE001 - raised in the thread of the run
                self._error = error
            with self._lock:
                self._changed.notify_all()

    def _let_go(self, saved: Sequence[_Waiting]) -> None:
        with self._lock:
            for one in saved:
                if self._queue and self._queue[0] is one:
                    self._queue.popleft()
                    self._queued -= _weight(one)

    def _save_group(self, group: Sequence[_Waiting]) -> None:
        states = [one for one in group if isinstance(one, State)]
        if states:
            self._store.save_many(states)
        together = [part for one in group if isinstance(one, _Parts) for part in one.parts]
        if together:
            self._store.save_parts(group[0].run_id, together)
        for one in group:
            if isinstance(one, _Dropped):
                self._store.drop_parts(one.run_id, one.step, newer_too=one.newer_too)

    # ------------------------------------------------------------------ everything else

    def amend(self, state: State) -> None:
        """As the store's own, once all is saved."""
        self.flush()
        self._store.amend(state)

    def retain(self, run_id: str, policy: Policy) -> None:
        """As the store's own."""
        self._store.retain(run_id, policy)

    def load(self, run_id: str) -> State:
        """As the store's own, once all is saved."""
        self.flush()
        return self._store.load(run_id)

    def delete(self, run_id: str) -> None:
        """As the store's own, once all is saved."""
        self.flush()
        self._store.delete(run_id)

    def _discard(self, run_id: str) -> None:
        """As the store's own, once all is saved."""
        self.flush()
        self._store._discard(run_id)

    @property
    def keeps_parts(self) -> bool:
        """As the store's own."""
        return self._store.keeps_parts

    def load_parts(self, run_id: str, step: int, node: str) -> dict[str, Any]:
        """As the store's own, once all is saved."""
        self.flush()
        return self._store.load_parts(run_id, step, node)

    def __str__(self) -> str:
        return str(self._store)
