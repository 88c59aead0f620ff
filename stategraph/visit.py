"""Visit: one step of a run at a node that is more than a function call. What such a node may ask of the run is here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from stategraph import clock
from stategraph.commands import (
    Await,
    Command,
    Limit,
    Load,
    Parts,
    RunNode,
    Save,
    Sleep,
    StoreFailed,
    Unlimit,
)
from stategraph.errors import CheckpointError, CheckpointNotFoundError, describe_exception
from stategraph.events import EventType
from stategraph.nodes.context import NodeContext
from stategraph.provenance import Part, Partial, Pause, Progress, evolved
from stategraph.state import State, evolve

if TYPE_CHECKING:
    from stategraph.commands import Task
    from stategraph.engine import Engine
    from stategraph.plan import Plan, Stage

_Answer = TypeVar("_Answer")


@attrs.define(eq=False)
class Visit:
    """A node at work in a run.

    Attributes:
        engine: The run.
        stage: The node.
        state: The State that it is given.
        attempt: Which try it is, from 1.
    """

    engine: Engine
    stage: Stage
    state: State
    attempt: int = 1
    _progress: dict[str, Any] = attrs.field(factory=dict, init=False)

    # ------------------------------------------------------------------ the visit as a whole

    def result(self) -> Task[Any]:
        """-> what the node returns at last: from its cache, or after as many attempts as it takes."""
        cache = self.stage.policies.cache
        if cache is not None:
            return (yield from cache.visit(self, self._attempts))
        return (yield from self._attempts())

    def _attempts(self) -> Task[Any]:
        retry = self.stage.policies.retry
        while True:
            try:
                return (yield from self._limited(self.stage.node.visit(self)))
            except Exception as error:
                delay = None if retry is None else retry.delay_after(self.attempt, error)
                yield from self._tell_failure(error, delay)
                if delay is None:
                    raise
            yield (Sleep, None, delay)
            self.attempt += 1
            self._start_over()

    def _limited(self, task: Task[_Answer]) -> Task[_Answer]:
        """-> what the task does, cut off when the node's time is up."""
        seconds = self.stage.policies.timeout
        if seconds is None:
            return (yield from task)
        yield (Limit, self._timed_out, seconds)
        try:
            answer = yield from task
        except GeneratorExit:
            raise
        except BaseException:
            yield (Unlimit, None, None)
            raise
        yield (Unlimit, None, None)
        return answer

    def _timed_out(self, seconds: float) -> TimeoutError:
        return TimeoutError(f"it took longer than its timeout of {seconds} s")

    def _start_over(self) -> None:
        self._progress.clear()
        if self.engine.state.partial is not None:
            self._show_partial(None)

    def _tell_failure(self, error: Exception, delay: float | None) -> Task[None]:
        about = {"attempt": self.attempt, "error": describe_exception(error)}
        yield from self.tell(EventType.NODE_ERROR, **about)
        if delay is not None:
            yield from self.tell(EventType.NODE_RETRY, **about, delay=delay)

    def progress_after(self, progress: Progress | None) -> Progress | None:
        """-> the progress of the run once this step is completed."""
        if not self._progress:
            return progress
        before = progress or Progress()
        added = {name: getattr(before, name) | keys for name, keys in self._progress.items()}
        return evolved(before, **added)

    # ------------------------------------------------------------------ calling

    def context(self, part: str = "") -> NodeContext:
        """-> what the node may know of its step, or a part of it of its part."""
        state, graph = self.state, self.engine.plan.graph
        return NodeContext(state.run_id, graph, self.stage.name, state.step + 1, self.attempt, state.generation, part)

    def call(self, function: Callable[[Any], Any], argument: Any) -> Task[Any]:
        """-> what a function that may take long returns, sync or async."""
        result = yield (RunNode, function, argument)
        if type(result) is not State and isawaitable(result):
            result = yield (Await, result, self.stage.name)
        return result

    def tell(self, type: EventType, **about: Any) -> Task[None]:
        """Tell the observer of an event of this step."""
        yield from self.engine.tell(type, self.state.run_id, self.state.step + 1, self.stage.name, about)

    def show_chunk(self, chunk: Any) -> Task[None]:
        """Put out a chunk: it is seen at once, and kept with the run while the node has not finished."""
        before = self.engine.state.partial
        chunks = () if before is None else before.chunks
        self._show_partial(Partial(self.stage.name, (*chunks, chunk)))
        yield from self.tell(EventType.NODE_CHUNK, chunk=chunk)
        yield from self.engine.show(self.engine.state)

    def _show_partial(self, partial: Partial | None) -> None:
        state = self.engine.state
        self.engine.state = evolve(state, progress=evolved(state.progress, partial=partial))

    # ------------------------------------------------------------------ answers

    def is_answer(self, key: str) -> bool:
        """Whether the State holds an answer under this key that has not answered anything yet."""
        progress = self.state.progress
        return key in self.state and (progress is None or key not in progress.answered)

    def answers(self, pause: Pause) -> bool:
        """Whether the run was woken to answer this pause of a graph within."""
        progress = self.state.progress
        return progress is not None and progress.woken == pause.at

    def take_answers(self, keys: Iterable[str]) -> None:
        """Let the values of some keys be answers to this step, and to no other."""
        self._progress["answered"] = set(keys)

    # ------------------------------------------------------------------ parts

    def keep_incoming(self) -> Task[None]:
        """Save the State that is visited, unless it is saved: what is kept of parts builds on it."""
        engine = self.engine
        if engine.plan.keeps_parts and engine.state is not engine.saved:
            yield from self._stored((Save, engine.services.save, engine.state))
            engine.saved = engine.state

    def finished_parts(self) -> Task[dict[str, Any]]:
        """-> the values of the parts of this step that were finished before, by their labels."""
        engine, at = self.engine, self.state.step + 1
        found = {
            part.label: part.value for part in engine.unsaved_parts if (part.step, part.node) == (at, self.stage.name)
        }
        if engine.plan.loads_parts:
            question = (self.state.run_id, at, self.stage.name)
            loaded = yield from self._stored((Parts, engine.services.load_parts, question))
            found = {**loaded, **found}
        return found

    def keep_parts(self, finished: Mapping[str, Any]) -> Task[None]:
        """Save parts of this step that have finished."""
        engine = self.engine
        parts = [Part(self.state.step + 1, self.stage.name, label, value) for label, value in finished.items()]
        if engine.plan.keeps_parts:
            yield from self._stored((Parts, engine.services.save_parts, (engine.state, parts)))
        else:
            engine.unsaved_parts += parts
        if EventType.PART_COMPLETE in engine.wanted:
            for part in parts:
                yield from self.tell(EventType.PART_COMPLETE, part=part.label)

    def _stored(self, command: Command) -> Task[Any]:
        """-> the answer to a command to the store, whose failure is not one of the node."""
        try:
            return (yield command)
        except CheckpointNotFoundError:
            raise
        except CheckpointError as error:
            raise StoreFailed from error

    # ------------------------------------------------------------------ a graph within

    def child_run_id(self) -> str:
        """-> the id of the run of a graph in this step."""
        progress, name = self.state.progress, self.stage.name
        again = f":{self.state.step + 1}" if progress is not None and name in progress.visited else ""
        return f"{self.state.run_id}/{name}{again}"

    def shares(self, key: str, inputs: Mapping[str, Any]) -> bool:
        """Whether a key means the same in the run of a graph in this step, which begins with these inputs."""
        return key not in inputs or (key in self.state and inputs[key] is self.state[key])

    def progress_within(self, inputs: Mapping[str, Any]) -> Progress | None:
        """-> the progress with which the run of a graph in this step begins: what has answered out here answers nothing
        in there, so that a loop asks again."""
        answered = self.state.progress.answered if self.state.progress else ()
        return evolved(None, answered={key for key in answered if key in inputs and self.shares(key, inputs)})

    def within(self, state: State, stage: Stage) -> Visit:
        """-> a look at a node of the graph in this step."""
        return Visit(self.engine, stage, state)

    def load_child(self) -> Task[State | None]:
        """-> the newest saved State of the run of a graph in this step, None if there is none."""
        if not self.engine.plan.loads_parts:
            return None
        try:
            state: State = yield from self._stored((Load, self.engine.services.load, self.child_run_id()))
        except CheckpointNotFoundError:
            return None
        return state

    def run_child(self, plan: Plan, inputs: Mapping[str, Any]) -> Task[State]:
        """-> the State that the run of a graph in this step ends with: completed or, if it waits for an answer, paused.

        A run of it that was begun before goes on."""
        yield from self.keep_incoming()
        saved = yield from self.load_child()
        self._progress["visited"] = {self.stage.name}
        return (yield from self.engine.run_child(self, plan, saved, inputs))


def is_late(pause: Pause) -> bool:
    """Whether the deadline of a pause has passed."""
    return pause.deadline is not None and clock.to_datetime(clock.now_ns()) > pause.deadline
