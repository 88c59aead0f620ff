"""LeaseOwners: ownership of runs in a store on a server that many machines share.

The store itself keeps a lease: the run, the process that owns it, and a fence, a random number that no other lease
has. Every write of the owner compares the fence. A process renews all its leases at once, by the clock of the server.
When it stops renewing them, its runs are free.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

import attrs

from stategraph._owners.base import Fence, Orphan, Owners, Ownership, Refused, host_name, release
from stategraph._values.provenance import Owner
from stategraph.errors import CheckpointError, RunBusyError

LEASE = 30.0
"""Seconds after which a process that does not renew its lease loses its runs."""

RENEWALS_PER_LEASE = 3
"""How often a process renews its lease before it would expire. A renewal waits no longer for its answer than that."""

LONGEST_LEASE = 10
"""How many times its `lease` a process leases its runs at most, once it has renewed too late."""

_LONGEST_END = 1.0  # seconds to wait at exit for a renewal in progress
_AGAIN = 0.1  # of the time between two renewals: the delay before a failed renewal is tried again


@attrs.frozen
class Worker:
    """A process that owns runs.

    Attributes:
        id: A random id, unique among all processes ever.
        host: The name of the machine.
        pid: The process id.
        place: Identifies this boot of the machine, and the process on it.
    """

    id: str
    host: str
    pid: int
    place: str


@attrs.frozen
class Lease:
    """The lease of a run.

    Attributes:
        fence: The number of the lease.
        worker: The process of the owner.
        since: When the lease began.
        until: When it expires unless it is renewed; None if the owner has ended.
        is_running: Whether it has not expired, by the clock of the server.
    """

    fence: int
    worker: Worker
    since: datetime
    until: datetime | None
    is_running: bool

    @property
    def owner(self) -> Owner:
        """The owner as other callers see it."""
        return Owner(self.worker.host, self.worker.pid, self.since, self.until)

    @property
    def is_alive(self) -> bool:
        """Whether the owner is alive, as far as this process can see."""
        return self.is_running and not has_ended(self.worker)


class Leases(Protocol):
    """Leases on a server."""

    def fence(self, run_id: str) -> Fence:
        """Return the fence of a run, 0 if it has no owner, and whether the run is cancelled."""

    def acquire(self, run_id: str, worker: Worker, fence: int, instead: int) -> bool | None:
        """Lease a run that is free, or whose fence is `instead`; return whether it is cancelled.

        Return None if another owner has it. A repeated call with the same fence is harmless.
        """

    def lease(self, run_id: str) -> Lease | None:
        """Return the lease of a run."""

    def leases(self) -> Iterable[tuple[str, int, Worker]]:
        """Return the run, the fence and the owning process of each lease that has not expired."""

    def free(self, run_id: str, fence: int) -> None:
        """Release a run, if this is still its fence."""

    def renew_worker(self, worker: Worker, seconds: float, patience: float) -> None:
        """Record that a process stays alive for so many seconds; wait no longer for the server than `patience`."""

    def end_worker(self, worker: Worker) -> None:
        """Record that a process has ended, which frees its runs."""


@attrs.frozen
class Claim:
    """A run that a sweeper has claimed.

    Attributes:
        left: The known runs that are still active.
        number: The position of the run by age: older runs have lower numbers. None if there is no run to claim.
        version: Its version, which grows with every write to it.
        run_id: The run; None if another sweeper was faster.
        is_cancelled: Whether it is cancelled.
    """

    left: Collection[int]
    number: int | None = None
    version: int = 0
    run_id: str | None = None
    is_cancelled: bool = False


Known: TypeAlias = Mapping[int, int | None]
"""Numbers of runs that are not claimed: while they have this version or, if it is None, not at all."""


class Claims(Protocol):
    """Leases abandoned runs."""

    def claim(self, graph: str, worker: Worker, fence: int, known: Known) -> Claim:
        """Lease the oldest active run of a graph that no live process owns, except known ones.

        It does not wait for runs that others are claiming.
        """


class LeaseOwners(Owners):
    """The owners of runs in this process, with leases that keep other processes out.

    Args:
        leases: The leases on the server.
        seconds: How long a lease is valid without renewal.
        patience: How many seconds a call waits for the server.
        claims: Leases abandoned runs, if the server supports that.
    """

    def __init__(self, leases: Leases, seconds: float, patience: float, claims: Claims | None = None) -> None:
        super().__init__()
        self._leases, self._seconds, self._patience, self._claims = leases, seconds, patience, claims
        self._longest = LONGEST_LEASE * seconds
        self._begin()

    def _begin(self) -> None:
        self._worker: Worker | None = None
        self._renewed = -float("inf")
        self._to_free: dict[int, str] = {}
        self._wake = SimpleQueue[None]()  # an Event has a lock, which an interrupt or a finaliser finds locked
        self._renewing = threading.RLock()
        self._thread: threading.Thread | None = None

    def own_nothing(self) -> None:
        for ownership in self._by_run.values():
            ownership.fence = 0  # a forked child is another process, and must not write under the leases of its parent
        super().own_nothing()
        self._begin()

    # ------------------------------------------------------------------ owning

    def _prove(self, ownership: Ownership, loser: Ownership | None, table: Leases, *, take_over: bool) -> None:
        if take_over or not ownership.is_direct:  # the statement of a direct write itself checks for a lease
            self._lease(ownership, take_over=take_over)

    def lease_if_missing(self, ownership: Ownership) -> bool:
        """Acquire the lease for a direct write that found the run leased; return whether there was anything to do.

        Raises:
            RunBusyError: another process owns it.
        """
        if not ownership.is_direct or ownership.fence or ownership.is_lost:
            return False
        self._lease(ownership, take_over=False)
        return True

    def _lease(self, ownership: Ownership, *, take_over: bool) -> None:
        worker, instead = self.live_worker(), 0
        ownership.has_known_fence = False  # until the lease is acquired, its fence is not the fence of the run
        ownership.fence = new_fence()  # first: release() needs this number, whatever happens
        while (cancelled := self._leases.acquire(ownership.run_id, worker, ownership.fence, instead)) is None:
            other = self._leases.lease(ownership.run_id)
            ownership.check()  # otherwise a loser would take the run back from its new owner
            # A lease of this process is no obstacle: `take` has made its call lose the run.
            if other is not None and other.worker.id != worker.id and other.is_alive and not take_over:
                ownership.fence = 0
                raise RunBusyError(ownership.run_id, other.owner)
            instead = 0 if other is None else other.fence
        ownership.is_cancelled, ownership.has_known_fence = cancelled, True
        ownership.check()

    def release(self, ownership: Ownership) -> None:
        super().release(ownership)
        if not ownership.fence:
            return
        self._to_free[ownership.fence] = ownership.run_id  # also after a takeover in this process
        if ownership.is_abandoned or not ownership.has_known_fence:  # the server has just not answered
            self._wake.put(None)
        else:
            with suppress(CheckpointError):  # then the thread that renews the lease repeats it
                self._free_all()

    def _free_all(self) -> None:
        for fence, run_id in list(self._to_free.items()):
            self._leases.free(run_id, fence)
            self._to_free.pop(fence, None)

    def owner(self, run_id: str, table: Leases) -> Owner | None:
        ownership = self.get(run_id)
        lease = table.lease(run_id)
        if lease is not None and lease.is_alive and lease.fence not in self._to_free:
            return lease.owner
        return None if ownership is None or ownership.fence else ownership.owner

    def owned_ids(self, table: Leases) -> Collection[str]:
        is_over = cache(has_ended)
        direct = {run_id for run_id, ownership in list(self._by_run.items()) if not ownership.fence}
        leased = [(run_id, fence) for run_id, fence, worker in table.leases() if not is_over(worker)]
        return direct.union(run_id for run_id, fence in leased if fence not in self._to_free)

    def leave(self) -> None:
        """Release all runs of this process, because it ends or the store is closed."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._wake.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LONGEST_END)
        with suppress(CheckpointError):
            self._leases.end_worker(worker)

    # ------------------------------------------------------------------ claiming

    def orphans(self, graph: str, refused: Refused) -> Iterator[Orphan] | None:
        return None if self._claims is None else self._claimed(self._claims, graph, refused)

    def _claimed(self, claims: Claims, graph: str, refused: Refused) -> Iterator[Orphan]:
        """Own abandoned runs one after another; release each before the next.

        Each is the oldest at that moment, including runs of processes that died in the meantime. No run is tried twice.
        """
        tried: dict[int, None] = {}
        while True:
            ownership = Ownership("")
            try:
                worker, ownership.owners, ownership.fence = self.live_worker(), self, new_fence()
                versions = ((number, int(str(mark).rpartition("-")[2])) for number, (mark, _) in list(refused.items()))
                known: dict[int, int | None] = {**dict(versions), **tried}
                claim = claims.claim(graph, worker, ownership.fence, known)
                for number in known.keys() - set(claim.left):
                    refused.pop(number, None)
                    tried.pop(number, None)
                if claim.number is None or claim.run_id is None:
                    ownership.fence = 0  # there is no lease to release
                    if claim.number is None:
                        return
                    continue
                tried[claim.number], ownership.run_id = None, claim.run_id
                with suppress(RunBusyError):  # another thread of this process is writing to it directly
                    self.take(ownership, take_over=False)
                    ownership.has_known_fence, ownership.is_cancelled = True, claim.is_cancelled
                if ownership.has_known_fence:
                    yield ownership, claim.number, claim.version
            finally:
                release(ownership)

    # ------------------------------------------------------------------ renewing

    def live_worker(self) -> Worker:
        """Return this process, with a lease that a thread keeps renewing."""
        give_up = time.monotonic() + self._patience
        if not self._renewing.acquire(timeout=min(self._patience, threading.TIMEOUT_MAX)):
            raise CheckpointError("", f"the {self._leases} failed: the server has not answered in time")
        try:
            self._worker = self._worker or _this_worker()
            part = self._seconds / RENEWALS_PER_LEASE
            if self._renewed < time.monotonic() - part:
                self._renew(self._worker, give_up - time.monotonic())
            if self._thread is None:
                args = weakref.ref(self), self._wake, part
                thread = threading.Thread(target=_keep_renewing, args=args, name="stategraph-leases", daemon=True)
                thread.start()  # raises at the end of the process
                self._thread = thread
            return self._worker
        finally:
            self._renewing.release()

    def _renew(self, worker: Worker, patience: float) -> None:
        with self._renewing:
            now = time.monotonic()
            self._leases.renew_worker(worker, self._seconds, patience)
            self._renewed = now

    def renew_due(self, waited: float) -> float:
        """Renew the lease; return the seconds until the next renewal, 0 for none.

        A node that holds the GIL keeps this thread waiting. If it did so for longer than the lease, its run is lost,
        and the same node would lose it again: leases are twice as long as that from now on.

        Args:
            waited: How many seconds ago the previous renewal ended.
        """
        worker = self._worker
        if worker is None:
            return 0.0
        if waited > self._seconds:
            self._seconds = max(self._seconds, min(2 * waited, self._longest))
        part = self._seconds / RENEWALS_PER_LEASE
        try:
            if self._by_run:
                self._renew(worker, part)
            self._free_all()
        except CheckpointError as error:
            if self._worker is not None:  # the store is still open
                self._report_late(error)
            return part * _AGAIN
        with self._renewing:  # after this the next owner of a run starts another thread
            if self._by_run or self._renewed > time.monotonic() - self._seconds:
                return part
            self._thread = None
            return 0.0

    def _report_late(self, error: CheckpointError) -> None:
        """Report to the log and to observers that the lease could not be renewed."""
        leased = [ownership for ownership in list(self._by_run.values()) if ownership.fence]
        left = max(0.0, self._seconds - (time.monotonic() - self._renewed))
        message = f"the leases of %d runs were not renewed: %s; others may take them in {left:.0f} s"
        logging.getLogger("stategraph").warning(message, len(leased), error.reason)
        for ownership in leased:
            if ownership.warn is not None:
                ownership.warn({"run_id": ownership.run_id, "left": left, "error": str(error.reason)})


