"""Counts the calls of fsync and fdatasync, in a process of its own that a small library in C (`syncs.c`) listens to."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import scratch
from benchmarks.measure import NotHere, Work, work_at

_SOURCE = Path(__file__).with_name("syncs.c")


def syncs_per_step(work: Work, steps: int) -> float:
    """Syncs that one step more makes. The work is one that has a name: another process looks it up."""
    one, two = _syncs(work, [steps, 2 * steps])
    return (two - one) / steps


def check(work: Work, steps: int) -> None:
    """Do the work in this process, to see whether all is installed.

    Raises:
        NotHere: there is no C compiler, or no Linux.
    """
    _listener()
    work(steps)()


def _syncs(work: Work, runs: list[int]) -> list[int]:
    """Return the syncs of runs of so many steps, one after the other."""
    name = getattr(work, "path", None) or f"{work.__module__}:{work.__qualname__}"
    folder = str(scratch.folder())
    command = [sys.executable, "-c", f"from benchmarks.syncs import count; count({name!r}, {runs}, {folder!r})"]
    environment = {**os.environ, "LD_PRELOAD": str(_listener())}
    child = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, cwd=_SOURCE.parent.parent)
    return [int(number) for number in child.stdout.split()[-len(runs) :]]


def _listener() -> Path:
    library = scratch.folder() / "syncs.so"
    if not library.exists():
        command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            raise NotHere("needs a C compiler, on Linux") from None
    return library


def count(path: str, runs: list[int], folder: str) -> None:
    """Print how many syncs runs of that work make, with files in that folder. Called in the process that is heard."""
    listener = ctypes.CDLL(None)
    listener.syncs_so_far.restype = ctypes.c_ulong
    for steps in runs:
        with scratch.use(Path(folder)), scratch.sample():
            run = work_at(path)(steps)
            before = listener.syncs_so_far()
            run()
            print(listener.syncs_so_far() - before)
