"""The additional memory of a run of 100,000 steps beside one of 10,000.

The least that could be kept of a step is a reference, 8 bytes: of 90,000 steps that would be 700 KiB.
"""

from benchmarks import counters
from benchmarks.gauges import memory_growth
from benchmarks.measure import KIBIBYTES, Contender, Goal, Row, Work, peer


def _row(title: str, floor: Work, ours: str) -> Row:
    return Row(
        title=title,
        gauge=memory_growth,
        unit=KIBIBYTES,
        goal=Goal(64, absolute=True),
        floor=floor,
        steps=100_000,
        rounds=1,
        compared=False,
        contenders=(Contender("stategraph", peer(f"ours:{ours}"), judged=True),),
    )


ROWS = (
    _row("memory growth, no checkpoints", counters.plain, "step"),
    _row("memory growth, memory store", counters.kept, "kept_step"),
)
