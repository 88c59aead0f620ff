"""Realistic programs that are killed at random come to the same end when they are started again."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS = Path(__file__).parents[2] / "docs"
KILLS = 2


def _report(folder: Path, _: str) -> object:
    return (folder / "report.md").read_text(encoding="utf-8")


def _ledger(folder: Path, _: str) -> object:
    ledger = sqlite3.connect(folder / "ledger.db")
    try:
        return ledger.execute("SELECT * FROM booked ORDER BY shop").fetchall()
    finally:
        ledger.close()


def _remembered(_: Path, printed: str) -> object:
    return printed.partition("[")[0]


def _printed(_: Path, printed: str) -> object:
    return printed


@attrs.frozen
class Program:
    """A program with its calls.

    Attributes:
        end: Returns the outcome, given the folder and the output of the last call.
        calls: The command lines in order, each with its input.
    """

    end: Callable[[Path, str], object]
    calls: tuple[tuple[str, str], ...]


PROGRAMS = {
    "file_report": Program(_report, ((f"{TEXTS} report.md", ""),)),
    "nightly": Program(_ledger, (("submit 2026-03-01", ""), ("work", ""))),
    "crawl": Program(_printed, (("", ""),)),
    "assistant": Program(_remembered, (("", "my name is Ada\nmy boat is red\n"), ("", "what is my name?\n"))),
}


def _call(name: str, folder: Path, arguments: str, typed: str, killed_after: float | None = None) -> str | None:
    """Call a program; return its output, or None if it was killed."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments.split()]
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed, _ = process.communicate(typed, timeout=300 if killed_after is None else killed_after)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            return None
    return printed


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_comes_to_the_same_end(name: str, tmp_path: Path) -> None:
    """A killed program continues at each start and comes to the same end."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance, program = random.Random(seed), PROGRAMS[name]
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    printed, took = "", []
    for arguments, typed in program.calls:
        began = time.monotonic()
        printed = _call(name, undisturbed, arguments, typed) or ""
        took.append(time.monotonic() - began)
    expected = program.end(undisturbed, printed)
    assert expected

    for (arguments, typed), seconds in zip(program.calls, took, strict=True):
        for _ in range(KILLS if seconds == max(took) else 1):
            _call(name, killed, arguments, typed, chance.uniform(0.3, 1.0) * seconds)
        printed = _call(name, killed, arguments, typed) or ""
    assert program.end(killed, printed) == expected


def test_workers_share_the_night_and_one_is_killed(tmp_path: Path) -> None:
    """Another worker does the work of the killed one, and nothing is booked twice."""
    _call("nightly", tmp_path, "submit 2026-03-01", "")
    command = [sys.executable, str(EXAMPLES / "nightly.py"), "work"]
    workers = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    time.sleep(random.uniform(0.2, 0.6))
    workers[0].kill()
    for worker in workers:
        worker.communicate(timeout=300)
    _call("nightly", tmp_path, "work", "")  # the night may have been over before the killed one was missed

    assert len(_ledger(tmp_path, "")) == 8  # type: ignore[arg-type]
    assert _call("nightly", tmp_path, "status", "") == "2026-03-01: 8 completed\n"
