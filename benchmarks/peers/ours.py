"""stategraph, in its default configuration unless the name says otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from benchmarks.counters import START, below
from benchmarks.measure import Run
from stategraph import CheckpointConfig, CheckpointStore, GraphConfig, State, StateGraph

Node = Callable[[State], State | Mapping[str, Any]]

NOT_KEPT = CheckpointConfig()
KEPT = CheckpointConfig(store="memory", interval=1)


def step(steps: int) -> Run:
    """A node that returns its updates."""
    return _loop(count, steps)


def step_that_sets(steps: int) -> Run:
    """A node that returns a new State."""
    return _loop(count_by_setting, steps)


def unobserved_step(steps: int) -> Run:
    """Run `step` without an observer."""
    return _loop(count, steps, observer="noop")


def kept_step(steps: int) -> Run:
    """The same as `step`, every State saved in the memory store."""
    return _loop(count, steps, checkpoint=KEPT)


def kept_step_that_sets(steps: int) -> Run:
    """The same as `step_that_sets`, every State saved in the memory store."""
    return _loop(count_by_setting, steps, checkpoint=KEPT)


def count(state: State) -> Mapping[str, Any]:
    """Count one up."""
    return {"n": state["n"] + 1}


def count_by_setting(state: State) -> State:
    """Count one up."""
    return state.set("n", state["n"] + 1)


def _done(_state: State) -> Mapping[str, Any]:
    return {}


def _loop(node: Node, steps: int, checkpoint: CheckpointConfig = NOT_KEPT, **config: Any) -> Run:
    return execution(loop_graph(node, steps, checkpoint, **config), State(START))


def loop_graph(
    node: Node, steps: int, checkpoint: CheckpointConfig, store: CheckpointStore | None = None, **config: Any
) -> StateGraph:
    """Return the graph of a node that runs until `n` has reached the number of steps."""
    given = GraphConfig(name="benchmark", max_iterations=steps + 10, checkpoint=checkpoint, **config)
    graph = StateGraph(given, store=store)
    graph.add_node("count", node)
    graph.add_node("done", _done)
    graph.add_edge("count", "count", below(steps))
    graph.add_edge("count", "done")
    graph.set_entry_point("count")
    graph.set_exit_point("done")
    return graph


def execution(graph: StateGraph, start: State) -> Run:
    """Return the execution of a graph."""
    return quietly(lambda: graph.execute(start))


def quietly(run: Run) -> Run:
    """Return the same run, with what an observer logs, two lines a run, written but not between the figures."""

    def quiet() -> object:
        with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
            return run()

    return quiet
