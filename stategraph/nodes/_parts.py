"""Parts: the branches or items of a step, which are done at the same time and saved as they finish.

Some call a function. Others run a graph: each is a nested run, which is saved, pauses and goes on by itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from stategraph._progress.answers import awaited
from stategraph._protocol.commands import (
    Await,
    CannotAwait,
    Finish,
    Gather,
    Gathered,
    Report,
    Reports,
    RunNode,
    Sleep,
    StartNode,
    StoreFailed,
    Task,
)
from stategraph._protocol.limited import limited
from stategraph._text.shown import describe_exception, shorten
from stategraph._util.validators import is_seconds
from stategraph._values.progress import Pause, pause_of
from stategraph.nodes.base import Node
from stategraph.nodes.function import FunctionNode
from stategraph.nodes.step import PartTold, Question, StepContext
from stategraph.policies import RetryPolicy, check_policies
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph.nodes._processes import Processes
    from stategraph.nodes.subgraph import GraphNode

ATTEMPTS = "\nattempts"
"""Marks what is kept of the attempts of parts: no node has such a name."""

Accept: TypeAlias = Callable[[str, Any], Any]
"""Makes of the label and the result of a part what is kept of it. What it raises, the part has raised."""

Chunk: TypeAlias = Callable[[str, Any], tuple[Any, Any]]
"""Makes of the label and of what is kept of a part what a stream shows of it."""


@attrs.frozen
class Workers:
    """How parts are done.

    Attributes:
        most: How many at the same time; None for up to four more than there are processors.
        processes: In processes rather than threads.
        stops: Whether one that fails keeps those that have not begun from beginning.
        retry: When and how often a function that failed is called again.
        timeout: Seconds that one call may take.
        rate: How many calls begin in a second, at most.
    """

    most: int | None = None
    processes: bool = False
    stops: bool = True
    retry: RetryPolicy | None = None
    timeout: float | None = None
    rate: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.most is not None and (type(self.most) is not int or self.most < 1):
            raise ValueError(f"max_workers: {shorten(self.most)} is not allowed; a whole number from 1 on is")
        check_policies(self.retry, None)
        if self.timeout is not None and not is_seconds(self.timeout):
            raise ValueError(f"timeout: {shorten(self.timeout)} is not allowed; a number of seconds above 0 is")
        if self.rate is not None and not (is_seconds(self.rate) and self.rate >= 1e-9):
            raise ValueError(f"rate: {shorten(self.rate)} is not allowed; a number of items in a second, above 0, is")

    @property
    def number(self) -> int:
        """How many are done at the same time."""
        return self.most or min(32, (os.cpu_count() or 1) + 4)


@attrs.frozen
class Job:
    """A part to be done.

    Attributes:
        label: Names it.
        argument: The item, or the State of the step.
        node: The function that is called with it, or the graph that is run.
        collect: Makes a result of an exception; None where that stays one.
        given: Returns what a graph begins with, of the argument; what it raises, the part has raised.
        left: Returns the result of the part, from what its graph was given and has ended with.
        is_branch: Whether other parts of the step run other graphs.
    """

    label: str
    argument: Any
    node: FunctionNode | GraphNode
    collect: Callable[[Exception], Any] | None = None
    given: Callable[[Any], Mapping[str, Any]] = dict
    left: Callable[[Mapping[str, Any], State], Any] = lambda _, final: final
    is_branch: bool = False

    @property
    def is_kept(self) -> bool:
        """Whether its result may be kept as a part: a graph keeps its own, but not the error that is collected."""
        return isinstance(self.node, FunctionNode) or self.collect is not None


@attrs.define(eq=False)
class _Outcome:
    """What came of a job.

    Attributes:
        label: Names the job.
        result: What it returned, or what was made of the exception that was `collected`.
        error: What it raised, unless that was collected.
        collected: What it raised, and what a result was made of.
        took: For how many seconds it was done.
        attempt: Of one that is tried again, which of its attempts has failed.
        delay: Seconds until it is tried again; None for a job that is over.
        pauses: What its graph waits for.
        is_of_graph: Whether its graph keeps the result.
        is_done_before: Whether its graph had ended before this attempt.
    """

    label: str
    result: Any = None
    error: Exception | None = None
    collected: Exception | None = None
    took: float = 0.0
    attempt: int = 0
    delay: float | None = None
    pauses: tuple[Pause, ...] = ()
    is_of_graph: bool = False
    is_done_before: bool = False

    @property
    def told(self) -> PartTold:
        """What is reported of it."""
        error = self.error or self.collected
        how = "retried" if self.delay is not None else "failed" if self.error else "collected" if error else "completed"
        return PartTold(self.label, how, error, self.took, self.attempt, self.delay)


class PartsNode(Node):
    """A node that does its work in parts, each of which calls a function or runs a graph."""

    has_parts = True

    @property
    def part_nodes(self) -> Collection[FunctionNode | GraphNode]:
        """What its parts call or run."""
        raise NotImplementedError

    def jobs(self, step: StepContext) -> list[Job]:
        """Return the parts of a step."""
        raise NotImplementedError

    @property
    def is_async(self) -> bool:  # type: ignore[override]
        """Whether a part is."""
        return any(node.is_async for node in self.part_nodes)

    @property
    def pauses(self) -> bool:  # type: ignore[override]
        """Whether the graph of a part does."""
        return any(node.pauses for node in self.part_nodes)

    @property
    def graphs(self) -> tuple[Node, ...]:
        return tuple(chain.from_iterable(node.graphs for node in self.part_nodes))

    @property
    def asks_for(self) -> frozenset[str]:
        """The keys of the graphs of its parts."""
        return frozenset().union(*(node.asks_for for node in self.part_nodes))

    def problems(self, name: str) -> Iterator[str]:
        return chain.from_iterable(node.problems(name) for node in self.part_nodes)

    def asked(self, step: StepContext) -> Task[Question]:
        """Return what the graph of a part asked."""
        pause = awaited(step.state)
        found = None if pause is None or not self.graphs else (yield from _asked_by_part(step, self.jobs(step), pause))
        return found or (yield from super().asked(step))


def do_parts(
    step: StepContext, jobs: Sequence[Job], workers: Workers, accept: Accept, chunk: Chunk
) -> Task[dict[str, Any] | Pause]:
    """Do the parts of a step, except those that finished in an earlier attempt; return the results by label.

    Where graphs wait for answers, it is the pause that stands for all of these, once the others are over.

    Raises:
        ExceptionGroup: some failed; all their errors are in it.
    """
    yield from step.keep_incoming()
    work = _Work(step, {job.label: job for job in jobs}, workers, accept, chunk)
    yield from work.find()
    left = [job for job in jobs if job.label not in work.results]
    if left:
        yield from work.do(left)
    step.is_done_before = bool(jobs) and work.is_done_before and step.attempt == 1
    if work.failed:
        raise _group_of(step, {label: work.failed[label] for label in work.jobs if label in work.failed})
    pauses = [pause for label in work.jobs for pause in work.waiting.get(label, ())]
    return pause_of(pauses) if pauses else work.results


def _asked_by_part(step: StepContext, jobs: Sequence[Job], pause: Pause) -> Task[Question | None]:
    """Return what the part asks whose pause that is; None if there is no such part any more."""
    label, _, _ = pause.part.partition("/")
    job = next((job for job in jobs if job.label == label), None)
    if job is None or isinstance(job.node, FunctionNode):
        return None
    nested = step.nested(label, dict(job.given(job.argument)), is_branch=job.is_branch)
    return (yield from job.node.asked_in(nested))


@attrs.define(eq=False)
class _Work:
    """Parts that are being done, and what has come of them."""

    step: StepContext
    jobs: Mapping[str, Job]
    workers: Workers
    accept: Accept
    chunk: Chunk
    results: dict[str, Any] = attrs.field(factory=dict)
    failed: dict[str, Exception] = attrs.field(factory=dict)
    waiting: dict[str, tuple[Pause, ...]] = attrs.field(factory=dict)
    is_done_before: bool = True
    _made_of: dict[str, Any] = attrs.field(factory=dict, init=False)
    _attempts: dict[str, Any] = attrs.field(factory=dict, init=False)
    _processes: Processes | None = attrs.field(default=None, init=False)
    _is_stopped: bool = attrs.field(default=False, init=False)
    _next_call: float = attrs.field(default=0.0, init=False)
    _rate_lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def find(self) -> Task[None]:
        """Look for what is kept of earlier attempts."""
        self._made_of = {label: job.argument for label, job in self.jobs.items() if job.is_kept}
        if self._made_of:
            self.results = yield from self.step.finished_parts(self._made_of)
        yield from self._tell(PartTold(label, "found") for label in self.jobs if label in self.results)
        if self.workers.retry is not None and len(self.results) < len(self.jobs):
            self._attempts = yield from self.step.finished_parts(self._made_of, ATTEMPTS)

    def do(self, jobs: Sequence[Job]) -> Task[None]:
        """Do jobs at the same time, and save each as it finishes."""
        if self.workers.processes:
            from stategraph.nodes._processes import Processes  # imported when used

            self._processes = Processes(job.node.function for job in jobs if isinstance(job.node, FunctionNode))
        are_functions = all(isinstance(job.node, FunctionNode) for job in jobs)
        async_node = self.step.name if any(job.node.is_async for job in jobs) else ""
        tasks, most = map(self._part, jobs), min(self.workers.number, len(jobs))
        gathered: Gathered = yield (Gather, None, (tasks, most, async_node))
        try:
            while outcomes := (yield (Reports, gathered.reports, None)):
                yield from self._take(outcomes)
                if self._is_stopped and are_functions:
                    break
        except (GeneratorExit, CannotAwait):  # the driver is gone, or cannot await: nobody waits for what has begun
            gathered.halt()
            if self._processes is not None:
                self._processes.kill()
            raise
        except BaseException as error:
            yield from self._stop_after(gathered, error)
            raise
        yield from self._stop(gathered)

    def _stop(self, gathered: Gathered) -> Task[None]:
        """Begin no more parts, and keep those that finish all the same."""
        outcomes = yield (Finish, gathered.stop, None)
        if self._processes is not None:
            yield (Finish, self._processes.close, None)
        yield from self._take(outcomes)

    def _stop_after(self, gathered: Gathered, error: BaseException) -> Task[None]:
        """Stop after an error; a failure to keep the parts is a note on it."""
        try:
            yield from self._stop(gathered)
        except StoreFailed as second:
            if not isinstance(error, StoreFailed):
                error.add_note(f"While its parts were being stopped: {describe_exception(second.__cause__ or second)}")

    # ------------------------------------------------------------------ in the run

    def _take(self, outcomes: Sequence[_Outcome]) -> Task[None]:
        """Save the parts that have finished, and note those that have failed or wait."""
        if self.workers.retry is not None:
            yield from self._keep_attempts(outcomes)
        ended = [outcome for outcome in outcomes if outcome.delay is None and not outcome.pauses]
        values: dict[str, Any] = {}
        for outcome in ended:
            if outcome.error is None:
                try:
                    values[outcome.label] = self.accept(outcome.label, outcome.result)
                except Exception as raised:  # noqa: BLE001 - an error of the part
                    outcome.error = raised
            if outcome.error is not None:
                self.failed[outcome.label] = outcome.error
                self._is_stopped = self.workers.stops
        self.waiting |= {outcome.label: outcome.pauses for outcome in outcomes if outcome.pauses}
        self.is_done_before = self.is_done_before and all(outcome.is_done_before for outcome in outcomes)
        kept = {outcome.label for outcome in ended if not outcome.is_of_graph} & values.keys()
        if kept:
            yield from self.step.keep_parts({label: values[label] for label in values if label in kept}, self._made_of)
        self.results |= values
        yield from self._tell(outcome.told for outcome in ended)
        for outcome in ended:
            if outcome.label in values and not outcome.is_done_before:
                yield from self.step.show_part(*self.chunk(outcome.label, values[outcome.label]))

    def _keep_attempts(self, outcomes: Sequence[_Outcome]) -> Task[None]:
        """Save how often parts have failed that are tried again; those that have failed for good may begin anew."""
        retried = [outcome for outcome in outcomes if outcome.delay is not None]
        counts = {outcome.label: outcome.attempt for outcome in retried}
        counts |= {outcome.label: 0 for outcome in outcomes if outcome.delay is None and outcome.error is not None}
        if counts:
            yield from self.step.keep_parts(counts, self._made_of, ATTEMPTS)
        yield from self._tell(outcome.told for outcome in retried)

    def _tell(self, told: Any) -> Task[None]:
        return self.step.tell_parts(told, len(self.jobs))

    # ------------------------------------------------------------------ in the driver of a part

    def _part(self, job: Job) -> Task[None]:
        """Do a part, unless another one has failed that stops it, and report what came of it."""
        if not self._is_stopped:
            node = job.node
            outcome = yield from (
                self._call(job, node) if isinstance(node, FunctionNode) else self._run_graph(job, node)
            )
            if outcome.error is not None and self.workers.stops:
                self._is_stopped = True
            yield (Report, None, outcome)

    def _run_graph(self, job: Job, graph: GraphNode) -> Task[_Outcome]:
        began = time.monotonic()
        outcome = _Outcome(job.label, is_of_graph=True)
        try:
            given = job.given(job.argument)
            nested = self.step.nested(job.label, dict(given), is_branch=job.is_branch)
            final = yield from graph.part_result(nested, given)
            outcome.is_done_before = nested.is_done_before
            if final.pause is None:
                outcome.result = job.left(given, final)
            else:
                outcome.pauses = tuple(
                    attrs.evolve(pause, part=f"{job.label}/{pause.part}" if pause.part else job.label)
                    for pause in final.pause.each
                )
        except Exception as error:  # noqa: BLE001 - an error of the part
            outcome = _failed(job, error)
        outcome.took = time.monotonic() - began
        return outcome

    def _call(self, job: Job, node: FunctionNode) -> Task[_Outcome]:
        """Call the function of a part as often as it takes; report the attempts that fail."""
        retry, argument = self.workers.retry, job.argument
        attempt = _count_of(self._attempts.get(job.label)) + 1
        copied = None if retry is None else self.step.copier(argument)
        while True:
            function = node.bound(self.step, job.label, 0 if retry is None else attempt)
            if self.workers.rate is not None:
                yield (Sleep, None, self._seconds_until_next_call(1 / self.workers.rate))
            began = time.monotonic()
            try:
                result = yield from self._result_of(job, function, argument)
                return _Outcome(
                    job.label,
                    result,
                    None if job.node.is_async else _not_awaited(result),
                    took=time.monotonic() - began,
                )
            except Exception as error:  # noqa: BLE001 - an error of the part
                took = time.monotonic() - began
                delay = None if retry is None else retry.delay_after(attempt, error)
                if delay is None:
                    outcome = _failed(job, error)
                    outcome.took = took
                    return outcome
                yield (Report, None, _Outcome(job.label, error=error, took=took, attempt=attempt, delay=delay))
            yield (Sleep, None, delay)
            attempt += 1
            argument = argument if copied is None else copied()

    def _seconds_until_next_call(self, interval: float) -> float:
        """Return the seconds until one more call may begin, which the caller makes then."""
        with self._rate_lock:
            now = time.monotonic()
            at = max(now, self._next_call)
            self._next_call = at + interval
        return at - now

    def _result_of(self, job: Job, function: Callable[[Any], Any], argument: Any) -> Task[Any]:
        seconds = self.workers.timeout
        if self._processes is not None:
            return (yield (RunNode, partial(self._processes.call, function, seconds=seconds), argument))
        called = self._called(job, function, argument)
        if seconds is not None:
            called = limited(called, seconds, self.step.name, is_async=job.node.is_async)
        return (yield from called)

    def _called(self, job: Job, function: Callable[[Any], Any], argument: Any) -> Task[Any]:
        result = yield (StartNode if job.node.is_async else RunNode, function, argument)
        return (yield (Await, result, self.step.name)) if job.node.is_async and isawaitable(result) else result


def _not_awaited(result: Any) -> TypeError | None:
    """Return the error of a sync function that has returned something to be awaited."""
    if type(result) is State or not isawaitable(result):
        return None
    if hasattr(result, "close"):
        result.close()  # or Python warns that nobody awaited it
    return TypeError("it returned something to be awaited, but it is no async function: define it with async def")


def _failed(job: Job, error: Exception) -> _Outcome:
    """Return the outcome of a job that has raised: a result, if its errors are collected."""
    if job.collect is None:
        return _Outcome(job.label, error=error)
    return _Outcome(job.label, job.collect(error), collected=error)


def _count_of(found: Any) -> int:
    """Return how many attempts had failed that were kept of a part."""
    return found if type(found) is int else 0


def _group_of(step: StepContext, failed: Mapping[str, Exception]) -> ExceptionGroup[Exception]:
    """Return all errors of parts as one."""
    for label, error in failed.items():
        error.add_note(f"in part {label!r} of node {step.name!r}")
    told = "; ".join(f"{label}: {describe_exception(error)}" for label, error in list(failed.items())[:5])
    more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
    return ExceptionGroup(f"{len(failed)} of its parts failed: {told}{more}", list(failed.values()))
