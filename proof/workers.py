"""Run the parts of a proof in two processes at a time, so that a part that hangs or dies harms no other."""

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
"""Seconds after which a case hangs; it takes milliseconds on an idle machine."""

_FOR_GOOD = ExitStack()


def work_out(module: str, requests: Sequence[Sequence[object]], report: Report) -> None:
    """Run ``python -m proof.<module>`` with the arguments of each request, and add the results to the report."""
    with ThreadPoolExecutor(WORKERS) as threads:
        for part in threads.map(lambda request: _result(module, list(map(str, request))), requests):
            report.add(part)


def tell(report: Report) -> None:
    """Print the report of a process for `work_out`."""
    print(json.dumps(attrs.asdict(report)))


def determine(seed: object) -> None:
    """Make random numbers and the time depend on a seed in this process, so that stores write the same rows.

    Only for processes that share no store: two of them would draw the same ids.
    """
    randomness = random.Random(f"determined by {seed}")  # noqa: S311 - no secret
    random.seed(randomness.random())
    os.urandom = randomness.randbytes
    _FOR_GOOD.enter_context(fixed())


@contextmanager
def limited(seconds: float = LONGEST) -> Iterator[None]:
    """Limit the time of a block; after it the process prints its stacks and exits."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _result(module: str, arguments: list[str]) -> Report:
    command = [sys.executable, "-m", f"proof.{module}", *arguments]
    ended = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)  # noqa: S603 - itself
    if ended.returncode == 0:
        return Report(**json.loads(ended.stdout.splitlines()[-1]))
    output = "\n".join([*ended.stdout.splitlines()[-3:], ended.stderr[-6000:]])
    call = " ".join(["python -m", *command[2:]])
    return Report(module, failures=[f"{call} died or hung ({ended.returncode}): {output}"])
