"""How a task ends, and how an error goes back into it."""

from __future__ import annotations

from stategraph._protocol.commands import Stopped
from stategraph._text.shown import describe_exception
from stategraph.errors import RunCancelledError


def left() -> Stopped:
    """Return what to throw into a task when nobody asks for its next State any more."""
    return Stopped("nobody iterates over it any more")


def is_plain_stop(error: BaseException | None) -> bool:
    """Return whether a task that was left has ended as it should: a further failure would be a note."""
    return isinstance(error, RunCancelledError | Stopped) and not hasattr(error, "__notes__")


def raised_after(thrown: BaseException, error: BaseException) -> BaseException:
    """Return what goes up once a task has ended that was stopped because of an error.

    Args:
        thrown: The error, or what `left` gave if there is none.
        error: What the task ended with. Where it is more than that the run was stopped, the error gets a note of it.
    """
    if is_plain_stop(error) or isinstance(error, StopIteration):
        return thrown
    if isinstance(thrown, Stopped):
        return error
    for note in getattr(error, "__notes__", [describe_exception(error)]):
        thrown.add_note(note)
    return thrown
