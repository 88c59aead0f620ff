"""The owners of runs in this process.

One call at a time works on a run. It owns the run, and all nested runs, from before it first asks the store until it
returns. Each of its writes carries its hold, and a store refuses a write whose hold is lost.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, wraps
from typing import Any, Protocol, TypeAlias, cast

import attrs

from stategraph._values import clock
from stategraph._values.ids import given_id
from stategraph._values.provenance import Owner
from stategraph.errors import RunBusyError, RunLostError

_MOST_CANCELLED = 100_000  # runs that were cancelled and not taken up since, of which many may be gone
_LOOK_AGAIN = 0.0005  # seconds after which a write by hand is looked at again
LONGEST_WRITE = 5.0
"""Seconds that a write by hand may take."""

Fence: TypeAlias = tuple[int, bool]
"""What changes whenever a run is taken from its owner, and whether the run was cancelled and not taken up since."""


@attrs.define(eq=False)
class Hold:
    """The ownership of a run by a call.

    Args:
        run_id: The run, the outermost one.
        is_brief: Whether it is for a single write, which other callers wait for.
        is_by_hand: Whether that is a direct write to the store, outside of a run.

    Attributes:
        store: The store of the run.
        since_ns: When it began; nanoseconds since 1970, UTC.
        fence: The fence of the run, where the store has one.
        byte: The byte that is locked for it in a file; 0 if there is none.
        is_settled: Whether its fence is that of the run, as far as this process knows.
        is_lost: Whether another call has taken the run, or the owner has released it.
        is_cancelled: Whether the run was cancelled, and not continued since.
        is_abandoned: Whether a finaliser releases it, which does no I/O.
        owners: What releases it.
        call: Returns the call, if it exists; its ``under_way()`` returns the node at work, and since when.
        tell: Tells an observer of the run that it may be lost soon, if there is one.
        lock: Serializes writes to a store that does not compare holds itself.
    """

    run_id: str
    is_brief: bool = False
    is_by_hand: bool = False
    since_ns: int = attrs.field(init=False)
    store: object = None
    fence: int = 0
    byte: int = 0
    is_settled: bool = False
    is_lost: bool = False
    is_cancelled: bool = False
    is_abandoned: bool = False
    owners: Owners | None = None
    call: Callable[[], Any] | None = None
    tell: Callable[[dict[str, object]], None] | None = None
    lock: threading.RLock | None = None

    @since_ns.default
    def _now(self) -> int:
        return clock.now_ns()

    def check(self) -> None:
        """Raise RunLostError if the run was taken away."""
        if self.is_lost:
            raise lost(self.run_id)

    @property
    def owner(self) -> Owner:
        """The owner as other callers see it."""
        call = self.call and self.call()
        node = call.under_way() if call else ()
        return Owner(host_name(), os.getpid(), clock.to_datetime(self.since_ns), None, *node)


class _Acting(threading.local):
    """The hold on whose behalf this thread writes to a store; None outside of a run."""

    hold: Hold | None = None


acting = _Acting()


class Owners:
    """The owners of the runs of one store in this process. Stores of one process need no more."""

    def __init__(self) -> None:
        self._by_run: dict[str, Hold] = {}
        self._cancelled: dict[str, str | None] = {}
        self._lock = threading.RLock()  # reentrant: a finaliser may release a run while it is acquired
        _all.add(self)

    def own_nothing(self) -> None:
        """Own nothing in a forked child: the runs are the parent's."""
        self._lock = threading.RLock()
        for hold in self._by_run.values():
            hold.is_lost = True
        self._by_run.clear()

    # ------------------------------------------------------------------ owning

    def get(self, run_id: str) -> Hold | None:
        """Return the hold on a run, if a call of this process owns it."""
        return self._by_run.get(run_id)

    def own(self, hold: Hold, table: Any, *, take_over: bool) -> None:
        """Make this the hold on its run, here and for other processes.

        Raises:
            RunBusyError: another call owns it, and it is not to be taken over.
            CheckpointError: the owner cannot be found out.
        """
        self.drop_lost(hold.run_id, table)
        loser = self.take(hold, take_over=take_over)
        try:
            self._prove(hold, loser, table, take_over=take_over)
            hold.is_settled = True
        except BaseException:
            self.release(hold)
            raise

    def _prove(self, hold: Hold, loser: Hold | None, table: Any, *, take_over: bool) -> None:
        """Acquire the proof, for other processes, that the owner is alive: a lock or a lease."""

    def take(self, hold: Hold, *, take_over: bool) -> Hold | None:
        """Make this the hold on its run in this process; return the one that has lost it.

        Raises:
            RunBusyError: another call owns it, and it is not to be taken over.
            RunLostError: the owner has released the run already.
        """
        with self._lock:
            other = self._by_run.get(hold.run_id)
            if other is not None and not take_over:
                raise busy(hold.run_id, other.owner, LONGEST_WRITE if other.is_brief else 0.0)
            hold.owners = self  # first: a release from now on waits for the lock, or the next line sees it
            hold.check()
            if other is not None:
                other.is_lost = True
            self._by_run[hold.run_id] = hold
            hold.is_cancelled = hold.run_id in self._cancelled
        if other is not None and other.lock is not None:
            with other.lock:  # a write of the former owner ends, or is refused, before the new one goes on
                pass
        return other

    def release(self, hold: Hold) -> None:
        """Forget a hold, if it is the one on its run."""
        with self._lock:
            if self._by_run.get(hold.run_id) is hold:
                del self._by_run[hold.run_id]

    def drop_lost(self, run_id: str, table: Any) -> None:
        """Forget the hold on a run that another process has taken over."""
        other = self._by_run.get(run_id)
        if other is not None and other.is_settled and table.fence(run_id)[0] != other.fence:
            other.is_lost = True
            self.release(other)

    def settle(self, hold: Hold) -> bool:
        """Acquire the lease that a direct write has gone without; return whether there was anything to do."""
        return False

    def owner(self, run_id: str, table: Any) -> Owner | None:
        """Return who owns a run, here or elsewhere."""
        hold = self.get(run_id)
        return None if hold is None else hold.owner

    def owned_ids(self, table: Any) -> Collection[str] | None:
        """Return the ids of all runs that have an owner; None where each run has to be looked at."""
        return None

    def orphans(self, graph: str) -> Iterator[Hold] | None:
        """Own unfinished runs of a graph, one after the other; None where each has to be tried."""
        return None

    def jotting(self, hold: Hold) -> Callable[[int, bytes], None] | None:
        """Return a function that notes for other processes which node is under way; None if they do not look."""
        return None

    def leave(self) -> None:
        """Release all runs of this process: the store is closed."""

    # ------------------------------------------------------------------ cancelling, where the store does not keep that

    def cancel(self, run_id: str, by: str | None) -> None:
        """Cancel a run for its owner or, without one, for the next; `by` says who cancels it."""
        with self._lock:
            self._cancelled.setdefault(run_id, by)
            if (hold := self._by_run.get(run_id)) is not None:
                hold.is_cancelled = True
            while len(self._cancelled) > _MOST_CANCELLED:
                del self._cancelled[next(iter(self._cancelled))]

    def cancelled_by(self, run_id: str) -> str | None:
        """Return who has cancelled a run, if that is known."""
        return self._cancelled.get(run_id)

    def take_up(self, hold: Hold) -> None:
        """Forget that a run was cancelled: its owner continues it."""
        with self._lock:
            self._cancelled.pop(hold.run_id, None)
            hold.is_cancelled = False


