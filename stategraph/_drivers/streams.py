"""Stream and AsyncStream: iterating over a run, in this thread or on an event loop."""

from __future__ import annotations

import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from inspect import GEN_CLOSED, GEN_CREATED, GEN_SUSPENDED, getgeneratorstate
from typing import Any, NoReturn, Self

from stategraph._drivers.calls import Shown
from stategraph._drivers.limits import StopSignal
from stategraph._drivers.sync import Performer, carry_out
from stategraph._protocol import Command, Show, Stopped, Task
from stategraph._util.callables import without_calls
from stategraph.errors import RunCancelledError
from stategraph.state import S_co, State

_ABANDONED = (
    "a stream of a run was neither closed nor exhausted; its run can be resumed from its last checkpoint. "
    "Iterate within "
)
_LEFT = "its caller requests no more States"


class _RunStream:
    """The task of a run whose caller iterates over it."""

    _way_out: str
    _task: Task[State]
    _performer: Any

    def _has_ended(self) -> bool:
        """Return whether the run has ended. A run that has not begun ends now."""
        if getgeneratorstate(self._task) == GEN_CREATED:
            self._task.close()
        return getgeneratorstate(self._task) == GEN_CLOSED

    def _shown(self, shown: Shown) -> State[Any]:
        """Stop the clock of nodes while the caller looks at a State; return the State."""
        self._performer.clock.stop()
        state: State[Any] = shown.args[0]
        return state

    def __del__(self) -> None:
        task = vars(self).get("_task")
        if task is not None and getgeneratorstate(task) == GEN_SUSPENDED:
            warnings.warn(_ABANDONED + self._way_out, ResourceWarning, source=self, stacklevel=2)
            task.close()
            self._performer.clock.go_on()  # otherwise the limits of running parts would never pass


@contextmanager
def _stopping() -> Iterator[None]:
    """Ignore the exception of a run that stops as requested, unless its notes report another failure."""
    try:
        yield
    except (RunCancelledError, Stopped) as error:
        if hasattr(error, "__notes__"):
            raise


class Stream(_RunStream, Generator[State[S_co], None, State[S_co]]):
    """A run that continues when its next State is requested.

    Closing it, leaving its ``with`` block, or throwing an error into it stops the run at a checkpoint, from which
    `StateGraph.resume` continues. A stream that is neither closed nor exhausted is abandoned: it counts as a crash. The
    run keeps its last checkpoint and can be resumed, and Python emits a ResourceWarning.
    """

    _way_out = "'with graph.stream(...) as states', or call its close method"

    def __init__(self, task: Task[State], signal: StopSignal | None) -> None:
        self._task = task
        self._performer = Performer(signal)
        self._turn = threading.Lock()  # held by the call that iterates

    def __next__(self) -> State[S_co]:
        try:
            with without_calls:
                answer = self._carry_out(self._task.send, None)
        except Shown as shown:
            return self._shown(shown)
        raise StopIteration(answer)

    def send(self, value: None, /) -> State[S_co]:
        return self.__next__()

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> NoReturn:
        """Stop the run like an error in a ``with`` block of the stream, and raise that error."""
        with self:
            raise typ if val is None else val

    def close(self) -> None:
        """Stop the run, if it has begun and has not ended.

        Raises:
            RunCancelledError: its last State could not be saved; the notes say why.
        """
        if self._has_ended():
            return
        with _stopping():
            self._carry_out(self._task.throw, Stopped(_LEFT), shows=False)

    def _carry_out(self, go_on: Callable[[Any], Command], value: Any, *, shows: bool = True) -> State:
        if not self._turn.acquire(blocking=False):
            raise ValueError("another call is iterating over this stream: one at a time does")
        try:
            if not shows:
                self._performer.perform[Show] = lambda _, __: None
            self._performer.clock.go_on()
            return carry_out(self._task, self._performer.perform, go_on, value)
        finally:
            if getgeneratorstate(self._task) == GEN_CLOSED:
                self._performer.close()
            self._turn.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncStream(_RunStream, AsyncGenerator[State[S_co], None]):
    """A run on the running event loop that continues when its next State is requested.

    Closing it, leaving its ``async with`` block, or throwing an error into it stops the run at a checkpoint, from which
    `StateGraph.aresume` continues. A stream that is neither closed nor exhausted is abandoned: it counts as a crash.
    The run keeps its last checkpoint and can be resumed, and Python emits a ResourceWarning.
    """

    _way_out = "'async with graph.astream(...) as states', or await its aclose method"

    def __init__(self, task: Task[State], signal: StopSignal | None, store: Any) -> None:
        from stategraph._drivers.aio import AsyncPerformer  # imported when used: asyncio takes 20 ms

        self._task = task
        self._performer = AsyncPerformer(task, signal, store)
        self._is_waited_for = False

    async def __anext__(self) -> State[S_co]:
        try:
            with without_calls:
                await self._carry_out(self._task.send, None)
        except Shown as shown:
            return self._shown(shown)
        raise StopAsyncIteration

    async def asend(self, value: None, /) -> State[S_co]:
        return await self.__anext__()

    async def athrow(self, typ: Any, val: Any = None, tb: object = None, /) -> NoReturn:
        """Stop the run like an error in an ``async with`` block of the stream, and raise that error."""
        async with self:
            raise typ if val is None else val

    async def aclose(self) -> None:
        """Stop the run, if it has begun and has not ended.

        Raises:
            RunCancelledError: its last State could not be saved; the notes say why.
        """
        self._check_alone()
        if self._has_ended():
            return
        self._performer.at_once[Show] = lambda _, __: None
        with _stopping():
            await self._carry_out(self._task.throw, Stopped(_LEFT))

    async def _carry_out(self, go_on: Callable[[Any], Command], value: Any) -> None:
        self._check_alone()
        if getgeneratorstate(self._task) == GEN_CLOSED:
            return
        self._is_waited_for = True
        self._performer.clock.go_on()
        try:
            await self._performer.carry_out(go_on, value)
        finally:
            self._is_waited_for = False

    def _check_alone(self) -> None:
        if self._is_waited_for:
            raise RuntimeError("another task is waiting for the next State of this stream: one at a time does")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()
