"""One step with a checkpoint of it in Redis, and those of eight threads, beside a bare HSET on one server."""

from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row, peer

ONE = Row(
    title="one step, Redis, sync",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(1.7),
    floor=peer("ours_redis:sets"),
    steps=400,
    rounds=7,
    contenders=(
        Contender("stategraph, a save", peer("ours_redis:saves"), judged=True),
        Contender("stategraph, a run", peer("ours_redis:saved_steps")),
    ),
)

THREADS = Row(
    title="one step of 8 threads, Redis, sync",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(0.8),
    floor=peer("ours_redis:sets_of_threads"),
    steps=800,
    rounds=7,
    contenders=(Contender("stategraph, a save", peer("ours_redis:saves_of_threads"), judged=True),),
)

ROWS = (ONE, THREADS)
