"""The NodeContext of a step."""

from __future__ import annotations

from stategraph._engine.context import RunContext
from stategraph.nodes.context import NodeContext
from stategraph.state import State


def context_of(run: RunContext, name: str, state: State, attempt: int = 1, part: str = "") -> NodeContext:
    """Return the NodeContext of a step that a node makes from a State or, with `part`, of that part of it."""
    step = (state.run_id, run.plan.graph, name, state.step + 1, attempt, state.generation, part)
    return NodeContext(*step, kept_name=kept_name(name, state), outermost=run.outermost)


def kept_name(name: str, state: State) -> str:
    """Return the name under which a step keeps what is its own: that of the node when the step began."""
    return name if state.progress is None else state.progress.kept_name(name)
