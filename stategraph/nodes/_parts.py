"""Parts: the branches or items of a step, which run concurrently and are saved as they finish.

Some parts call a function. Others run a graph: each is a nested run, with its own checkpoints and pauses.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from itertools import chain
from typing import TYPE_CHECKING, Any

import attrs

from stategraph._progress import awaited
from stategraph._protocol import (
    Assist,
    Await,
    CannotAwait,
    Gather,
    Gathered,
    OutcomeUnknown,
    Report,
    RunHere,
    RunNode,
    Sleep,
    StoreFailed,
    Task,
    limited,
    pause_asked_by,
)
from stategraph._text.shown import describe_exception
from stategraph._util.validators import Allowed, check_fields, is_count, is_seconds
from stategraph._values import clock
from stategraph._values.progress import Partial, Pause, pause_of
from stategraph._values.provenance import ErrorInfo
from stategraph.errors import LimitError
from stategraph.nodes.base import CompositeNode, NestedStep, Node, PartOutcome, Question, StepContext, graph_of
from stategraph.nodes.function import FunctionNode
from stategraph.policies import RetryPolicy, check_policies
from stategraph.state import State, evolve

if TYPE_CHECKING:
    from stategraph.nodes._processes import Processes
    from stategraph.nodes.subgraph import GraphNode

_ALLOWED: Allowed = {
    "max_workers": ("a positive integer", lambda value: value is None or is_count(value, 1)),
    "timeout": ("a number of seconds above 0", lambda value: value is None or is_seconds(value)),
    "rate": (
        "a number of items in a second, above 0",
        lambda value: value is None or (is_seconds(value) and value >= 1e-9),
    ),
}
"""The allowed values of each field of Workers: a description, and a test."""


@attrs.frozen
class Workers:
    """How parts are executed.

    Attributes:
        max_workers: The maximum number at the same time; None for the number of processors plus four.
        processes: Whether they run in processes rather than threads.
        stops: Whether a failed part prevents others from beginning.
        collects: Whether an ErrorInfo becomes the result of a failed part, which then has not failed.
        retry: When and how often a failed function is called again.
        timeout: Seconds that one call may take.
        rate: The maximum number of calls that begin in a second.
    """

    max_workers: int | None = None
    processes: bool = False
    stops: bool = True
    collects: bool = False
    retry: RetryPolicy | None = None
    timeout: float | None = None
    rate: float | None = None

    def __attrs_post_init__(self) -> None:
        check_fields(self, "", _ALLOWED)
        check_policies(self.retry, None)

    def check(self, nodes: Collection[FunctionNode | GraphNode]) -> None:
        """Raise TypeError if they cannot execute these functions and graphs."""
        for node in nodes if self.processes else ():
            if not isinstance(node, FunctionNode) or node.is_async or node.wants_context:
                rule = "a function in a process must be sync, and take only its argument"
                raise TypeError(f"processes: {rule}; with threads, which are the default, it may take the context")


def part_node(function: Any, part: str, argument: str) -> FunctionNode | GraphNode:
    """Return the node of a part for a function or a graph.

    Args:
        function: The function or the graph.
        part: Names the part in errors.
        argument: Names the argument of the function in errors.

    Raises:
        TypeError: it cannot be a part.
    """
    graph: GraphNode | None = graph_of(function)
    if graph is not None:
        return graph
    node = FunctionNode.of(function, f"the function of {part} takes one argument: def function({argument})")
    if node.is_generator:
        raise TypeError(f"a generator emits chunks, which {part} cannot do")
    return node


@attrs.frozen
class Job:
    """A part to execute.

    Attributes:
        label: Its name.
        argument: The item, or the State of the step.
        node: The function that is called with it, or the graph that is run.
    """

    label: str
    argument: Any
    node: FunctionNode | GraphNode


@attrs.frozen
class _Emitted:
    """A chunk that the function of a part has emitted."""

    chunk: Any
    part: str
    attempt: int


class PartsNode(CompositeNode):
    """A node whose work consists of parts, each of which calls a function or runs a graph."""

    has_branches = False
    """Whether its parts may run different graphs."""
    workers: Workers

    def jobs(self, step: StepContext) -> list[Job]:
        """Return the parts of a step."""
        raise NotImplementedError

    def state_of(self, job: Job) -> State:
        """Return the State from which the graph of a part takes its input. An exception fails the part."""
        raise NotImplementedError

    def accepted_part(self, step: StepContext, label: str, result: Any) -> Any:
        """Return the result of a part in the form in which it is kept. An exception fails the part."""
        raise NotImplementedError

    def chunk(self, label: str, value: Any) -> tuple[Any, Any]:
        """Return the chunk that a stream shows for a kept part."""
        raise NotImplementedError

    def combined(self, step: StepContext, results: Mapping[str, Any]) -> Any:
        """Return the result of the step from the kept results of all parts, in their order."""
        raise NotImplementedError

    @property
    def graphs(self) -> tuple[Node, ...]:
        return tuple(chain.from_iterable(node.graphs for node in self.inner_nodes))

    def problems(self, name: str) -> Iterator[str]:
        return chain.from_iterable(node.problems(name) for node in self.inner_nodes)

    def execute(self, step: StepContext) -> Task[Any]:
        """Execute the parts, except those that finished in an earlier attempt, and combine their results.

        If graphs wait for answers, finish the other parts, then pause the run for all of them.

        Raises:
            ExceptionGroup: some parts failed; it holds all their errors.
        """
        yield from step.save_input()
        if self.graphs:
            yield from step.find_begun()
        work = _Work(step, self, self.workers, {job.label: job for job in self.jobs(step)})
        yield from work.do()
        labels = work.jobs
        step.is_done_before = bool(labels) and work.is_done_before and step.attempt == 1
        if work.failed:
            raise _group_of(step, {label: work.failed[label] for label in labels if label in work.failed})
        pauses = [pause for label in labels for pause in work.waiting.get(label, ())]
        if pauses:
            return evolve(step.state, pause=pause_of(pauses))
        return self.combined(step, {label: work.results[label] for label in labels})

    def question(self, step: StepContext) -> Task[Question]:
        """Return the question of a part's graph."""
        pause = awaited(step.state)
        label = "" if pause is None else pause.part.partition("/")[0]
        for job in self.jobs(step) if label and self.graphs else ():
            if job.label == label and not isinstance(job.node, FunctionNode):
                nested = self.nested_run(step, job, job.node.given(self.state_of(job)))
                return (yield from job.node.question_in(nested))
        return (yield from super().question(step))

    def nested_run(self, step: StepContext, job: Job, given: Mapping[str, Any]) -> NestedStep:
        """Return the run of the graph of a part."""
        return step.nested(job.label, dict(given), is_branch=self.has_branches)


