"""The work of the rows of mapped items: a trivial function of each item, in four threads.

The floor is a plain loop over the results of a pool of threads, with nothing kept.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks.measure import Run

WORKERS = 4


def done(item: int) -> int:
    """Return the result of an item."""
    return item + 1


def in_threads(count: int) -> Run:
    """The floor."""
    items = list(range(count))

    def run() -> list[int]:
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(done, items))

    return run
