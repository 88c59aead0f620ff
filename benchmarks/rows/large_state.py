"""A State of 1 MB, of which every step changes one small key; and one of many keys.

Bytes are counted in two ways. *Written* is all that the process hands to the operating system: SQLite writes whole
pages, into its log and from there into the file. *Kept* is what the files grow by, once they are closed.
"""

from typing import Any

from benchmarks import floors
from benchmarks.gauges import bytes_written_per_step, folder_growth_per_step, seconds_per_step
from benchmarks.measure import BYTES, MICROSECONDS, MILLISECONDS, Contender, Gauge, Goal, Row, Unit, peer


def _row(title: str, gauge: Gauge, unit: Unit, goal: Goal | None = None, **row: Any) -> Row:
    return Row(
        title=f"1 MB State, a small key changes{title}",
        gauge=gauge,
        unit=unit,
        goal=goal,
        floor=floors.changed_key,
        steps=1_000,
        contenders=(
            Contender("stategraph", peer("ours_durable:changed_key"), judged=True),
            Contender("stategraph, full", peer("ours_durable:changed_key_in_full"), judged=True),
            Contender("LangGraph", peer("langgraph_durable:changed_key"), steps=40, rounds=3),
            Contender("Burr", peer("burr_durable:changed_key"), steps=40, rounds=3),
        ),
        **row,
    )


ROWS = (
    _row("", seconds_per_step, MICROSECONDS, Goal(1.1), rounds=5),
    _row(", bytes written", bytes_written_per_step, BYTES, Goal(2), rounds=1, warm_up=bytes_written_per_step),
    _row(", bytes kept", folder_growth_per_step, BYTES, rounds=1),
    Row(
        title="State of 100,000 keys, one changes",
        gauge=seconds_per_step,
        unit=MILLISECONDS,
        goal=Goal(2.5, absolute=True),
        floor=floors.changed_key_of_many,
        steps=200,
        rounds=5,
        contenders=(
            Contender("stategraph", peer("ours_durable:changed_key_of_many"), judged=True),
            Contender("stategraph, by State.set", peer("ours_durable:changed_key_of_many_by_setting")),
        ),
    ),
)
