"""Import: a new interpreter that imports what building a graph takes, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MILLISECONDS, Contender, Goal, Row, Run, Work

FIRST_RUN = """
from stategraph import GraphConfig, State, StateGraph
graph = StateGraph(GraphConfig(name="first-run"))
graph.add_node("done", lambda state: {"n": 1})
graph.set_entry_point("done")
graph.set_exit_point("done")
graph.execute(State())
"""


def program(source: str, needs: str = "") -> Work:
    """A new interpreter that runs the source, which needs that package to be installed."""

    def work(_steps: int) -> Run:
        if needs and find_spec(needs) is None:
            raise ModuleNotFoundError(needs)
        return lambda: _interpret(source)

    return work


def _interpret(source: str) -> None:
    # An installed package is compiled once. With this variable set, one that is not would be compiled every time.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", source]
    subprocess.run(command, check=True, env=environment, capture_output=True)


def _row(title: str, ours: str, limit: float, peers: tuple[Contender, ...] = ()) -> Row:
    return Row(
        title=title,
        gauge=seconds_per_step,
        unit=MILLISECONDS,
        goal=Goal(limit, absolute=True),
        floor=program("pass"),
        steps=1,
        rounds=7,
        contenders=(Contender("stategraph", program(ours, "stategraph"), judged=True), *peers),
    )


ROWS = (
    _row("import", "import stategraph", 30),
    _row(
        *("import what builds a graph", "from stategraph import GraphConfig, State, StateGraph", 80),
        (
            Contender("LangGraph", program("from langgraph.graph import StateGraph", "langgraph")),
            Contender("Burr", program("from burr.core import ApplicationBuilder", "burr")),
            Contender("pydantic-graph", program("from pydantic_graph import GraphBuilder", "pydantic_graph")),
        ),
    ),
    _row("import, and a first run", FIRST_RUN, 90),
)
