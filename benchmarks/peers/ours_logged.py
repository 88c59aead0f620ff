"""stategraph, with and without the observer that logs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr
from statistics import median
from time import perf_counter

import structlog

from benchmarks import scratch
from benchmarks.peers.ours import NOT_KEPT, count, loop_graph
from stategraph import State, StateGraph

_STEPS = 3
_TURNS = 20


def lines(steps: int) -> Callable[[], float]:
    """Return seconds that a run takes longer because it is logged."""
    return lambda: _difference(steps)


def configured_lines(steps: int) -> Callable[[], float]:
    """Return the same, where the program has configured structlog to write JSON."""

    def run() -> float:
        with (scratch.folder() / "lines").open("w") as file:
            structlog.configure(
                [structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
                logger_factory=structlog.PrintLoggerFactory(file),
            )
            try:
                return _difference(steps)
            finally:
                structlog.reset_defaults()

    return run


def _difference(runs: int) -> float:
    logged, silent = (loop_graph(count, _STEPS - 1, NOT_KEPT, observer=name) for name in ("structlog", "noop"))
    with (scratch.folder() / "log").open("w", buffering=1) as log, redirect_stderr(log):
        # In turns, so that a slow moment of the machine is one of both.
        times = [(_seconds(logged, runs // _TURNS), _seconds(silent, runs // _TURNS)) for _ in range(_TURNS)]
    return (median(one for one, _ in times) - median(other for _, other in times)) / (runs // _TURNS)


def _seconds(graph: StateGraph, runs: int) -> float:
    began = perf_counter()
    for _ in range(runs):
        graph.execute(State({"n": 0}))
    return perf_counter() - began
