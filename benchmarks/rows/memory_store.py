"""One step with a checkpoint of it in memory. pydantic-graph keeps no checkpoints."""

from benchmarks import counters
from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row, peer

ROW = Row(
    title="one step, memory store",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(12),
    floor=counters.kept,
    steps=100_000,
    contenders=(
        Contender("stategraph", peer("ours:kept_step"), steps=20_000, judged=True),
        Contender("stategraph, state.set", peer("ours:kept_step_that_sets"), steps=20_000),
        Contender("LangGraph", peer("langgraph:kept_step"), steps=1_000),
        Contender("LangGraph, Command", peer("langgraph:kept_commanded_step"), steps=1_000),
        Contender("Burr", peer("burr:kept_step"), steps=2_000),
    ),
)
