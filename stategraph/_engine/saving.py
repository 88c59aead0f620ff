"""Saving a run: after each step that is due, and what can be saved of a run that ends early."""

from __future__ import annotations

from stategraph._engine.announce import emit
from stategraph._engine.context import RunContext
from stategraph._protocol.commands import Command, Flush, Load, Parts, Save, Task
from stategraph._values.events import EventType
from stategraph.errors import CheckpointNotFoundError, NotSerializableError, StepConflictError
from stategraph.state import State, evolve


def save_last(run: RunContext, state: State) -> Task[None]:
    """Save the State with which the run ends."""
    try:
        yield from save(run, (Save, run.services.save, state), state)
        yield from flush(run, state)
    except StepConflictError:
        if run.saved is None or run.saved.step != state.step:
            raise
        # A node changed an object in its State before it failed: what is saved stays, how the run stands is new.
        kept = yield (Load, run.services.load, state.run_id)
        if kept.step != state.step:
            raise
        state = evolve(kept, status=state.status, error=state.error)
        yield from save(run, (Save, run.services.save, state), state)
    except NotSerializableError:
        yield from keep_what_can_be(run, state)
        raise


def keep_what_can_be(run: RunContext, last: State) -> Task[None]:
    """Keep as many of the last steps as can be, and how the run ended, if the last State itself cannot be kept."""
    ends = {"status": last.status, "error": last.error}
    bare = evolve(
        last, pause=None, progress=last.progress and last.progress.changed(partial=None)
    )  # it may be these that cannot be
    tried = [*run.recent, bare]
    run.recent.clear()
    while tried:
        state = evolve(tried.pop(), **ends)
        try:
            yield from save(run, (Save, run.services.save, state), state)
            yield from flush(run, state)
        except NotSerializableError:
            continue
        return
    try:
        kept = yield (Load, run.services.load, last.run_id)
    except CheckpointNotFoundError:
        return
    if kept.step <= last.step:
        state = evolve(kept, **ends)
        yield from save(run, (Save, run.services.save, state), state)


def save(run: RunContext, command: Command, state: State) -> Task[None]:
    """Save a State outside of the hot loop, and report it."""
    if run.outer_step is not None:  # first: a run that begins anew must never find what was nested in a lost one
        yield from run.outer_step.keep_incoming(at_last=True)
    yield command
    run.saved = state
    yield from emit(run, EventType.CHECKPOINT_SAVE, state)


def flush(run: RunContext, state: State) -> Task[None]:
    """Wait until all that was saved is durable, if saves are done later."""
    if run.plan.write_behind:
        yield (Flush, run.services.flush, state)


def drop_joined_parts(run: RunContext) -> Task[None]:
    """Forget parts whose results are in a State that is saved."""
    run.has_joined_parts = False
    if run.plan.loads_parts:
        yield (Parts, run.services.drop_parts, (run.state.run_id, run.state.step, False))
