"""How a task ends, and how an error goes back into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stategraph.commands import Escaped


def answer_of(error: BaseException) -> Any:
    """-> what a task returned, from the StopIteration that ended it; raises whatever else ended it."""
    if isinstance(error, StopIteration):
        return error.value
    raise error


def escaped(error: BaseException) -> BaseException:
    """-> what to throw into a task for an error that a command raised."""
    if not isinstance(error, GeneratorExit):
        return error
    wrapper = Escaped()
    wrapper.__cause__ = error
    return wrapper


def outcome_of(function: Callable[[Any], Any], argument: Any) -> tuple[Any, BaseException | None]:
    """-> what a call returns or raises: raised in a thread of a pool, some exceptions stop the loop or get lost."""
    try:
        return function(argument), None
    except BaseException as error:
        return None, error