def _keep_renewing(owners: weakref.ref[LeaseOwners], wake: SimpleQueue[None], seconds: float) -> None:
    """Renew the lease in a thread until there is nothing to renew."""
    while seconds:
        began = time.monotonic()
        with suppress(Empty):
            wake.get(timeout=seconds)
        found = owners()
        seconds = 0.0 if found is None else found.renew_due(time.monotonic() - began)
        del found


# --------------------------------------------------------------------------- processes


def new_fence() -> int:
    """Return a fence that no other lease has."""
    return int.from_bytes(os.urandom(7)) + 1


def _this_worker() -> Worker:
    return Worker(os.urandom(9).hex(), host_name(), os.getpid(), f"{machine_name()}/{_begun(os.getpid()) or ''}")


@cache
def machine_name() -> str:
    """Return the name of this boot of the machine and of this process namespace.

    Return "" where there is no such name, or where /proc belongs to another namespace.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        is_ours = os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - not a path
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}" if is_ours else ""  # noqa: PTH115 - not a path
    except OSError:
        return ""


def _begun(pid: int) -> str | None:
    """Return when a process of this machine began; "" for a zombie, None where /proc does not say."""
    try:
        state, *about = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in ("Z", "X") else about[18]


def has_ended(worker: Worker) -> bool:
    """Return whether a process was on this machine and has certainly ended."""
    machine, _, begun = worker.place.rpartition("/")
    if not machine or machine != machine_name():
        return False
    try:
        os.kill(worker.pid, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except PermissionError:  # a process of another user, and /proc may hide it
        pass
    now = _begun(worker.pid)
    return now is not None and now != begun != ""
