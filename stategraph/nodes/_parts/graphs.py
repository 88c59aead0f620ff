"""Parts that run graphs: each is a nested run, which is saved, pauses and goes on by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from stategraph._protocol.commands import (
    Await,
    CannotAwait,
    Finish,
    Gather,
    Gathered,
    OneEnds,
    RunNode,
    StartNode,
    Task,
)
from stategraph._util.callables import is_async_callable
from stategraph._values import clock
from stategraph._values.progress import Pause, pause_of
from stategraph.nodes._parts.jobs import Job
from stategraph.nodes._parts.run import Accept, Chunk, Workers, group_of
from stategraph.nodes.step import NestedStep, PartTold, Question, StepContext
from stategraph.nodes.subgraph import GraphNode
from stategraph.state import State


@attrs.frozen
class GraphJob:
    """A part that runs a graph.

    Attributes:
        label: Names it.
        graph: The graph.
        argument: The item, or the State of the step.
        given: Returns what its run begins with, for this; what it raises, the part has raised.
        left: Returns what comes of the part, from what its run was given and has ended with.
        is_branch: Whether other parts of the step run other graphs.
        collect: Makes a result of an exception; None where that stays one.
    """

    label: str
    graph: GraphNode
    argument: Any
    given: Callable[[Any], Mapping[str, Any]]
    left: Callable[[Mapping[str, Any], State], Any]
    is_branch: bool = False
    collect: Callable[[Exception], Any] | None = None

    def nested(self, step: StepContext, given: Mapping[str, Any]) -> NestedStep:
        """Return its run. What the graph is given decides which: made of something else, it is another one."""
        return step.nested(self.label, dict(given), is_branch=self.is_branch)


def do_graph_parts(
    step: StepContext, jobs: Sequence[GraphJob | Job], workers: Workers, accept: Accept, chunk: Chunk
) -> Task[dict[str, Any] | Pause]:
    """Do the parts of a step of which some run graphs; return the results by label.

    Where some wait for answers, it is the pause that stands for all of these, once the others are over.

    Raises:
        ExceptionGroup: some failed; all their errors are in it.
    """
    yield from step.keep_incoming()
    work = _Work(step, workers, accept, {job.label: job for job in jobs})
    yield from work.find()
    left = [job for job in jobs if job.label not in work.results]
    if left:
        yield from _gathered(work, left, chunk)
    step.is_done_before = work.is_done_before and step.attempt == 1
    if work.failed:
        raise group_of(step, {label: work.failed[label] for label in work.jobs if label in work.failed})
    pauses = [pause for label in work.jobs for pause in work.waiting.get(label, ())]
    return pause_of(pauses) if pauses else work.results


def _gathered(work: _Work, jobs: Sequence[GraphJob | Job], chunk: Chunk) -> Task[None]:
    """Do parts at the same time, and show each that has finished to whoever iterates over the run."""
    gathered: Gathered = yield (Gather, None, ([work.do(job) for job in jobs], work.workers.number))
    try:
        is_more = True
        while is_more:
            is_more = yield (OneEnds, None, gathered)
            while work.finished:
                label = work.finished.popleft()
                yield from work.step.show_part(*chunk(label, work.results[label]))
    except (GeneratorExit, CannotAwait):  # the driver is gone, or cannot await: nobody waits for what has begun
        gathered.halt()
        raise
    except BaseException:
        yield (Finish, gathered.stop, None)
        raise


def asked_by_part(step: StepContext, jobs: Sequence[GraphJob | Job], pause: Pause) -> Task[Question | None]:
    """Return what the part asks whose pause that is; None if there is no such part any more."""
    label, _, _ = pause.part.partition("/")
    job = next((job for job in jobs if job.label == label and isinstance(job, GraphJob)), None)
    if not isinstance(job, GraphJob):
        return None
    return (yield from job.graph.asked_in(job.nested(step, job.given(job.argument))))


@attrs.define(eq=False)
class _Work:
    """Parts that are being done, some of them at the same time, and what has come of them."""

    step: StepContext
    workers: Workers
    accept: Accept
    jobs: Mapping[str, GraphJob | Job]
    results: dict[str, Any] = attrs.field(factory=dict)
    failed: dict[str, BaseException] = attrs.field(factory=dict)
    waiting: dict[str, tuple[Pause, ...]] = attrs.field(factory=dict)
    finished: deque[str] = attrs.field(factory=deque)
    """Parts that have finished in this call, and have not been shown."""
    is_done_before: bool = True

    @property
    def _made_of(self) -> dict[str, Any]:
        """What those parts are made of whose results are kept: functions, and items whose failure was collected."""
        return {label: job.argument for label, job in self.jobs.items() if isinstance(job, Job) or job.collect}

    def find(self) -> Task[None]:
        """Look for the results that are kept."""
        made_of = self._made_of
        self.results = (yield from self.step.finished_parts(made_of)) if made_of else {}
        yield from self.step.tell_parts((PartTold(label, "found") for label in self.results), len(self.jobs))

    def do(self, job: GraphJob | Job) -> Task[None]:
        """Do a part, unless another one has failed that stops it."""
        if self.workers.stops and self.failed:
            return
        began_ns, told = clock.monotonic_ns(), "completed"
        error: Exception | None = None
        try:
            if isinstance(job, GraphJob):
                yield from self._run_graph(job)
            else:
                yield from self._call(job)
        except Exception as raised:  # noqa: BLE001 - an error of the part
            error = raised
            told = yield from self._take_error(job, raised)
        if job.label not in self.waiting:
            took = (clock.monotonic_ns() - began_ns) / 1e9
            yield from self.step.tell_parts([PartTold(job.label, told, error, took)], len(self.jobs))

    def _run_graph(self, job: GraphJob) -> Task[None]:
        given = job.given(job.argument)
        nested = job.nested(self.step, given)
        final = yield from job.graph.part_result(nested, given)
        self.is_done_before = self.is_done_before and nested.is_done_before
        if final.pause is not None:
            parts = (f"{job.label}/{pause.part}" if pause.part else job.label for pause in final.pause.each)
            each = zip(final.pause.each, parts, strict=True)
            self.waiting[job.label] = tuple(attrs.evolve(pause, part=part) for pause, part in each)
        else:
            self.results[job.label] = self.accept(job.label, job.left(given, final))
            if not nested.is_done_before:
                self.finished.append(job.label)

    def _call(self, job: Job) -> Task[None]:
        self.is_done_before = False
        if is_async_callable(job.function):
            result = yield (StartNode, job.function, job.argument)
            result = yield (Await, result, self.step.name)
        else:
            result = yield (RunNode, job.function, job.argument)
        value = self.accept(job.label, result)
        yield from self._keep(job.label, value, job.argument)

    def _take_error(self, job: GraphJob | Job, error: Exception) -> Task[str]:
        """Note the error of a part, or make its result of it; return which."""
        self.is_done_before = False
        if job.collect is None:
            self.failed[job.label] = error
            return "failed"
        yield from self._keep(job.label, self.accept(job.label, job.collect(error)), job.argument)
        return "collected"

    def _keep(self, label: str, value: Any, made_of: Any) -> Task[None]:
        yield from self.step.keep_parts({label: value}, {label: made_of})
        self.results[label] = value
        self.finished.append(label)
