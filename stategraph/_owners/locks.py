"""The owners of runs of a store that the processes of one machine share: locks on single bytes of a file beside it.

The operating system releases them when a process ends, however it ends: no clock, no heartbeat, nothing to clean up.
On Linux they are those of an open file (F_OFD_SETLK). Elsewhere they are those of the process (POSIX), which fall as
soon as any part of the process closes the file. Where there are neither, as on Windows, nothing is locked.

A lock cannot be taken away from a process that hangs. So the store counts in a fence how often a run was taken over;
each time is locked by a byte of its own, and every write of an owner compares the fence, in its own transaction.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import weakref
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from mmap import mmap
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs

from stategraph._owners.holds import LONGEST_WRITE, Fence, Hold, Owners, busy, host_name
from stategraph._values import clock
from stategraph._values.provenance import Owner
from stategraph.errors import CheckpointError

if sys.platform != "win32":
    import fcntl

CAN_LOCK = sys.platform != "win32"
_BUSY = (errno.EAGAIN, errno.EACCES)
_FIRST_BYTE = 1 << 40  # of those that are locked: far behind what is written
_MOST_BYTES = 1 << 56
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64-bit machines
_OF_FILE = sys.platform == "linux" and struct.calcsize("P") == 8
CAN_SEE = _OF_FILE
"""Whether a process can look at the locks, and close the file, without releasing its own."""
_NOTES, _NOTE = 4096, struct.Struct("<QqI?107s")  # who has locked a byte; one may take the place of another
_JOTS, _JOT = _NOTES * _NOTE.size, struct.Struct("<Qq112s")  # behind them, which node is under way; likewise
_UNTIL_NOTED = 0.1  # seconds from the lock to the note, on a busy machine
_IS_BRIEF = struct.calcsize("<QqI")  # where a note says that it is for a moment only

Jotting: TypeAlias = Callable[[int, bytes], None]
"""Notes which node is under way; see `LockFile.jotting`."""


class LockFile:
    """A file whose bytes stand for texts, of which one process at a time can lock each.

    Args:
        path: The file. It is made, for its owner only, if it is not there.
        read_only: Only look at the locks, where `CAN_SEE`. Then the file is not made.

    Raises:
        OSError: it cannot be used, or other users can write to it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._jots: mmap | None = None
        mode = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._fd = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, f"{path} is not a file of its own, or belongs to somebody else")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, f"others can write to {path}: chmod go-w {path}")

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):  # it was never opened
            os.close(self._fd)

    @property
    def is_there(self) -> bool:
        """Whether it has a name: it was not removed, nor was another put in its place."""
        return os.fstat(self._fd).st_nlink > 0

    # ------------------------------------------------------------------ locking

    def lock(self, byte: int, *, is_brief: bool = False) -> bool:
        """Lock a byte, and note that it was this process; return False if another process has it."""
        try:
            self._set(fcntl.LOCK_EX, byte)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        note = _NOTE.pack(byte, clock.now_ns(), os.getpid(), is_brief, host_name().encode()[:107])
        try:  # noqa: SIM105 - here and below: suppress takes as long as the lock
            os.pwrite(self._fd, note, byte % _NOTES * _NOTE.size)
        except OSError:  # there is no room: then the owner is not known
            pass
        return True

    def unlock(self, byte: int) -> None:
        """Unlock a byte. Until its next owner has noted itself, it seems to be locked for a moment only."""
        try:  # noqa: SIM105
            os.pwrite(self._fd, b"\1", byte % _NOTES * _NOTE.size + _IS_BRIEF)
        except OSError:  # there is no room
            pass
        try:  # noqa: SIM105
            self._set(fcntl.LOCK_UN, byte)
        except OSError:  # then it ends with the process
            pass

    def _set(self, operation: int, byte: int) -> None:
        if _OF_FILE:
            kind = fcntl.F_WRLCK if operation == fcntl.LOCK_EX else fcntl.F_UNLCK
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, _FIRST_BYTE + byte, 1, 0))
        else:
            blocking = fcntl.LOCK_NB if operation == fcntl.LOCK_EX else 0
            fcntl.lockf(self._fd, operation | blocking, 1, _FIRST_BYTE + byte)

    # ------------------------------------------------------------------ looking

    def owner(self, byte: int) -> Owner | None:
        """Return the process that has locked a byte, and the node under way; None if it is no other process."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _FIRST_BYTE + byte, 1, 0)
        if _OF_FILE and _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))[0] == fcntl.F_UNLCK:
            return None
        if not _OF_FILE and self.lock(byte):  # it cannot be asked in a portable way, but tried
            self.unlock(byte)
            return None
        owner, _ = self.noted(byte)
        found = self._read(_JOT, _JOTS, byte)
        if found is None or owner.since is None or (since := clock.to_datetime(found[1])) < owner.since:
            return owner
        return attrs.evolve(owner, node=found[2].rstrip(b"\0").decode(errors="replace"), node_since=since)

    def noted(self, byte: int) -> tuple[Owner, float]:
        """Return the process that last locked a byte, and for how many seconds at most; 0 if that is not known."""
        found = self._read(_NOTE, 0, byte)
        if found is None:  # it is not noted yet, or that of another byte stands in its place
            return Owner(host_name(), None), _UNTIL_NOTED
        host = found[4].rstrip(b"\0").decode(errors="backslashreplace")
        return Owner(host, found[2], clock.to_datetime(found[1])), LONGEST_WRITE if found[3] else 0.0

    def _read(self, note: struct.Struct, start: int, byte: int) -> tuple[Any, ...] | None:
        """Return a note on a byte, if it is there."""
        kept = os.pread(self._fd, note.size, start + byte % _NOTES * note.size)
        found = note.unpack(kept) if len(kept) == note.size else (None,)
        return found if found[0] == byte else None

    def locked(self) -> set[int]:
        """Return the bytes that other processes have locked, where `CAN_SEE`."""
        found: set[int] = set()
        left = [(0, _MOST_BYTES)]
        while left:
            first, last = left.pop()
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _FIRST_BYTE + first, last - first, 0)
            kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))
            if kind != fcntl.F_UNLCK:
                begin = max(start - _FIRST_BYTE, first)
                end = min(start - _FIRST_BYTE + length, last) if length else last
                found.update(range(begin, min(end, begin + _NOTES)))  # what is longer is none of ours
                left += [span for span in ((first, begin), (end, last)) if span[0] < span[1]]
        return found

    # ------------------------------------------------------------------ the node under way

    def jotting(self, byte: int) -> Jotting | None:
        """Return a function that notes the node under way in a run whose byte is locked: when it began, and its name.

        It writes to memory that is shared with other processes, and costs no system call. None where they could not
        look. Runs whose notes share a place may garble them; a note that does not fit its byte says nothing.
        """
        if not _OF_FILE:
            return None
        at = byte % _NOTES * _JOT.size
        try:
            self._jots = self._jots or self._mapped()
            os.posix_fallocate(self._fd, _JOTS + at, _JOT.size)  # or a full disk would end the process
        except OSError:  # there is no room, or there are no descriptors left
            return None
        return partial(_JOT.pack_into, self._jots, at, byte)

    def _mapped(self) -> mmap:
        """Map the notes into memory, of the file opened once more: a run may keep it, and it locks nothing."""
        size = _NOTES * _JOT.size
        if os.fstat(self._fd).st_size < _JOTS + size:
            os.ftruncate(self._fd, _JOTS + size)
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return mmap(fd, size, offset=_JOTS)
        finally:
            os.close(fd)


class Fences(Protocol):
    """Counts how often runs were taken from their owners, and knows which are cancelled."""

    def fence(self, run_id: str) -> Fence:
        """Return how often a run was taken, and whether it is cancelled."""

    def raise_fence(self, run_id: str) -> Fence:
        """Count once more, in a transaction of its own; return the same."""

    def all_fences(self) -> Iterable[tuple[str, int]]:
        """Yield each run, the newest first, and how often it was taken."""


class LockOwners(Owners):
    """The owners of runs in this process, with locks against other processes.

    Args:
        path: The file with the locks. It is made when the first run is owned.
        read_only: Only look who owns which run. Then nothing is owned here, and the file is never made.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path, self._read_only = path, read_only
        self._locks: LockFile | None = None
        super().__init__()

    @classmethod
    def at(cls, path: Path) -> LockOwners:
        """Return the owners that all stores of this process with this file share."""
        return _by_path.get(path) or _by_path.setdefault(path, cls(path))

    def own_nothing(self) -> None:
        super().own_nothing()
        self._locks = None  # a forked child would keep the locks of its parent

    def _opened(self) -> LockFile:
        """Return the file with the locks. One that was removed is replaced: no other process sees its locks."""
        with self._lock:
            if self._locks is None or not self._locks.is_there:
                self._locks = LockFile(self._path)
            return self._locks

    # ------------------------------------------------------------------ owning

    def own(self, hold: Hold, table: Fences, *, take_over: bool) -> None:
        if not self._read_only:  # the store refuses to write
            super().own(hold, table, take_over=take_over)

    def _prove(self, hold: Hold, loser: Hold | None, table: Fences, *, take_over: bool) -> None:
        if not CAN_LOCK:
            _, hold.is_cancelled = table.fence(hold.run_id)
            return
        try:
            self._lock_run(hold, table, 0 if loser is None else table.raise_fence(hold.run_id)[0], take_over)
        except FileNotFoundError:  # the folder is gone: the store says so when it is written to
            return
        except OSError as error:
            reason = f"nobody can tell who owns it: {self._path} cannot be locked ({error.strerror})"
            way_out = "take a store on a local disk"
            if isinstance(error, PermissionError):
                way_out = "make it this user's own, so that nobody else can write to it"
            raise CheckpointError(hold.run_id, f"{reason}; {way_out}") from error

    def _lock_run(self, hold: Hold, fences: Fences, fence: int, take_over: bool) -> None:
        """Lock the byte of a run for its fence, which is probably this one."""
        while True:
            is_locked = self._lock_byte(hold, fence)
            hold.fence, hold.is_cancelled = fences.fence(hold.run_id)
            if hold.fence == fence:
                if is_locked:
                    return
                if not take_over:
                    raise busy(hold.run_id, *self._opened().noted(_byte(hold.run_id, fence)))
                hold.fence, _ = fences.raise_fence(hold.run_id)
            self._unlock(hold)
            fence = hold.fence

    def _lock_byte(self, hold: Hold, fence: int) -> bool:
        """Lock the byte of a run for a fence; return False if another process has it."""
        byte, locks = _byte(hold.run_id, fence), self._opened()
        with self._lock:  # a release comes before, or finds the byte
            hold.check()
            hold.byte = byte if locks.lock(byte, is_brief=hold.is_brief) else 0
        return hold.byte != 0

    def _unlock(self, hold: Hold) -> None:
        with self._lock:
            if hold.byte and self._locks is not None:
                self._locks.unlock(hold.byte)
            hold.byte = 0

    def release(self, hold: Hold) -> None:
        with self._lock:  # both at once for other threads
            self._unlock(hold)
            super().release(hold)

    def jotting(self, hold: Hold) -> Jotting | None:
        return self._opened().jotting(hold.byte) if hold.byte else None

    # ------------------------------------------------------------------ looking

    def owner(self, run_id: str, table: Fences) -> Owner | None:
        if not self._read_only:
            self.drop_lost(run_id, table)
            hold = self.get(run_id)
            if hold is not None or not CAN_LOCK:
                return None if hold is None else hold.owner
        locks = self._seen()
        return None if locks is None else locks.owner(_byte(run_id, table.fence(run_id)[0]))

    def owned_ids(self, table: Fences) -> Collection[str] | None:
        if not CAN_SEE:
            return None
        locks = self._seen()
        locked = set() if locks is None else locks.locked()
        # A call of this process may have lost its run, and not know it yet.
        found = {run_id for run_id in list(self._by_run) if self.owner(run_id, table)}
        for run_id, fence in table.all_fences() if locked else ():
            if (byte := _byte(run_id, fence)) in locked:
                found.add(run_id)
                locked.remove(byte)
            if not locked:
                break
        return found

    def _seen(self) -> LockFile | None:
        """Return the file to look at; None if it is missing, or looking would change it."""
        if not self._read_only:
            return self._opened()
        with suppress(OSError):
            return LockFile(self._path, read_only=True) if CAN_SEE else None
        return None


def _byte(run_id: str, fence: int) -> int:
    """Return the byte of a run for a fence. It is not 0, and no two are equal by chance."""
    return int.from_bytes(blake2b(f"{run_id}\n{fence}".encode(), digest_size=7).digest()) or 1


_by_path: weakref.WeakValueDictionary[Path, LockOwners] = weakref.WeakValueDictionary()
