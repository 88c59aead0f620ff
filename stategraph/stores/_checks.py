"""What stores check: steps, and what may be asked of a list of runs."""

from __future__ import annotations

from stategraph._text.shown import shorten
from stategraph._values.provenance import RunStatus
from stategraph.errors import StepConflictError
from stategraph.state import State

_LARGEST = 2**63 - 1
"""The largest number that stores count to."""


def check_state(state: object, error: AttributeError) -> None:
    """Raise TypeError, because of an error that came of it, unless this is a State."""
    if not isinstance(state, State):
        raise TypeError(f"a store saves a State, not a {type(state).__name__}: State({{...}}) makes one") from error


def check_status(status: str | None) -> None:
    """Raise ValueError unless a run can have this status, or it is None."""
    if status is not None and status not in list(RunStatus):
        raise ValueError(f"status: {shorten(status)} is not allowed; {', '.join(RunStatus)} are")


def check_limit(limit: int) -> int:
    """Return a limit. Raises ValueError unless it is one."""
    if type(limit) is not int or not 1 <= limit <= _LARGEST:
        raise ValueError(f"limit: {shorten(limit)} is not allowed; a whole number from 1 to {_LARGEST} is")
    return limit


def from_cursor(cursor: str | None) -> int | None:
    """Return the number that a cursor stands for. Raises ValueError unless it is a cursor."""
    if cursor is None:
        return None
    is_number = isinstance(cursor, str) and cursor.isdecimal() and cursor.isascii()
    if is_number and len(cursor) <= len(str(_LARGEST)) and int(cursor) <= _LARGEST:
        return int(cursor)
    raise ValueError(f"after: {shorten(cursor)} is not allowed; the cursor of a summary is, from runs() of this store")


def check_number(step: object, name: str = "step") -> None:
    """Raise ValueError unless it is the number of a step; `name` is that of the argument."""
    if type(step) is not int or step < 0:
        raise ValueError(f"{name}: {shorten(step)} is not allowed; a whole number from 0 on is")


def check_numbers(step: object = None, revision: object = None) -> None:
    """Raise ValueError unless these are the numbers of a step and of a revision, or None."""
    for name, number in (("step", step), ("revision", revision)):
        if number is not None:
            check_number(number, name)


def check_step(run_id: str, saved_step: int, step: int, same_data: bool) -> None:
    """Raise StepConflictError unless a State may be saved after the newest one.

    It may if it has a later step, or the same step and the same data.
    """
    if step > saved_step:
        return
    if step < saved_step:
        reason = (
            f"step {step} is behind step {saved_step}, which is saved: another process has taken the run further, "
            "or an old State was executed; load the newest State, or give this one a run_id of its own"
        )
        raise StepConflictError(run_id, reason)
    if not same_data:
        reason = (
            f"step {step} is saved with other data; a saved step never changes: another process or thread works on "
            "the run, or has; load the newest State"
        )
        raise StepConflictError(run_id, reason)
