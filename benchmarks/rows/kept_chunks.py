"""A node that waits 1 ms for each chunk, so that it emits nearly 1,000 in a second, and keeps them for readers."""

from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row
from benchmarks.peers import ours_chunks

ROW = Row(
    title="1,000 chunks a second, SQLite, persist_chunks: time of a chunk",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(1.05),
    floor=ours_chunks.emitted,
    steps=1_000,
    rounds=9,
    contenders=(Contender("stategraph", ours_chunks.kept, judged=True),),
)
