"""A list that grows by 1 KB a step, with its full history; and going on from there."""

from collections.abc import Sequence

from benchmarks import floors
from benchmarks.gauges import folder_size, seconds, seconds_per_step, slowdown
from benchmarks.measure import (
    MEGABYTES,
    MICROSECONDS,
    MILLISECONDS,
    TIMES,
    Contender,
    Gauge,
    Goal,
    Row,
    Unit,
    Work,
    peer,
)

STEPS = 1_000


PEERS = (
    Contender("LangGraph", peer("langgraph_durable:messages_saved"), rounds=1),
    Contender("Burr", peer("burr_durable:messages_saved"), rounds=1),
)


def _row(title: str, gauge: Gauge, unit: Unit, goal: Goal, rounds: int, peers: Sequence[Contender] = PEERS) -> Row:
    return Row(
        title=f"list growing by 1 KB, full history{title}",
        gauge=gauge,
        unit=unit,
        goal=goal,
        floor=floors.messages_saved,
        steps=STEPS,
        rounds=rounds,
        compared=not goal.absolute,
        contenders=(
            Contender("stategraph", peer("ours_durable:messages_saved"), judged=True),
            Contender("stategraph, async", peer("ours_durable:messages_saved_behind")),
            *peers,
        ),
    )


def _resumption(title: str, goal: float, floor: Work, contenders: Sequence[Contender]) -> Row:
    return Row(
        title=title,
        gauge=seconds,
        unit=MILLISECONDS,
        goal=Goal(goal),
        floor=floor,
        steps=STEPS,
        contenders=contenders,
    )


ROWS = (
    _row("", seconds_per_step, MICROSECONDS, Goal(1.2), rounds=5),
    _row(": last tenth of the steps / first", slowdown, TIMES, Goal(1.2, absolute=True), rounds=3, peers=()),
    _row(", size of the files", folder_size, MEGABYTES, Goal(4, absolute=True), rounds=1),
    _resumption(
        *("load the State after these steps", 1.2, floors.messages_loaded),
        (
            Contender("stategraph", peer("ours_durable:messages_loaded"), judged=True),
            Contender("stategraph, opened first", peer("ours_durable:messages_opened_and_loaded")),
            Contender("LangGraph", peer("langgraph_durable:messages_loaded")),
            Contender("Burr", peer("burr_durable:messages_loaded")),
        ),
    ),
    _resumption(
        *("load an older step (3/4 of them)", 1.5, floors.messages_loaded_to_an_older_step),
        (Contender("stategraph", peer("ours_durable:messages_loaded_to_an_older_step"), judged=True),),
    ),
)
