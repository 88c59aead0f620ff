"""Own a run: from before the first request to the store until the call ends, however it ends."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import ref

from stategraph._engine.context import RunContext
from stategraph._graph.compiled import CompiledGraph
from stategraph._owners.base import Ownership, release
from stategraph._protocol import Amend, Own, Sleep, Stopped, Task
from stategraph._values import clock
from stategraph._values.events import EventType, notify
from stategraph._values.ids import check_given_id
from stategraph.errors import CheckpointingDisabledError, RunBusyError

SOONEST, LATEST = 0.001, 0.05
"""Seconds between two looks at a run that another call owns: at first, and later."""


def check_saves(plan: CompiledGraph) -> None:
    """Raise CheckpointingDisabledError if a graph saves nothing."""
    if not plan.saves:
        raise CheckpointingDisabledError(plan.graph)


def owning(run: RunContext, ownership: Ownership, task: Task[Any], *, takes_up: bool = True) -> Task[Any]:
    """Return a task that runs as the owner of a run, if runs are saved.

    Args:
        run: The call.
        ownership: The owner of the run.
        task: The task. It begins once the run is owned. However it ends, the owner releases the run.
        takes_up: Whether to continue a cancelled run.
    """
    return _begun(run, ownership, task, takes_up) if run.plan.saves else task


def owning_saved(
    run: RunContext, run_id: str, task: Task[Any], *, takes_up: bool = True, is_brief: bool = False
) -> Task[Any]:
    """Return a task that runs as the owner of a run; see `owning`.

    Raises:
        CheckpointingDisabledError: the graph saves nothing.
    """
    check_saves(run.plan)
    return _begun(run, Ownership(check_given_id(run_id), is_brief=is_brief), task, takes_up)


def _begun(run: RunContext, ownership: Ownership, task: Task[Any], takes_up: bool) -> Task[Any]:
    owner = _owning(run, ownership, task, takes_up)
    ownership.end_with(owner)
    return owner


def _owning(run: RunContext, ownership: Ownership, task: Task[Any], takes_up: bool) -> Task[Any]:
    try:
        yield from _own(run, ownership)
        if takes_up:
            yield from clear_cancellation(run)
        return (yield from task)
    except GeneratorExit:
        ownership.is_abandoned = True
        raise
    finally:
        release(ownership)


def _own(run: RunContext, ownership: Ownership) -> Task[None]:
    """Become the owner of the run: at once if the call takes over, otherwise when its owner releases it.

    Raises:
        RunBusyError: the run still has another owner after `patience` seconds.
    """
    waited, delay, ownership.waits = 0.0, SOONEST, run.patience > 0
    while True:
        try:
            yield (Own, run.session.own, (ownership, run.takes_over))
            break
        except RunBusyError as busy:
            if run.while_busy is not None:
                yield from run.while_busy(busy)
            if waited >= run.patience:
                raise
            run.waits_since = run.waits_since or clock.to_datetime(clock.now_ns())
            try:
                yield (Sleep, None, min(delay, run.patience - waited))
            except Stopped:
                raise busy from None
            waited += delay
            delay = min(2 * delay, LATEST)
    ownership.call = ref(run)
    if EventType.LEASE_LATE in run.wanted:
        ownership.warn = partial(notify, run.observer, EventType.LEASE_LATE, run.plan.graph)


def clear_cancellation(run: RunContext) -> Task[None]:
    """Clear the cancellation of the run, if there is one."""
    ownership = run.session.ownership
    if ownership is not None and ownership.is_cancelled:
        yield (Amend, run.session.write, (ownership.run_id, partial(run.session.store._take_up, ownership)))
