"""LockFile: locks of the operating system on single bytes of a file.

The operating system lets go of them when a process ends, however it ends: no clock, no heartbeat, nothing to clean up.
On Linux they are those of an open file (F_OFD_SETLK). Elsewhere they are those of the process (POSIX), which fall as
soon as any part of the process closes the file. Where there are neither, as on Windows, nothing is locked.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from hashlib import blake2b
from mmap import mmap
from pathlib import Path
from typing import TypeAlias

import attrs

from stategraph._owners.holds import LONGEST_WRITE, host_name
from stategraph._values import clock
from stategraph._values.provenance import Owner

if sys.platform != "win32":
    import fcntl

CAN_LOCK = sys.platform != "win32"
_BUSY = (errno.EAGAIN, errno.EACCES)
_FIRST_BYTE = 1 << 40  # of those that are locked: far behind what is written
_MOST_BYTES = 1 << 56
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64-bit machines
_OF_FILE = sys.platform == "linux" and struct.calcsize("P") == 8
CAN_SEE = _OF_FILE
"""Whether one can look who has locked what, and close the file, without letting go of what this process has locked."""
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
        read_only: Only see who has locked something, where `CAN_SEE`. Then it is not made.

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

    def lock(self, byte: int, *, is_brief: bool = False) -> bool:
        """Lock a byte, and note that it was this process; return False if another process has it."""
        try:
            self._set(fcntl.LOCK_EX, byte)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        note = _NOTE.pack(byte, clock.now_ns(), os.getpid(), is_brief, _host())
        try:  # noqa: SIM105 - here and below: suppress takes as long as the lock
            os.pwrite(self._fd, note, byte % _NOTES * _NOTE.size)
        except OSError:  # there is no room: then nobody is told who it was
            pass
        return True

    def jotting(self, byte: int) -> Jotting | None:
        """Return a function that notes the node under way in a run whose byte is locked: when it began, and its name.

        It writes to memory that is shared with other processes, and costs no system call. None where they could not
        look. Runs whose notes share a place may garble them; a note that does not fit its byte says nothing.
        """
        if not _OF_FILE:
            return None
        at = byte % _NOTES * _JOT.size
        try:
            jots = self._jots = self._jots or self._mapped()
            os.posix_fallocate(self._fd, _JOTS + at, _JOT.size)  # or a full disk would end the process
        except OSError:  # there is no room, or there are no descriptors left
            return None
        return partial(_JOT.pack_into, jots, at, byte)

    def _mapped(self) -> mmap:
        """Map the notes into memory, of the file opened once more: a run may hold on to it, and it locks nothing."""
        size = _NOTES * _JOT.size
        if os.fstat(self._fd).st_size < _JOTS + size:
            os.ftruncate(self._fd, _JOTS + size)
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return mmap(fd, size, offset=_JOTS)
        finally:
            os.close(fd)

    def unlock(self, byte: int) -> None:
        """Let go of a byte. Whoever locks it next and has not noted that yet seems to have it for a moment only."""
        try:  # noqa: SIM105
            os.pwrite(self._fd, b"\1", byte % _NOTES * _NOTE.size + _IS_BRIEF)
        except OSError:  # there is no room
            pass
        try:  # noqa: SIM105
            self._set(fcntl.LOCK_UN, byte)
        except OSError:  # then it falls with the process
            pass

    def _set(self, operation: int, byte: int) -> None:
        if _OF_FILE:
            kind = fcntl.F_WRLCK if operation == fcntl.LOCK_EX else fcntl.F_UNLCK
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, _FIRST_BYTE + byte, 1, 0))
        else:
            blocking = fcntl.LOCK_NB if operation == fcntl.LOCK_EX else 0
            fcntl.lockf(self._fd, operation | blocking, 1, _FIRST_BYTE + byte)

    def owner(self, byte: int) -> Owner | None:
        """Return who has locked a byte; None if it is no other process."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, _FIRST_BYTE + byte, 1, 0)
        if _OF_FILE and _FLOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))[0] == fcntl.F_UNLCK:
            return None
        if not _OF_FILE and self.lock(byte):  # it cannot be asked in a portable way, but tried
            self.unlock(byte)
            return None
        return self._at_work(self.noted(byte)[0], byte)

    def _at_work(self, owner: Owner, byte: int) -> Owner:
        """Return who has locked a byte with the node that is under way, if that was written down since."""
        kept = os.pread(self._fd, _JOT.size, _JOTS + byte % _NOTES * _JOT.size)
        found = _JOT.unpack(kept) if len(kept) == _JOT.size else (None, 0, b"")
        since = clock.to_datetime(found[1])
        if found[0] != byte or owner.since is None or since < owner.since:
            return owner
        return attrs.evolve(owner, node=found[2].rstrip(b"\0").decode(errors="replace"), node_since=since)

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

    def noted(self, byte: int) -> tuple[Owner, float]:
        """Return who has locked a byte last, as far as that can be told, and for how many seconds at most; 0 if nobody
        knows."""
        kept = os.pread(self._fd, _NOTE.size, byte % _NOTES * _NOTE.size)
        found = _NOTE.unpack(kept) if len(kept) == _NOTE.size else (None, 0, 0, False, b"")
        if found[0] != byte:  # it is not noted yet, or that of another byte stands in its place
            return Owner(host_name(), None), _UNTIL_NOTED
        host = found[4].rstrip(b"\0").decode(errors="backslashreplace")
        return Owner(host, found[2], clock.to_datetime(found[1])), LONGEST_WRITE if found[3] else 0.0


@cache
def _host() -> bytes:
    return host_name().encode()[:107]


def byte_of(text: str) -> int:
    """Return the number of the byte of a text, which is not 0: no two texts have the same by chance."""
    return int.from_bytes(blake2b(text.encode(), digest_size=7).digest()) or 1
