"""Chunks of a generator node under `execute`; the floor keeps none of them."""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep
from typing import Any

from benchmarks import scratch
from benchmarks.measure import Run
from stategraph import State, StateGraph
from stategraph.stores import SqliteStore

WAIT = 0.001  # seconds for each chunk, as of a model elsewhere


def emitted(chunks: int) -> Run:
    """The floor: no one reads them."""
    return _run(chunks, persist_chunks=False)


def kept(chunks: int) -> Run:
    """Each is kept for readers."""
    return _run(chunks, persist_chunks=True)


def _run(chunks: int, *, persist_chunks: bool) -> Run:
    def write(state: State) -> Iterator[Any]:
        for number in range(chunks):
            sleep(WAIT)
            yield f"token {number}"

    store = SqliteStore(scratch.folder() / "runs.db")
    scratch.at_end(store.close)
    graph = StateGraph("chunks", store=store, preserve=True)
    graph.add_node("write", write, persist_chunks=persist_chunks)
    graph.set_entry_point("write")
    graph.set_exit_point("write")
    return lambda: graph.execute(State(run_id="benchmark"))
