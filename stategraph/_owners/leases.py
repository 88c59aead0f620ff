"""LeaseHolds: who owns which run of a store on a server that many machines share.

A lease stands in the store itself: the run, the process that owns it, and a fence, a random number that no other lease
has. Every write of the owner compares the fence. A process is there as long as it says so; it says so for all of its
runs at once, by the clock of the server, and a lease of a process that is not there any more is free.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Protocol

import attrs

from stategraph._owners.holds import Hold, busy, host_name
from stategraph._owners.shared import SharedHolds
from stategraph._util.dropped import reaper
from stategraph._values.provenance import Owner
from stategraph.errors import CheckpointError, RunBusyError

LEASE = 30.0
"""Seconds after which a process that does not say that it is there has lost its runs."""

_LONGEST_END = 1.0  # seconds that a renewal may take which is under way when all is let go of
_PARTS = 3  # of the lease: how often it is renewed


@attrs.frozen
class Worker:
    """A process that owns runs.

    Attributes:
        id: Tells it from all others, before and after.
        host: The name of the machine.
        pid: The process.
        place: Tells the machine, since it was started, and the process on it.
    """

    id: str
    host: str
    pid: int
    place: str


@attrs.frozen
class Lease:
    """What is known of who has a run.

    Attributes:
        fence: The number of the lease.
        worker: Who has it.
        since: Since when.
        until: When it runs out unless it is renewed; None if whoever has it has ended.
        is_running: Whether it has not run out, by the clock of the server.
    """

    fence: int
    worker: Worker
    since: datetime
    until: datetime | None
    is_running: bool

    @property
    def owner(self) -> Owner:
        """Who has it, as others are told."""
        return Owner(self.worker.host, self.worker.pid, self.since, self.until)

    @property
    def is_held(self) -> bool:
        """Whether whoever has it is there, as far as anybody can tell."""
        return self.is_running and not _has_ended(self.worker)


class Leases(Protocol):
    """The leases that a server keeps."""

    def fence(self, run_id: str) -> tuple[int, bool]:
        """Return the fence of a run, 0 if nobody has it, and whether the run is cancelled."""

    def acquire(self, run_id: str, worker: Worker, fence: int, instead: int) -> bool | None:
        """Lease a run that is free, that this worker has, or whose fence is `instead`; return whether it is cancelled.

        None if another has it. To be asked once more with the same fence does no harm.
        """

    def lease(self, run_id: str) -> Lease | None:
        """Return who has a run."""

    def free(self, run_id: str, fence: int) -> None:
        """Let go of a run, if this is still its fence."""

    def renew_worker(self, worker: Worker, seconds: float) -> None:
        """Say that a process is there, and will be for so long."""

    def end_worker(self, worker: Worker) -> None:
        """Say that a process has ended: all that it has is free."""

    def is_in_use(self) -> bool:
        """Return whether this thread asks the server already, further down its stack."""


class LeaseHolds(SharedHolds[Leases]):
    """The runs that are owned in this process, with leases that keep other processes out.

    Args:
        leases: Where they are kept.
        seconds: How long they hold without being renewed.
    """

    def __init__(self, leases: Leases, seconds: float) -> None:
        self._leases, self._seconds = leases, seconds
        super().__init__()
        _all.add(self)

    def renew(self) -> None:
        for hold in self._by_run.values():
            hold.fence = 0  # a forked child is another process, and lets go of nothing of its parent's
        super().renew()
        self._worker: Worker | None = None
        self._renewed = -float("inf")
        self._to_free: dict[int, str] = {}
        self._wake = threading.Event()
        self._renewing = reaper.known_lock()  # a finaliser may come while it is held
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------------ owning

    def own(self, hold: Hold, table: Leases, *, take_over: bool) -> None:
        """Make this the hold on its run. A write by hand finds out itself whether somebody has leased the run.

        Raises:
            RunBusyError: somebody else owns it, and it is not to be taken over.
            CheckpointError: the server cannot be asked.
        """
        self.drop_lost(hold.run_id, table)
        self.take(hold, take_over=take_over)
        hold.fence = 0
        try:
            if not hold.is_by_hand or take_over:
                self._lease(hold, take_over=take_over)
            hold.is_settled = True
        except BaseException:
            self.release(hold)
            raise

    def settle(self, hold: Hold) -> bool:
        """Lease the run of a write by hand that found it leased; return whether there was anything to do.

        Raises:
            RunBusyError: somebody owns it.
        """
        if not hold.is_by_hand or hold.fence or hold.is_lost:
            return False
        self._lease(hold, take_over=False)
        return True

    def _lease(self, hold: Hold, *, take_over: bool) -> None:
        worker = self._present()
        hold.fence = int.from_bytes(os.urandom(7)) + 1  # first: whatever comes, it is let go of by this number
        try:
            hold.is_cancelled = self._acquired(hold.run_id, worker, hold.fence, take_over=take_over)
        except RunBusyError:
            hold.fence = 0
            raise
        hold.check()

    def _acquired(self, run_id: str, worker: Worker, fence: int, *, take_over: bool) -> bool:
        """Lease a run; return whether it is cancelled."""
        instead = 0
        while (cancelled := self._leases.acquire(run_id, worker, fence, instead)) is None:
            other = self._leases.lease(run_id)
            if other is not None and other.is_held and not take_over:
                raise busy(run_id, other.owner, 0.0)
            instead = 0 if other is None else other.fence
        return cancelled

    def release(self, hold: Hold) -> None:
        super().release(hold)
        if hold.fence:  # also of one who was taken over here: it may have come to no more than that
            self._free(hold.run_id, hold.fence)

    def _free(self, run_id: str, fence: int) -> None:
        """Let go of a lease; where that cannot be done now, it is tried until it can."""
        self._to_free[fence] = run_id
        if self._leases.is_in_use():  # a finaliser: it must not wait for what it interrupts
            self._wake.set()
        else:
            with suppress(CheckpointError):
                self._free_all()

    def _free_all(self) -> None:
        for fence, run_id in list(self._to_free.items()):
            self._leases.free(run_id, fence)
            self._to_free.pop(fence, None)

    def owner(self, run_id: str, table: Leases) -> Owner | None:
        """Return who owns a run, here or elsewhere."""
        lease = table.lease(run_id)
        if lease is not None and lease.is_held and lease.fence not in self._to_free:
            return lease.owner
        hold = self.get(run_id)
        return None if hold is None or hold.fence else hold.owner

    def leave(self) -> None:
        """Let go of all that this process has: it ends, or the store is closed."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_LONGEST_END)
        with suppress(CheckpointError):
            self._leases.end_worker(worker)

    # ------------------------------------------------------------------ renewing

    def _present(self) -> Worker:
        """Return this process, which has said that it is there, and goes on to say so."""
        with self._renewing:
            if self._worker is None:
                self._worker = _this_worker()
            if self._renewed < time.monotonic() - self._seconds / _PARTS:
                self._renew()
            if self._thread is None or not self._thread.is_alive():
                arguments = weakref.ref(self), self._wake, self._seconds / _PARTS
                self._thread = threading.Thread(target=_go_on, args=arguments, name="stategraph-leases", daemon=True)
                self._thread.start()
            return self._worker

    def _renew(self) -> None:
        worker, now = self._worker, time.monotonic()
        if worker is not None:
            self._leases.renew_worker(worker, self._seconds)
            self._renewed = now

    def go_on(self) -> bool:
        """Say once more that this process is there; return False once there is no need to."""
        if self._worker is None:
            return False
        try:
            self._free_all()
            if not self._by_run and self._renewed < time.monotonic() - self._seconds:
                return False
            if self._by_run:
                self._renew()
        except CheckpointError as error:
            left = self._seconds - (time.monotonic() - self._renewed)
            logging.getLogger("stategraph").warning(
                "the leases of %d runs were not renewed: %s; %s",
                len(self._by_run),
                error.reason,
                f"others may take them in {left:.0f} s" if left > 0 else "others may take them",
            )
        return True


