"""Owning a run, and saving it outside of the hot loop."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import Any
from weakref import ref

from stategraph._engine.context import LOOK_AGAIN, RunContext
from stategraph._engine.events import emit
from stategraph._graph.compiled import CompiledGraph
from stategraph._owners.holds import Hold, let_go
from stategraph._protocol.commands import Amend, Command, Flush, Load, Own, Parts, Save, Sleep, Stopped, Task
from stategraph._values import clock
from stategraph._values.events import EventType, notify
from stategraph.errors import CheckpointingDisabledError, CheckpointNotFoundError, RunBusyError
from stategraph.state import State

_SOONEST, _LATEST = 0.001, 0.05  # seconds after which a run that is at work is looked at again


def check_saves(plan: CompiledGraph) -> None:
    """Raise CheckpointingDisabledError if a graph saves nothing."""
    if not plan.saves:
        raise CheckpointingDisabledError(plan.graph)


# --------------------------------------------------------------------------- owning


def owning(run: RunContext, hold: Hold, task: Task[Any], *, takes_up: bool = True) -> Task[Any]:
    """Return a task that is done as the owner of a run, if runs are saved.

    Args:
        run: The call.
        hold: What the run is owned by.
        task: The task. It begins once the run is owned, and however it ends, the owner lets go of the run.
        takes_up: Whether it goes on with a run that was cancelled.
    """
    return _owning(run, hold, task, takes_up) if run.plan.saves else task


def _owning(run: RunContext, hold: Hold, task: Task[Any], takes_up: bool) -> Task[Any]:
    try:
        yield from _own(run, hold)
        if takes_up:
            yield from take_up(run)
        return (yield from task)
    except GeneratorExit:
        hold.is_abandoned = True
        raise
    finally:
        let_go(hold)


def _own(run: RunContext, hold: Hold) -> Task[None]:
    """Become the owner of the run, as soon as nobody else is, or at once if it is to be taken over."""
    waited, delay = 0.0, _SOONEST
    while True:
        try:
            yield (Own, run.services.own, (hold, run.takes_over))
            break
        except RunBusyError as busy:
            if waited >= run.patience:
                raise
            run.waits_since = run.waits_since or clock.to_datetime(clock.now_ns())
            try:
                yield (Sleep, None, min(delay, run.patience - waited))
            except Stopped:
                raise busy from None
            waited += delay
            delay = min(2 * delay, _LATEST)
    hold.call = ref(run)
    if EventType.LEASE_LATE in run.wanted:
        hold.tell = partial(notify, run.services.observer, EventType.LEASE_LATE, run.plan.graph)


def take_up(run: RunContext) -> Task[None]:
    """Go on with a run, also if it was cancelled."""
    hold = run.services.hold
    if hold is not None and hold.is_cancelled:
        yield (Amend, run.services.write, partial(run.services.store._take_up, hold))


def heed_cancel(run: RunContext) -> Task[float]:
    """Stop the run if it was cancelled; return when to ask again, as time.monotonic tells it."""
    yield (Load, run.services.stop_if_cancelled, None)
    return monotonic() + LOOK_AGAIN


# --------------------------------------------------------------------------- loading and saving


def newest_of(run: RunContext, run_id: str) -> Task[State | None]:
    """Return the newest saved State of the run, None if there is none."""
    if not run.plan.saves:
        return None
    try:
        saved: State = yield (Load, run.services.load, run_id)
    except CheckpointNotFoundError:
        return None
    return saved


def save(run: RunContext, state: State) -> Task[State]:
    """Save a State outside of the hot loop, durably, and report it; return it."""
    yield from _write(run, (Save, run.services.save, state), state)
    yield from flush(run, state)
    return state


def amend(run: RunContext, state: State) -> Task[State]:
    """Save a State in place of the newest one, durably, and report it; return it."""
    yield from _write(run, (Amend, run.services.amend, state), state)
    return state


def _write(run: RunContext, command: Command, state: State) -> Task[None]:
    if run.outer_step is not None:  # first: a run that begins anew must never find what was nested in a lost one
        yield from run.outer_step.keep_incoming(at_last=True)
    began = clock.monotonic_ns()
    yield command
    run.saved = state
    yield from emit(run, EventType.CHECKPOINT_SAVE, state, began)


def save_with_next(run: RunContext, state: State) -> None:
    """Have a State that is not saved yet saved with the one after it, so that the history includes it."""
    if state is not run.saved and state is not run.found:
        run.services.save_with_next(state)


def flush(run: RunContext, state: State) -> Task[None]:
    """Wait until all that was saved is durable, if saves are done later."""
    if run.plan.write_behind:
        yield (Flush, run.services.flush, state)


def drop_joined_parts(run: RunContext) -> Task[None]:
    """Forget parts whose results are in a State that is saved."""
    run.has_joined_parts = False
    if run.plan.loads_parts:
        yield (Parts, run.services.drop_parts, (run.state.run_id, run.state.step, False))
