"""The owners of runs in this process.

One call at a time works on a run. It owns the run, with all nested runs, from before its first request to the store
until it returns. Each of its writes carries the Ownership, and a store refuses a write of a lost one.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, wraps
from typing import Any, Protocol, TypeAlias

import attrs

from stategraph._values import clock
from stategraph._values.ids import given_id
from stategraph._values.provenance import Owner
from stategraph.errors import CheckpointError, RunBusyError, RunLostError

_MOST_CANCELLED = 100_000  # cancelled runs to remember until they continue; many of them may be deleted
_LOOK_AGAIN = 0.0005  # seconds between checks for the end of a direct write
LONGEST_WRITE = 5.0
"""Seconds that a direct write may take."""

Fence: TypeAlias = tuple[int, bool]
"""A number that changes with every takeover, and whether the run was cancelled and not continued since."""


Refused: TypeAlias = dict[Any, tuple[Any, Any]]
"""Runs that sweeps set aside because they do not fit their graph: a value that changes with the run, and the result."""


def new_incarnation() -> bytes:
    """Return a new, random incarnation of a run. No two runs of one id have the same by chance."""
    return os.urandom(8)


@attrs.define(eq=False)
class Ownership:
    """The ownership of a run by a call.

    Args:
        run_id: The outermost run.
        is_brief: Whether it is for a single write, so that other callers wait for it.
        is_direct: Whether that is a direct write to the store, outside of a run.
        waits: Whether it waits for its turn, if other calls of this process wait for the run.

    Attributes:
        store: The store of the run.
        since_ns: When it began; nanoseconds since 1970, UTC.
        fence: The fence of the run, where the store has one.
        byte: The byte that is locked for it in a file; 0 if there is none.
        has_known_fence: Whether its fence may be compared with that in the store; false during an acquisition.
        is_lost: Whether another call took the run over, or the owner released it.
        is_cancelled: Whether the run was cancelled, and not continued since.
        inbox: The number of the newest entry that the inbox of the run is known to have had; None while the owner does
            not take entries in.
        brings: The entries of the inbox with which the run begins, if it begins under this owner.
        refuses_new_entries: Whether a write fails if the inbox has newer entries, rather than only note them.
        transaction: The open transaction of a node that writes to its own tables, a `NodeTransaction`: the save of its
            step is made in it.
        is_abandoned: Whether a finaliser releases it, which must not do I/O.
        owners: The owners that it is released from.
        call: Returns the call, if it exists; its ``under_way()`` returns the node at work, and since when.
        warn: Warns an observer of the run that it may soon be lost; None without an observer.
        lock: Serializes writes to a store that does not check owners itself.
        task: The generator that releases it.
        incarnation: The incarnation of the run, if it begins under this owner.
    """

    run_id: str
    is_brief: bool = False
    is_direct: bool = False
    waits: bool = False
    since_ns: int = attrs.field(init=False)
    store: object = None
    fence: int = 0
    byte: int = 0
    has_known_fence: bool = False
    is_lost: bool = False
    is_cancelled: bool = False
    inbox: int | None = None
    brings: Sequence[Any] = ()
    refuses_new_entries: bool = False
    transaction: Any = None
    is_abandoned: bool = False
    owners: Owners | None = None
    call: Callable[[], Any] | None = None
    warn: Callable[[dict[str, object]], None] | None = None
    lock: threading.RLock | None = None
    task: weakref.ref[Generator[Any, Any, Any]] | None = None
    incarnation: bytes = attrs.field(init=False, factory=new_incarnation)

    @since_ns.default
    def _now(self) -> int:
        return clock.now_ns()

    def check(self) -> None:
        """Raise RunLostError if the run was taken over or released."""
        if self.is_lost:
            raise lost(self.run_id)

    def end_with(self, task: Generator[Any, Any, Any]) -> None:
        """Drop the run once a generator is gone, in case an interrupt keeps the generator from releasing it."""
        self.task = weakref.ref(task, lambda _: _drop(self))

    def roll_back(self) -> None:
        """Roll back the transaction of a node that writes to its own tables, if there is one."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            transaction.end()

    @property
    def is_over(self) -> bool:
        """Whether it was released, or the generator that had to release it has ended."""
        task = self.task
        return self.is_lost or (task is not None and getattr(task(), "gi_frame", None) is None)

    @property
    def owner(self) -> Owner:
        """The owner as other callers see it."""
        call = self.call and self.call()
        node = call.under_way() if call else ()
        return Owner(host_name(), os.getpid(), clock.to_datetime(self.since_ns), None, *node)