def _go_on(holds: weakref.ref[LeaseHolds], wake: threading.Event, seconds: float) -> None:
    """Renew what a process has until there is nothing to renew; in a thread."""
    while True:
        wake.wait(seconds)
        wake.clear()
        found = holds()
        if found is None or not found.go_on():
            return
        del found


_all: weakref.WeakSet[LeaseHolds] = weakref.WeakSet()


def _leave_all() -> None:
    for holds in list(_all):
        holds.leave()


atexit.register(_leave_all)


# --------------------------------------------------------------------------- processes


def _this_worker() -> Worker:
    return Worker(os.urandom(9).hex(), host_name(), os.getpid(), f"{_machine()}/{_begun(os.getpid())}")


@cache
def _machine() -> str:
    """Return what tells this machine, since it was started, from all others; empty where nothing does."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115 - it is no path
    except OSError:
        return ""


def _begun(pid: int) -> str:
    """Return when a process of this machine began; empty if it has ended, or that cannot be told."""
    try:
        state, *about = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in ("Z", "X") else about[18]


def _has_ended(worker: Worker) -> bool:
    """Return whether a process has ended for sure: it was on this machine, and is there no more."""
    machine, _, begun = worker.place.rpartition("/")
    return bool(machine) and machine == _machine() and bool(begun) and _begun(worker.pid) != begun
