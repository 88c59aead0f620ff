"""LangGraph with its PostgreSQL checkpointer, at durability "sync"."""

from __future__ import annotations

import psycopg
from langgraph.checkpoint.postgres import PostgresSaver
from psycopg.rows import dict_row

from benchmarks import counters, postgres, scratch, threads
from benchmarks.measure import Run
from benchmarks.peers.langgraph_durable import Counters, counter, invocation


def saved_steps(steps: int) -> Run:
    """A run, by one thread."""
    graph = counter(Counters, steps).compile(checkpointer=_saver())
    return invocation(graph, counters.START, steps, "sync")


def saved_steps_of_threads(steps: int) -> Run:
    """Eight threads with a connection each, and a share of the steps."""
    share = max(1, steps // threads.COUNT)
    graphs = [counter(Counters, share).compile(checkpointer=_saver()) for _ in range(threads.COUNT)]
    return threads.together(
        [invocation(graph, counters.START, share, "sync", str(number)) for number, graph in enumerate(graphs)]
    )


def _saver() -> PostgresSaver:
    connection = psycopg.connect(postgres.dsn(), autocommit=True, prepare_threshold=0, row_factory=dict_row)
    scratch.at_end(connection.close)
    saver = PostgresSaver(connection)
    saver.setup()
    return saver
