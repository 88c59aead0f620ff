"""Processes that do a part of a proof each, two at a time: what hangs or dies takes its part with it, no more."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import attrs

from proof import TOP
from proof.report import Report
from stategraph.testing import fixed

WORKERS = 2
LONGEST = 60
"""Seconds that a case may take, before it counts as one that hangs: what takes milliseconds, on a machine that is busy
with other things."""

_FOR_GOOD = ExitStack()


def work_out(module: str, requests: Sequence[Sequence[object]], report: Report) -> None:
    """Run ``python -m proof.<module>`` with the arguments of each request, and add what it tells to the report."""
    with ThreadPoolExecutor(WORKERS) as threads:
        for part in threads.map(lambda request: _told(module, list(map(str, request))), requests):
            report.add(part)


def tell(report: Report) -> None:
    """What such a process does in the end."""
    print(json.dumps(attrs.asdict(report)))


def determine(seed: object) -> None:
    """Let all that is random, and the time, come of a seed from now on, in this process: what a store writes, too.

    For processes that are alone with their stores: those of several would take each other's numbers for their own.
    """
    randomness = random.Random(f"determined by {seed}")  # noqa: S311 - no secret
    random.seed(randomness.random())
    os.urandom = randomness.randbytes
    _FOR_GOOD.enter_context(fixed())


@contextmanager
def limited(seconds: float = LONGEST) -> Iterator[None]:
    """A stretch that takes no longer: else the process shows where it is and ends, whatever it is at."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _told(module: str, arguments: list[str]) -> Report:
    command = [sys.executable, "-m", f"proof.{module}", *arguments]
    ended = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)  # noqa: S603 - itself
    if ended.returncode == 0:
        return Report(**json.loads(ended.stdout.splitlines()[-1]))
    told = "\n".join([*ended.stdout.splitlines()[-3:], ended.stderr[-6000:]])
    call = " ".join(["python -m", *command[2:]])
    return Report(module, failures=[f"{call} died or hung ({ended.returncode}): {told}"])
