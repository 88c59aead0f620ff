"""Owning a run: one call at a time works on it, and lets go of it however it ends."""

from __future__ import annotations

from stategraph._engine.context import RunContext
from stategraph._engine.failures import noting, rescue
from stategraph._engine.loop import run_from
from stategraph._graph.compiled import CompiledNode
from stategraph._owners.holds import Hold, let_go
from stategraph._protocol.commands import LetGo, Own, Sleep, Stopped, Task
from stategraph._values import clock
from stategraph.errors import RunBusyError
from stategraph.state import State

_SOONEST, _LATEST = 0.001, 0.05  # seconds after which a run that is at work is looked at again


def run_owned(run: RunContext, hold: Hold, prepare: Task[CompiledNode | None]) -> Task[State]:
    """Run as the owner of a run, from before the store is first asked until the run has ended.

    Args:
        run: The run.
        hold: What it is owned by.
        prepare: Makes the State of the run, and returns the node that it stands after.
    """
    if not run.plan.saves:
        return (yield from run_from(run, (yield from prepare)))
    state: State | None = None
    try:
        try:
            yield from _own(run, hold)
            state = yield from run_from(run, (yield from prepare))
            yield (LetGo, let_go, hold)
        except GeneratorExit:  # the driver is gone: another one lets go, after all else that is left to do
            run.hand_over(_let_go(run, hold))
            raise
        except BaseException as error:
            if state is not None:  # an interrupt at the end: a run that is deleted by now has its result nowhere else
                yield from rescue(run, error)
            yield from noting(error, "While it was let go of", _let_go(run, hold))
            raise
    except GeneratorExit:
        raise
    except BaseException:
        let_go(hold)  # an interrupt may come when that is about to be asked for
        raise
    return state


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
            return


def _let_go(run: RunContext, hold: Hold) -> Task[None]:
    try:
        yield (LetGo, let_go, hold)
    except GeneratorExit:
        run.hand_over(_let_go(run, hold))
        raise
    except BaseException:  # an interrupt: it may have come to nothing
        yield (LetGo, let_go, hold)
        raise
