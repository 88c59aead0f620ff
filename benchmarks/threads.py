"""The same work in several threads at once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.measure import Run

COUNT = 8


def together(runs: Sequence[Run]) -> Run:
    """Return all runs at once, a thread each; raises what one of them raises."""

    def run() -> list[object]:
        with ThreadPoolExecutor(len(runs)) as pool:
            return [ended.result() for ended in [pool.submit(one) for one in runs]]

    return run
