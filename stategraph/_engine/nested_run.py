"""NestedRun: the run of a graph that a step runs, or that one of its parts does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import attrs

from stategraph._engine.step import StepExecution
from stategraph._graph.compatibility import check_compatible
from stategraph._graph.compiled import CompiledGraph
from stategraph._graph.nested import nested_in
from stategraph._graph.renaming import migrate_state, split_migration
from stategraph._progress.answers import awaited, before_updates, is_overdue, narrowed
from stategraph._protocol.commands import Amend, Load, Task
from stategraph._values.ids import nested_id
from stategraph._values.progress import Pause, evolved
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import CheckpointNotFoundError
from stategraph.nodes.base import Node
from stategraph.state import State, evolve, told

_DIGITS = 12  # of a digest, in an id: they tell apart what one place in a list has held


@attrs.define(eq=False)
class NestedRun:
    """The run of a graph that a step runs.

    Attributes:
        step: The step.
        part: The label of the part of it that runs the graph; empty if the step as a whole does.
        made_of: The digest of what the part is made of.
        branch: What leads to its graph from the node, if the node has several: the label, followed by a slash.
        is_done_before: Whether it was complete before this attempt.
    """

    step: StepExecution
    part: str = ""
    made_of: str = ""
    branch: str = ""
    is_done_before: bool = attrs.field(default=False, init=False)

    @property
    def run_id(self) -> str:
        """Its run id."""
        state, name = self.step.state, self.step.kept_name
        name = f"{name}~{self.part}~{self.made_of[:_DIGITS]}" if self.part else name
        return nested_id(state.run_id, state.step + 1, name, state.generation)

    @property
    def renames(self) -> Mapping[str, str]:
        """New names of the nodes of its graph, by old ones."""
        way = self.branch
        renames = self.step.renames.items()
        return {old.removeprefix(way): new.removeprefix(way) for old, new in renames if old.startswith(way)}

    @property
    def path(self) -> str:
        """What leads to its graph from the outermost one."""
        return f"{self.step.path}{self.branch}"

    # ------------------------------------------------------------------ what it is given

    def shares(self, key: str, inputs: Mapping[str, Any]) -> bool:
        """Return whether a key has the same value in it: it is no input, or the very object of the step."""
        state = self.step.state
        return key not in inputs or (key in state and inputs[key] is state[key])

    @property
    def before_updates(self) -> State | None:
        """The State of the step without the updates that it has not been given yet; None if there are none."""
        return before_updates(self.step.state)

    def hand_on_updates(self) -> Task[None]:
        """Record, durably, that it has the updates: from now on it may overwrite them.

        A part is given none: made of something else, it begins anew.
        """
        step, run = self.step, self.step.run
        if self.part or run.state.progress is None or not run.state.progress.replaced:
            return
        run.state = told(evolve(run.state, progress=evolved(run.state.progress, replaced={})), Kind.UPDATE)
        step.state = run.state
        yield from step.stored((Amend, run.services.amend, run.state))
        run.saved = run.state

    # ------------------------------------------------------------------ what it waits for

    def answered(self, state: State) -> Pause | None:
        """Return the pause in its State that the outer run was resumed to answer; None if there is none."""
        return next(filter(self.step.answers, state.pause.each), None) if state.pause else None

    def still_waits(self, pause: Pause) -> bool:
        """Return whether it goes on to wait at a pause that is not answered.

        One whose deadline has passed begins anew, unless it is another part that has its answer now.
        """
        return not is_overdue(pause) or (bool(self.part) and self.step.is_woken)

    def waiting_step(self, state: State, graph: CompiledGraph) -> tuple[Node, StepExecution] | None:
        """Return the node at which it waits, and its step; None if it does not wait.

        Raises:
            GraphMismatchError: the graph has changed.
        """
        own, further = split_migration(self.renames, graph)
        state = self._waiting_as_asked(migrate_state(state, own, graph))
        pause = awaited(state)
        if pause is None:
            return None
        run = self.step.run
        check_compatible(graph, state, run.allow_changed, self.path)
        stage = graph.stages[pause.node]
        return stage.node, StepExecution(run, stage, state, renames=further.get(stage.name, {}), path=self.path)

    def _waiting_as_asked(self, state: State) -> State:
        """Return its State as one that waits for what the outer run is asked for, of several things."""
        asked, pauses = awaited(self.step.state), state.pause.each if state.pause else ()
        return next((narrowed(state, pause) for pause in pauses if asked and pause.id == asked.id), state)

    # ------------------------------------------------------------------ running it

    def load(self) -> Task[State | None]:
        """Return its newest saved State, None if there is none."""
        step = self.step
        if not step.run.plan.loads_parts:
            return None
        try:
            state: State = yield from step.stored((Load, step.run.services.load, self.run_id))
        except CheckpointNotFoundError:
            return None
        return state

    def result(self, plan: CompiledGraph, inputs: Mapping[str, Any], updates: Mapping[str, Any]) -> Task[State]:
        """Return the State that it ends with: completed or, if it waits for an answer, paused.

        If it was begun before, it goes on, with its data updated.
        """
        step = self.step
        yield from step.keep_incoming()
        saved = yield from self.load()
        if saved is not None and saved.status is RunStatus.COMPLETED and updates:
            yield from step.forget_parts()  # it was made of other data
            saved = None
        self.is_done_before = saved is not None and saved.status is RunStatus.COMPLETED and step.attempt == 1
        step.is_done_before = self.is_done_before and not self.part
        start = cast(Callable[..., Task[State]], step.run.plan.start_nested)
        return (yield from start(step.run, self, nested_in(plan, step.run.plan), saved, inputs, updates))
