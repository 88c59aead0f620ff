"""Stream: iterating over a run in this thread."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Generator
from inspect import GEN_CLOSED, GEN_CREATED, GEN_RUNNING, GEN_SUSPENDED, getgeneratorstate
from typing import TYPE_CHECKING, Any, NoReturn, Self

from stategraph._drivers.calls import Shown
from stategraph._drivers.sync import Performer, carry_out
from stategraph._protocol import Command, Show, Stopped, Task
from stategraph._text.shown import describe_exception
from stategraph.errors import ExecutionError, RunCancelledError
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._drivers.limits import StopSignal


class Stream(Generator[State, None, State]):
    """A run that continues when its next State is requested.

    Closing it, leaving its ``with`` block, or throwing an error into it stops the run at a checkpoint, from which
    `StateGraph.resume` continues. A stream that is neither closed nor exhausted is abandoned: it counts as a crash. The
    run keeps its last checkpoint and can be resumed, and Python emits a ResourceWarning.
    """

    def __init__(self, task: Task[State], signal: StopSignal | None) -> None:
        self._task = task
        self._performer = Performer(signal)
        self._shown_at = 0.0

    def __next__(self) -> State:
        if getgeneratorstate(self._task) == GEN_SUSPENDED:
            self._performer.prolong(time.monotonic() - self._shown_at)
        try:
            answer = self._carry_out(self._task.send, None)
        except Shown as shown:
            self._shown_at = time.monotonic()
            state: State = shown.args[0]
            return state
        except ExecutionError as error:
            raise error.with_traceback(None) from error.__cause__  # as in `drive`
        raise StopIteration(answer)

    def send(self, value: None, /) -> State:
        return self.__next__()

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> NoReturn:
        """Stop the run like an error in the caller's loop, and raise that error."""
        thrown = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        ended = self._stop()
        raise thrown if ended is None else raised_after(thrown, ended)

    def close(self) -> None:
        """Stop the run, if it has begun and has not ended.

        Raises:
            RunCancelledError: its last State could not be saved; the notes say why.
        """
        ended = self._stop()
        if ended is not None:
            raise ended

    def _stop(self) -> BaseException | None:
        """Stop the run; return the exception that ended it, unless it only says that the run was stopped."""
        if getgeneratorstate(self._task) == GEN_CREATED:
            self._task.close()
        if getgeneratorstate(self._task) == GEN_CLOSED:
            return None
        self._performer.perform[Show] = _pass_over
        try:
            self._carry_out(self._task.throw, left())
        except BaseException as error:
            return None if is_plain_stop(error) else error
        return None

    def _carry_out(self, go_on: Callable[[Any], Command], value: Any) -> State:
        if getgeneratorstate(self._task) == GEN_RUNNING:
            raise ValueError("another thread is iterating over this stream: one at a time does")
        try:
            return carry_out(self._task, self._performer.perform, go_on, value)
        finally:
            if getgeneratorstate(self._task) == GEN_CLOSED:
                self._performer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        task = vars(self).get("_task")
        if task is not None and getgeneratorstate(task) == GEN_SUSPENDED:
            warnings.warn(ABANDONED, ResourceWarning, source=self, stacklevel=2)
            task.close()


def _pass_over(_: object, __: State) -> None:
    """Continue at once: the run is stopping, and its caller reads no more States."""


ABANDONED = (
    "a stream of a run was neither closed nor exhausted; its run can be resumed from its last checkpoint. "
    "Iterate within 'with graph.stream(...) as states', or call its close method"
)
"""The warning for an abandoned stream."""


def left() -> Stopped:
    """Return the exception to throw into a task whose caller requests no more States."""
    return Stopped("nobody iterates over it any more")


def is_plain_stop(error: BaseException | None) -> bool:
    """Return whether a stopped task has ended as expected: any other failure would be a note."""
    return isinstance(error, RunCancelledError | Stopped) and not hasattr(error, "__notes__")


def raised_after(thrown: BaseException, error: BaseException) -> BaseException:
    """Return the exception to raise once a task has ended that was stopped because of an error.

    Args:
        thrown: The error, or the result of `left` if there is none.
        error: The exception that ended the task. If it reports more than the stop, the thrown error gets a note of it.
    """
    if is_plain_stop(error) or isinstance(error, StopIteration):
        return thrown
    if isinstance(thrown, Stopped):
        return error
    for note in getattr(error, "__notes__", [describe_exception(error)]):
        thrown.add_note(note)
    return thrown
