"""The NodeContext of a step."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any

from stategraph._engine.context import RunContext, Signal
from stategraph._engine.io import RunIO
from stategraph._engine.saving import LOOK_AGAIN
from stategraph.nodes.context import NodeContext
from stategraph.state import State


def context_of(run: RunContext, name: str, state: State, attempt: int = 1, part: str = "") -> NodeContext:
    """Return the NodeContext of a step that a node makes from a State or, with `part`, of that part of it."""
    step = (state.run_id, run.plan.graph, name, state.step + 1, attempt, state.generation, part)
    asks = StopQuestion(run.services, run.signal)
    return NodeContext(*step, kept_name=kept_name(name, state), outermost=run.outermost, is_stopping=asks)


class StopQuestion:
    """Answers a node that asks, however often, whether its run is to stop.

    What other processes have asked for, the store is asked once in a while. In a process that makes a part of the step,
    nothing is known.
    """

    __slots__ = ("_look_at", "_services", "_signal")

    def __init__(self, services: RunIO, signal: Signal | None) -> None:
        self._services, self._signal = services, signal
        self._look_at = 0.0

    def __call__(self) -> bool:
        if self._services.is_cancelled or (self._signal is not None and self._signal.is_due()):
            return True
        now = monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_AGAIN
        return self._services.hears_of_cancel()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (bool,)


def kept_name(name: str, state: State) -> str:
    """Return the name under which a step keeps what is its own: that of the node when the step began."""
    return name if state.progress is None else state.progress.kept_name(name)