Orphan: TypeAlias = tuple[Ownership, Any, Any]
"""A run without an owner, its key in `Refused`, and the value that changes with the run."""


class _Current(threading.local):
    """The owner on whose behalf this thread writes to a store; None outside of a run."""

    ownership: Ownership | None = None


current = _Current()


class Owners:
    """The owners of the runs of one store in this process. A store that only one process uses needs no more."""

    def __init__(self) -> None:
        self._by_run: dict[str, Ownership] = {}
        self._lines: dict[str, list[Ownership]] = {}
        self._cancelled: dict[str, str | None] = {}
        self._lock = threading.RLock()  # reentrant: a finaliser may release a run in the middle of an acquisition
        _all.add(self)

    def own_nothing(self) -> None:
        """Own nothing in a forked child: the runs belong to the parent."""
        self._lock = threading.RLock()
        for ownership in self._by_run.values():
            ownership.is_lost, ownership.owners = True, None
        self._by_run.clear()
        self._lines.clear()

    # ------------------------------------------------------------------ owning

    def get(self, run_id: str) -> Ownership | None:
        """Return the owner of a run, if it is a call of this process. Drop one whose release was interrupted."""
        ownership = self._by_run.get(run_id)
        if ownership is not None and ownership.is_over:
            release(ownership)
            return None
        return ownership

    def own(self, ownership: Ownership, table: Any, *, take_over: bool) -> None:
        """Acquire a run for an owner, in this process and against other processes.

        Raises:
            RunBusyError: another call owns it, and `take_over` is false.
            CheckpointError: the owner cannot be determined.
        """
        if self.get(ownership.run_id) is ownership:  # it was claimed
            return
        self.forget_lost(ownership.run_id, table)
        loser = self.take(ownership, take_over=take_over)
        try:
            self._prove(ownership, loser, table, take_over=take_over)
            ownership.has_known_fence = True
        except BaseException:
            self.release(ownership)
            raise

    def _prove(self, ownership: Ownership, loser: Ownership | None, table: Any, *, take_over: bool) -> None:
        """Acquire the lock or lease that proves to other processes that the owner is alive."""

    def take(self, ownership: Ownership, *, take_over: bool) -> Ownership | None:
        """Acquire a run for an owner in this process; return the owner that lost it, if any.

        Raises:
            RunBusyError: another call owns it, and `take_over` is false.
            RunLostError: the owner has released the run already.
        """
        with self._lock:
            other = self._by_run.get(ownership.run_id)
            # Before check(): a release by another thread waits for this lock, or check() sees it.
            ownership.owners = self
            ownership.check()
            first = self._line(ownership)[0] if ownership.waits else ownership
            if not take_over and (other is not None or first is not ownership):
                before = other or first
                raise BusyError(ownership.run_id, before.owner, LONGEST_WRITE if before.is_brief else 0.0)
            if other is not None:
                other.is_lost = True
            self._by_run[ownership.run_id] = ownership
            ownership.is_cancelled = ownership.run_id in self._cancelled
        if other is not None and other.lock is not None:
            with other.lock:  # a write of the former owner finishes, or is refused, before the new owner continues
                pass
        return other

    def _line(self, ownership: Ownership) -> list[Ownership]:
        """Return the calls that wait for a run, in the order in which they came; the first may own it already."""
        line = [each for each in self._lines.pop(ownership.run_id, ()) if not each.is_over]
        if not ownership.is_lost and not any(each is ownership for each in line):
            line.append(ownership)
        if line:
            self._lines[ownership.run_id] = line
        return line

    def release(self, ownership: Ownership) -> None:
        """Forget an owner, unless another one has taken the run."""
        with self._lock:
            if ownership.waits:
                self._line(ownership)
            if self._by_run.get(ownership.run_id) is ownership:
                del self._by_run[ownership.run_id]

    def forget_lost(self, run_id: str, table: Any) -> None:
        """Forget an owner whose release was interrupted, or whose run another process has taken over."""
        other = self.get(run_id)
        if other is not None and other.has_known_fence and table.fence(run_id)[0] != other.fence:
            release(other)

    def lease_if_missing(self, ownership: Ownership) -> bool:
        """Acquire the lease that a direct write had skipped; return whether there was anything to do."""
        return False

    def owner(self, run_id: str, table: Any) -> Owner | None:
        """Return the owner of a run, in this process or elsewhere."""
        ownership = self.get(run_id)
        return None if ownership is None else ownership.owner

    def owned_ids(self, table: Any) -> Collection[str] | None:
        """Return the ids of all runs that have an owner; None where each run must be checked."""
        return None

    def orphans(self, graph: str, refused: Refused) -> Iterator[Orphan] | None:
        """Own abandoned runs of a graph one after another; return None where each run must be tried.

        Those that were refused, and have not changed, are left out; those that are no longer active are removed.
        """
        return None

    def node_recorder(self, ownership: Ownership) -> Callable[[int, bytes], None] | None:
        """Return a function that records the node at work for other processes; None if they do not look."""
        return None

    def leave(self) -> None:
        """Release all runs of this process, because the store is closed."""

    # ------------------------------------------------------------------ cancelling, where the store does not keep it

    def cancel(self, run_id: str, by: str | None) -> None:
        """Cancel a run for its owner or, without one, for the next; `by` names the caller."""
        with self._lock:
            self._cancelled.setdefault(run_id, by)
            if (ownership := self._by_run.get(run_id)) is not None:
                ownership.is_cancelled = True
            while len(self._cancelled) > _MOST_CANCELLED:
                del self._cancelled[next(iter(self._cancelled))]

    def cancelled_by(self, run_id: str) -> str | None:
        """Return the name of the caller that cancelled a run, if it is known."""
        return self._cancelled.get(run_id)

    def take_up(self, ownership: Ownership) -> None:
        """Clear the cancellation of a run, because its owner continues it."""
        with self._lock:
            self._cancelled.pop(ownership.run_id, None)
            ownership.is_cancelled = False


