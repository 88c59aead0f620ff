"""The shim of shim.c: built when it is needed, spoken to from within the process that has it, and its record read."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from enum import IntEnum
from pathlib import Path

import attrs

_SOURCE = Path(__file__).with_name("shim.c")


class UnavailableError(Exception):
    """There can be no faults on this machine; the text says why."""


class Fault(IntEnum):
    """The fault at the chosen change, with the numbers of shim.c."""

    NOTHING = 0
    KILL = 1
    TEAR = 2
    FAIL_ONCE = 3
    FULL_FROM = 4


@attrs.frozen
class Change:
    """One change of the files, as it was recorded.

    Attributes:
        kind: W write, S fdatasync, F fsync, C create, T truncate, U unlink, N rename, D new folder.
        path: The changed file.
        offset: The offset of a write, or the new size of a truncated file.
        data: The written bytes, or the new name of a renamed file.
    """

    kind: str
    path: str
    offset: int
    data: bytes


def build() -> Path:
    """Return the shim as a library, built unless it is there. Raises UnavailableError."""
    if sys.platform != "linux":
        raise UnavailableError("faults need Linux")
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise UnavailableError("faults need a C compiler")
    folder = Path(tempfile.gettempdir()) / f"stategraph-faults-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UnavailableError(f"{folder} belongs to another user")
    library = folder / f"{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not library.exists():
        _compile(compiler, library)
    return library


def _compile(compiler: str, library: Path) -> None:
    unfinished = library.with_name(f"{library.name}.{os.getpid()}")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(unfinished), str(_SOURCE), "-ldl", "-lpthread"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - no shell, and our own words
    if built.returncode:
        raise UnavailableError(f"the compiler refuses the shim: {built.stderr.strip()[:200]}")
    unfinished.rename(library)


def begin(root: Path, target: Path, record: Path | None = None, with_data: bool = False) -> None:
    """Watch this process from now on; it was started with the shim.

    Args:
        root: The recorded folder.
        target: The part of it where faults are.
        record: The file for the changes, if any.
        with_data: Whether to record written bytes as well.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    file = -1 if record is None else os.open(record, flags, 0o600)
    _loaded().faults_begin(os.fsencode(root), os.fsencode(target), file, int(with_data))


def plan(fault: Fault, at: int) -> None:
    """Let a fault come at a change below `target`, counted from now on; 1 is the next."""
    _loaded().faults_plan(int(fault), ctypes.c_long(at))


def happened() -> bool:
    """Whether the planned fault has come."""
    return bool(_loaded().faults_happened())


def _loaded() -> ctypes.CDLL:
    return ctypes.CDLL(None)


_HEAD = struct.Struct("=cHQI")


def changes(record: Path) -> list[Change]:
    """Return the recorded changes in order."""
    found, read, start = [], record.read_bytes(), 0
    while start < len(read):
        kind, path_size, offset, size = _HEAD.unpack_from(read, start)
        middle = start + _HEAD.size + path_size
        path = os.fsdecode(read[start + _HEAD.size : middle])
        start = middle + size
        found.append(Change(kind.decode(), path, offset, read[middle:start]))
    return found
