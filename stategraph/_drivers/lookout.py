"""Lookout: cut off what a run awaits once another process has cancelled the run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stategraph._drivers.calls import Outcome, outcome_of
from stategraph._drivers.limits import LOOK_OUT


class Lookout:
    """Cuts off an awaitable of a run that another process has cancelled or taken over.

    One timer serves all awaitables of the run, so that short ones cost next to nothing.

    Args:
        look: Raises if the run should stop.
        call: Calls a function in a thread, and returns the future outcome; None if `look` may block the event loop.
    """

    def __init__(
        self, look: Callable[[Any], object], call: Callable[[Any, Any], asyncio.Future[Outcome]] | None = None
    ) -> None:
        self._look, self._call = look, call
        self._task: asyncio.Task[Any] | None = None  # set while it awaits something
        self._timer: asyncio.TimerHandle | None = None  # until the outcome of its look is known
        self._cut: BaseException | None = None
        self._before = 0  # the cancellations that the task had received before

    async def over(self, awaitable: Awaitable[Any]) -> Any:
        """Return the result of an awaitable, unless the run should stop."""
        self._task = asyncio.current_task()
        if self._timer is None:
            self._wait()
        try:
            answer = await awaitable
        except (Exception, asyncio.CancelledError) as error:
            cut = self._cut_off()
            if cut is None:
                raise
            raise cut from (None if isinstance(error, asyncio.CancelledError) else error)
        finally:
            self._task = None
        if self._cut is not None:  # it has ignored its cancellation
            self._cut_off()
        return answer

    def _cut_off(self) -> BaseException | None:
        """Take back the cancellation of this object; return its reason, unless the task has another cancellation."""
        cut, self._cut = self._cut, None
        task = asyncio.current_task()
        return None if cut is None or task is None or task.uncancel() > self._before else cut

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_OUT, self._look_now)

    def _look_now(self) -> None:
        if self._task is None:
            self._timer = None
        elif self._call is None:
            self._looked(outcome_of(self._look, None))
        else:
            self._call(self._look, None).add_done_callback(lambda work: self._looked(work.result()))

    def _looked(self, outcome: Outcome) -> None:
        self._timer, (_, raised) = None, outcome
        if self._task is not None and raised is None:
            self._wait()
        elif self._task is not None:
            self._cut, self._before = raised, self._task.cancelling()
            self._task.cancel()

    def end(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
