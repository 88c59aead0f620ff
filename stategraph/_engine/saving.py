"""What a run does beside its steps: report events, show States to who iterates over it, save."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import Any

from stategraph._engine.context import RunContext
from stategraph._owners.holds import Hold
from stategraph._protocol.commands import Amend, Command, Flush, Load, Notify, Parts, Show, Task
from stategraph._values import clock
from stategraph._values.events import EventType
from stategraph.state import State


def emit(run: RunContext, type: EventType, state: State, began_ns: int | None = None, **more: object) -> Task[None]:
    """Report an event of the run, with its last State; what has ended now, with how long it took."""
    if type in run.wanted:
        data = {"run_id": state.run_id, "step": state.step, "node": state.checkpoint_node, "status": state.status.value}
        if began_ns is not None:
            data["took"] = seconds_since(began_ns)
        yield (Notify, run.services.notify, (type, {**data, **more}))


def seconds_since(began_ns: int) -> float:
    """Return how many seconds have passed since a time of clock.monotonic_ns."""
    return (clock.monotonic_ns() - began_ns) / 1e9


def tell(run: RunContext, type: EventType, run_id: str, step: int, node: str, about: Mapping[str, Any]) -> Task[None]:
    """Report an event that happens in the middle of a step."""
    if type in run.wanted:
        yield (Notify, run.services.notify, (type, {"run_id": run_id, "step": step, "node": node, **about}))


def show(run: RunContext, state: State) -> Task[None]:
    """Show a State to the caller who iterates over the run. A nested run shows nothing: it is one step."""
    if run.shows:
        yield (Show, None, state)


def save(run: RunContext, command: Command, state: State) -> Task[None]:
    """Save a State outside of the hot loop, and report it."""
    if run.outer_step is not None:  # first: a run that begins anew must never find what was nested in a lost one
        yield from run.outer_step.keep_incoming(at_last=True)
    began = clock.monotonic_ns()
    yield command
    run.saved = state
    yield from emit(run, EventType.CHECKPOINT_SAVE, state, began)


def save_with_next(run: RunContext, state: State) -> None:
    """Have a State that is not saved yet saved with the one after it, for the story, which tells what was loaded."""
    if state is not run.saved and state is not run.found:
        run.services.save_with_next(state)


def flush(run: RunContext, state: State) -> Task[None]:
    """Wait until all that was saved is durable, if saves are done later."""
    if run.plan.write_behind:
        yield (Flush, run.services.flush, state)


def take_up(run: RunContext, hold: Hold) -> Task[None]:
    """Go on with a run that was cancelled."""
    yield (Amend, run.services.take_up, hold)


LOOK_AGAIN = 0.05
"""Seconds after which a run that saves nothing meanwhile is asked again whether it was cancelled."""


def heed_cancel(run: RunContext) -> Task[float]:
    """Stop the run if it was cancelled; return when to ask again, as time.monotonic tells it."""
    yield (Load, run.services.stop_if_cancelled, run.state)
    return monotonic() + LOOK_AGAIN


def drop_joined_parts(run: RunContext) -> Task[None]:
    """Forget parts whose results are in a State that is saved."""
    run.has_joined_parts = False
    if run.plan.loads_parts:
        yield (Parts, run.services.drop_parts, (run.state.run_id, run.state.step, False))
