"""The cost of the observer "structlog" in a run of three steps: two lines, to a file."""

from benchmarks import floors
from benchmarks.gauges import reported
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row, peer

ROW = Row(
    title="log of a run of 3 steps, at info",
    gauge=reported,
    unit=MICROSECONDS,
    goal=Goal(25, absolute=True),
    floor=floors.nothing,
    steps=2_000,
    compared=False,
    contenders=(
        Contender("stategraph", peer("ours_logged:lines"), judged=True),
        Contender("stategraph, structlog as JSON", peer("ours_logged:configured_lines")),
    ),
)
