"""Group commit: threads that write at the same time share one transaction, and its one sync.

The first to come leads: it commits what has gathered, its own write among it, while those who come meanwhile wait and
are led by the next. A caller that is alone commits at once in its own thread; a hand-over to another thread would take
as long as the sync itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import attrs

from stategraph._text.shown import describe_exception
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.stores._rows.records import WriteBatch
from stategraph.stores._rows.reentrance import Inside, used_below

MOST_TOGETHER = 256  # writes in one transaction: a reader of a network file system still sees steady progress


@attrs.define(eq=False)
class _Caller:
    """Who commits: its write, those whom it leads, and what became of the write."""

    write: WriteBatch
    woken: SimpleQueue[None] | None = (
        None  # of one who came while another was at work: an interrupt leaves no event whole
    )
    batch: Sequence[_Caller] = ()
    outcome: bool | BaseException | None = None


class SharedCommits:
    """Commits writes together.

    Args:
        apply: Writes several batches in one transaction and returns which of them were written. A CheckpointSaveError
            that it raises concerns all of them: the store is locked, full or broken. After any other error they are
            written one by one, so that only the culprit fails.
        is_inside: Whether the calling thread is where it cannot apply anything, further down its stack.
    """

    def __init__(
        self, apply: Callable[[Sequence[WriteBatch]], Sequence[bool]], is_inside: Callable[[], bool] = bool
    ) -> None:
        self._apply, self._is_inside = apply, is_inside
        self._committing = Inside()
        self._lock = threading.Lock()
        self._queue: list[_Caller] = []  # those who wait, and are not told yet
        self._leader: _Caller | None = None  # there is one as long as anybody waits

    def commit(self, write: WriteBatch) -> bool:
        """Write a batch; return whether it was written. When this returns it is durable.

        Raises whatever `apply` raises; then it is not known to be written. A thread that commits already, further down
        its stack, would wait for itself, be it as the leader or as one who comes after it.
        """
        committing = self._committing.lock or self._committing.made_lock()
        if committing._is_owned() or self._is_inside():  # type: ignore[attr-defined]  # as threading.Condition asks
            raise used_below("store", kind=CheckpointSaveError)
        with committing:
            return self._commit(write)

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
                    return self._apply((write,))[0]
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
    store has no place for."""
    return isinstance(error, CheckpointSaveError) and not isinstance(error.__cause__, OverflowError | ValueError)


def _copy(error: Exception) -> Exception:
    """Return a copy of the error of a shared commit for one of its callers: an exception belongs to one thread."""
    reason = error.reason if isinstance(error, CheckpointError) else describe_exception(error)
    copy = CheckpointSaveError("", reason)  # of which run, the caller knows
    copy.__cause__ = error
    return copy
