"""Calls whose outcome is handed on from one thread to another."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

Outcome: TypeAlias = tuple[Any, BaseException | None]
"""What a call returns, or what it raises."""


class Shown(BaseException):
    """Leads out of the loop of a driver to show a State: asking in the loop itself would cost every command."""


def outcome_of(function: Callable[[Any], Any], argument: Any) -> Outcome:
    """Return what a call returns or raises.

    Some exceptions would stop the loop, or get lost, if they were raised in a thread of a pool.
    """
    try:
        return function(argument), None
    except BaseException as error:
        return None, error


def call_apart(function: Callable[[Any], Any], argument: Any, done: Callable[[Outcome], object]) -> None:
    """Call a function in a thread of its own, which passes the outcome to `done`.

    Nobody waits for that thread, not even at the end of the process: a function cannot be stopped, and one that takes
    too long is left to itself.
    """
    run = contextvars.copy_context().run
    threading.Thread(
        target=lambda: done(run(outcome_of, function, argument)), name="stategraph node", daemon=True
    ).start()
