"""stategraph under DBOS: a run is one turn, which is one workflow without steps."""

from __future__ import annotations

from benchmarks import scratch
from benchmarks.counters import START
from benchmarks.measure import Run
from benchmarks.peers.ours import count, loop_graph, quietly
from stategraph import CheckpointConfig, State
from stategraph.dbos import DBOSRunner


def saved_steps(steps: int) -> Run:
    """A run on the queue, with a row of its own store for every step."""
    options = {"path": str(scratch.folder() / "runs")}
    graph = loop_graph(count, steps, CheckpointConfig(store="sqlite", preserve=True, options=options))
    scratch.at_end(graph.store.close)
    runner = DBOSRunner(graph, config={"log_level": "CRITICAL"}).launch()
    scratch.at_end(runner.close)
    return quietly(lambda: runner.start(graph, State(START)).result())
