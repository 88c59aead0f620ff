"""Run a graph as a step of another: from its inputs, or on from where it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stategraph._engine.context import NOTHING_GIVEN, RunContext, fitting
from stategraph._engine.failures import with_notes
from stategraph._engine.loop import run_from
from stategraph._engine.resume import renamed, revive
from stategraph._engine.saving import save
from stategraph._engine.start import stamped, with_defaults
from stategraph._engine.step import StepExecution, is_late
from stategraph._engine.unsaved import with_all_keys, with_origins
from stategraph._graph.compatibility import check_compatible
from stategraph._graph.compiled import CompiledGraph
from stategraph._progress.answers import awake
from stategraph._protocol.commands import Amend, CannotAwait, Stopped, StoreFailed, Task
from stategraph._values.frozen import freeze_items
from stategraph._values.provenance import ParentStep, RunStatus
from stategraph.errors import AsyncNodeError, CheckpointError, GraphMismatchError, RunCancelledError
from stategraph.state import State, evolve


def run_nested(
    run: RunContext,
    step: StepExecution,
    plan: CompiledGraph,
    saved: State | None,
    inputs: Mapping[str, Any],
    updates: Mapping[str, Any],
) -> Task[State]:
    """-> the State that the run of a graph within ends with: begun with inputs, or gone on with updates."""
    services = run.services.within(plan.graph, plan.persist)
    child = RunContext(plan, services, run.wanted, hand_over=run.hand_over)
    child.within, child.allow_changed = f"{run.within}{step.stage.name}/", run.allow_changed
    child.around, child.outermost = step, run.outermost or run.plan.graph
    child.state = _begun(child, step, inputs) if saved is None else saved
    try:
        return (yield from _go_on(child, step, saved, inputs, updates))
    except RunCancelledError as error:
        raise with_notes(Stopped(error.reason), error) from error.__cause__
    except (CheckpointError, GraphMismatchError) as error:
        raise StoreFailed from error
    except AsyncNodeError as error:
        raise CannotAwait from error
    finally:  # whatever comes of it: what has answered within answers nothing out here any more
        step.take_answers(key for key in _answered_keys(child) if step.shares(key, inputs))


def _answered_keys(run: RunContext) -> frozenset[str]:
    """The keys whose values have served as answers."""
    return run.state.progress.answered if run.state.progress else frozenset()


def _begun(run: RunContext, step: StepExecution, inputs: Mapping[str, Any]) -> State:
    """-> the State with which a run begins that is a step of another."""
    parent, progress = ParentStep(step.state.run_id, step.state.step), step.progress_within(inputs)
    data = with_defaults(run, freeze_items(fitting(run, inputs, {})))
    again = step.state.generation  # steps of a run that was rolled back are others than before, within as well
    begun = stamped(run, State(data, run_id=step.nested_run_id(), parent=parent, progress=progress, generation=again))
    return with_origins(run, begun, begun)


def _go_on(
    run: RunContext, step: StepExecution, saved: State | None, inputs: Mapping[str, Any], updates: Mapping[str, Any]
) -> Task[State]:
    """As execute or, where a State of the run is saved, resume; answers come from the run that it is within."""
    if saved is None:
        yield from step.hand_on_updates()
        return (yield from run_from(run, None))
    if saved.status is RunStatus.COMPLETED:  # and the step that it is part of was not saved any more
        return (yield from with_all_keys(run, saved, NOTHING_GIVEN, inputs))[0]
    run.found = saved.step, saved.generation
    saved = renamed(run, saved, step.renames)
    check_compatible(run.plan, saved, run.allow_changed, run.within)
    pause, updates = saved.pause, {**updates}
    if pause is not None and step.answers(pause):
        saved = awake(saved, pause)
        if pause.response_param is not None:
            updates[pause.response_param] = step.state[pause.response_param]
    elif pause is not None and not is_late(pause):
        if saved.structure != run.plan.structure or step.renames:  # allowed: the next resume need not say so again
            saved = evolve(saved, structure=run.plan.structure)
            yield from save(run, (Amend, run.services.amend, saved), saved)
        return saved
    # A pause whose deadline has passed unanswered begins anew.
    saved = evolve(saved, status=RunStatus.ACTIVE)
    behind = yield from revive(run, saved, updates, inputs, is_same=pause is None and not step.renames)
    yield from step.hand_on_updates()
    return (yield from run_from(run, behind))
