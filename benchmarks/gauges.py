"""How one sample is taken: a time, a count of calls, or a growth of memory."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from time import perf_counter
from types import FrameType

from benchmarks.measure import Run, Work


def seconds_per_step(work: Work, steps: int) -> float:
    """Wall time of the work, divided by its steps."""
    run = work(steps)
    # What other contenders imported or left behind must not make this one's garbage collections slower.
    gc.collect()
    gc.freeze()
    try:
        started = perf_counter()
        run()
        return (perf_counter() - started) / steps
    finally:
        gc.unfreeze()


def python_calls_per_step(work: Work, steps: int) -> float:
    """Calls of Python functions that one step more makes in this thread; to resume a generator is one."""
    return _events_per_step("call", work, steps)


def c_calls_per_step(work: Work, steps: int) -> float:
    """Calls of functions in C that one step more makes in this thread, where the interpreter reports them."""
    return _events_per_step("c_call", work, steps)


def memory_growth(work: Work, steps: int) -> float:
    """Bytes by which the peak of a run of that many steps exceeds the peak of one with a tenth of them."""
    return _peak(work(steps)) - _peak(work(steps // 10))


def _events_per_step(kind: str, work: Work, steps: int) -> float:
    # The difference of two runs, so that what starting and ending a run costs is not spread over its steps.
    return (_events(work(2 * steps))[kind] - _events(work(steps))[kind]) / steps


def _events(run: Run) -> Counter[str]:
    """How often each event of `sys.setprofile` occurs in a run."""
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
