"""pydantic-graph: a BaseNode that returns itself until it ends (steps and a decision are 1.7 times slower)."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic_graph import BaseNode, End, GraphBuilder, GraphRunContext, StepContext

from benchmarks import counters
from benchmarks.measure import Run


@dataclass
class Counters:
    """The state, which nodes change in place."""

    n: int
    total: int


@dataclass
class Count(BaseNode[Counters, int, int]):
    """Counts one up, until `n` has reached the number of steps, which are this graph's dependencies."""

    async def run(self, ctx: GraphRunContext[Counters, int]) -> Count | End[int]:
        """Count, and say where to go."""
        ctx.state.n += 1
        return Count() if ctx.state.n < ctx.deps else End(ctx.state.n)


async def start(_ctx: StepContext[Counters, int, None]) -> Count:
    """Enter the loop."""
    return Count()


def step(steps: int) -> Run:
    """No persistence, no spans."""
    builder = GraphBuilder(name="benchmark", state_type=Counters, deps_type=int, output_type=int, auto_instrument=False)
    entry = builder.step(start)
    builder.add(builder.node(Count), builder.edge_from(builder.start_node).to(entry))
    graph = builder.build()
    return lambda: graph.run_sync(state=Counters(**counters.START), deps=steps)
