"""A history of 100,000 rows, and a page of the runs of a store that has many."""

from benchmarks import floors
from benchmarks.gauges import seconds
from benchmarks.measure import MILLISECONDS, Contender, Goal, Row, peer

PAGES = ("status", "graph_and_status", "prefix", "parent", "labels", "since")

ROWS = (
    Row(
        title="history of 100,000 rows",
        gauge=seconds,
        unit=MILLISECONDS,
        goal=Goal(250, absolute=True),
        floor=floors.rows_listed,
        steps=100_000,
        rounds=5,
        contenders=(
            Contender("stategraph", peer("ours_listing:history"), judged=True),
            Contender("stategraph, iterated", peer("ours_listing:iterated_history")),
        ),
    ),
    Row(
        title="a page of the runs, of 30,000",
        gauge=seconds,
        unit=MILLISECONDS,
        goal=Goal(5, absolute=True),
        floor=floors.page_listed,
        steps=30_000,
        rounds=5,
        contenders=(
            Contender("stategraph", peer("ours_listing:page"), judged=True),
            *(Contender(f"stategraph, {name}", peer(f"ours_listing:page_by_{name}"), judged=True) for name in PAGES),
        ),
    ),
)
