"""Owning a run: one call at a time works on it, and lets go of it however it ends."""

from __future__ import annotations

from typing import TypeVar

from stategraph._engine.context import RunContext
from stategraph._engine.saving import take_up
from stategraph._owners.holds import Hold, let_go
from stategraph._protocol.commands import LetGo, Own, Sleep, Stopped, Task
from stategraph.errors import RunBusyError

_Answer = TypeVar("_Answer")
_SOONEST, _LATEST = 0.001, 0.05  # seconds after which a run that is at work is looked at again


def owning(run: RunContext, hold: Hold, task: Task[_Answer], *, takes_up: bool = True) -> Task[_Answer]:
    """Do a task as the owner of a run, from before it first asks the store until it has returned.

    Args:
        run: What is known of the call.
        hold: What the task has of the run.
        task: The task.
        takes_up: Whether it goes on with a run that was cancelled.
    """
    if not run.plan.saves:
        return (yield from task)
    try:
        yield from _own(run, hold)
        if hold.is_cancelled and takes_up:
            yield from take_up(run, hold)
        answer = yield from task
    except GeneratorExit:  # the driver is gone: another one lets go, after all else that is left to do
        run.hand_over(_let_go(run, hold))
        raise
    except BaseException:
        yield from _let_go(run, hold)
        raise
    yield from _let_go(run, hold)
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
            try:
                yield (Sleep, None, min(delay, run.patience - waited))
            except Stopped:
                raise busy from None
            waited += delay
            delay = min(2 * delay, _LATEST)
        else:
            return


def _let_go(run: RunContext, hold: Hold) -> Task[None]:
    try:
        yield (LetGo, let_go, hold)
    except GeneratorExit:
        run.hand_over(_let_go(run, hold))
        raise
    except BaseException:  # it was interrupted, and may have come to nothing
        yield (LetGo, let_go, hold)
        raise
