"""Forked processes that proofs kill."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from proof.report import Report

T = TypeVar("T")


def forked(work: Callable[[], object]) -> int:
    """Call a function in a forked process, which ends with it; return the process id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - a forked process must not return
        traceback.print_exc()
    finally:
        os._exit(status)


def lines_of(path: Path) -> list[str]:
    """Return the lines of a log, which may not be there yet."""
    return path.read_text().splitlines() if path.exists() else []


def distributed(kills: int, cases: Sequence[T], seed: int) -> Iterator[tuple[T, int, int]]:
    """Distribute kills evenly over cases; yield each case with its kills and its seed."""
    for number, case in enumerate(cases):
        some = kills // len(cases) + (number < kills % len(cases))
        if some:
            yield case, some, seed + number


class Killer:
    """Kills processes of one case, run after run, and compares what each run has done."""

    def __init__(self, case: Any, kills: int, seed: int) -> None:
        self.case, self.kills = case, kills
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.report = Report(str(case))

    def life(self, folder: Path) -> bool:
        """Run a process for a while; return whether the run has ended."""
        raise NotImplementedError

    def compare(self, folder: Path) -> None:
        """Check what a complete run has done."""
        raise NotImplementedError

    def around(self, folder: Path) -> AbstractContextManager[object]:
        """Return what is there during all lives of a run."""
        return nullcontext()

    @classmethod
    def prove(cls, title: str, kills: int, cases: Sequence[Any], seed: int) -> list[Report]:
        """Kill runs of every case."""
        whole = Report(title)
        for given in distributed(kills, cases, seed):
            whole.add(cls(*given).run())
        return [whole]

    def run(self) -> Report:
        """Kill processes, run after run."""
        while self.kills > 0 and not self.report.failures:
            with tempfile.TemporaryDirectory(prefix="stategraph-proof-") as folder, self.around(Path(folder)):
                while not self.life(Path(folder)) and not self.report.failures:
                    self.kills -= 1
                    self.report.tried["kills"] += 1
                if not self.report.failures:
                    self.compare(Path(folder))
        return self.report

    def lives(self, work: Callable[[], object], is_over: Callable[[], bool], *, moment: float = 0) -> bool:
        """Do some work in a process until its life is over, and a moment longer; return whether it ended by itself.

        `moment` is in seconds. The process may also kill itself.
        """
        child = forked(work)
        while not is_over():
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return self.has_ended(status)
            time.sleep(0.0005)
        time.sleep(moment)
        os.kill(child, signal.SIGKILL)
        return self.has_ended(os.waitpid(child, 0)[1])

    def has_ended(self, status: int) -> bool:
        """Return whether a process ended by itself; an error fails the proof."""
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            self.fail("a process ended in an error")
        return os.WIFEXITED(status)

    def fail(self, what: str) -> None:
        """Note a failure of this case."""
        self.report.failures.append(f"{self.case}: {what}")
