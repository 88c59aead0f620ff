"""Jobs, the parts of a step, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        attempts: How often it was tried before.
        bound: Returns the function for an attempt of a number, if it wants to know that.
        fresh: Returns the argument as it was before the first attempt, if an attempt may change it.
    """

    label: str
    function: Callable[[Any], Any]
    argument: Any
    collect: Callable[[Exception], Any] | None = None
    attempts: int = 0
    bound: Callable[[int], Callable[[Any], Any]] | None = None
    fresh: Callable[[], Any] | None = None

    def tried(self, attempts: int) -> Job:
        """Return the job as it is to be done after so many attempts that have failed."""
        function = self.function if self.bound is None else self.bound(attempts + 1)
        argument = self.argument if self.fresh is None else self.fresh()
        return attrs.evolve(self, attempts=attempts, function=function, argument=argument)


@attrs.frozen
class Outcome:
    """What came of a job: a result, or what was raised; or, of one that is tried again, what an attempt has raised.

    Attributes:
        label: Names the job.
        result: What it returned, or what was made of the exception that was `collected`.
        error: What it raised, unless that was collected.
        collected: What it raised, and what a result was made of.
        took: For how many seconds it was done; None where that is not known.
        attempts: How many attempts have failed of a job that is tried again.
        delay: Seconds until it is tried again; None for a job that is over.
    """

    label: str
    result: Any = None
    error: BaseException | None = None
    collected: Exception | None = None
    took: float | None = attrs.field(default=None, eq=False, repr=False)  # it is never the same twice
    attempts: int = 0
    delay: float | None = None


def outcome_of_error(job: Job, error: BaseException, took: float | None = None) -> Outcome:
    """Return the outcome of a job that has raised: a result, if its errors are collected. This never raises."""
    error = escaped(error)
    if job.collect is not None and isinstance(error, Exception):
        try:
            return Outcome(job.label, job.collect(error), collected=error, took=took)
        except BaseException as second:  # noqa: BLE001 - raised in the thread of the run
            error.add_note(f"It cannot be collected: {describe_exception(second)}")
    return Outcome(job.label, error=error, took=took)


def count_over(outcomes: Sequence[Outcome]) -> int:
    """Return how many jobs are over, of those with these outcomes."""
    return sum(outcome.delay is None for outcome in outcomes)
