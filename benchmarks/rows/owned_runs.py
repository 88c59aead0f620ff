"""The cost of owning a run and releasing it, which each call pays."""

from benchmarks import floors
from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row, Work, peer


def _row(title: str, floor: Work, ours: str, goal: Goal) -> Row:
    return Row(
        title=title,
        gauge=seconds_per_step,
        unit=MICROSECONDS,
        goal=goal,
        floor=floor,
        steps=5_000,
        contenders=(Contender("stategraph", peer(f"ours_owning:{ours}"), judged=True),),
    )


ROWS = (
    _row("owning a run, memory", floors.entries_of_a_table, "owned_in_memory", Goal(3, absolute=True)),
    _row("owning a run, SQLite", floors.locks_of_a_byte, "owned_on_sqlite", Goal(15, absolute=True)),
)
