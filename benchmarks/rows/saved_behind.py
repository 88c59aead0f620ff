"""Steps that are saved behind the run: what they cost with the wait at its end, and how long they are unsaved."""

from benchmarks import floors
from benchmarks.gauges import reported, seconds_per_step
from benchmarks.measure import MICROSECONDS, MILLISECONDS, Contender, Goal, Row, Work, peer

ASYNC = Row(
    title="one step, SQLite, async, flushed at the end",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(0.05),
    floor=floors.saved_steps,
    steps=400,
    rounds=7,
    contenders=(
        Contender("stategraph", peer("ours_durable:steps_saved_behind"), steps=10_000, judged=True),
        Contender("stategraph, full", peer("ours_durable:steps_saved_behind_in_full"), steps=10_000, judged=True),
        Contender("stategraph, exit", peer("ours_durable:steps_saved_at_exit"), steps=10_000),
        Contender("LangGraph", peer("langgraph_durable:steps_saved_behind"), steps=100),
        Contender("LangGraph, exit", peer("langgraph_durable:steps_saved_at_exit"), steps=400),
    ),
)


def _delay(title: str, limit: float, floor: Work, ours: str) -> Row:
    return Row(
        title=title,
        gauge=reported,
        unit=MILLISECONDS,
        goal=Goal(limit, absolute=True),
        floor=floor,
        steps=10_000,
        rounds=7,
        compared=False,
        contenders=(
            Contender("stategraph", peer(f"ours_durable:{ours}"), judged=True),
            Contender("stategraph, full", peer(f"ours_durable:{ours}_in_full"), judged=True),
        ),
    )


OLDEST = _delay("async: age of the oldest unsaved step", 50, floors.slowest_commit, "oldest_unsaved_step")
DRAIN = _delay("async: end of the last step to the end of the run", 100, floors.nothing, "drain")
