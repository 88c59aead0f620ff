"""Beginning a run, and executing a State that has a past."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

from stategraph._engine.context import RunContext, fitting
from stategraph._engine.loop import run_from
from stategraph._engine.saving import save
from stategraph._protocol.commands import Amend, Load, Parts, Task
from stategraph._values.events import STATE_EVENTS
from stategraph._values.frozen import freeze_items, lay_over
from stategraph._values.ids import check_given_id
from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointNotFoundError, GraphMismatchError, RunExistsError
from stategraph.state import State, data_of, evolve, with_data

_Keys: TypeAlias = Collection[str]


def execute(run: RunContext, state: State) -> Task[State]:
    """Run a State from the entry point to an exit point."""
    run.state = yield from _admit(run, state)
    return (yield from run_from(run, None))


def _admit(run: RunContext, state: State) -> Task[State]:
    """Return the State as it enters the graph; a State with a past is saved first."""
    check_given_id(state.run_id)
    is_new = state.step == 0 and state.graph is None
    before = state
    put: _Keys = ()
    gone: _Keys = ()
    newest = None if is_new else (yield from _newest_of(run, state))
    _check_not_of_another(run, newest)
    if not is_new and state.progress is not None:
        from stategraph._engine.past import continued  # imported when used: few States have a past

        before, state, put, gone = yield from continued(run, state, newest)
    given = data_of(state)
    if run.plan.schema is not None:
        given = freeze_items(fitting(run, given, {}))
    started = stamped(run, with_data(state, with_defaults(run, given)))
    started = with_origins(run, evolve(started, checkpoint_node=""), before, put, gone)
    if not run.plan.saves:
        return started
    if is_new:
        yield from _check_new(run, state)
    else:
        if run.plan.loads_parts:  # parts of the step that did not complete were made of other data
            yield (Parts, run.services.drop_parts, (state.run_id, state.step + 1, True))
        yield from save(run, (Amend, run.services.amend, started), started)
    return started


def _check_not_of_another(run: RunContext, newest: State | None) -> None:
    """Raise GraphMismatchError if a run of another graph, which could still go on there, would be lost."""
    if newest is None or newest.graph in (None, run.plan.graph) or newest.status is RunStatus.COMPLETED:
        return
    change = f"it is a run of graph {newest.graph!r} that is not complete, not of {run.plan.graph!r}"
    way_out = "Resume it with that graph, or execute the State under a run_id of its own (store.fork makes a copy)."
    raise GraphMismatchError(newest.run_id, (change,), way_out)


def with_defaults(run: RunContext, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data, with the graph's defaults where they have no value."""
    defaults = run.plan.defaults
    return data if defaults.keys() <= data.keys() else lay_over(dict(defaults), data)


def _newest_of(run: RunContext, state: State) -> Task[State | None]:
    """Return the newest saved State of the run, None if there is none."""
    if not run.plan.saves:
        return None
    try:
        saved: State = yield (Load, run.services.load, state.run_id)
    except CheckpointNotFoundError:
        return None
    return saved


def _check_new(run: RunContext, state: State) -> Task[None]:
    """Raise RunExistsError if the store holds another State of a run that is to begin."""
    try:
        saved = yield (Load, run.services.load, state.run_id)
    except CheckpointNotFoundError:
        return
    from stategraph._values.sameness import differing_items  # imported when used: a run seldom begins twice

    has_same_data = saved.keys() == state.keys() and not differing_items(saved, state)
    if not has_same_data or with_data(saved, {}) != with_data(state, {}):  # objects may refuse to be compared
        raise RunExistsError(state.run_id, run.plan.store)
    run.found = saved.step, saved.generation


def stamped(run: RunContext, state: State) -> State:
    """Return the State as one that runs on this graph."""
    plan = run.plan
    if state.observer is None and not run.wanted.isdisjoint(STATE_EVENTS):
        state = evolve(state, observer=run.services.observer)
    progress = state.progress and state.progress.changed(partial=None)
    fresh = {"status": RunStatus.ACTIVE, "error": None, "pause": None, "progress": progress}
    return evolve(state, graph=plan.graph, structure=plan.structure, **fresh)


def with_origins(
    run: RunContext, state: State, before: State, put: Collection[str] = (), gone: Collection[str] = ()
) -> State:
    """Return a State with the origins of its keys, after something other than a node has changed it.

    Args:
        run: The run.
        state: The State.
        before: The State before the change.
        put: The keys that were set.
        gone: The keys that were removed.
    """
    if run.plan.persist is None and state.progress is None:
        return state
    from stategraph._progress.origins import Written, accounted

    return accounted(state, before, Written(put, gone), run.plan.persist, run.plan.defaults)
