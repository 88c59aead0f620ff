"""A node that does something trivial with each of 10,000 items, four at the same time, each result kept separately.

The figures are of one item. LangGraph writes each result as a row of pending writes.
"""

from benchmarks import items
from benchmarks.gauges import processor_seconds_per_step, seconds, seconds_per_step
from benchmarks.measure import MICROSECONDS, MILLISECONDS, Contender, Goal, Row, peer

ROW = Row(
    title="MapNode over 10,000 trivial items, 4 threads, SQLite, async",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(50, absolute=True),
    floor=items.in_threads,
    steps=10_000,
    rounds=7,
    contenders=(
        Contender("stategraph", peer("ours_durable:items_mapped_behind"), judged=True),
        Contender("stategraph, sync", peer("ours_durable:items_mapped")),
        Contender("LangGraph, Send", peer("langgraph_durable:items_sent"), steps=1_000, rounds=3),
    ),
)

KEPT = Row(
    title="a finished part, SQLite, sync: processor time",
    gauge=processor_seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(130, absolute=True),
    floor=items.in_threads,
    steps=500,
    rounds=9,
    compared=False,
    contenders=(Contender("stategraph", peer("ours_durable:items_mapped_alone"), judged=True),),
)

LOADED = Row(
    title="1,000 finished parts are loaded, SQLite",
    gauge=seconds,
    unit=MILLISECONDS,
    goal=Goal(5, absolute=True),
    floor=items.in_threads,
    steps=1_000,
    rounds=9,
    compared=False,
    contenders=(Contender("stategraph", peer("ours_durable:parts_loaded"), judged=True),),
)
