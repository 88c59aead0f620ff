"""The files of full histories in which every step changes a little of a large value.

The floor has the first value, and what is new in each step: no more can be known of it later.
"""

from functools import partial

from benchmarks import floors
from benchmarks.gauges import folder_size
from benchmarks.measure import MEGABYTES, Contender, Goal, Row, peer


def _row(title: str, name: str, steps: int) -> Row:
    return Row(
        title=f"{title}, size of the files",
        gauge=folder_size,
        unit=MEGABYTES,
        goal=Goal(3),
        floor=partial(floors.edits_saved, name),
        steps=steps,
        rounds=1,
        contenders=(Contender("stategraph", peer(f"ours_edits:{name}"), judged=True),),
    )


ROWS = (
    _row("a dict that gains 1 KB a step", "gains", 500),
    _row("the last of 200 messages is edited", "last", 200),
    _row("a window of 50 messages", "window", 300),
    _row("10,000 messages, trimmed at the front", "trimmed", 20),
)
