"""How one sample is taken: a time, a count of calls, a growth of memory, or bytes in files."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from types import FrameType
from typing import cast

from benchmarks import messages, scratch
from benchmarks.measure import NotHere, Run, Work


def seconds_per_step(work: Work, steps: int) -> float:
    """Wall time of the work, divided by its steps."""
    return seconds(work, steps) / steps


def seconds(work: Work, steps: int) -> float:
    """Wall time of the work."""
    run = work(steps)
    # What other contenders imported or left behind must not make this one's garbage collections slower.
    gc.collect()
    gc.freeze()
    try:
        started = perf_counter()
        run()
        return perf_counter() - started
    finally:
        gc.unfreeze()


def processor_seconds_per_step(work: Work, steps: int) -> float:
    """Processor time of this process, all threads of it, that one step more takes: a turn has its own cost, once."""
    return (_processor_seconds(work, 2 * steps) - _processor_seconds(work, steps)) / steps


def python_calls_per_step(work: Work, steps: int) -> float:
    """Calls of Python functions that one step more makes in this thread; to resume a generator is one."""
    return _events_per_step("call", work, steps)


def c_calls_per_step(work: Work, steps: int) -> float:
    """Calls of functions in C that one step more makes in this thread, where the interpreter reports them."""
    return _events_per_step("c_call", work, steps)


def memory_growth(work: Work, steps: int) -> float:
    """Bytes by which the peak of a run of that many steps exceeds the peak of one with a tenth of them."""
    return _peak(work(steps)) - _peak(work(steps // 10))


def reported(work: Work, steps: int) -> float:
    """The figure that the run itself returns."""
    return cast(float, work(steps)())


def slowdown(work: Work, steps: int) -> float:
    """How much longer a step takes at the end of a run that makes messages than at its start.

    The median of the last tenth of its steps, divided by that of the first.
    """
    run = work(steps)
    messages.made.clear()
    run()
    times = [after - before for before, after in pairwise(messages.made)]
    tenth = max(1, steps // 10)
    return median(times[-tenth:]) / median(times[:tenth])


def folder_size(work: Work, steps: int) -> float:
    """Bytes on the disk of the files that a run leaves, once everything is closed. Holes in files take none."""
    work(steps)()
    scratch.close()
    return sum(file.stat().st_blocks * 512 for file in scratch.folder().rglob("*") if file.is_file())


def folder_growth_per_step(work: Work, steps: int) -> float:
    """Bytes by which the files that a run leaves are larger with one step more.

    A run of that many steps is compared with one of a tenth: what every run leaves is not spread over its steps.
    """
    return (_size_of_another(work, steps) - _size_of_another(work, steps // 10)) / (steps - steps // 10)


def bytes_written_per_step(work: Work, steps: int) -> float:
    """Bytes that one step more hands to the operating system to write: whole pages, the log and what is copied from it.

    Raises:
        NotHere: the operating system does not count them.
    """
    return (_written(work, 2 * steps) - _written(work, steps)) / steps


def _processor_seconds(work: Work, steps: int) -> float:
    with scratch.sample():
        run = work(steps)
        before = process_time()
        run()
        return process_time() - before


def _size_of_another(work: Work, steps: int) -> float:
    with scratch.sample():
        return folder_size(work, steps)


def _written(work: Work, steps: int) -> int:
    with scratch.sample():
        run = work(steps)
        before = _bytes_written()
        run()
        return _bytes_written() - before


def _bytes_written() -> int:
    """All that this process has handed to write calls."""
    try:
        counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    except OSError:
        raise NotHere("needs /proc/self/io, on Linux") from None
    return int(counters["wchar"])


def _events_per_step(kind: str, work: Work, steps: int) -> float:
    # The difference of two runs, so that what starting and ending a run costs is not spread over its steps.
    return (_events(work, 2 * steps)[kind] - _events(work, steps)[kind]) / steps


def _events(work: Work, steps: int) -> Counter[str]:
    """How often each event of `sys.setprofile` occurs in a run."""
    with scratch.sample():
        return _events_of(work(steps))


def _events_of(run: Run) -> Counter[str]:
    seen: Counter[str] = Counter()

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        seen[event] += 1

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return seen


def _peak(run: Run) -> int:
    """The most memory allocated at any time in a run, in bytes, beyond what was there before."""
    gc.collect()
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
