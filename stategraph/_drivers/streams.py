"""AsyncStream: iterating over a run on an event loop."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Self

import attrs

from stategraph._drivers.aio import adrive, end_of
from stategraph._drivers.endings import is_plain_stop, left, raised_after
from stategraph._drivers.limits import StopSignal
from stategraph._protocol.commands import Task
from stategraph._util.cancellation import outlast
from stategraph._values.provenance import RunStatus
from stategraph.state import State


@attrs.define(eq=False)
class _Turns:
    """Takes turns between the run and the caller who iterates over it: the run is never ahead of the caller."""

    states: deque[State | None] = attrs.field(factory=deque)
    shown: asyncio.Event = attrs.field(factory=asyncio.Event)
    seen: asyncio.Event = attrs.field(factory=asyncio.Event)
    last: State | None = None
    is_left: bool = False

    async def show(self, state: State) -> None:
        """Wait until the next State is requested."""
        if state.status is not RunStatus.ACTIVE:  # there is no next
            self._put(state)
            return
        if not self.is_left:
            self.seen.clear()
            self._put(state)
            await self.seen.wait()
        if self.is_left:
            raise left()

    async def next(self) -> State | None:
        """Wait for the next State; return None once the run has ended."""
        if not self.states:  # one is there already where a task begins when it is created (asyncio.eager_task_factory)
            self.seen.set()
        while not self.states:
            self.shown.clear()
            await self.shown.wait()
        self.last = self.states.popleft()
        return self.last

    def _put(self, state: State | None) -> None:
        self.states.append(state)
        self.shown.set()

    def leave(self) -> None:
        """Stop the run where it shows a State, now or later."""
        self.is_left = True
        self.seen.set()

    def end(self, _: object) -> None:
        """Note that no more States come."""
        self._put(None)


class AsyncStream(AsyncGenerator[State, None]):
    """A run on the running event loop that continues when its next State is requested.

    Closing it, leaving its ``async with`` block, or throwing an error into it stops the run at a checkpoint, from which
    `StateGraph.aresume` continues. A stream that is neither closed nor exhausted is abandoned: it counts as a crash.
    The run keeps its last checkpoint and can be resumed, and Python emits a ResourceWarning.
    """

    _run: asyncio.Task[State] | None = None

    def __init__(self, task: Task[State], signal: StopSignal | None, store: Any) -> None:
        self._task, self._signal, self._store = task, signal, store
        self._turns = _Turns()
        self._is_waited_for = self._is_over = False
        self._raised_last: list[BaseException] = []  # raised when there is no State any more

    async def __anext__(self) -> State:
        self._check_alone()
        if self._is_over:
            raise self._raised_last.pop() if self._raised_last and _is_cancelled() else StopAsyncIteration
        self._is_waited_for = True
        try:
            state = await self._next()
        except BaseException as error:
            self._is_over = True
            state = await self._cancelled(error)
        finally:
            self._is_waited_for = False
        if state is None:
            self._is_over = True
            raise StopAsyncIteration
        return state

    async def asend(self, value: None, /) -> State:
        return await self.__anext__()

    async def athrow(self, typ: Any, val: object = None, tb: object = None, /) -> State:
        """Stop the run as an error in the caller's loop does, and raise that error."""
        if isinstance(typ, BaseException):
            thrown: BaseException = typ
        else:
            thrown = val if isinstance(val, typ) else typ() if val is None else typ(val)
        ended = await self._stopped()
        raise thrown if ended is None else raised_after(thrown, ended)

    async def aclose(self) -> None:
        """Stop the run, if it has begun and has not ended.

        Raises:
            RunCancelledError: its last State could not be saved; the notes say why.
        """
        ended = await self._stopped()
        if ended is not None and not is_plain_stop(ended):
            raise ended

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        if self._run is not None and not self._run.done():
            warnings.warn(ABANDONED, ResourceWarning, source=self, stacklevel=2)
            self._abandon(self._run)

    def _abandon(self, run: asyncio.Task[State]) -> None:
        """Have the event loop stop the run or, if that is not running any more, release the run as it is."""
        loop = run.get_loop()
        if loop.is_running():
            loop.call_soon_threadsafe(run.cancel)
        else:
            self._task.close()

    async def _next(self) -> State | None:
        """Return the next State; None if the run has ended."""
        if self._run is None:
            self._run = self._begun()
        state = await self._turns.next()
        if state is None:
            await self._run
        return state

    def _begun(self) -> asyncio.Task[State]:
        run = asyncio.create_task(adrive(self._task, self._signal, self._store, self._turns.show))
        run.add_done_callback(self._turns.end)
        # The ResourceWarning says it better than asyncio's message about a pending task.
        run._log_destroy_pending = False  # type: ignore[attr-defined]
        return run

    async def _stopped(self) -> BaseException | None:
        """Stop the run, and return what it ended with; None if nothing was running."""
        self._check_alone()
        self._is_over, run = True, self._run
        if run is None:
            self._task.close()
        if run is None or run.done():
            return None
        self._turns.leave()
        cancelled = await outlast(run, hands_on_to=run)
        if cancelled is not None:
            raise cancelled from end_of(run)
        return None if run.cancelled() else run.exception()

    async def _cancelled(self, error: BaseException) -> State:
        """Cancel the run, unless it has ended, and wait for its end.

        Returns:
            The last State, if the run completed all the same and its caller has not seen it: it may be nowhere else.

        Raises:
            BaseException: the error, or a later cancellation.
        """
        run = self._run
        if run is None:
            raise error
        if isinstance(error, GeneratorExit):  # the caller is abandoned, and cannot wait
            self._abandon(run)
            raise error
        run.cancel()
        self._turns.leave()
        came = error if isinstance(error, asyncio.CancelledError) else None
        cancelled = await outlast(run, hands_on_to=run, cancelled=came) or error
        end = end_of(run)
        if end is None and run.result() is not self._turns.last:
            self._raised_last.append(cancelled)
            return run.result()
        if end is error:
            raise error
        raise cancelled from end

    def _check_alone(self) -> None:
        if self._is_waited_for:
            raise RuntimeError("another task is waiting for the next State of this stream: one at a time does")


ABANDONED = (
    "a stream of a run was neither closed nor exhausted; its run can be resumed from its last checkpoint. "
    "Iterate within 'async with graph.astream(...) as states', or await its aclose method"
)


def _is_cancelled() -> bool:
    """Return whether a cancellation of this task is still in effect.

    A timeout that has been left may have taken it back.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