@attrs.define(eq=False)
class _Work:
    """The parts being executed, and their outcomes."""

    step: StepContext
    node: PartsNode
    workers: Workers
    jobs: Mapping[str, Job]
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

    def do(self) -> Task[None]:
        """Load the results of earlier attempts, then execute the other parts."""
        # A graph keeps its own result; only one that is made from a collected error is kept for it.
        kept = [job for job in self.jobs.values() if isinstance(job.node, FunctionNode) or self.workers.collects]
        if kept:
            self._made_of = {job.label: job.argument for job in kept}
            self.results = yield from self.step.finished_parts(self._made_of)
        yield from self._emit([PartOutcome(label, is_found=True) for label in self.jobs if label in self.results])
        left = [job for job in self.jobs.values() if job.label not in self.results]
        if left:
            if self.workers.retry is not None:
                self._attempts = yield from self.step.finished_parts(self._made_of, "attempt")
            yield from self._gather(left)

    def _gather(self, jobs: Sequence[Job]) -> Task[None]:
        """Execute jobs concurrently, and save each as it finishes."""
        functions = [job.node.function for job in jobs if isinstance(job.node, FunctionNode)]
        if self.workers.processes:
            from stategraph.nodes._processes import Processes  # imported when used

            self._processes = Processes(functions, lambda: self.step.is_cancelled)
        async_node = self.step.name if any(job.node.is_async for job in jobs) else ""
        most = self.workers.max_workers or min(32, (os.cpu_count() or 1) + 4)
        gathered: Gathered = yield (Gather, None, (map(self._part, jobs), min(most, len(jobs)), async_node))
        if self.step.emits:
            self.step.sink = lambda chunk, is_past, **of: is_past or gathered.emit(_Emitted(chunk, **of))
        try:
            while outcomes := (yield (RunHere, gathered.reports, None)):
                yield from self._take(outcomes)
                if self._is_stopped and len(functions) == len(jobs):
                    break
        except (GeneratorExit, CannotAwait):  # the driver is gone, or cannot await: do not wait for running parts
            gathered.halt()
            if self._processes is not None:
                self._processes.kill()
            raise
        except BaseException as error:
            try:
                yield from self._stop(gathered)
            except StoreFailed as second:
                if not isinstance(error, StoreFailed):
                    about = describe_exception(second.__cause__ or second)
                    error.add_note(f"While its parts were being stopped: {about}")
            raise
        yield from self._stop(gathered)

    def _stop(self, gathered: Gathered) -> Task[None]:
        """Begin no more parts, and keep those that still finish."""
        outcomes = yield (Assist, gathered.stop, None)
        if self._processes is not None:
            yield (Assist, self._processes.close, None)
        yield from self._take(outcomes)

    # ------------------------------------------------------------------ in the run

    def _take(self, reports: Sequence[PartOutcome | _Emitted | Partial]) -> Task[None]:
        """Save the finished parts, record the failed and the waiting ones, and show what has been emitted."""
        outcomes = [report for report in reports if isinstance(report, PartOutcome)]
        yield from self._keep_attempts(outcomes)
        ended = [outcome for outcome in outcomes if outcome.delay is None and not outcome.pauses]
        for outcome in ended:
            if outcome.error is None:
                try:
                    _check_no_pause(outcome.result)
                    outcome.result = self.node.accepted_part(self.step, outcome.label, outcome.result)
                except Exception as raised:  # noqa: BLE001 - an error of the part
                    outcome.error = raised
            if outcome.error is not None:
                self.failed[outcome.label] = outcome.error
                self._is_stopped = self.workers.stops
        self.waiting |= {outcome.label: outcome.pauses for outcome in outcomes if outcome.pauses}
        self.is_done_before = self.is_done_before and all(outcome.is_done_before for outcome in outcomes)
        done = [outcome for outcome in ended if outcome.error is None]
        kept = {outcome.label: outcome.result for outcome in done if not outcome.is_of_graph}
        if kept:
            yield from self.step.keep_parts(kept, self._made_of)
        self.results |= {outcome.label: outcome.result for outcome in done}
        for report in reports:
            yield from self._show(report)

    def _show(self, report: PartOutcome | _Emitted | Partial) -> Task[None]:
        """Show a part that has ended, or what one has emitted."""
        if isinstance(report, Partial):  # of a graph
            yield from self.step.show_partial(report)
        elif isinstance(report, _Emitted):
            yield from self.step.show_chunk(report.chunk, report.part, report.attempt)
        elif report.delay is None and not report.pauses:
            yield from self._emit([report])
            if report.error is None and not report.is_done_before:
                yield from self.step.show_part(*self.node.chunk(report.label, report.result))

    def _keep_attempts(self, outcomes: Sequence[PartOutcome]) -> Task[None]:
        """Save the attempts of parts that will be retried; parts that failed for good, with 0, may begin again."""
        retried = [outcome for outcome in outcomes if outcome.delay is not None]
        counts = {outcome.label: outcome.attempt for outcome in retried}
        failed = (outcome.label for outcome in outcomes if outcome.delay is None and outcome.error is not None)
        counts |= {label: 0 for label in failed if label in self._made_of}
        if counts:
            yield from self.step.keep_parts(counts, self._made_of, "attempt")
        yield from self._emit(retried)

    def _emit(self, outcomes: Sequence[PartOutcome]) -> Task[None]:
        return self.step.emit_parts(outcomes, len(self.jobs))

    # ------------------------------------------------------------------ in the driver of a part

    def _part(self, job: Job) -> Task[None]:
        """Execute a part, unless a failed part stops it, and report its outcome."""
        if not self._is_stopped:
            node = job.node
            execution = self._call(job, node) if isinstance(node, FunctionNode) else self._run_graph(job, node)
            outcome = yield from execution
            if outcome.error is not None and self.workers.stops:
                self._is_stopped = True
            yield (Report, None, outcome)

    def _run_graph(self, job: Job, graph: GraphNode) -> Task[PartOutcome]:
        began = time.monotonic()
        outcome = PartOutcome(job.label, is_of_graph=True)
        try:
            before = self.node.state_of(job)
            given = graph.given(before)
            nested = self.node.nested_run(self.step, job, given)
            final = yield from graph.part_result(nested, given)
            outcome.is_done_before = nested.is_done_before
            if final.pause is None:
                outcome.result = (
                    graph.left(before, given, final) if self.node.has_branches else graph.left_of_item(final)
                )
            else:
                outcome.pauses = tuple(
                    attrs.evolve(pause, part=f"{job.label}/{pause.part}" if pause.part else job.label)
                    for pause in final.pause.each
                )
        except Exception as error:  # noqa: BLE001 - an error of the part
            outcome = self._failed(job, error)
        outcome.took = time.monotonic() - began
        return outcome

    def _call(self, job: Job, node: FunctionNode) -> Task[PartOutcome]:
        """Call the function of a part until it succeeds or has no attempts left; report failed attempts."""
        retry, argument = self.workers.retry, job.argument
        attempt = self._attempts.get(job.label, 0) + 1
        copied = None if retry is None else self.step.copier(argument)
        while True:
            function = node.bound(self.step, job.label, 0 if retry is None else attempt)
            if self.workers.rate is not None:
                yield (Sleep, None, self._seconds_until_next_call(1 / self.workers.rate))
            began = time.monotonic()
            try:
                self.step.check_limits()
                result = yield from self._result_of(function, argument, is_async=node.is_async)
                return PartOutcome(job.label, result, took=time.monotonic() - began)
            except Exception as error:  # noqa: BLE001 - an error of the part
                self.step.end_attempt(job.label)
                took = time.monotonic() - began
                delay = None if retry is None else retry.delay_after(attempt, error)
                if delay is None:
                    return attrs.evolve(self._failed(job, error), took=took)
                self.step.note_failure(error, job.label)
                yield (Report, None, PartOutcome(job.label, error=error, took=took, attempt=attempt, delay=delay))
            except (OutcomeUnknown, BaseExceptionGroup) as error:
                return PartOutcome(job.label, pauses=(attrs.evolve(pause_asked_by(error), part=job.label),))
            yield (Sleep, None, clock.pause(delay))
            attempt += 1
            argument = argument if copied is None else copied()

    def _seconds_until_next_call(self, interval: float) -> float:
        """Return the seconds until one more call may begin. The caller must then make that call."""
        with self._rate_lock:
            now = time.monotonic()
            at = max(now, self._next_call)
            self._next_call = at + interval
        return at - now

    def _result_of(self, function: Callable[[Any], Any], argument: Any, *, is_async: bool) -> Task[Any]:
        seconds = self.workers.timeout
        if self._processes is not None:
            return (yield (RunNode, partial(self._processes.call, function, seconds=seconds), argument))
        called = self._called(function, argument, is_async=is_async)
        if seconds is not None:
            called = limited(called, seconds, self.step.name, is_async=is_async)
        return (yield from called)

    def _called(self, function: Callable[[Any], Any], argument: Any, *, is_async: bool) -> Task[Any]:
        result = yield (RunHere if is_async else RunNode, function, argument)
        if type(result) is State or not isawaitable(result):
            return result
        if is_async:
            return (yield (Await, result, self.step.name))
        if hasattr(result, "close"):
            result.close()  # otherwise Python warns that it was never awaited
        raise TypeError("it returned something to be awaited, but it is no async function: define it with async def")

    def _failed(self, job: Job, error: Exception) -> PartOutcome:
        """Return the outcome of a job that raised: a result, if its errors are collected."""
        if not self.workers.collects or isinstance(error, LimitError):
            return PartOutcome(job.label, error=error)
        info = ErrorInfo.of(error, self.step.name, self.step.described(error))
        return PartOutcome(job.label, info, collected=error)


def _check_no_pause(result: object) -> None:
    """Raise ValueError if a part returned a paused State: only the graph of a part can pause the run."""
    if isinstance(result, State) and result.pause is not None:
        raise ValueError("a part cannot pause the run: pause in a node before or after, or let a graph be the part")


def _group_of(step: StepContext, failed: Mapping[str, Exception]) -> ExceptionGroup[Exception]:
    """Return all errors of parts as one ExceptionGroup."""
    for label, error in failed.items():
        error.add_note(f"in part {label!r} of node {step.name!r}")
    shown = "; ".join(f"{label}: {describe_exception(error)}" for label, error in list(failed.items())[:5])
    more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
    return ExceptionGroup(f"{len(failed)} of its parts failed: {shown}{more}", list(failed.values()))
