"""Running a graph as a step of another: from its inputs, or on from where it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from stategraph._engine.context import NOTHING_GIVEN, RunContext, fitting
from stategraph._engine.endings import move_notes
from stategraph._engine.loop import run_from
from stategraph._engine.resume import renamed, revive
from stategraph._engine.saving import save
from stategraph._engine.start import stamped, with_all_keys, with_defaults, with_origins
from stategraph._engine.step import StepExecution
from stategraph._graph.changed import check_compatible, migrate_state, off_removed, split_migration
from stategraph._graph.compiled import CompiledGraph, nested_in, unsaved_in
from stategraph._progress.answers import awaited, awake, before_updates, is_overdue
from stategraph._protocol.commands import Amend, CannotAwait, Load, Stopped, StoreFailed, Task
from stategraph._values.frozen import freeze_items
from stategraph._values.ids import nested_id
from stategraph._values.progress import Pause, Progress, evolved
from stategraph._values.provenance import Kind, ParentStep, RunStatus
from stategraph.errors import (
    AsyncNodeError,
    CheckpointError,
    CheckpointNotFoundError,
    GraphMismatchError,
    RunCancelledError,
    SchemaError,
)
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
        state = self._waiting_as_asked(off_removed(graph, migrate_state(state, own, graph)))
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
        return next((evolve(state, pause=pause) for pause in pauses if asked and pause.id == asked.id), state)

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
        step, outer = self.step, self.step.run.plan
        if step.saves_nothing:
            return (yield from run_nested(step.run, self, unsaved_in(plan, outer), None, inputs, {}))
        yield from step.keep_incoming()
        saved = yield from self.load()
        if saved is not None and saved.status is RunStatus.COMPLETED and updates:
            yield from step.forget_parts()  # it was made of other data
            saved = None
        self.is_done_before = saved is not None and saved.status is RunStatus.COMPLETED
        step.is_done_before = self.is_done_before and step.attempt == 1 and not self.part
        plan = nested_in(plan, outer)
        if self.part:  # others may wait when it has ended, and the run with them
            plan = attrs.evolve(plan, preserve=outer.loads_parts)
        return (yield from run_nested(step.run, self, plan, saved, inputs, updates))


def run_nested(
    run: RunContext,
    about: NestedRun,
    plan: CompiledGraph,
    saved: State | None,
    inputs: Mapping[str, Any],
    updates: Mapping[str, Any],
) -> Task[State]:
    """Return the State that a nested run ends with.

    Args:
        run: The run around it.
        about: The nested run.
        plan: Its graph.
        saved: Its newest saved State; None if it is to begin.
        inputs: What it begins with, or began with.
        updates: Laid over the data of the saved State.
    """
    step, place = about.step, {}
    if run.wanted:
        place = {"parent_run_id": step.state.run_id, "parent_step": step.state.step + 1, "parent_node": step.name}
    services = run.services.nested(plan.graph, plan.persist, **place)
    nested = RunContext(plan, services, run.wanted, signal=run.signal, allow_changed=run.allow_changed)
    nested.nested_path = about.path
    nested.outer_step, nested.outermost = step, run.outermost or run.plan.graph
    nested.state = _begun(nested, about, inputs) if saved is None else saved
    try:
        return (yield from _go_on(nested, about, saved, inputs, updates))
    except RunCancelledError as error:
        stopped = Stopped(error.reason)
        move_notes(error, stopped)
        raise stopped from error.__cause__
    except (CheckpointError, GraphMismatchError, SchemaError) as error:
        if isinstance(error, SchemaError) and not error.run_id:
            raise
        raise StoreFailed from error
    except AsyncNodeError as error:
        raise CannotAwait from error
    finally:  # however it ends: what has answered the nested run answers nothing in the outer one
        step.take_answers(key for key in _answered_keys(nested) if about.shares(key, inputs))


def _answered_keys(run: RunContext) -> frozenset[str]:
    """Return the keys whose values have served as answers."""
    return run.state.progress.answered if run.state.progress else frozenset()


def _begun(run: RunContext, about: NestedRun, inputs: Mapping[str, Any]) -> State:
    """Return the State with which a nested run begins."""
    step = about.step
    parent, progress = ParentStep(step.state.run_id, step.state.step), _progress(about, inputs)
    data = with_defaults(run, freeze_items(fitting(run, inputs, {})))
    again = step.state.generation  # steps of a run that was rolled back are others than before, nested ones too
    begun = stamped(run, State(data, run_id=about.run_id, parent=parent, progress=progress, generation=again))
    begun = with_origins(run, begun, begun)
    run.services.save_with_next(begun)
    return begun


def _progress(about: NestedRun, inputs: Mapping[str, Any]) -> Progress | None:
    """Return the progress with which a nested run begins.

    Answers given to the outer run answer nothing in the nested one, so that a loop asks again.
    """
    progress = about.step.state.progress
    if progress is None:
        return None
    if about.part:  # what another part was answered is none of this one, nor is what was there before
        return evolved(None, answered=inputs.keys() & (progress.answered | progress.answer.keys()))
    return evolved(None, answered={key for key in progress.answered & inputs.keys() if about.shares(key, inputs)})


def _go_on(
    run: RunContext, about: NestedRun, saved: State | None, inputs: Mapping[str, Any], updates: Mapping[str, Any]
) -> Task[State]:
    """Begin the nested run or, if a State of it is saved, resume it; answers come from the outer run."""
    if saved is None:
        yield from about.hand_on_updates()
        return (yield from run_from(run, None))
    if saved.status is RunStatus.COMPLETED:  # and the step that it is part of was not saved any more
        return (yield from with_all_keys(run, saved, NOTHING_GIVEN, inputs))[0]
    loaded, saved = saved, renamed(run, saved, about.renames)
    check_compatible(run.plan, saved, run.allow_changed, run.nested_path)
    pause, answered, updates = saved.pause, about.answered(saved), {**updates}
    if answered is not None:
        saved = awake(saved, answered)
        if answered.response_param is not None:
            updates[answered.response_param] = about.step.state[answered.response_param]
    elif pause is not None and about.still_waits(pause):
        if saved.structure != run.plan.structure or about.renames:  # allowed: the next resume need not say so again
            saved = told(evolve(saved, structure=run.plan.structure), Kind.UPDATE)
            yield from save(run, (Amend, run.services.amend, saved), saved)
        return saved
    is_same = saved is loaded and pause is None and not about.renames
    # A pause whose deadline has passed unanswered begins anew.
    saved = evolve(saved, status=RunStatus.ACTIVE)
    behind = yield from revive(run, saved, updates, inputs, is_same=is_same)
    yield from about.hand_on_updates()
    return (yield from run_from(run, behind))
