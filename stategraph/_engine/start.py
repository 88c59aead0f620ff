"""Beginning a run, and executing a State with a past."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from stategraph._engine.context import NOTHING_GIVEN, RunContext, fitting
from stategraph._engine.loop import run_from
from stategraph._engine.saving import amend, newest_of, owning
from stategraph._owners.base import Ownership
from stategraph._protocol.commands import Parts, Task
from stategraph._values.events import STATE_EVENTS
from stategraph._values.frozen import freeze_items, lay_over
from stategraph._values.ids import check_given_id
from stategraph._values.progress import evolved
from stategraph._values.provenance import RunStatus
from stategraph.errors import GraphMismatchError, RunExistsError
from stategraph.state import State, data_of, evolve, time_ns_of, told, with_data

_Keys: TypeAlias = Collection[str]


def execute(run: RunContext, state: State, *, restart: bool = False) -> Task[State]:
    """Run a State from the entry point to an exit point; `restart` also allows a State of an incomplete run."""
    return owning(run, Ownership(id_of(state)), begin(run, state, restart=restart))


def id_of(state: object) -> str:
    """Return the run id of the State that a run begins with. Raises TypeError if it is not a State."""
    if not isinstance(state, State):
        raise TypeError(f"a graph runs a State, not {type(state).__name__}: State({{...}}) makes one of a mapping")
    return check_given_id(state.run_id)


def begin(run: RunContext, state: State, *, restart: bool = False) -> Task[State]:
    """Do what `execute` does, as the owner of the run."""
    run.state = yield from admit(run, state, restart=restart)
    return (yield from run_from(run, None))


def admit(run: RunContext, state: State, *, restart: bool = False) -> Task[State]:
    """Return the State as it enters the graph. A State with a past is saved first."""
    is_new = state.step == 0 and state.graph is None
    before = state
    put: _Keys = ()
    gone: _Keys = ()
    if not is_new:
        before, state, put, gone = yield from _continued(run, state, restart=restart)
    given = data_of(state)
    if run.plan.schema is not None:
        given = freeze_items(fitting(run, given, {}))
    started = evolve(stamped(run, with_data(state, with_defaults(run, given))), checkpoint_node="")
    if run.labels:
        started = evolve(started, labels=run.labels)
    started = with_origins(run, started, before, put, gone)
    if not run.plan.saves:
        return started
    if is_new:
        return (yield from _as_submitted(run, state, started))
    if run.plan.loads_parts:  # parts of the incomplete step were made from other data
        yield (Parts, run.services.drop_parts, (started.run_id, started.step + 1, True))
    return (yield from amend(run, started))


def with_defaults(run: RunContext, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data, with defaults of the graph for missing keys."""
    defaults = run.plan.defaults
    return data if defaults.keys() <= data.keys() else lay_over(dict(defaults), data)


def stamped(run: RunContext, state: State) -> State:
    """Return the State prepared to run on this graph."""
    plan = run.plan
    if state.observer is None and not run.wanted.isdisjoint(STATE_EVENTS):
        state = evolve(state, observer=run.services.observer)
    progress = state.progress and state.progress.changed(partial=None, recoveries=0)
    fresh = {"status": RunStatus.ACTIVE, "error": None, "pause": None, "progress": progress}
    return evolve(told(state, by=run.by), graph=plan.graph, structure=plan.structure, **fresh)


def with_origins(run: RunContext, state: State, before: State, put: _Keys = (), gone: _Keys = ()) -> State:
    """Return the State with updated origins of its keys, after a change that no node made.

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


def _as_submitted(run: RunContext, state: State, started: State) -> Task[State]:
    """Return the State that begins a run, or its saved form if the same run was submitted or begun before.

    Raises:
        RunExistsError: The store has another run with this id.
    """
    saved = yield from newest_of(run, state.run_id)
    if saved is not None:
        from stategraph._values.sameness import differing_items  # imported when used: a run seldom begins twice

        as_saved = state if saved.graph is None else evolve(started, _time_ns=time_ns_of(saved))
        has_same_data = saved.keys() == as_saved.keys() and not differing_items(saved, as_saved)
        if not has_same_data or with_data(saved, {}) != with_data(as_saved, {}):  # objects may not support comparison
            raise RunExistsError(state.run_id, run.plan.store)
        if not run.labels:
            started = evolve(started, labels=saved.labels)
        if saved.graph is not None and (saved.status, saved.labels) == (started.status, started.labels):
            run.found = evolve(started, _time_ns=time_ns_of(saved))
            return run.found
    run.services.save_with_next(started)
    return started


# --------------------------------------------------------------------------- States with a past


def _continued(run: RunContext, state: State, *, restart: bool) -> Task[tuple[State, State, _Keys, _Keys]]:
    """Compare a State that has a past with its checkpoint.

    Values that are new to the run can be answers again. A run that was deleted on completion has no known values.

    Returns:
        The checkpoint and the State, both complete, and the keys that were set and removed between them.

    Raises:
        GraphMismatchError: the call would discard an incomplete run of another graph.
        RunExistsError: the run is not complete, and `restart` is false.
    """
    newest = yield from newest_of(run, state.run_id)
    check_not_of_another(run, newest)
    if newest is not None and not restart:
        _check_complete(run, newest, state)
    progress = state.progress
    if progress is None:
        return state, state, (), ()
    from stategraph._values.sameness import differing_items  # imported when used: a plain resume compares nothing

    new = set() if newest is None else differing_items(newest, state).keys()
    left = evolved(progress.without_step(), answered=progress.answered - new)
    # If the State is not of the newest saved step, all its keys are new.
    is_newest = newest is not None and newest.step == state.step
    saved = evolve(newest if newest is not None and is_newest else with_data(state, {}), progress=left)
    all_keys, changes = yield from with_all_keys(run, saved, differing_items(saved, state))
    made = {key: value for key, value in data_of(all_keys).items() if key not in saved and key not in state}
    state = evolve(with_data(state, {**data_of(state), **made}), progress=all_keys.progress)
    return all_keys, state, changes.keys(), saved.keys() - state.keys()


def _check_complete(run: RunContext, newest: State, state: State) -> None:
    """Raise RunExistsError if the call would leave behind a run that has begun and is not complete.

    A State that the caller constructed for a step after the newest one is accepted.
    """
    is_of_run = state.graph is not None or state.step <= newest.step
    if is_of_run and newest.graph is not None and newest.status is not RunStatus.COMPLETED:
        raise RunExistsError(newest.run_id, run.plan.store, newest.status.value)


def check_not_of_another(run: RunContext, newest: State | None) -> None:
    """Raise GraphMismatchError if a run belongs to another graph and is not complete."""
    if newest is None or newest.graph in (None, run.plan.graph) or newest.status is RunStatus.COMPLETED:
        return
    change = f"it is a run of graph {newest.graph!r} that is not complete, not of {run.plan.graph!r}"
    way_out = "Resume it with that graph, or execute the State under a run_id of its own (store.fork makes a copy)."
    raise GraphMismatchError(newest.run_id, (change,), way_out)


def with_all_keys(
    run: RunContext, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any] = NOTHING_GIVEN
) -> Task[tuple[State, Mapping[str, Any]]]:
    """Return a saved State with its unsaved keys, and the updates that still apply.

    Args:
        run: The run.
        saved: The State.
        updates: Keys that are given.
        inputs: The input of the run, if known.
    """
    if saved.progress is None or not saved.progress.origins:
        return saved, updates
    from stategraph._engine.recompute import whole

    return (yield from whole(run, saved, updates, inputs))
