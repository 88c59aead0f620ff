"""Holds: who owns which run of a store, within this process.

One call at a time works on a run. It owns the run, and all that is nested in it, from before it first asks the store
until it has returned. What it writes carries its hold, and a store refuses what carries one that is lost.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, cast

from stategraph._values import clock
from stategraph._values.ids import given_id
from stategraph._values.provenance import Owner
from stategraph.errors import RunBusyError, RunLostError

_MANY_CANCELLED = 1000  # of these, it is looked up which runs are still there
_LOOK_AGAIN = 0.0005  # seconds after which a write by hand is looked at again
LONGEST_WRITE = 5.0
"""Seconds that a write by hand may take."""


class Hold:
    """What a call has of a run that it owns.

    Args:
        run_id: The run, the outermost one.
        is_brief: Whether it is for a single write: whoever comes meanwhile waits for its end.
        is_by_hand: Whether that is a write to the store, and none of a run.

    Attributes:
        store: The store that has given it out.
        since_ns: When; nanoseconds since 1970, UTC.
        fence: How often the run had been taken from its owners by then, where the store counts that.
        byte: What is locked for it in a file, where processes share the store; 0 before anything is.
        is_settled: Whether all is done that makes it the hold on the run.
        is_lost: Whether the run is not its owner's any more: somebody else has taken it, or the owner has let go of it.
        is_cancelled: Whether somebody has cancelled the run, and nobody has taken it up since.
        is_abandoned: Whether a finaliser releases it, which does no I/O.
        holds: What it is released from.
        call: Returns the call that has the run, if it is there; its ``under_way()`` says at which node, and since when.
        tell: Tells whoever listens to the run that it may be lost soon, if anybody does.
        lock: Held while a store that cannot look at the hold itself is written to.
    """

    __slots__ = (
        *("byte", "fence", "holds", "is_abandoned", "is_brief", "is_by_hand", "is_cancelled", "is_lost", "is_settled"),
        *("call", "lock", "run_id", "since_ns", "store", "tell"),
    )

    def __init__(self, run_id: str, *, is_brief: bool = False, is_by_hand: bool = False) -> None:
        self.run_id, self.is_brief, self.is_by_hand = run_id, is_brief, is_by_hand
        self.since_ns = clock.now_ns()
        self.store: object = None
        self.holds: Holds | None = None
        self.fence = self.byte = 0
        self.is_lost = self.is_settled = self.is_cancelled = self.is_abandoned = False
        self.lock: threading.RLock | None = None
        self.tell: Callable[[dict[str, object]], None] | None = None
        self.call: Callable[[], Any] | None = None

    def check(self) -> None:
        """Raise RunLostError if the run was taken away."""
        if self.is_lost:
            raise lost(self.run_id)

    @property
    def owner(self) -> Owner:
        """Who has it: a thread of this process."""
        call = self.call and self.call()
        node = call.under_way() if call else ()
        return Owner(host_name(), os.getpid(), clock.to_datetime(self.since_ns), None, *node)


class _Acting(threading.local):
    """On whose behalf this thread writes to a store.

    Attributes:
        hold: That of the owner; None if it is nobody who owns the run.
    """

    hold: Hold | None = None


acting = _Acting()


class Holds:
    """The runs of one store that are owned in this process."""

    def __init__(self) -> None:
        self._by_run: dict[str, Hold] = {}
        self._cancelled: dict[str, str | None] = {}
        self._most_cancelled = _MANY_CANCELLED
        self.renew()
        _all.add(self)

    def renew(self) -> None:
        """Own nothing, in a forked child: its parent does."""
        self._lock = threading.RLock()  # an abandoned stream may release its run while it is held
        held = list(self._by_run.values())
        self._by_run.clear()
        for hold in held:
            hold.is_lost = True

    def get(self, run_id: str) -> Hold | None:
        """Return the hold on a run, if somebody owns it."""
        return self._by_run.get(run_id)

    def take(self, hold: Hold, *, take_over: bool) -> Hold | None:
        """Make this the hold on its run; return the one that has lost it.

        Raises:
            RunBusyError: somebody else owns it, and it is not to be taken over.
            RunLostError: whoever wanted it is gone.
        """
        with self._lock:
            other = self._by_run.get(hold.run_id)
            if other is not None and not take_over:
                raise busy(hold.run_id, other.owner, LONGEST_WRITE if other.is_brief else 0.0)
            hold.holds = self  # first: whoever lets go now waits for the lock, or was seen by the next line
            hold.check()
            if other is not None:
                other.is_lost = True
            self._by_run[hold.run_id] = hold
            hold.is_cancelled = hold.run_id in self._cancelled
        if other is not None and other.lock is not None:
            with other.lock:  # what its owner is writing is written, or refused, before anybody else goes on
                pass
        return other

    def cancel(self, run_id: str, by: str | None, kept: Callable[[], Iterable[str]]) -> None:
        """Tell whoever owns a run, or does so next, that it is cancelled.

        Args:
            run_id: The run.
            by: Who cancels it, if that is said.
            kept: Returns the ids of all runs that the store has. That a run was cancelled is forgotten with the run.
        """
        if len(self._cancelled) >= self._most_cancelled:
            self._forget_gone(kept)
        with self._lock:
            self._cancelled.setdefault(run_id, by)
            hold = self._by_run.get(run_id)
            if hold is not None:
                hold.is_cancelled = True

    def _forget_gone(self, kept: Callable[[], Iterable[str]]) -> None:
        """Forget which runs were cancelled, of those that nobody owns and that are not there any more."""
        with self._lock:
            gone = self._cancelled.keys() - self._by_run.keys()
        gone.difference_update(kept())
        with self._lock:
            self._cancelled = {run_id: by for run_id, by in list(self._cancelled.items()) if run_id not in gone}
            self._most_cancelled = max(_MANY_CANCELLED, 2 * len(self._cancelled))

    def cancelled_by(self, run_id: str) -> str | None:
        """Return who has cancelled a run, if that was said."""
        return self._cancelled.get(run_id)

    def take_up(self, hold: Hold) -> None:
        """Forget that a run was cancelled, for its owner goes on with it."""
        with self._lock:
            self._cancelled.pop(hold.run_id, None)
            hold.is_cancelled = False

    def jotting(self, hold: Hold) -> Callable[[int, bytes], None] | None:
        """Return a function that notes for other processes which node is under way; None if they do not look."""
        return None

    def release(self, hold: Hold) -> None:
        """Forget a hold, if it is the one on its run."""
        with self._lock:
            if self._by_run.get(hold.run_id) is hold:
                del self._by_run[hold.run_id]


_all: weakref.WeakSet[Holds] = weakref.WeakSet()


def _renew_all() -> None:
    this_process.cache_clear()
    for holds in list(_all):
        holds.renew()


if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=_renew_all)


def is_acting(store: object, run_id: str) -> bool:
    """Return whether this thread writes to a run, or to what is nested in it, on behalf of its owner."""
    hold = acting.hold
    return hold is not None and hold.store is store and hold.run_id == given_id(run_id)


class Owning(Protocol):
    """A store, as whoever owns runs of it sees it."""

    def _own(self, hold: Hold, /, *, take_over: bool) -> None: ...


@contextmanager
def held(store: Owning, run_id: str, *, take_over: bool = False) -> Iterator[Hold]:
    """Own a run for a single write by hand, unless this thread writes on behalf of its owner already."""
    if is_acting(store, run_id):
        yield cast(Hold, acting.hold)
        return
    hold = Hold(given_id(run_id), is_brief=True, is_by_hand=True)
    try:
        own(store, hold, take_over=take_over)
        with on_behalf_of(hold):
            yield hold
    finally:
        let_go(hold)


def own(store: Owning, hold: Hold, *, take_over: bool = False) -> None:
    """Become the owner of a run, which the last takes away from whoever has it. A write by hand is waited for.

    Raises:
        RunBusyError: somebody else owns it, and it is not to be taken over.
    """
    began = time.monotonic()
    while True:
        try:
            store._own(hold, take_over=take_over)
        except _BrieflyBusyError as error:
            if time.monotonic() - began >= error.longest:
                raise RunBusyError(error.run_id, error.owner) from None
            time.sleep(_LOOK_AGAIN)
        else:
            return


class _BrieflyBusyError(RunBusyError):
    """Somebody writes to the run by hand, or may do so; `longest` says for how many seconds that may last."""

    longest = LONGEST_WRITE


def busy(run_id: str, owner: Owner, longest: float) -> RunBusyError:
    """Return the error for a run that somebody owns, for so many seconds at most; 0 if nobody knows."""
    if not longest:
        return RunBusyError(run_id, owner)
    error = _BrieflyBusyError(run_id, owner)
    error.longest = longest
    return error


def let_go(hold: Hold) -> None:
    """Let go of a run, for good: who still tries to own it on behalf of this hold, or to write, is refused."""
    hold.is_lost = True
    if hold.holds is not None:
        hold.holds.release(hold)
        hold.holds = None


@contextmanager
def on_behalf_of(hold: Hold | None) -> Iterator[None]:
    """Write to stores on behalf of the owner of a run, in this thread."""
    before, acting.hold = acting.hold, hold
    try:
        yield
    finally:
        acting.hold = before


def lost(run_id: str) -> RunLostError:
    """Return the error for an owner who is none any more."""
    reason = (
        "it was taken over, rolled back, deleted or begun anew by others while this call was at work on it, and "
        "nothing more of this call is saved; load the run to see how it stands"
    )
    return RunLostError(run_id, reason)


@cache
def this_process() -> str:
    """Return the name of this process, as "host:pid"."""
    return f"{host_name()}:{os.getpid()}"


@cache
def host_name() -> str:
    """Return the name of this machine."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket  # imported when used: it takes 5 ms

    return socket.gethostname()
