"""LangGraph: a compiled StateGraph over a TypedDict, invoked synchronously (async takes twice as long).

With a checkpointer it runs at its default durability "async", the fastest that saves every step.
"""

from __future__ import annotations

import os
from typing import Any, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from benchmarks.counters import START as ZERO
from benchmarks.measure import Run

# This name is looked up before every other that could turn tracing on.
os.environ["LANGSMITH_TRACING_V2"] = "false"


class Counters(TypedDict):
    """The state."""

    n: int
    total: int


def step(steps: int) -> Run:
    """A node and a conditional edge."""
    return _invocation(_with_conditional_edge(steps).compile(), steps)


def commanded_step(steps: int) -> Run:
    """A node that says itself where to go."""
    return _invocation(_with_command(steps).compile(), steps)


def kept_step(steps: int) -> Run:
    """The same as `step`, every checkpoint kept in memory."""
    return _invocation(_with_conditional_edge(steps).compile(checkpointer=InMemorySaver()), steps)


def kept_commanded_step(steps: int) -> Run:
    """The same as `commanded_step`, every checkpoint kept in memory."""
    return _invocation(_with_command(steps).compile(checkpointer=InMemorySaver()), steps)


def _with_conditional_edge(steps: int) -> Any:
    def count(state: Counters) -> dict[str, int]:
        return {"n": state["n"] + 1}

    def route(state: Counters) -> str:
        return "count" if state["n"] < steps else END

    builder = StateGraph(Counters)
    builder.add_node("count", count)
    builder.add_edge(START, "count")
    builder.add_conditional_edges("count", route, ["count", END])
    return builder


def _with_command(steps: int) -> Any:
    def count(state: Counters) -> Any:
        counted = state["n"] + 1
        return Command(update={"n": counted}, goto="count" if counted < steps else END)

    builder = StateGraph(Counters)
    builder.add_node("count", count, destinations=("count", END))
    builder.add_edge(START, "count")
    return builder


def _invocation(graph: Any, steps: int) -> Run:
    config = {"recursion_limit": steps + 10, "configurable": {"thread_id": "benchmark"}}
    return lambda: graph.invoke({**ZERO}, config)
