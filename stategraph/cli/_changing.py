"""Commands that change something: asking first, and saying what was done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stategraph.cli._exits import Exit, Failure
from stategraph.cli._screen import STYLES, Screen
from stategraph.cli._text import clean

if TYPE_CHECKING:
    from stategraph.graph import StateGraph
    from stategraph.state import State

_Function = TypeVar("_Function", bound=Callable[..., Any])

END_OF_CALL = {"completed": Exit.OK, "paused": Exit.PAUSED, "failed": Exit.FAILED, "cancelled": Exit.FAILED}
"""The exit codes of a run that has ended, or waits."""


def sure(function: _Function) -> _Function:
    """Let a command that loses something take an option not to ask."""
    return click.option("-y", "--yes", is_flag=True, help="Do not ask.")(function)


def confirm(question: str, yes: bool) -> None:
    """Ask a person whether to go on.

    Raises:
        Failure: nobody can be asked, or the answer is no.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Failure(Exit.USAGE, f"{question} There is no terminal to ask at: give --yes")
    if not click.confirm(clean(question), err=True):
        raise Failure(Exit.FAILED, "nothing was changed")


def done(screen: Screen, shape: dict[str, Any], message: str) -> None:
    """Say what was done."""
    if screen.is_json:
        screen.document(shape)
    else:
        screen.line(message)


def went_on(screen: Screen, graph: StateGraph, run_id: str, updates: dict[str, Any] | None, **how: Any) -> State:
    """Resume a run, and return how that ended. A person sees the run at work meanwhile."""
    is_seen = not screen.is_json and sys.stderr.isatty()
    return graph.resume(run_id, updates, progress=is_seen, **how)


def ended(screen: Screen, state: State) -> int:
    """Say how a call of a graph ended; return the exit code of that."""
    status = str(state.status)
    if screen.is_json:
        from stategraph.cli._shapes import state_shape

        screen.document(state_shape(state, None, ()))
    else:
        why = "" if state.pause is None else f": {state.pause.reason}"
        if state.pause is not None and state.pause.others:
            why += f", and {len(state.pause.others)} more"
        screen.line((state.run_id, "bold"), "  ", (status, STYLES[status]), f"  step {state.step}{why}")
    return END_OF_CALL.get(status, Exit.OK)
