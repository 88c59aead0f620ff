"""One step with a durable checkpoint of it, the steps of eight threads, and what such a step calls."""

from benchmarks import floors
from benchmarks.gauges import python_calls_per_step, seconds_per_step
from benchmarks.measure import CALLS, MICROSECONDS, Contender, Goal, Row, peer
from benchmarks.syncs import check, syncs_per_step

SYNC = Row(
    title="one step, SQLite, sync",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(1.1),
    floor=floors.saved_steps,
    steps=400,
    rounds=7,
    contenders=(
        Contender("stategraph", peer("ours_durable:saved_steps"), judged=True),
        Contender("stategraph, full", peer("ours_durable:saved_steps_in_full"), judged=True),
        Contender("stategraph, disk", peer("ours_durable:saved_steps_on_disk")),
        Contender("LangGraph", peer("langgraph_durable:saved_steps"), steps=100),
        Contender("Burr", peer("burr_durable:saved_steps"), steps=100),
        Contender("DBOS", peer("dbos_durable:saved_steps"), steps=100, rounds=3),
    ),
)

THREADS = Row(
    title="one step of 8 threads, SQLite, sync",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(0.5),
    floor=floors.saved_steps_of_threads,
    steps=800,
    rounds=7,
    contenders=(
        Contender("stategraph", peer("ours_durable:saved_steps_of_threads"), judged=True),
        Contender("LangGraph", peer("langgraph_durable:saved_steps_of_threads"), steps=160, rounds=3),
        Contender("Burr", peer("burr_durable:saved_steps_of_threads"), steps=160, rounds=3),
    ),
)

PYTHON_CALLS = Row(
    title="Python calls, SQLite, sync",
    gauge=python_calls_per_step,
    unit=CALLS,
    floor=floors.saved_steps,
    steps=200,
    rounds=1,
    compared=False,
    contenders=(
        Contender("stategraph", peer("ours_durable:saved_steps"), judged=True),
        Contender("stategraph, full", peer("ours_durable:saved_steps_in_full"), judged=True),
        Contender("stategraph, disk", peer("ours_durable:saved_steps_on_disk")),
    ),
)

SYNCS = Row(
    title="syncs of the disk, a step",
    gauge=syncs_per_step,
    warm_up=check,
    unit=CALLS,
    goal=Goal(1, absolute=True),
    floor=floors.saved_steps,
    steps=50,
    rounds=1,
    compared=False,
    contenders=(
        Contender("stategraph", peer("ours_durable:saved_steps"), judged=True),
        Contender("stategraph, full", peer("ours_durable:saved_steps_in_full"), judged=True),
        Contender("stategraph, disk", peer("ours_durable:saved_steps_on_disk"), judged=True),
        Contender("LangGraph", peer("langgraph_durable:saved_steps")),
        Contender("Burr", peer("burr_durable:saved_steps")),
        Contender("DBOS", peer("dbos_durable:saved_steps")),
    ),
)
