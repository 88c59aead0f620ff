"""LangGraph with its SQLite checkpointer, at the durability that the name says.

The checkpointer keeps the history of a thread and has no other retention. It does not set `synchronous`; SQLite's
default is FULL.
"""

from __future__ import annotations

import operator
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from benchmarks import counters, documents, items, messages, scratch, threads
from benchmarks.counters import below
from benchmarks.measure import Run

# This name is looked up before every other that could turn tracing on.
os.environ["LANGSMITH_TRACING_V2"] = "false"


class Counters(TypedDict):
    """The state of a step."""

    n: int
    total: int


class Documents(Counters):
    """The large state."""

    documents: list[str]


class Items(TypedDict):
    """The items, and what came of them."""

    items: list[int]
    results: Annotated[list[int], operator.add]


class Messages(TypedDict):
    """The list that grows."""

    n: int
    messages: Annotated[list[dict[str, str]], operator.add]


def saved_steps(steps: int) -> Run:
    """Durability "sync"."""
    return _counting(steps, "sync")


def steps_saved_behind(steps: int) -> Run:
    """Durability "async", the default."""
    return _counting(steps, "async")


def steps_saved_at_exit(steps: int) -> Run:
    """Durability "exit"."""
    return _counting(steps, "exit")


def saved_steps_of_threads(steps: int) -> Run:
    """Eight threads, of LangGraph too, on one checkpointer, which has one connection."""
    share = max(1, steps // threads.COUNT)
    graph = counter(Counters, share).compile(checkpointer=_saver(scratch.folder()))
    return threads.together(
        [invocation(graph, counters.START, share, "sync", str(number)) for number in range(threads.COUNT)]
    )


def items_sent(count: int) -> Run:
    """A Send for each item, in four threads, at the default durability."""

    def do(item: int) -> dict[str, list[int]]:
        return {"results": [items.done(item)]}

    builder = StateGraph(Items)
    builder.add_node("do", do)
    builder.add_conditional_edges(START, lambda state: [Send("do", item) for item in state["items"]], ["do"])
    builder.add_edge("do", END)
    graph = builder.compile(checkpointer=_saver(scratch.folder()))
    config = {"max_concurrency": items.WORKERS, "configurable": {"thread_id": messages.RUN}}
    return lambda: graph.invoke({"items": list(range(count)), "results": []}, config, durability="async")


def changed_key(steps: int) -> Run:
    """A large state, one small key of which changes."""
    graph = counter(Documents, steps).compile(checkpointer=_saver(scratch.folder()))
    return invocation(graph, documents.start(), steps, "sync")


def messages_saved(steps: int) -> Run:
    """A list that grows by its reducer."""
    return _append_messages(scratch.folder(), steps, "sync")


def messages_loaded(steps: int) -> Run:
    """The newest state, by a checkpointer that was opened just now."""
    graph = _appender(steps).compile(checkpointer=_saver(_prepared(steps)))
    config = {"configurable": {"thread_id": messages.RUN}}
    return lambda: graph.get_state(config)


def _counting(steps: int, durability: str) -> Run:
    graph = counter(Counters, steps).compile(checkpointer=_saver(scratch.folder()))
    return invocation(graph, counters.START, steps, durability)


def counter(schema: type, steps: int) -> Any:
    """The graph whose one node counts, to be compiled."""

    def count(state: Counters) -> dict[str, int]:
        return {"n": state["n"] + 1}

    return _loop(schema, count, steps)


def _appender(steps: int) -> Any:
    def append(state: Messages) -> dict[str, Any]:
        return {"n": state["n"] + 1, "messages": [messages.message(state["n"])]}

    return _loop(Messages, append, steps)


def _loop(schema: Any, node: Any, steps: int) -> Any:
    unfinished = below(steps)
    builder = StateGraph(schema)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_conditional_edges("node", lambda state: "node" if unfinished(state) else END, ["node", END])
    return builder


def _append_messages(folder: Path, steps: int, durability: str) -> Run:
    graph = _appender(steps).compile(checkpointer=_saver(folder))
    return invocation(graph, {"n": 0, "messages": []}, steps, durability)


def _prepare(folder: Path, steps: int) -> None:
    _append_messages(folder, steps, "exit")()


_prepared = scratch.prepared(_prepare)


def _saver(folder: Path) -> Any:
    database = sqlite3.connect(folder / "langgraph.db", check_same_thread=False)
    scratch.at_end(database.close)
    saver = SqliteSaver(database)
    saver.setup()
    return saver


def invocation(graph: Any, start: Mapping[str, Any], steps: int, durability: str, thread: str = messages.RUN) -> Run:
    """A run of a compiled graph."""
    config = {"recursion_limit": steps + 10, "configurable": {"thread_id": thread}}
    return lambda: graph.invoke({**start}, config, durability=durability)
