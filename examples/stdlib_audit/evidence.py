"""The log of an audit, which shows how often each process ran each batch."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class Execution(NamedTuple):
    """One execution of a batch (they count from 1) by a process."""

    batch: int
    pid: int


def record(log: Path, batch: int) -> None:
    """Append to the log that this process begins a batch. What is recorded survives a kill of the process."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, f"{batch} {os.getpid()}\n".encode())
    finally:
        os.close(file)


def executions(log: Path) -> list[Execution]:
    """Return the records in order; none if there is no log yet."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [Execution(*map(int, line.split())) for line in lines]


def by_process(runs: Iterable[Execution]) -> dict[int, list[int]]:
    """Return the batches of each process, in the order in which they began."""
    done: dict[int, list[int]] = {}
    for run in runs:
        done.setdefault(run.pid, []).append(run.batch)
    return done


def repeated(runs: Iterable[Execution]) -> list[int]:
    """Return the batches that ran more than once, in order."""
    times = Counter(run.batch for run in runs)
    return sorted(batch for batch in times if times[batch] > 1)


def violations(runs: Iterable[Execution], saved: int, total: int) -> list[str]:
    """Return the faults of a run of `total` batches that was killed and resumed once.

    The checkpoint held the first `saved` batches: those must have been executed exactly once, the others once
    or twice.
    """
    times = Counter(run.batch for run in runs)
    return [
        f"batch {batch} was executed {times[batch]} times, the checkpoint held the first {saved}"
        for batch in range(1, total + 1)
        if not 1 <= times[batch] <= (1 if batch <= saved else 2)
    ]
