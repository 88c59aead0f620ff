"""Ownership of runs in a store that processes of one machine share: locks on single bytes of a file next to the store.

The operating system releases the locks when a process ends, however it ends: no clock, no heartbeat, no cleanup.
Linux has locks of an open file (F_OFD_SETLK). Other systems have locks of a process (POSIX), which are lost as soon as
any part of the process closes the file. Where there are neither, as on Windows, nothing is locked.

A lock cannot be taken from a process that hangs. So the store keeps a fence for each run, the number of takeovers.
Each number has its own byte to lock, and every write of an owner compares the fence in its transaction.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from mmap import mmap
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import attrs

from stategraph._owners.base import LONGEST_WRITE, BusyError, Fence, Owners, Ownership, host_name
from stategraph._values import clock
from stategraph._values.provenance import Owner
from stategraph.errors import CheckpointError

if sys.platform != "win32":
    import fcntl

CAN_LOCK = sys.platform != "win32"
_BUSY = (errno.EAGAIN, errno.EACCES)
_FIRST_BYTE = 1 << 40  # the first byte to lock: far beyond the contents of the file
_MOST_BYTES = 1 << 56
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64-bit machines
_OF_FILE = sys.platform == "linux" and struct.calcsize("P") == 8
CAN_SEE = _OF_FILE
"""Whether a process can inspect the locks, and close the file, without releasing its own locks."""
_SLOTS, _OWNER_NOTE = 4096, struct.Struct("<QqI?107s")  # the owners of bytes; bytes may share a slot
_NODE_NOTES_AT, _NODE_NOTE = _SLOTS * _OWNER_NOTE.size, struct.Struct("<Qq112s")  # after these, the nodes at work
_UNTIL_NOTED = 1.0  # seconds from the lock to the note, on a busy machine

NodeRecorder: TypeAlias = Callable[[int, bytes], None]
"""Records the node at work; see `LockFile.node_recorder`."""


class LockFile:
    """A file with one byte per run and fence. One process at a time can lock a byte.

    Args:
        path: The file. If it is missing, it is created with access for this user only.
        read_only: Only inspect the locks, where `CAN_SEE`. A missing file is not created.

    Raises:
        OSError: the file cannot be used, or other users can write to it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        self._node_notes: mmap | None = None
        mode = os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT
        self._fd = os.open(path, mode | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)  # a FIFO would block
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid not in (os.geteuid(), 0):
            raise PermissionError(errno.EPERM, f"{path} is not a regular file with one name, or another user owns it")
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(errno.EPERM, f"others can write to {path}: chmod go-w {path}")

    def close(self) -> None:
        """Close the file, which releases all locks, unless another process has inherited it."""
        with suppress(AttributeError, OSError):  # it was never opened, or is closed
            os.close(self._fd)
            del self._fd
        if self._node_notes is not None:
            self._node_notes.close()

    __del__ = close

    @property
    def is_there(self) -> bool:
        """Whether the open file still has a name, that is, it was not removed or replaced."""
        return os.fstat(self._fd).st_nlink > 0

    # ------------------------------------------------------------------ locking

    def lock(self, byte: int, *, is_brief: bool = False) -> bool:
        """Lock a byte, and record this process as its owner; return False if another process has it."""
        try:
            self._set(fcntl.LOCK_EX, byte)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        self._note(byte, _OWNER_NOTE.pack(byte, clock.now_ns(), os.getpid(), is_brief, host_name().encode()[:107]))
        return True

    def unlock(self, byte: int) -> None:
        """Unlock a byte, and erase the record of its owner."""
        self._note(byte, bytes(_OWNER_NOTE.size))
        try:  # noqa: SIM105 - here and below: suppress takes as long as the lock
            self._set(fcntl.LOCK_UN, byte)
        except OSError:  # the lock ends with the process
            pass

    def _note(self, byte: int, note: bytes) -> None:
        try:  # noqa: SIM105
            os.pwrite(self._fd, note, byte % _SLOTS * _OWNER_NOTE.size)
        except OSError:  # no space left: the owner stays unknown
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
        """Return the process that has locked a byte, and its node at work; None if no other process has."""
        if _OF_FILE and self._first_lock(byte, 1)[0] == fcntl.F_UNLCK:
            return None
        if not _OF_FILE and self.lock(byte):  # POSIX locks have no portable query, so try to lock
            self.unlock(byte)
            return None
        owner, _ = self.noted(byte)
        found = self._read(_NODE_NOTE, _NODE_NOTES_AT, byte)
        if found is None or owner.since is None or (since := clock.to_datetime(found[1])) < owner.since:
            return owner
        return attrs.evolve(owner, node=found[2].rstrip(b"\0").decode(errors="replace"), node_since=since)

    def noted(self, byte: int) -> tuple[Owner, float]:
        """Return the last process to lock a byte, and the most seconds it keeps the lock; 0 if unknown."""
        found = self._read(_OWNER_NOTE, 0, byte)
        if found is None:  # not written yet, or overwritten by the note of another byte
            return Owner(host_name(), None), _UNTIL_NOTED
        host = found[4].rstrip(b"\0").decode(errors="backslashreplace")
        return Owner(host, found[2], clock.to_datetime(found[1])), LONGEST_WRITE if found[3] else 0.0

    def _read(self, note: struct.Struct, start: int, byte: int) -> tuple[Any, ...] | None:
        """Return the note on a byte, if there is one."""
        kept = os.pread(self._fd, note.size, start + byte % _SLOTS * note.size)
        found = note.unpack(kept) if len(kept) == note.size else (None,)
        return found if found[0] == byte else None

    def _first_lock(self, byte: int, length: int) -> tuple[int, ...]:
        """Return a lock of another process among these bytes, as fields of `struct flock`."""
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _FIRST_BYTE + byte, length, 0)
        return _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, query))

    def locked(self) -> set[int]:
        """Return the bytes that other processes have locked, where `CAN_SEE`."""
        found: set[int] = set()
        left = [(0, _MOST_BYTES)]
        while left:
            first, last = left.pop()
            kind, _, start, length, _ = self._first_lock(first, last - first)
            if kind != fcntl.F_UNLCK:
                begin = max(start - _FIRST_BYTE, first)
                end = min(start - _FIRST_BYTE + length, last) if length else last
                found.update(range(begin, min(end, begin + _SLOTS)))  # a longer lock is not from stategraph
                left += [span for span in ((first, begin), (end, last)) if span[0] < span[1]]
        return found

    # ------------------------------------------------------------------ the node under way

    def node_recorder(self, byte: int) -> NodeRecorder | None:
        """Return a function that records the node at work on a run whose byte is locked: its start and its name.

        It writes to memory that is shared with other processes, without a system call. Return None where other
        processes cannot read it. Runs that share a slot may garble a record; a record with the wrong byte is ignored.
        """
        if not _OF_FILE:
            return None
        at = byte % _SLOTS * _NODE_NOTE.size
        try:
            self._node_notes = self._node_notes or self._mapped()
            # Otherwise a full disk would kill the process (SIGBUS).
            os.posix_fallocate(self._fd, _NODE_NOTES_AT + at, _NODE_NOTE.size)
        except OSError:  # no space left, or no descriptors
            return None
        return partial(_NODE_NOTE.pack_into, self._node_notes, at, byte)

    def _mapped(self) -> mmap:
        """Map the records into memory through a second descriptor. A run may keep it open: it holds no locks."""
        size = _SLOTS * _NODE_NOTE.size
        if os.fstat(self._fd).st_size < _NODE_NOTES_AT + size:
            os.ftruncate(self._fd, _NODE_NOTES_AT + size)
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return mmap(fd, size, offset=_NODE_NOTES_AT)
        finally:
            os.close(fd)


