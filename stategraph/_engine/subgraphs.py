"""Running a graph as a step of another: from its inputs, or on from where it was saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stategraph._engine.context import NOTHING_GIVEN, RunContext, fitting
from stategraph._engine.loop import run_from
from stategraph._engine.nested_run import NestedRun
from stategraph._engine.past import with_all_keys
from stategraph._engine.rescue import with_notes
from stategraph._engine.resume import renamed, revive
from stategraph._engine.saving import save
from stategraph._engine.start import stamped, with_defaults, with_origins
from stategraph._graph.compatibility import check_compatible
from stategraph._graph.compiled import CompiledGraph
from stategraph._progress.answers import awake
from stategraph._protocol.commands import Amend, CannotAwait, Stopped, StoreFailed, Task
from stategraph._values.frozen import freeze_items
from stategraph._values.progress import Progress, evolved
from stategraph._values.provenance import Kind, ParentStep, RunStatus
from stategraph.errors import AsyncNodeError, CheckpointError, GraphMismatchError, RunCancelledError
from stategraph.state import State, evolve, told


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
    services, step = run.services.nested(plan.graph, plan.persist), about.step
    if run.wanted:
        outer = {"parent_run_id": step.state.run_id, "parent_step": step.state.step + 1, "parent_node": step.name}
        services.place = {**run.services.place, **outer}
    nested = RunContext(plan, services, run.wanted, hand_over=run.hand_over, signal=run.signal)
    nested.nested_path, nested.allow_changed = about.path, run.allow_changed
    nested.outer_step, nested.outermost = step, run.outermost or run.plan.graph
    nested.state = _begun(nested, about, inputs) if saved is None else saved
    try:
        return (yield from _go_on(nested, about, saved, inputs, updates))
    except RunCancelledError as error:
        raise with_notes(Stopped(error.reason), error) from error.__cause__
    except (CheckpointError, GraphMismatchError) as error:
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
    answered = progress.answered if progress else ()
    return evolved(None, answered={key for key in answered if key in inputs and about.shares(key, inputs)})


def _go_on(
    run: RunContext, about: NestedRun, saved: State | None, inputs: Mapping[str, Any], updates: Mapping[str, Any]
) -> Task[State]:
    """Begin the nested run or, if a State of it is saved, resume it; answers come from the outer run."""
    if saved is None:
        yield from about.hand_on_updates()
        return (yield from run_from(run, None))
    if saved.status is RunStatus.COMPLETED:  # and the step that it is part of was not saved any more
        return (yield from with_all_keys(run, saved, NOTHING_GIVEN, inputs))[0]
    saved = renamed(run, saved, about.renames)
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
    # A pause whose deadline has passed unanswered begins anew.
    saved = evolve(saved, status=RunStatus.ACTIVE)
    behind = yield from revive(run, saved, updates, inputs, is_same=pause is None and not about.renames)
    yield from about.hand_on_updates()
    return (yield from run_from(run, behind))