_all: weakref.WeakSet[Owners] = weakref.WeakSet()


def _after_in_child() -> None:
    process_name.cache_clear()
    for owners in list(_all):
        owners.own_nothing()


def _at_exit() -> None:
    for owners in list(_all):
        owners.leave()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=_after_in_child)


# --------------------------------------------------------------------------- owning runs of a store


class OwnableStore(Protocol):
    """A store whose runs can be owned."""

    def _own(self, ownership: Ownership, /, *, take_over: bool) -> None: ...


def own(store: OwnableStore, ownership: Ownership, *, take_over: bool = False) -> None:
    """Acquire a run, after a direct write in progress, or at once with `take_over`.

    Raises:
        RunBusyError: another call owns it, and `take_over` is false.
    """
    began = time.monotonic()
    while True:
        try:
            store._own(ownership, take_over=take_over)
        except BusyError as error:
            if time.monotonic() - began >= error.longest:
                raise RunBusyError(error.run_id, error.owner) from None
            time.sleep(_LOOK_AGAIN)
        else:
            return


class BusyError(RunBusyError):
    """The run has an owner, for `longest` seconds at most; 0 if that is unknown."""

    longest: float


def release(ownership: Ownership) -> None:
    """Release a run for good: its owner can no longer acquire it or write to it."""
    ownership.is_lost = True
    ownership.roll_back()
    if ownership.owners is not None:
        ownership.owners.release(ownership)
        ownership.owners = None
    ownership.task = None


def _drop(ownership: Ownership) -> None:
    """Release a run in a finaliser."""
    ownership.is_abandoned = True
    release(ownership)


