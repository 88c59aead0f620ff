"""AsyncStream: iterating over a run on an event loop."""

from __future__ import annotations

import time
import warnings
from collections.abc import AsyncGenerator, Callable
from inspect import GEN_CLOSED, GEN_CREATED, GEN_SUSPENDED, getgeneratorstate
from typing import Any, Self

from stategraph._drivers.aio import AsyncPerformer
from stategraph._drivers.calls import Shown
from stategraph._drivers.iteration import is_plain_stop, left, raised_after
from stategraph._drivers.limits import StopSignal
from stategraph._protocol import Command, Stopped, Task
from stategraph.errors import ExecutionError
from stategraph.state import State


class AsyncStream(AsyncGenerator[State, None]):
    """A run on the running event loop that continues when its next State is requested.

    Closing it, leaving its ``async with`` block, or throwing an error into it stops the run at a checkpoint, from which
    `StateGraph.aresume` continues. A stream that is neither closed nor exhausted is abandoned: it counts as a crash.
    The run keeps its last checkpoint and can be resumed, and Python emits a ResourceWarning.
    """

    def __init__(self, task: Task[State], signal: StopSignal | None, store: Any) -> None:
        self._task = task
        self._performer = AsyncPerformer(task, signal, store)
        self._performer.show()
        self._shown_at = 0.0
        self._is_waited_for = False

    async def __anext__(self) -> State:
        if getgeneratorstate(self._task) == GEN_SUSPENDED:
            self._performer.prolong(time.monotonic() - self._shown_at)
        try:
            await self._carry_out(self._task.send, None)
        except Shown as shown:
            self._shown_at = time.monotonic()
            state: State = shown.args[0]
            return state
        except ExecutionError as error:
            raise error.with_traceback(None) from error.__cause__  # as in `drive`
        raise StopAsyncIteration

    async def asend(self, value: None, /) -> State:
        return await self.__anext__()

    async def athrow(self, typ: Any, val: object = None, tb: object = None, /) -> State:
        """Stop the run like an error in the caller's loop, and raise that error."""
        if isinstance(typ, BaseException):
            thrown: BaseException = typ
        else:
            thrown = val if isinstance(val, typ) else typ() if val is None else typ(val)
        ended = await self._stop()
        raise thrown if ended is None else raised_after(thrown, ended)

    async def aclose(self) -> None:
        """Stop the run, if it has begun and has not ended.

        Raises:
            RunCancelledError: its last State could not be saved; the notes say why.
        """
        ended = await self._stop()
        if ended is not None:
            raise ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        task = vars(self).get("_task")
        if task is not None and getgeneratorstate(task) == GEN_SUSPENDED:
            warnings.warn(ABANDONED, ResourceWarning, source=self, stacklevel=2)
            task.close()

    async def _stop(self) -> BaseException | None:
        """Stop the run; return the exception that ended it, unless it only says that the run was stopped."""
        self._check_alone()
        if getgeneratorstate(self._task) == GEN_CREATED:
            self._task.close()
        if getgeneratorstate(self._task) == GEN_CLOSED:
            return None
        self._performer.pass_over()
        try:
            await self._carry_out(self._task.throw, left())
        except Exception as error:
            return None if is_plain_stop(error) else error
        except Stopped:
            return None
        return None

    async def _carry_out(self, go_on: Callable[[Any], Command], value: Any) -> None:
        self._check_alone()
        if getgeneratorstate(self._task) == GEN_CLOSED:
            return
        self._is_waited_for = True
        try:
            await self._performer.carry_out(go_on, value)
        finally:
            self._is_waited_for = False

    def _check_alone(self) -> None:
        if self._is_waited_for:
            raise RuntimeError("another task is waiting for the next State of this stream: one at a time does")


ABANDONED = (
    "a stream of a run was neither closed nor exhausted; its run can be resumed from its last checkpoint. "
    "Iterate within 'async with graph.astream(...) as states', or await its aclose method"
)
