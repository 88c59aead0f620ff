"""stategraph, in its default configuration unless the name says otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from benchmarks.counters import START, below
from benchmarks.measure import Run
from stategraph import CheckpointConfig, GraphConfig, State, StateGraph

Node = Callable[[State], State | Mapping[str, Any]]

KEPT = CheckpointConfig(store="memory", interval=1)


def step(steps: int) -> Run:
    """A node that returns its updates."""
    return _loop(_count, steps)


def step_that_sets(steps: int) -> Run:
    """A node that returns a new State."""
    return _loop(_count_by_setting, steps)


def unobserved_step(steps: int) -> Run:
    """The same as `step`, with nobody listening."""
    return _loop(_count, steps, observer="noop")


def kept_step(steps: int) -> Run:
    """The same as `step`, every State saved in the memory store."""
    return _loop(_count, steps, checkpoint=KEPT)


def kept_step_that_sets(steps: int) -> Run:
    """The same as `step_that_sets`, every State saved in the memory store."""
    return _loop(_count_by_setting, steps, checkpoint=KEPT)


def _count(state: State) -> Mapping[str, Any]:
    return {"n": state["n"] + 1}


def _count_by_setting(state: State) -> State:
    return state.set("n", state["n"] + 1)


def _done(_state: State) -> Mapping[str, Any]:
    return {}


def _loop(node: Node, steps: int, **config: Any) -> Run:
    graph = StateGraph(GraphConfig(name="benchmark", max_iterations=steps + 10, **config))
    graph.add_node("count", node)
    graph.add_node("done", _done)
    graph.add_edge("count", "count", below(steps))
    graph.add_edge("count", "done")
    graph.set_entry_point("count")
    graph.set_exit_point("done")
    return lambda: _quietly(graph)


def _quietly(graph: StateGraph) -> State:
    # The default observer logs two lines a run to stderr: they are written, but not between the figures.
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        return graph.execute(State(START))