_all: weakref.WeakSet[Owners] = weakref.WeakSet()


def _after_in_child() -> None:
    this_process.cache_clear()
    for owners in list(_all):
        owners.own_nothing()


def _at_exit() -> None:
    for owners in list(_all):
        owners.leave()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=_after_in_child)


# --------------------------------------------------------------------------- owning runs of a store


class Owning(Protocol):
    """A store whose runs can be owned."""

    def _own(self, hold: Hold, /, *, take_over: bool) -> None: ...


def own(store: Owning, hold: Hold, *, take_over: bool = False) -> None:
    """Become the owner of a run, after a direct write that is under way, or at once with `take_over`.

    Raises:
        RunBusyError: another call owns it, and it is not to be taken over.
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
    """A direct write to the run is, or may be, under way. It takes up to `longest` seconds."""

    longest = LONGEST_WRITE


def busy(run_id: str, owner: Owner, longest: float) -> RunBusyError:
    """Return the error for a run that has an owner, for `longest` seconds at most; 0 if that is not known."""
    if not longest:
        return RunBusyError(run_id, owner)
    error = _BrieflyBusyError(run_id, owner)
    error.longest = longest
    return error


def let_go(hold: Hold) -> None:
    """Release a run for good: later attempts to own it, or to write, with this hold are refused."""
    hold.is_lost = True
    if hold.owners is not None:
        hold.owners.release(hold)
        hold.owners = None


@contextmanager
def held(store: Owning, run_id: str, *, take_over: bool = False) -> Iterator[Hold]:
    """Own a run for a direct write, unless this thread writes on behalf of its owner already."""
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


@contextmanager
def held_if_free(store: Owning, run_ids: Sequence[str]) -> Iterator[Mapping[str, Hold]]:
    """Own the runs that have no owner, for a direct write; return their holds by run id."""
    holds: dict[str, Hold] = {}
    with ExitStack() as stack:
        for run_id in run_ids:
            hold = Hold(run_id, is_brief=True, is_by_hand=True)
            stack.callback(let_go, hold)
            try:
                store._own(hold, take_over=False)
            except RunBusyError:
                continue
            holds[run_id] = hold
        yield holds


def is_acting(store: object, run_id: str) -> bool:
    """Return whether this thread writes to a run, or to what is nested in it, on behalf of its owner."""
    hold = acting.hold
    return hold is not None and hold.store is store and hold.run_id == given_id(run_id)


@contextmanager
def on_behalf_of(hold: Hold | None) -> Iterator[None]:
    """Write to stores on behalf of the owner of a run, in this thread."""
    before, acting.hold = acting.hold, hold
    try:
        yield
    finally:
        acting.hold = before


def lost(run_id: str) -> RunLostError:
    """Return the error for an owner that has lost its run."""
    reason = (
        "it was taken over, rolled back, deleted or begun anew by others while this call was at work on it, and "
        "nothing more of this call is saved; load the run to see how it stands"
    )
    return RunLostError(run_id, reason)


# --------------------------------------------------------------------------- stores that know nothing of owners

_WRITES = ("save", "save_many", "amend", "delete", "_discard", "rollback", "save_parts", "drop_parts")


def guard_writes(store: type, contract: type) -> None:
    """Guard all methods by which a class of stores writes to runs, except those that it has from the contract: they
    are for the owner of the run only."""
    for name in _WRITES:
        method = getattr(store, name)
        if method is not vars(contract)[name] and not hasattr(method, "is_guarded"):
            setattr(store, name, _guarded(method))


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a store as one for the owner of a run: a State of it, or several, or its id is the first
    argument."""

    @wraps(method)
    def write(store: Any, *arguments: Any, take_over: bool = False, **named: Any) -> Any:
        about = next(iter((*arguments, *named.values())), None)
        first = about[0] if isinstance(about, list | tuple) and about else about  # of several States
        run_id = first if isinstance(first, str) else getattr(first, "run_id", None)
        if not isinstance(run_id, str):
            return method(store, *arguments, **named)  # which says what is wrong with it
        with held(store, run_id, take_over=take_over) as hold, hold.lock or nullcontext():
            hold.check()
            return method(store, *arguments, **named)

    write.is_guarded = True  # type: ignore[attr-defined]
    return write


# --------------------------------------------------------------------------- this process


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
