"""Short runs: many at once on one event loop, one after the other, and in threads."""

from benchmarks import floors
from benchmarks.gauges import seconds, seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row, Unit, Work, peer

SECONDS = Unit("s")
RUNS = 1_000


def _crowd(title: str, ours: str, limit: float) -> Row:
    return Row(
        title=title,
        gauge=seconds,
        unit=SECONDS,
        goal=Goal(limit, absolute=True),
        floor=floors.crowd,
        steps=RUNS,
        rounds=5,
        contenders=(
            Contender("stategraph", peer(f"ours_crowds:{ours}"), judged=True),
            Contender("LangGraph", peer(f"langgraph_crowds:{ours}"), rounds=1),
        ),
        warm_up=_run_few,
    )


def _run_few(work: Work, _: int) -> object:
    """Run some of them: all of them take others a quarter of a minute."""
    return work(20)()


def _short(title: str, ours: str, limit: float) -> Row:
    return Row(
        title=title,
        gauge=seconds_per_step,
        unit=MICROSECONDS,
        goal=Goal(limit),
        floor=floors.short_runs,
        steps=400,
        rounds=7,
        contenders=(Contender("stategraph", peer(f"ours_crowds:{ours}"), judged=True),),
    )


ROWS = (
    _crowd("1,000 runs of five async steps at once, SQLite", "crowd", 0.8),
    _crowd("1,000 runs of five async steps at once, SQLite, async", "crowd_saved_behind", 0.4),
    _short("a run of two steps, SQLite", "short_runs", 2.2),
    _short("a run of two steps, SQLite, async", "short_runs_saved_behind", 1.5),
    _short("a run of two steps, SQLite, async, eight threads", "short_runs_of_threads", 0.33),
)
