"""Owning a run: one call at a time works on it, and lets go of it however it ends."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import ref

from stategraph._engine.context import RunContext
from stategraph._engine.loop import run_from
from stategraph._engine.saving import take_up
from stategraph._owners.holds import Hold, let_go
from stategraph._protocol.commands import Own, Sleep, Stopped, Task
from stategraph._values import clock
from stategraph._values.events import EventType, notify
from stategraph.errors import RunBusyError

_SOONEST, _LATEST = 0.001, 0.05  # seconds after which a run that is at work is looked at again


def owning(
    run: RunContext, hold: Hold, task: Task[Any], *, takes_up: bool = True, then_runs: bool = False
) -> Task[Any]:
    """Do a task as the owner of a run, from before the store is first asked until all has ended; return its answer.

    Args:
        run: What is known of the call.
        hold: What the run is owned by.
        task: The task.
        takes_up: Whether it goes on with a run that was cancelled.
        then_runs: Whether the run goes on from the node that the task returns, to its end, which is the answer then.
    """
    if not run.plan.saves:
        answer: Any = yield from task
        return (yield from run_from(run, answer)) if then_runs else answer
    try:
        yield from _own(run, hold)
        if hold.is_cancelled and takes_up:
            yield from take_up(run, hold)
        answer = yield from task
        if then_runs:
            answer = yield from run_from(run, answer)
    except GeneratorExit:
        hold.is_abandoned = True
        raise
    finally:
        let_go(hold)
    return answer


def _own(run: RunContext, hold: Hold) -> Task[None]:
    """Become the owner of the run, as soon as nobody else is, or at once if it is to be taken over."""
    waited, delay = 0.0, _SOONEST
    while True:
        try:
            yield (Own, run.services.own, (hold, run.takes_over))
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
        else:
            hold.call = ref(run)
            if EventType.LEASE_LATE in run.wanted:
                hold.tell = partial(notify, run.services.observer, EventType.LEASE_LATE, run.plan.graph)
            return
