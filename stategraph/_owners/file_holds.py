"""FileHolds: who owns which run of a store that the processes of one machine share.

A run that is owned is locked in a file beside the store (see `stategraph._owners.byte_locks`). A lock cannot be
taken away from a process that hangs. So the store counts in a fence how often a run was taken over; each time is locked
by a byte of its own, and every write of an owner compares the fence, in its own transaction.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Protocol, TypeAlias

from stategraph._owners.byte_locks import CAN_LOCK, CAN_SEE, Jotting, LockFile, byte_of
from stategraph._owners.holds import Hold, busy
from stategraph._owners.shared import SharedHolds
from stategraph._values.provenance import Owner
from stategraph.errors import CheckpointError

Fence: TypeAlias = tuple[int, bool]
"""How often a run was taken from its owners, and whether it was cancelled and not taken up since."""


class Fences(Protocol):
    """Counts how often runs were taken from their owners, and knows which are cancelled."""

    def fence(self, run_id: str) -> Fence:
        """Return how often a run was taken, and whether it is cancelled."""

    def raise_fence(self, run_id: str) -> Fence:
        """Count once more, in a transaction of its own; return the same."""

    def all_fences(self) -> Iterable[tuple[str, int]] | None:
        """Yield each run, the newest first, and how often it was taken; None where it takes long to find them."""


class FileHolds(SharedHolds[Fences]):
    """The runs that are owned in this process, with locks that keep other processes out.

    Args:
        path: The file with the locks. It is made when the first run is owned.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._locks: LockFile | None = None
        self._users = 0
        super().__init__()

    @classmethod
    def at(cls, path: Path) -> FileHolds:
        """Return what all stores of this process share that have this file beside them."""
        place = _place(path)
        with _by_place.lock:
            holds = _by_place.get(place)
            if holds is None or _place(holds._path) != place:  # a folder that was removed leaves its number to others
                holds = _by_place[place] = cls(path)
            holds._users += 1
        return holds

    def leave(self) -> None:
        """Close the file with the last store that is closed."""
        with _by_place.lock:
            self._users -= 1
            if self._users <= 0:
                self._locks = None

    def renew(self) -> None:
        super().renew()
        self._locks = None  # a forked child would keep what its parent has locked

    # ------------------------------------------------------------------ owning

    def own(self, hold: Hold, table: Fences, *, take_over: bool) -> None:
        """Make this the hold on its run.

        Raises:
            RunBusyError: somebody else owns it, and it is not to be taken over.
            CheckpointError: it cannot be locked here.
        """
        if hold.run_id in self._by_run:
            self.drop_lost(hold.run_id, table)
        loser = self.take(hold, take_over=take_over)
        hold.fence, hold.byte = 0, 0
        if not CAN_LOCK:
            _, hold.is_cancelled = table.fence(hold.run_id)
            return
        try:
            is_taken = loser is not None or not self._is_locked(hold, table, take_over)
            while is_taken:  # until no other process has locked it between the two
                number, hold.is_cancelled = table.raise_fence(hold.run_id)
                is_taken = not self._lock_byte(hold, number)
            if loser is not None and loser.byte:
                self._opened().unlock(loser.byte)
            hold.is_settled = True
        except FileNotFoundError:  # the folder is gone: the store says so when it is asked next
            return
        except OSError as error:
            self.release(hold)
            reason = f"nobody can tell who owns it: {self._path} cannot be locked ({error.strerror})"
            way_out = "take a store on a local disk"
            if isinstance(error, PermissionError):
                way_out = "make it this user's own, so that nobody else can write to it"
            raise CheckpointError(hold.run_id, f"{reason}; {way_out}") from error
        except BaseException:
            self.release(hold)
            raise

    def _is_locked(self, hold: Hold, fences: Fences, take_over: bool) -> bool:
        """Lock the byte of a run; return False if another process has it, and it is to be taken over."""
        fence = 0
        while True:
            is_locked = self._lock_byte(hold, fence)
            fence, hold.is_cancelled = fences.fence(hold.run_id)
            if fence == hold.fence:
                break
            if is_locked:
                self._opened().unlock(hold.byte)
        if not (is_locked or take_over):
            raise busy(hold.run_id, *self._opened().noted(_byte(hold.run_id, fence)))
        return is_locked

    def _lock_byte(self, hold: Hold, fence: int) -> bool:
        """Lock the byte of a run that was taken over so often; return False if another process has it."""
        locks = self._opened()
        with self._lock:  # whoever lets go of the run meanwhile has done so, or finds the byte
            hold.check()
            hold.fence = fence
            hold.byte = _byte(hold.run_id, fence)
            if locks.lock(hold.byte, is_brief=hold.is_brief):
                return True
            hold.byte = 0  # nobody unlocks what is another's
            return False

    def jotting(self, hold: Hold) -> Jotting | None:
        locks = self._locks
        return locks.jotting(hold.byte) if locks is not None and hold.byte else None

    def release(self, hold: Hold) -> None:
        with self._lock:  # until both are done, or another thread would find one of them undone
            if self._by_run.get(hold.run_id) is hold:
                if self._locks is not None and hold.byte:
                    self._locks.unlock(hold.byte)
                del self._by_run[hold.run_id]

    def owner(self, run_id: str, table: Fences) -> Owner | None:
        """Return who owns a run, here or in another process."""
        hold = self.get(run_id)
        if not CAN_LOCK:
            return None if hold is None else hold.owner
        if hold is not None:
            self.drop_lost(run_id, table)
            hold = self.get(run_id)
        if hold is not None:
            return hold.owner
        return self._opened().owner(_byte(run_id, table.fence(run_id)[0]))

    def owned_ids(self, table: Fences) -> Collection[str] | None:
        if not CAN_SEE:
            return None
        others = _ids_of(self._opened().locked(), table)
        # One of this process may have lost its run, and not know it yet.
        return (
            None
            if others is None
            else {*(run_id for run_id in list(self._by_run) if self.owner(run_id, table)), *others}
        )

    def _opened(self) -> LockFile:
        """Return the file with the locks. One that was removed holds nobody off: another takes its place."""
        locks = self._locks
        if locks is not None and locks.is_there:
            return locks
        with self._lock:
            if self._locks is None or not self._locks.is_there:  # another thread may have opened it meanwhile
                locks = LockFile(self._path)
                for hold in list(self._by_run.values()):
                    if hold.byte:
                        locks.lock(hold.byte)
                self._locks = locks
            return self._locks


