"""The calls of one step: counts, which do not depend on the machine."""

from benchmarks import counters
from benchmarks.gauges import c_calls_per_step, python_calls_per_step
from benchmarks.measure import CALLS, Contender, Gauge, Row, Work, peer

STEPS = 1_000


def _row(title: str, gauge: Gauge, floor: Work, ours: str) -> Row:
    return Row(
        title=title,
        gauge=gauge,
        unit=CALLS,
        floor=floor,
        steps=STEPS,
        rounds=1,
        compared=False,
        contenders=(
            Contender("stategraph", peer(f"ours:{ours}"), judged=True),
            Contender("stategraph, state.set", peer(f"ours:{ours}_that_sets"), judged=True),
        ),
    )


ROWS = (
    _row("Python calls, no checkpoints", python_calls_per_step, counters.plain, "step"),
    _row("Python calls, memory store", python_calls_per_step, counters.kept, "kept_step"),
    _row("C calls, no checkpoints", c_calls_per_step, counters.plain, "step"),
    _row("C calls, memory store", c_calls_per_step, counters.kept, "kept_step"),
)
