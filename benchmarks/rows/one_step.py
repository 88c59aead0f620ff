"""One step without checkpoints."""

from benchmarks import counters
from benchmarks.gauges import seconds_per_step
from benchmarks.measure import MICROSECONDS, Contender, Goal, Row, peer

ROW = Row(
    title="one step, no checkpoints",
    gauge=seconds_per_step,
    unit=MICROSECONDS,
    goal=Goal(10),
    floor=counters.plain,
    steps=100_000,
    contenders=(
        Contender("stategraph", peer("ours:step"), steps=20_000, judged=True),
        Contender("stategraph, state.set", peer("ours:step_that_sets"), steps=20_000),
        Contender("stategraph, no observer", peer("ours:unobserved_step"), steps=20_000),
        Contender("LangGraph", peer("langgraph:step"), steps=1_000),
        Contender("LangGraph, Command", peer("langgraph:commanded_step"), steps=1_000),
        Contender("Burr", peer("burr:step"), steps=2_000),
        Contender("pydantic-graph", peer("pydantic_graph:step"), steps=1_000),
    ),
)
