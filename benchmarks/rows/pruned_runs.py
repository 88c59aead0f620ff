"""Pruning a store of 30,000 runs whose time is over; and how long its transactions lock the store."""

from benchmarks import floors
from benchmarks.gauges import reported, seconds
from benchmarks.measure import MILLISECONDS, Contender, Goal, Row, peer

ROWS = (
    Row(
        title="prune of 30,000 runs",
        gauge=seconds,
        unit=MILLISECONDS,
        goal=Goal(1_000, absolute=True),
        floor=floors.rows_deleted,
        steps=30_000,
        rounds=3,
        contenders=(
            Contender("stategraph", peer("ours_pruning:pruned_on_sqlite"), judged=True),
            Contender("stategraph, disk", peer("ours_pruning:pruned_on_disk"), judged=True),
        ),
    ),
    Row(
        title="longest transaction of a prune",
        gauge=reported,
        unit=MILLISECONDS,
        goal=Goal(50, absolute=True),
        floor=floors.nothing,
        steps=30_000,
        rounds=3,
        compared=False,
        contenders=(Contender("stategraph", peer("ours_pruning:longest_transaction"), judged=True),),
    ),
)
