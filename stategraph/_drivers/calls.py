"""Calls whose outcome is passed from one thread to another."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

Outcome: TypeAlias = tuple[Any, BaseException | None]
"""The result of a call, and the exception it raised."""


class Shown(BaseException):
    """Leaves the loop of a driver to show a State: a check in the loop itself would slow every command."""


def outcome_of(function: Callable[[Any], Any], argument: Any) -> Outcome:
    """Return the result or exception of a call.

    Some exceptions would stop the loop, or get lost, if they were raised in a thread of a pool.
    """
    try:
        return function(argument), None
    except BaseException as error:
        return None, error


def call_apart(function: Callable[[Any], Any], argument: Any, done: Callable[[Outcome], object]) -> None:
    """Call a function in its own thread, which passes the outcome to `done`.

    That thread is never joined, not even at the end of the process: a function cannot be stopped, and one that takes
    too long is abandoned.
    """
    run = contextvars.copy_context().run
    threading.Thread(
        target=lambda: done(run(outcome_of, function, argument)), name="stategraph node", daemon=True
    ).start()
