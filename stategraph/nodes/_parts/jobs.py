"""Jobs: parts of a step in the form in which pools do them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from stategraph._protocol.commands import escaped
from stategraph._text.shown import describe_exception


@attrs.frozen
class Job:
    """A part to be done: what to call with what.

    Attributes:
        label: Names it.
        function: What to call; it may be async.
        argument: With what.
        collect: Makes a result of an exception; None where that stays one.
    """

    label: str
    function: Callable[[Any], Any]
    argument: Any
    collect: Callable[[Exception], Any] | None = None


@attrs.frozen
class Outcome:
    """What came of a job: a result, or what was raised."""

    label: str
    result: Any = None
    error: BaseException | None = None


def outcome_of_error(job: Job, error: BaseException) -> Outcome:
    """Return the outcome of a job that has raised: a result, if its errors are collected. This never raises."""
    error = escaped(error)
    if job.collect is not None and isinstance(error, Exception):
        try:
            return Outcome(job.label, job.collect(error))
        except BaseException as second:  # noqa: BLE001 - raised in the thread of the run
            error.add_note(f"It cannot be collected: {describe_exception(second)}")
    return Outcome(job.label, error=error)
