"""LangGraph with its SQLite checkpointer for event loops: many short runs at once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from benchmarks import counters, scratch
from benchmarks.measure import Run
from benchmarks.peers.langgraph_durable import Counters
from benchmarks.peers.ours_crowds import STEPS_OF_A_RUN


def crowd(runs: int) -> Run:
    """So many threads at once on one event loop, each of five async steps; durability "sync"."""
    return _crowd(runs, "sync")


def crowd_saved_behind(runs: int) -> Run:
    """The same with durability "async", the default."""
    return _crowd(runs, "async")


def _crowd(runs: int, durability: str) -> Run:
    path = str(scratch.folder() / "langgraph.db")
    builder = _chain()

    async def all_at_once() -> None:
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            graph = builder.compile(checkpointer=saver)
            some = [
                graph.ainvoke({**counters.START}, {"configurable": {"thread_id": str(number)}}, durability=durability)
                for number in range(runs)
            ]
            await asyncio.gather(*some)

    return lambda: asyncio.run(all_at_once())


def _chain() -> Any:
    async def count(state: Counters) -> dict[str, int]:
        return {"n": state["n"] + 1}

    builder = StateGraph(Counters)
    names = [f"count {number}" for number in range(STEPS_OF_A_RUN)]
    for name in names:
        builder.add_node(name, count)
    for name, following in pairwise((START, *names, END)):
        builder.add_edge(name, following)
    return builder
