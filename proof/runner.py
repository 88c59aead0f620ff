"""Run each proof in its own process, so that one that hangs or dies harms no other and can be repeated alone."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from proof import TOP

_TO_SHOW = 10  # seconds for a hanging process to print its stacks
_MEMORY = Path("/dev/shm")  # noqa: S108 - it is where Linux keeps files in memory
_RUNNING: set[subprocess.Popen[bytes]] = set()
_ENOUGH = 4e9  # bytes that the proofs write at the same time at most


def command_of(name: str, share: float, seed: int) -> str:
    """Return the command line that repeats a proof, for the shell in the folder of the repository."""
    python = Path(sys.executable)
    shown = python.relative_to(TOP) if python.is_relative_to(TOP) else python
    return shlex.join([str(shown), "-m", "proof", "--seed", str(seed), "--share", str(share), name])


def longest(share: float) -> float:
    """Return the seconds after which a proof hangs: many times the usual duration."""
    return 900 + 3600 * share


def run(name: str, share: float, seed: int, seconds: float) -> str:
    """Run a proof, which prints its reports.

    The seed also determines hashes of strings. All processes that the proof started end with it.

    Args:
        name: A module of this package, or the full name of another one.
        share: The share of the full length.
        seed: The seed of random choices.
        seconds: Its limit; after it the proof prints its stacks and is killed.

    Returns:
        The problem; empty if the proof holds.
    """
    command = [sys.executable, "-X", "faulthandler", "-m", "proof.one", name, str(share), str(seed)]
    environment = {**os.environ, **_temporary_files(), "PYTHONHASHSEED": str(seed % 2**32)}
    process = subprocess.Popen(command, cwd=TOP, env=environment, start_new_session=True)  # noqa: S603 - itself
    _RUNNING.add(process)
    try:
        return _wrong(process.wait(seconds))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler shows all threads
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TO_SHOW)
        return f"hangs: it was killed after {seconds:g} s"
    finally:
        _end(process)
        _RUNNING.discard(process)
        process.wait()


def end_all() -> None:
    """Kill the running proofs with all processes that they started."""
    for process in list(_RUNNING):
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _temporary_files() -> dict[str, str]:
    """Return an environment that keeps temporary files in memory, where a sync takes no time."""
    is_large = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ENOUGH
    return {"TMPDIR": str(_MEMORY)} if is_large else {}


def _wrong(status: int) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return {0: "", 1: "fails"}.get(status, f"ended with status {status}")
