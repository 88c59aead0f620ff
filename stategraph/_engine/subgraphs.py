"""Run a graph as a step of another: from its inputs, or from its saved State."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

import attrs

from stategraph._engine.context import NOTHING_GIVEN, RunContext, fitting, with_origins
from stategraph._engine.ending import copy_notes
from stategraph._engine.loop import prepared, run_from, with_all_keys, with_defaults
from stategraph._engine.resume import compatible, fitting_saved, revive
from stategraph._engine.saving import amend
from stategraph._engine.spending import recall
from stategraph._engine.step import StepExecution
from stategraph._graph.changed import carried_over, check_compatible, split_migration
from stategraph._graph.compiled import CompiledGraph, nested_in
from stategraph._graph.versions import upgraded
from stategraph._progress import awaited, awake, before_updates, is_overdue, progress_of
from stategraph._protocol import Amend, CannotAwait, Load, Stopped, StoreFailed, Task
from stategraph._values.frozen import freeze_items
from stategraph._values.ids import given_id, nested_id
from stategraph._values.progress import evolved
from stategraph._values.provenance import Kind, ParentStep, RunStatus
from stategraph.errors import (
    AsyncNodeError,
    CheckpointError,
    EffectsError,
    GraphMismatchError,
    RunCancelledError,
    SchemaError,
)
from stategraph.nodes.base import Node
from stategraph.state import State, effects_of, evolve, first_graph, recorded

_DIGITS = 12  # of a digest in an id: they distinguish successive items at one place of a list


@attrs.define(eq=False)
class NestedRun:
    """The nested run of a step.

    Attributes:
        step: The step.
        part: The label of the part that runs the graph; empty if the whole step does.
        made_of: The digest of the part's input.
        branch: The path from the node to the graph, if the node has several graphs: the label, followed by a slash.
        is_done_before: Whether the nested run was complete before this attempt.
    """

    step: StepExecution
    part: str = ""
    made_of: str = ""
    branch: str = ""
    is_done_before: bool = attrs.field(default=False, init=False)

    @property
    def run_id(self) -> str:
        """The id of the nested run."""
        state, (at, name) = self.step.state, self.step.kept_at
        name = f"{name}~{self.part}~{self.made_of[:_DIGITS]}" if self.part else name
        return nested_id(state.run_id, at, name, state.generation)

    @property
    def renames(self) -> Mapping[str, str]:
        """New names of the nodes of its graph, by old ones."""
        way = self.branch
        renames = self.step.renames.items()
        return {old.removeprefix(way): new.removeprefix(way) for old, new in renames if old.startswith(way)}

    @property
    def path(self) -> str:
        """The path from the outermost graph to its graph."""
        return f"{self.step.path}{self.branch}"

    @property
    def before_updates(self) -> State | None:
        """The State of the step without the changes that the nested run has not received; None if there are none."""
        return before_updates(self.step.state)

    def load(self) -> Task[State | None]:
        """Return its newest saved State, None if there is none."""
        step = self.step
        if not step.run.plan.loads_parts:
            return None
        state: State | None = yield from step.stored((Load, step.run.session.find, self.run_id))
        return state

    def waiting_step(self, state: State, graph: CompiledGraph) -> tuple[Node, StepExecution] | None:
        """Return the node at which the nested run waits, and its step; None if it does not wait.

        Raises:
            GraphMismatchError: the graph has changed.
        """
        own, further = split_migration(self.renames, graph)
        state, _ = carried_over(graph, state, own)
        question, pauses = awaited(self.step.state), state.pause.each if state.pause else ()
        # If it has several pauses, choose the one that the outer run exposes.
        state = next((evolve(state, pause=pause) for pause in pauses if question and pause.id == question.id), state)
        pause = awaited(state)
        if pause is None:
            return None
        run = self.step.run
        check_compatible(graph, state, run.allow_changed, self.path)
        stage = graph.stages[pause.node]
        return stage.node, StepExecution(run, stage, state, renames=further.get(stage.name, {}), path=self.path)

    # ------------------------------------------------------------------ running it

    def result(self, plan: CompiledGraph, inputs: Mapping[str, Any], updates: Mapping[str, Any]) -> Task[State]:
        """Return the final State of the nested run: completed or, if it waits for an answer, paused.

        Args:
            plan: Its graph.
            inputs: Its input, also if it began before.
            updates: Values that replace its data, if it continues.
        """
        step, outer = self.step, self.step.run.plan
        yield from step.save_input()
        saved = yield from self.load()
        is_done = saved is not None and saved.status is RunStatus.COMPLETED
        if saved is None or (is_done and updates):
            yield from self._refuse_repeats(saved)
        if is_done and updates:
            yield from step.forget_parts()  # they were made from other data
            saved, is_done = None, False
        self.is_done_before = is_done
        step.is_done_before = is_done and step.attempt == 1 and not self.part
        plan = nested_in(plan, outer)
        if self.part:  # other parts may still wait when this one has ended, and the outer run with them
            plan = attrs.evolve(plan, preserve=outer.loads_parts)
        run = self._context(plan)
        run.state = self._begun(run, inputs) if saved is None else saved
        try:
            return (yield from self._go_on(run, saved, inputs, updates))
        except RunCancelledError as error:
            stopped = Stopped(error.reason)
            copy_notes(error, stopped)
            raise stopped from error.__cause__
        except (CheckpointError, GraphMismatchError, SchemaError) as error:
            if isinstance(error, SchemaError) and not error.run_id:
                raise
            raise StoreFailed from error
        except AsyncNodeError as error:
            raise CannotAwait from error
        finally:  # an answer to the nested run must not answer another question of the outer one
            run.is_over = True
            answered = run.state.progress.answered if run.state.progress else ()
            step.take_answers(key for key in answered if self._shares(key, inputs))
            step.run.did.update({**dict.fromkeys(effects_of(run.state)), **run.did})
            step.has_effects |= bool(effects_of(run.state))

    def _refuse_repeats(self, saved: State | None) -> Task[None]:
        """Raise EffectsError if the graph begins again, from other data, and would repeat effects of this place."""
        step, run = self.step, self.step.run
        before = (
            [saved.run_id] if saved else [other for other in step.begun if _place_of(other) == _place_of(self.run_id)]
        )
        if before and not run.repeat_effects:
            keys = yield from step.stored((Load, run.session.effects_in, before))
            name = f"{step.path}{self.part}".rstrip("/")
            if keys:
                error = EffectsError(given_id(self.run_id), tuple((step.kept_at[0], name, key) for key in keys))
                raise StoreFailed from error

    def _context(self, plan: CompiledGraph) -> RunContext:
        step, outer = self.step, self.step.run
        options = {"signal": outer.signal, "allow_changed": outer.allow_changed, "migrate": self.renames}
        options |= {"abandon_parts": outer.abandon_parts, "limits": outer.limits, "deps": outer.deps}
        run = RunContext(plan, outer.session.nested(plan.persist), outer.observer, outer.wanted, **options)
        at = step.state
        run.place = {**outer.place, "parent_run_id": at.run_id, "parent_step": at.step + 1, "parent_node": step.name}
        run.spending, run.repeat_effects, run.shown = outer.spending, outer.repeat_effects, outer.shown
        run.is_in_part, run.part = bool(self.part) or outer.is_in_part, self.part
        run.streams, run.is_recomputing = outer.streams, outer.is_recomputing
        run.nested_path, run.outer_step = self.path, step
        run.outermost = outer.outermost or first_graph(at) or outer.plan.graph
        return run

    def _begun(self, run: RunContext, inputs: Mapping[str, Any]) -> State:
        """Return the initial State of the nested run.

        Answers used by the outer run do not count in the nested run, so that a loop pauses again.
        """
        outer, progress = self.step.state, self.step.state.progress
        if progress is not None and self.part:
            # Answers to another part, and values from before, do not answer this one.
            progress = evolved(None, answered=inputs.keys() & (progress.answered | progress.answer.keys()))
        elif progress is not None:
            shared = {key for key in progress.answered & inputs.keys() if self._shares(key, inputs)}
            progress = evolved(None, answered=shared)
        data = with_defaults(run, freeze_items(fitting(run, inputs, {})))
        # The same generation: after a rollback, new steps differ from the old ones, nested steps too.
        begun = State(
            data,
            run_id=self.run_id,
            parent=ParentStep(outer.run_id, self.step.kept_at[0] - 1),
            progress=progress,
            generation=outer.generation,
        )
        begun = prepared(run, begun)
        begun = with_origins(run, begun, begun)
        run.session.save_with_next(begun)
        return begun

    def _shares(self, key: str, inputs: Mapping[str, Any]) -> bool:
        """Return whether both runs share the value of a key: it is no input, or the same object as in the step."""
        state = self.step.state
        return key not in inputs or (key in state and inputs[key] is state[key])

    def _go_on(
        self, run: RunContext, saved: State | None, inputs: Mapping[str, Any], updates: Mapping[str, Any]
    ) -> Task[State]:
        """Begin the nested run or, if it has a saved State, resume it; answers come from the outer run."""
        if saved is None:
            yield from self._hand_on_updates()
            return (yield from run_from(run, None))
        if saved.status is RunStatus.COMPLETED:  # the crash came before the outer step was saved
            return (yield from with_all_keys(run, upgraded(run.plan, saved), NOTHING_GIVEN, inputs))[0]
        loaded, saved = saved, (yield from compatible(run, saved))
        pause = saved.pause
        answered = next(filter(self.step.answers, pause.each), None) if pause else None
        if answered is not None:
            progress, key = progress_of(self.step.state), answered.key_of_data
            asked = progress.woken.key_of_data if progress.woken else None
            saved = awake(saved, answered, progress.given)
            updates = updates if key is None or asked is None else {**updates, key: self.step.state[asked]}
        elif pause is not None and (not is_overdue(pause) or (self.part and self.step.is_woken)):
            if saved is not loaded or run.migrate:
                # The change was allowed: record it, so that the next resume need not allow it again.
                saved = recorded(saved, Kind.UPDATE, structure=run.plan.structure)
                yield from amend(run, saved)
            return saved
        is_same = saved is loaded and pause is None and not run.migrate
        # An overdue, unanswered pause begins again, unless another part is answered now.
        saved = evolve(saved, status=RunStatus.ACTIVE)
        yield from recall(run, saved)
        stage = yield from revive(run, saved, updates, inputs, is_same=is_same)
        yield from self._hand_on_updates()
        return (yield from run_from(run, stage))

    def _hand_on_updates(self) -> Task[None]:
        """Record durably that the nested run has received the updates, so that they are not applied again.

        A part receives none: made from different data, it begins again.
        """
        step, run = self.step, self.step.run
        progress = run.state.progress
        if self.part or progress is None or not (progress.replaced or progress.overtaken) or not run.plan.loads_parts:
            return
        run.state = recorded(run.state, Kind.UPDATE, progress=evolved(progress, replaced={}, overtaken={}))
        step.state = run.state
        yield from step.stored((Amend, run.session.amend, run.state))
        run.saved = run.state


def _place_of(run_id: str) -> str:
    return run_id.rpartition("~")[0]  # without the digest of its input


def check_nested(run: RunContext, saved: State, found: list[Exception] | None = None) -> Task[None]:
    """Check that the nested runs of the step under way fit their graphs, before anything is written.

    Errors are added to `found`, if it is given, and raised otherwise.

    Raises:
        GraphMismatchError, SchemaError: One does not. A run of one of several graphs with its name is not checked.
    """
    for stage in run.plan.stages.values():
        step, node = StepExecution(run, stage, saved), cast(Any, stage.node)
        graphs, first = node.graphs, nested_id(saved.run_id, *step.kept_at, saved.generation)
        for run_id in (yield (Load, run.session.nested_at, (saved, step.kept_at))) if graphs else ():
            state: State | None = yield (Load, run.session.find, run_id)
            own = [each for each in graphs if len(graphs) == 1 or (state and state.graph in each.plan().names)]
            if state is None or state.status is RunStatus.COMPLETED or len(own) != 1:
                continue
            label = unquote(run_id.removeprefix(first)[1:].rpartition("~")[0])
            branch = f"{label}/" if label and node.has_branches else ""
            nested = NestedRun(step, branch=branch)._context(nested_in(own[0].plan(), run.plan))
            try:
                fitting = yield from compatible(nested, state)
                fitting_saved(nested, fitting, {})
                yield from check_nested(nested, fitting, found)
            except (GraphMismatchError, SchemaError) as error:
                if found is None:
                    raise
                found.append(error)
