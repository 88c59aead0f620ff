"""Async nodes, and runs on an event loop, with a checkpoint of each step in memory."""

from benchmarks import counters
from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row, peer


def _row(title: str, ours: str, limit: float) -> Row:
    return Row(
        title=title,
        gauge=seconds_per_step,
        unit=MICROSECONDS,
        goal=Goal(limit, absolute=True),
        floor=counters.kept,
        steps=100_000,
        contenders=(Contender("stategraph", peer(f"ours_crowds:{ours}"), steps=20_000, judged=True),),
    )


ROWS = (
    _row("one async step under aexecute, memory store", "async_nodes_awaited", 8),
    _row("one sync step under aexecute, memory store", "sync_nodes_awaited", 8),
    _row("one async step under execute, memory store", "async_nodes_waited_for", 12),
)