class Fences(Protocol):
    """Counts how often runs were taken from their owners, and knows which runs are cancelled."""

    def fence(self, run_id: str) -> Fence:
        """Return the number of takeovers of a run, and whether it is cancelled."""

    def raise_fence(self, run_id: str) -> Fence:
        """Increment the number of takeovers in a separate transaction; return the same as `fence`."""

    def all_fences(self) -> Iterable[tuple[str, int]]:
        """Yield each run and its number of takeovers, newest run first."""


class LockOwners(Owners):
    """The owners of runs in this process, with locks that keep other processes out.

    Args:
        path: The file with the locks. It is created when the first run is owned.
        read_only: Only inspect owners. This process then owns nothing and never creates the file.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path, self._read_only = path, read_only
        self._locks: LockFile | None = None
        super().__init__()

    @classmethod
    def at(cls, path: Path) -> LockOwners:
        """Return the owners for this file, which all stores of this process share."""
        with _opening:
            return _by_path.get(path) or _by_path.setdefault(path, cls(path))

    def own_nothing(self) -> None:
        super().own_nothing()
        locks, self._locks = self._locks, None
        if locks is not None:  # an inherited file would keep the locks of the parent; threads at work may refer to it
            locks.close()

    def _opened(self) -> LockFile:
        """Return the file with the locks. Replace a removed one: no other process sees its locks."""
        with self._lock:
            if self._locks is None or not self._locks.is_there:
                self._locks = LockFile(self._path)
            return self._locks

    # ------------------------------------------------------------------ owning

    def own(self, ownership: Ownership, table: Fences, *, take_over: bool) -> None:
        if not self._read_only:  # a read-only store refuses the write later
            super().own(ownership, table, take_over=take_over)

    def _prove(self, ownership: Ownership, loser: Ownership | None, table: Fences, *, take_over: bool) -> None:
        if not CAN_LOCK:
            ask = table.raise_fence if take_over or loser is not None else table.fence
            ownership.fence, ownership.is_cancelled = ask(ownership.run_id)
            return
        try:
            self._lock_run(ownership, table, 0 if loser is None else table.raise_fence(ownership.run_id)[0], take_over)
        except FileNotFoundError:  # the folder is gone: the store reports that at the next write
            return
        except OSError as error:
            reason = f"its owner is unknown: {self._path} cannot be locked ({error.strerror})"
            way_out = "take a store on a local disk"
            if isinstance(error, PermissionError):
                way_out = "let this user own it, and no other user write to it"
            raise CheckpointError(ownership.run_id, f"{reason}; {way_out}") from error

    def _lock_run(self, ownership: Ownership, fences: Fences, fence: int, take_over: bool) -> None:
        """Lock the byte of a run, beginning with a guess of its fence."""
        while True:
            is_locked = self._lock_byte(ownership, fence)
            ownership.fence, ownership.is_cancelled = fences.fence(ownership.run_id)
            if ownership.fence == fence:
                if is_locked:
                    return
                if not take_over:
                    raise BusyError(ownership.run_id, *self._opened().noted(_byte(ownership.run_id, fence)))
                ownership.fence, _ = fences.raise_fence(ownership.run_id)
            self._unlock(ownership)
            fence = ownership.fence

    def _lock_byte(self, ownership: Ownership, fence: int) -> bool:
        """Lock the byte of a run for a fence; return False if another process has it."""
        byte, locks = _byte(ownership.run_id, fence), self._opened()
        with self._lock:  # a concurrent release happens before this, or sees the byte
            ownership.check()
            ownership.byte = byte if locks.lock(byte, is_brief=ownership.is_brief) else 0
        return ownership.byte != 0

    def _unlock(self, ownership: Ownership) -> None:
        with self._lock:
            if ownership.byte and self._locks is not None:
                self._locks.unlock(ownership.byte)
            ownership.byte = 0

    def release(self, ownership: Ownership) -> None:
        with self._lock:  # other threads see both changes at once
            self._unlock(ownership)
            super().release(ownership)

    def node_recorder(self, ownership: Ownership) -> NodeRecorder | None:
        return self._opened().node_recorder(ownership.byte) if ownership.byte else None

    # ------------------------------------------------------------------ looking

    def owner(self, run_id: str, table: Fences) -> Owner | None:
        self.forget_lost(run_id, table)
        ownership = self.get(run_id)
        if ownership is not None:
            return ownership.owner
        locks = self._seen()
        return None if locks is None else locks.owner(_byte(run_id, table.fence(run_id)[0]))

    def owned_ids(self, table: Fences) -> Collection[str] | None:
        if not CAN_SEE:
            return None
        locks = self._seen()
        locked = set() if locks is None else locks.locked()
        # A call of this process may have lost its run without knowing it.
        found = {run_id for run_id in list(self._by_run) if self.owner(run_id, table)}
        for run_id, fence in table.all_fences() if locked else ():
            if (byte := _byte(run_id, fence)) in locked:
                found.add(run_id)
                locked.remove(byte)
            if not locked:
                break
        return found

    def _seen(self) -> LockFile | None:
        """Return the file to inspect; None if it is missing, or inspection would change it."""
        if CAN_LOCK and not self._read_only:
            return self._opened()
        with suppress(OSError):
            return LockFile(self._path, read_only=True) if CAN_SEE else None
        return None


def _byte(run_id: str, fence: int) -> int:
    """Return the byte of a run for a fence: never 0, and different in practice for different pairs."""
    return int.from_bytes(blake2b(f"{run_id}\n{fence}".encode(), digest_size=7).digest()) or 1


_by_path: weakref.WeakValueDictionary[Path, LockOwners] = weakref.WeakValueDictionary()
_opening = threading.Lock()
if hasattr(os, "register_at_fork"):  # not where there are no forks
    os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)
