"""TaskFeed: one task that drives an async generator from its start to its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, Final, TypeAlias

from stategraph._util.cancellation import from_any_thread, outlast

Advance: TypeAlias = tuple[bool, Any]
"""Whether a generator has ended, and the value it yielded."""

_Outcome: TypeAlias = tuple[Advance, BaseException | None]
_PLAIN_ENDS: Final = (GeneratorExit, asyncio.CancelledError)


class TaskFeed:
    """Drives an async generator in its own task.

    After the generator has yielded, the task waits for the next request. A cancellation that arrives during this wait,
    for example from a timeout or a task group of the generator, is raised in the generator, as at any other await; its
    outcome is kept until the next request. If the task that waits for the generator is cancelled, so is the generator.

    Args:
        generator: The generator.
    """

    def __init__(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generator = generator
        self._task: asyncio.Task[None] | None = None
        self._outcome: _Outcome | None = None  # of the generator, until it is read
        self._asked: asyncio.Future[None] | None = None  # the task waits for it
        self._answered: asyncio.Future[None] | None = None  # the caller of `next` waits for it
        self._is_closing = False

    async def next(self, _: object = None) -> Advance:
        task = self._task
        if task is None:
            task = self._task = asyncio.create_task(self._drive())
            # It may wait for ever if the loop is closed. The task that caused this is reported by itself.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.add_done_callback(self._note_end)
        elif self._outcome is None:
            _wake(self._asked)
        while self._outcome is None:
            self._answered = asyncio.get_running_loop().create_future()
            try:
                await self._answered
            except asyncio.CancelledError as cancelled:
                if self._outcome is not None:  # too late for the generator
                    raise
                task.cancel(*cancelled.args)
                self._answered = asyncio.get_running_loop().create_future()  # the old one is cancelled
                await outlast(self._answered, hands_on_to=task, cancelled=cancelled)
        (advance, error), self._outcome = self._outcome, self._next_outcome()
        if error is not None:
            raise error
        return advance

    def _next_outcome(self) -> _Outcome | None:
        """Return the next outcome, if it is there already."""
        return None

    async def close(self, _: object = None) -> None:
        """Close the generator. Cancel it, or the function, if it is at work; raise its exception if it fails."""
        self._is_closing = True
        task = self._task
        if task is None:
            return
        if self._asked is None:  # it is at work: the task that waited for it is gone
            task.cancel()
        _wake(self._asked)
        cancelled = await outlast(task, hands_on_to=task)
        if cancelled is not None:
            raise cancelled
        failure = self._outcome and _failure(self._outcome[1])
        if failure is not None:
            raise failure

    async def _drive(self) -> None:
        """Advance the generator step by step, on request."""
        step: Awaitable[Any] | None = anext(self._generator)
        while step is not None:
            self._outcome = advance, _ = await _outcome_of(step)
            _wake(self._answered)
            if advance[0]:
                return
            step = await self._next_step()
        self._outcome = await _outcome_of(self._generator.aclose())

    async def _next_step(self) -> Awaitable[Any] | None:
        """Wait for the next request; return how to advance, or None to close the generator."""
        cancelled: asyncio.CancelledError | None = None
        while not self._is_closing:
            self._asked = asyncio.get_running_loop().create_future()
            try:
                await self._asked
            except asyncio.CancelledError as error:
                cancelled = error
            self._asked = None
            if self._outcome is None and not self._is_closing:
                return anext(self._generator) if cancelled is None else self._generator.athrow(cancelled)
        return None

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # before it began: nothing in it lets a cancellation through
            self._outcome = (True, None), asyncio.CancelledError()
            _wake(self._answered)


class FunctionTaskFeed(TaskFeed):
    """Calls an async function in a task, and passes on the chunks that it emits while it runs."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # `_drive` is another
        self._later: deque[_Outcome] = deque()

    def next(self, function: Any = None) -> Awaitable[Advance]:  # type: ignore[override]
        self._function = function
        return super().next()

    async def _drive(self) -> None:
        self._add_soon = from_any_thread(self._add)
        try:
            self._add(((True, await self._function()), None))
        except BaseException as error:  # noqa: BLE001 - raised in the task that waits for it
            self._add(((True, None), error))

    def emit(self, chunk: Any, is_past: bool) -> None:
        """Pass a chunk on, from any thread, while the function runs."""
        if not is_past:
            self._add_soon(((False, chunk), None))

    def _add(self, outcome: _Outcome) -> None:
        self._later.append(outcome)
        if self._outcome is None:
            self._outcome = self._next_outcome()
            _wake(self._answered)

    def _next_outcome(self) -> _Outcome | None:
        return self._later.popleft() if self._later else None


async def _outcome_of(step: Awaitable[Any]) -> _Outcome:
    try:
        return (False, await step), None
    except StopAsyncIteration:
        return (True, None), None
    except BaseException as error:  # noqa: BLE001 - raised in the task that waits for it
        return (True, None), error


def _failure(error: BaseException | None) -> BaseException | None:
    """Return the exception of a closed generator; None if it only reports the closing.

    If a generator is closed inside a task group, the group raises an ExceptionGroup with the GeneratorExit in it.
    """
    if isinstance(error, BaseExceptionGroup):
        return error.split(_PLAIN_ENDS)[1]
    return None if isinstance(error, _PLAIN_ENDS) else error


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
