"""Doing the parts of a step at the same time, and saving each as it finishes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from stategraph._protocol.commands import Await, CannotAwait, Expired, Finish, RunNode, StartNode, StoreFailed, Task
from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import is_async_callable
from stategraph.nodes._parts.jobs import Job, Outcome, count_over
from stategraph.nodes._parts.pools import Pool, TaskPool, ThreadPool
from stategraph.nodes._parts.trying import ItemPolicies, kept_attempts, trying
from stategraph.nodes.step import PartTold, StepContext


@attrs.frozen
class Workers:
    """How parts are done.

    Attributes:
        most: How many at the same time; None for up to four more than there are processors.
        processes: In processes rather than threads.
        stops: Whether one that fails keeps those that have not begun from beginning.
        policies: What is said of each; None for nothing.
    """

    most: int | None = None
    processes: bool = False
    stops: bool = True
    policies: ItemPolicies | None = None

    @property
    def number(self) -> int:
        """How many are done at the same time."""
        return self.most or min(32, (os.cpu_count() or 1) + 4)

    @property
    def retries(self) -> bool:
        """Whether parts that fail are tried again."""
        return self.policies is not None and self.policies.retry is not None

    def __attrs_post_init__(self) -> None:
        if self.most is not None and (type(self.most) is not int or self.most < 1):
            raise ValueError(f"max_workers: {shorten(self.most)} is not allowed; a whole number from 1 on is")


ATTEMPTS = "\nattempts"
"""Marks what is kept of the attempts of parts: no node has such a name."""

Accept: TypeAlias = Callable[[str, Any], Any]
"""Makes of the label and the result of a part what is kept of it. What it raises, the part has raised."""


Chunk: TypeAlias = Callable[[str, Any], tuple[Any, Any]]
"""Makes of the label and of what is kept of a part what a stream shows of it."""


def do_parts(
    step: StepContext, jobs: Sequence[Job], workers: Workers, accept: Accept, chunk: Chunk
) -> Task[dict[str, Any]]:
    """Do the parts of a step, except those that finished in an earlier attempt; return the results by label.

    Raises:
        ExceptionGroup: some failed; all their errors are in it.
    """
    yield from step.keep_incoming()
    made_of = {job.label: job.argument for job in jobs}
    finished = yield from step.finished_parts(made_of)
    yield from step.tell_parts((PartTold(job.label, "found") for job in jobs if job.label in finished), len(jobs))
    left = [job for job in jobs if job.label not in finished]
    if not left:
        step.is_done_before = bool(jobs) and step.attempt == 1
        return finished
    if workers.retries:
        left = yield from _with_attempts(step, left, made_of)
    pool = _pool_for(left, workers)
    work = _Work(step, pool, accept, chunk, made_of, finished, retries=workers.retries)
    try:
        yield from work.do(len(left), stops=workers.stops)
    except (GeneratorExit, CannotAwait):  # the driver is gone, or cannot await: nobody waits for what has begun
        pool.halt()
        raise
    except BaseException as error:
        yield from work.stop_after(error)
        raise
    yield from work.stop(wait=True)
    if work.failed:
        raise group_of(step, work.failed)
    return work.finished


def _with_attempts(step: StepContext, jobs: Sequence[Job], made_of: Mapping[str, Any]) -> Task[list[Job]]:
    """Return the jobs as they are to be tried, after the attempts that a process has made that was killed."""
    kept = yield from step.finished_parts(made_of, ATTEMPTS)
    jobs = [attrs.evolve(job, fresh=step.copier(job.argument)) for job in jobs]
    return [job.tried(kept_attempts(kept.get(job.label))) for job in jobs]


def _pool_for(jobs: Sequence[Job], workers: Workers) -> Pool:
    most = workers.number
    asks = trying(workers.policies)
    if workers.processes:
        from stategraph.nodes._parts.processes import ProcessPool  # imported when used

        return ProcessPool(jobs, most, asks)
    is_async = any(map(is_async_callable, {id(job.function): job.function for job in jobs}.values()))
    return (TaskPool if is_async else ThreadPool)(jobs, most, stops=workers.stops, trying=asks)


@attrs.define(eq=False)
class _Work:
    """Parts that are being done."""

    step: StepContext
    pool: Pool
    accept: Accept
    chunk: Chunk
    made_of: Mapping[str, Any]
    finished: dict[str, Any]
    failed: dict[str, BaseException] = attrs.field(factory=dict)
    retries: bool = False

    def do(self, left: int, *, stops: bool) -> Task[None]:
        """Take outcomes until nothing is left or, if one failure stops the others, one has failed."""
        pool = self.pool
        while left and not (stops and self.failed):
            outcomes = yield (StartNode if pool.is_async else RunNode, pool.next, None)
            if pool.is_async:
                outcomes = yield (Await, outcomes, self.step.name)
            left -= count_over(outcomes)
            yield from self._take(outcomes)

    def stop(self, *, wait: bool) -> Task[None]:
        """Begin no more parts, and keep those that finish all the same."""
        self.pool.halt()
        outcomes = yield (Finish, self.pool.stop, wait)
        yield from self._take(outcomes)

    def stop_after(self, error: BaseException) -> Task[None]:
        """Stop as `stop` does, after an error; a failure to keep the parts is a note on it."""
        try:
            # A function that is cut off by a timeout may never end: its thread is left to itself.
            yield from self.stop(wait=not isinstance(error, Expired))
        except StoreFailed as second:
            if isinstance(error, StoreFailed):
                return
            error.add_note(f"While its parts were being stopped: {describe_exception(second.__cause__ or second)}")

    def _take(self, outcomes: Sequence[Outcome]) -> Task[None]:
        """Save the parts that have finished, and note those that have failed."""
        if self.retries:
            yield from self._keep_attempts(outcomes)
            outcomes = [outcome for outcome in outcomes if outcome.delay is None]
        values: dict[str, Any] = {}
        for outcome in outcomes:
            error = outcome.error
            if error is None:
                try:
                    values[outcome.label] = self.accept(outcome.label, outcome.result)
                except Exception as raised:  # noqa: BLE001 - an error of the part
                    error = raised
            if error is not None:
                self.failed[outcome.label] = error
        if values:
            yield from self.step.keep_parts(values, self.made_of)
            self.finished.update(values)
        yield from self.step.tell_parts(map(self._told, outcomes), len(self.made_of))
        for label, value in values.items():
            yield from self.step.show_part(*self.chunk(label, value))
        for error in self.failed.values():
            if not isinstance(error, Exception):
                raise error

    def _keep_attempts(self, outcomes: Sequence[Outcome]) -> Task[None]:
        """Save how often parts have failed that are tried again; those that have failed for good may begin anew."""
        retried = [outcome for outcome in outcomes if outcome.delay is not None]
        counts = {outcome.label: outcome.attempts for outcome in retried}
        counts |= {outcome.label: 0 for outcome in outcomes if outcome.delay is None and outcome.error is not None}
        if counts:
            yield from self.step.keep_parts(counts, self.made_of, ATTEMPTS)
        yield from self.step.tell_parts(map(self._told, retried), len(self.made_of))

    def _told(self, outcome: Outcome) -> PartTold:
        if outcome.delay is not None:
            return PartTold(outcome.label, "retried", outcome.error, outcome.took, outcome.attempts, outcome.delay)
        error = self.failed.get(outcome.label, outcome.collected)
        how = "failed" if outcome.label in self.failed else "completed" if error is None else "collected"
        return PartTold(outcome.label, how, error, outcome.took)


def group_of(step: StepContext, failed: Mapping[str, BaseException]) -> ExceptionGroup[Exception]:
    """Return all errors of parts as one."""
    errors = [error for error in failed.values() if isinstance(error, Exception)]
    for label, error in failed.items():
        error.add_note(f"in part {label!r} of node {step.name!r}")
    told = "; ".join(f"{label}: {describe_exception(error)}" for label, error in list(failed.items())[:5])
    more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
    return ExceptionGroup(f"{len(failed)} of its parts failed: {told}{more}", errors)
