"""The work of the step rows: two counters, of which every step counts one up until it reaches a limit.

The floors are the least that plain Python can do for it: a new dict and the call of a condition, per step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.measure import Run

START: Mapping[str, int] = {"n": 0, "total": 0}


def below(steps: int) -> Callable[[Mapping[str, int]], bool]:
    """The condition to go on: `n` has not reached the number of steps."""

    def unfinished(state: Mapping[str, int]) -> bool:
        return state["n"] < steps

    return unfinished


def plain(steps: int) -> Run:
    """The floor of a step."""
    unfinished = below(steps)

    def run() -> dict[str, int]:
        state = {**START}
        while unfinished(state):
            state = {**state, "n": state["n"] + 1}
        return state

    return run


def kept(steps: int) -> Run:
    """The floor of a step whose State is kept: the newest one, under the name of its run."""
    unfinished = below(steps)

    def run() -> dict[str, dict[str, int]]:
        store = {}
        state = {**START}
        while unfinished(state):
            state = {**state, "n": state["n"] + 1}
            store["run"] = state
        return store

    return run
