"""Threads that use a store at the same time: which of them has the connection, and who writes for whom.

A thread may also come again while it is inside of a store, further down its stack: a finaliser, a signal handler, or
what a value does when it is looked at, may call the store from within. It cannot wait there for itself, nor make a
transaction within another one, nor see what is not committed: it is refused at once.

Group commit: threads that write at the same time share one transaction, and its one sync. The first to come leads: it
commits what has gathered, its own write among it, while those who come meanwhile wait and are led by the next. A caller
that is alone commits at once in its own thread; a hand-over to another thread would take as long as the sync itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from queue import SimpleQueue
from typing import TYPE_CHECKING

import attrs

from stategraph._text.shown import describe_exception
from stategraph._util.dropped import reaper
from stategraph.errors import CheckpointError, CheckpointSaveError

if TYPE_CHECKING:
    from stategraph.stores._rows.records import WriteBatch


class Access:
    """Access to a connection. One thread at a time has it; a reader may come within a reader of the same thread.

    Attributes:
        guard: Held by the thread that has it.
        is_held_here: Whether that is this thread, further down its stack.
        transaction: Held by that thread while a transaction is open.
    """

    def __init__(self) -> None:
        self.guard, self.transaction = reaper.known_lock(), threading.Lock()
        self.is_held_here: Callable[[], bool] = self.guard._is_owned  # type: ignore[attr-defined]

    def to_read(self, store: object, run_id: str = "") -> AbstractContextManager[bool]:
        """Return the guard for a reader, who sees all that was dropped before. Raises if this thread is writing."""
        if self.is_held_here() and self.transaction.locked():
            raise used_below(store, run_id)
        reaper.settle(store)
        return self.guard

    def to_write(
        self, store: object, run_id: str = "", kind: type[CheckpointError] = CheckpointError
    ) -> AbstractContextManager[bool]:
        """Return the guard for a writer. Raises `kind` if this thread is reading or writing."""
        if self.is_held_here():
            raise used_below(store, run_id, kind)
        return self.guard

    def to_change(self, store: object) -> AbstractContextManager[bool]:
        """As `to_write`, for whoever removes or closes what was dropped before: once that is saved."""
        guard = self.to_write(store)
        reaper.settle(store)
        return guard


def used_below(store: object, run_id: str = "", kind: type[CheckpointError] = CheckpointError) -> CheckpointError:
    """Return the error for a call from within."""
    reason = (
        f"the {store} is being used by this thread further down its stack: a finaliser, a signal handler or a value "
        "has called it from within, where it would wait for itself; call it from another thread, or later"
    )
    return kind(run_id, reason)


# --------------------------------------------------------------------------- group commit

MOST_TOGETHER = 256  # writes in one transaction: a reader of a network file system still sees steady progress


class Inside(threading.local):
    """Whether a thread is inside of something: then it holds the lock, which an interrupt does not leave behind.

    Attributes:
        lock: That of this thread, if it was made yet.
    """

    lock: threading.RLock | None = None

    def made_lock(self) -> threading.RLock:
        """Make the lock of this thread. `__init__` does not: it is called once, and an interrupt may come there."""
        self.lock = reaper.known_lock()
        return self.lock


@attrs.define(eq=False)
class _Caller:
    """Who commits: its write, those whom it leads, and what became of the write."""

    write: WriteBatch
    woken: SimpleQueue[None] | None = (
        None  # of one who came while another was at work: an interrupt leaves no event whole
    )
    batch: Sequence[_Caller] = ()
    outcome: bool | BaseException | None = None


class StalledError(CheckpointSaveError):
    """Somebody else keeps one of several writes from being made: none is, and each goes on alone, in its own thread.

    Args:
        reason: What is in the way.
        alone: Makes one of them, and waits for that as long as it may.
    """

    def __init__(self, reason: str, alone: Callable[[WriteBatch], bool]) -> None:
        super().__init__("", reason)
        self.alone = alone


class SharedCommits:
    """Commits writes together.

    Args:
        apply: Writes several batches and returns which of them were written, or why that is not known of one among
            others. A CheckpointSaveError that it raises concerns all of them: the store is locked, full or broken.
            After any other error they are written one by one, so that only the culprit fails.
        is_inside: Whether the calling thread is where it cannot apply anything, further down its stack.
        committing: Which threads commit already, here or in what shares this.
    """

    def __init__(
        self,
        apply: Callable[[Sequence[WriteBatch]], Sequence[bool | BaseException]],
        is_inside: Callable[[], bool] = bool,
        committing: Inside | None = None,
    ) -> None:
        self._apply, self._is_inside = apply, is_inside
        self._committing = committing or Inside()
        self._lock = threading.Lock()
        self._queue: list[_Caller] = []  # those who wait, and are not told yet
        self._leader: _Caller | None = None  # there is one as long as anybody waits

    @property
    def waiting(self) -> int:
        """How many wait for a commit that is under way; -1 if there is none."""
        return -1 if self._leader is None else len(self._queue)

    def commit(self, write: WriteBatch) -> bool:
        """Write a batch; return whether it was written. When this returns it is durable.

        Raises whatever `apply` raises; then it is not known to be written. A thread that commits already, further down
        its stack, would wait for itself, be it as the leader or as one who comes after it.
        """
        committing = self._committing.lock or self._committing.made_lock()
        if committing._is_owned() or self._is_inside():  # type: ignore[attr-defined]  # as threading.Condition asks
            raise used_below("store", kind=CheckpointSaveError)
        with committing:
            try:
                return self._commit(write)
            except StalledError as stalled:
                return stalled.alone(write)

    def commit_all(self, writes: Sequence[WriteBatch]) -> list[bool | BaseException]:
        """Write batches; return for each of them whether it was written, or why that is not known."""
        committing = self._committing.lock or self._committing.made_lock()
        if committing._is_owned() or self._is_inside():  # type: ignore[attr-defined]
            raise used_below("store", kind=CheckpointSaveError)
        with committing:
            some = (writes[first : first + MOST_TOGETHER] for first in range(0, len(writes), MOST_TOGETHER))
            return [outcome for batches in some for outcome in self._outcomes(batches)]

    def _commit(self, write: WriteBatch) -> bool:
        caller = _Caller(write)
        try:
            try:
                with self._lock:
                    if self._leader is None:
                        self._leader = caller
                    else:
                        caller.woken = SimpleQueue()
                        self._queue.append(caller)
                if caller.woken is None:
                    return self._apply((write,))[0] is True
                caller.woken.get()
                if self._leader is caller:
                    self._lead(caller)
            finally:
                if caller.outcome is None or self._leader is caller:
                    self._leave(caller)
        except BaseException:  # an interrupt may come even while it leaves, and nobody may wait for one who is gone
            self._leave(caller)
            raise
        if isinstance(caller.outcome, BaseException):
            raise caller.outcome
        return bool(caller.outcome)

    def _lead(self, caller: _Caller) -> None:
        """Commit what has gathered. Its callers are told when the leader leaves, however it comes to that."""
        with self._lock:
            caller.batch = self._queue[:MOST_TOGETHER]
        outcomes = self._outcomes([one.write for one in caller.batch])
        for one, outcome in zip(caller.batch, outcomes, strict=True):
            one.outcome = outcome

    def _outcomes(self, writes: Sequence[WriteBatch]) -> Sequence[bool | BaseException]:
        """Write batches; return for each of them whether it was written, or why that is not known."""
        try:
            return self._apply(writes)
        except Exception as error:  # noqa: BLE001 - each caller raises it
            if len(writes) == 1:
                return [error]
            if isinstance(error, StalledError):
                return [StalledError(error.reason, error.alone) for _ in writes]
            if _is_about_all(error):
                return [_copy(error) for _ in writes]
            return [outcome for write in writes for outcome in self._outcomes([write])]

    def _leave(self, caller: _Caller) -> None:
        """Tell those whom it led, and lead no longer: the first of those does who are not told, and wait.

        What an interrupt has cut off is made by that one, whoever was to lead it before. A write that was made all the
        same is not made again, as its run has another version by then. Called again after an interrupt, this ends what
        it has begun: every part of it may be done twice.
        """
        with self._lock:
            if self._queue:
                if caller.outcome is None:
                    caller.outcome = False  # it is gone, and nobody has begun with its write
                self._queue = [one for one in self._queue if one.outcome is None]
            if self._leader is caller:
                self._leader = self._queue[0] if self._queue else None
            leader = self._leader
        told = [one for one in caller.batch if one.outcome is not None] if caller.batch else ()
        for one in told if leader is None else (leader, *told):
            if one.woken is not None:
                one.woken.put(None)


def _is_about_all(error: Exception) -> bool:
    """Whether it is the store that failed, and not one of the writes that could not be made: such as a number that the
    store has no place for, or a value that is too large for it."""
    cause = error.__cause__
    is_of_one = isinstance(cause, OverflowError | ValueError) or _DATA_ERROR in map(_name_of, type(cause).__mro__)
    return isinstance(error, CheckpointSaveError) and not is_of_one


_DATA_ERROR = "DataError"  # as Python's database API (PEP 249) calls what is wrong with the data alone, in all drivers
_name_of = attrgetter("__name__")


def _copy(error: Exception) -> Exception:
    """Return a copy of the error of a shared commit for one of its callers: an exception belongs to one thread."""
    reason = error.reason if isinstance(error, CheckpointError) else describe_exception(error)
    copy = CheckpointSaveError("", reason)  # of which run, the caller knows
    copy.__cause__ = error
    return copy