def owned(store: OwnableStore, run_id: str, *, take_over: bool = False) -> AbstractContextManager[Ownership]:
    """Own a run for a direct write, unless this thread already writes on behalf of its owner."""
    present = owner_here(store, run_id)
    if present is not None:
        return nullcontext(present)
    ownership = Ownership(given_id(run_id), is_brief=True, is_direct=True)
    owning = _owned(store, ownership, take_over)
    ownership.end_with(owning.gen)
    return owning


@contextmanager
def _owned(store: OwnableStore, ownership: Ownership, take_over: bool) -> Generator[Ownership, None, None]:
    before = current.ownership
    try:
        own(store, ownership, take_over=take_over)
        current.ownership = ownership  # as `on_behalf_of` does, which takes longer
        yield ownership
    finally:
        if current.ownership is ownership:  # a finaliser may come here while another call is at work
            current.ownership = before
        release(ownership)


@contextmanager
def owned_if_free(store: OwnableStore, run_ids: Sequence[str]) -> Iterator[Mapping[str, Ownership]]:
    """Own the given runs that have no owner, for a direct write; yield the owners by run id."""
    ownerships: dict[str, Ownership] = {}
    with ExitStack() as stack:
        for run_id in run_ids:
            ownership = Ownership(run_id, is_brief=True, is_direct=True)
            stack.callback(release, ownership)
            try:
                store._own(ownership, take_over=False)
            except RunBusyError:
                continue
            ownerships[run_id] = ownership
        yield ownerships


def owner_here(store: object, run_id: str) -> Ownership | None:
    """Return the owner of a run, or of its outer run, if this thread writes on behalf of it."""
    ownership = current.ownership
    if ownership is None or ownership.store is not store:
        return None
    return ownership if ownership.run_id == run_id or ownership.run_id == given_id(run_id) else None


@contextmanager
def on_behalf_of(ownership: Ownership | None) -> Iterator[None]:
    """Write to stores on behalf of the owner of a run, in this thread."""
    before, current.ownership = current.ownership, ownership
    try:
        yield
    finally:
        if current.ownership is ownership:  # as above
            current.ownership = before


class NewEntriesError(CheckpointError):
    """The inbox of a run has entries that its owner has not taken in, so the run does not end."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id, "its inbox has new entries, which must be taken in before it ends")


def lost(run_id: str) -> RunLostError:
    """Return the error for an owner that has lost its run."""
    reason = (
        "others took it over, rolled it back, deleted it or began it again while this call was at work on it, so "
        "nothing more of this call is saved; load the run to see its current State"
    )
    return RunLostError(run_id, reason)


# --------------------------------------------------------------------------- stores that know nothing of owners

_WRITES = ("save", "save_many", "amend", "delete", "_discard", "rollback", "save_parts", "drop_parts")


def guard_writes(store: type, contract: type) -> None:
    """Restrict the writing methods of a store class to the owner of a run. Methods that the class inherits from the
    contract need no guard."""
    for name in _WRITES:
        method = getattr(store, name)
        if method is not vars(contract)[name] and not hasattr(method, "is_guarded"):
            setattr(store, name, _guarded(method))


def _guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a store so that only the owner of a run can call it. Its first argument is a State, a list of
    States, or a run id."""

    @wraps(method)
    def write(store: Any, *arguments: Any, take_over: bool = False, **named: Any) -> Any:
        about = next(iter((*arguments, *named.values())), None)
        first = about[0] if isinstance(about, list | tuple) and about else about  # the first of several States
        run_id = first if isinstance(first, str) else getattr(first, "run_id", None)
        if not isinstance(run_id, str):
            return method(store, *arguments, **named)  # it reports the invalid argument
        with owned(store, run_id, take_over=take_over) as ownership, ownership.lock or nullcontext():
            ownership.check()
            return method(store, *arguments, **named)

    write.is_guarded = True  # type: ignore[attr-defined]
    return write


# --------------------------------------------------------------------------- this process


@cache
def process_name() -> str:
    """Return the name of this process, as "host:pid"."""
    return f"{host_name()}:{os.getpid()}"


@cache
def host_name() -> str:
    """Return the name of this machine."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    import socket  # imported when used: it takes 5 ms

    return socket.gethostname()