class SeenHolds(SharedHolds[Fences]):
    """Sees who owns which run of a store that is only read. Nothing is owned here, and the file is never made.

    Args:
        path: The file with the locks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__()

    def own(self, hold: Hold, table: Fences, *, take_over: bool) -> None:
        """Do nothing: what the hold is for is refused by the store."""

    def owner(self, run_id: str, table: Fences) -> Owner | None:
        """Return who owns a run; None where that cannot be told without touching the file."""
        if not CAN_SEE:
            return None
        try:
            locks = LockFile(self._path, read_only=True)
        except OSError:
            return None
        return locks.owner(_byte(run_id, table.fence(run_id)[0]))

    def owned_ids(self, table: Fences) -> Collection[str] | None:
        if not CAN_SEE:
            return None
        try:
            locked = LockFile(self._path, read_only=True).locked()
        except OSError:
            return ()
        return _ids_of(locked, table)

    def leave(self) -> None:
        """Do nothing: the file is open only while it is looked at."""


def _ids_of(locked: set[int], table: Fences) -> Collection[str] | None:
    """Return the ids of the runs whose bytes are locked, as far as they were saved; None where that takes long."""
    found: set[str] = set()
    fences = table.all_fences() if locked else ()
    if fences is None:
        return None
    for run_id, fence in fences:
        byte = _byte(run_id, fence)
        if byte in locked:
            found.add(run_id)
            locked.remove(byte)
            if not locked:
                break
    return found


def _byte(run_id: str, fence: int) -> int:
    """Return the number of the byte of a run that was taken over so often."""
    return byte_of(f"{run_id}\n{fence}")


def _place(path: Path) -> tuple[int, int, str] | None:
    """Return where a file is, whichever of its names the folder is called by; None if the folder is gone."""
    try:
        folder = path.parent.stat()
    except FileNotFoundError:
        return None
    return folder.st_dev, folder.st_ino, path.name


class _Places(weakref.WeakValueDictionary[tuple[int, int, str] | None, FileHolds]):
    """Those of this process, by their files."""

    lock = threading.RLock()


_by_place = _Places()


def _renew_lock() -> None:
    _by_place.lock = threading.RLock()


if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(after_in_child=_renew_lock)
