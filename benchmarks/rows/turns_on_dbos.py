"""The processor time of a step in a turn on DBOS, beside that of the same step without DBOS."""

from benchmarks.gauges import processor_seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row, peer

ROW = Row(
    title="one step on DBOS, SQLite, sync: processor time",
    gauge=processor_seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(1.05),
    floor=peer("ours_durable:saved_steps"),
    steps=2_000,
    rounds=3,
    contenders=(
        Contender("stategraph, a turn", peer("ours_on_dbos:saved_steps"), judged=True),
        Contender("DBOS, a step", peer("dbos_durable:saved_steps"), steps=100, rounds=3),
    ),
)
