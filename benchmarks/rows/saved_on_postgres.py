"""One step with a checkpoint of it in PostgreSQL, and those of eight threads, beside a bare INSERT on one server."""

from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row, peer

ONE = Row(
    title="one step, PostgreSQL, sync",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(1.2),
    floor=peer("ours_postgres:inserts"),
    steps=400,
    rounds=7,
    contenders=(
        Contender("stategraph, a save", peer("ours_postgres:saves"), judged=True),
        Contender("stategraph, a run", peer("ours_postgres:saved_steps")),
        Contender("LangGraph", peer("langgraph_postgres:saved_steps"), steps=100, rounds=3),
        Contender("DBOS", peer("dbos_durable:steps_saved_on_postgres"), steps=100, rounds=3),
    ),
)

THREADS = Row(
    title="one step of 8 threads, PostgreSQL, sync",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(1.4),
    floor=peer("ours_postgres:inserts_of_threads"),
    steps=800,
    rounds=7,
    contenders=(
        Contender("stategraph, a save", peer("ours_postgres:saves_of_threads"), judged=True),
        Contender("LangGraph", peer("langgraph_postgres:saved_steps_of_threads"), steps=200, rounds=3),
    ),
)

ROWS = (ONE, THREADS)
