"""Beginning a run, and executing a State that has a past."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

from stategraph._engine.context import RunContext, fitting
from stategraph._engine.loop import run_from
from stategraph._engine.owning import owning
from stategraph._owners.holds import Hold
from stategraph._protocol.commands import Load, Task
from stategraph._values.events import STATE_EVENTS
from stategraph._values.frozen import freeze_items, lay_over
from stategraph._values.ids import check_given_id
from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointNotFoundError
from stategraph.state import State, data_of, evolve, time_ns_of, told, with_data

_Keys: TypeAlias = Collection[str]


def execute(run: RunContext, state: State, *, restart: bool = False) -> Task[State]:
    """Run a State from the entry point to an exit point; with `restart` also one of a run that is not complete."""
    task = _admitted(run, state, restart=restart)
    return owning(run, Hold(id_of(state)), task, then_runs=True)


def id_of(state: object) -> str:
    """Return the id of the run that a State is to begin. Raises TypeError if it is no State."""
    if not isinstance(state, State):
        raise TypeError(f"a graph runs a State, not {type(state).__name__}: State({{...}}) makes one of a mapping")
    return check_given_id(state.run_id)


def begin(run: RunContext, state: State, *, restart: bool = False) -> Task[State]:
    """Do what `execute` does, as the owner of the run."""
    yield from _admitted(run, state, restart=restart)
    return (yield from run_from(run, None))


def _admitted(run: RunContext, state: State, *, restart: bool) -> Task[None]:
    run.state = yield from admit(run, state, restart=restart)


def admit(run: RunContext, state: State, *, restart: bool = False) -> Task[State]:
    """Return the State as it enters the graph; a State with a past is saved first."""
    is_new = state.step == 0 and state.graph is None
    before = state
    put: _Keys = ()
    gone: _Keys = ()
    if not is_new:
        from stategraph._engine.past import continued  # imported when used: few States have a past

        before, state, put, gone = yield from continued(run, state, restart=restart)
    given = data_of(state)
    if run.plan.schema is not None:
        given = freeze_items(fitting(run, given, {}))
    started = stamped(run, with_data(state, with_defaults(run, given)))
    if run.labels:
        started = evolve(started, labels=run.labels)
    started = with_origins(run, evolve(started, checkpoint_node=""), before, put, gone)
    if not run.plan.saves:
        return started
    if is_new:
        saved = yield from _check_new(run, state, started)
        if saved is not None and not run.labels:  # as submitted
            started = evolve(started, labels=saved.labels)
        if saved is not None and _is_submitted(saved, started):
            run.found = started = evolve(started, _time_ns=time_ns_of(saved))
        else:
            run.services.save_with_next(started)
    else:
        from stategraph._engine.past import replace_newest

        yield from replace_newest(run, started)
    return started


def with_defaults(run: RunContext, data: dict[str, Any]) -> dict[str, Any]:
    """Return the data, with the graph's defaults where they have no value."""
    defaults = run.plan.defaults
    return data if defaults.keys() <= data.keys() else lay_over(dict(defaults), data)


def _check_new(run: RunContext, state: State, started: State) -> Task[State | None]:
    """Return the State that the store holds of a run that is to begin: as given, or as submitted.

    Raises RunExistsError if it holds another one.
    """
    try:
        saved: State = yield (Load, run.services.load, state.run_id)
    except CheckpointNotFoundError:
        return None
    from stategraph._engine.past import check_same  # imported when used: a run seldom begins twice

    check_same(run, saved, state if saved.graph is None else evolve(started, _time_ns=time_ns_of(saved)))
    return saved


def _is_submitted(saved: State, started: State) -> bool:
    """Return whether a State that is the same as the saved one was saved as the input of the run already."""
    return saved.graph is not None and (saved.status, saved.labels) == (started.status, started.labels)


def stamped(run: RunContext, state: State) -> State:
    """Return the State as one that runs on this graph."""
    plan = run.plan
    if state.observer is None and not run.wanted.isdisjoint(STATE_EVENTS):
        state = evolve(state, observer=run.services.observer)
    progress = state.progress and state.progress.changed(partial=None, recoveries=0)
    fresh = {"status": RunStatus.ACTIVE, "error": None, "pause": None, "progress": progress}
    return evolve(told(state, by=run.by), graph=plan.graph, structure=plan.structure, **fresh)


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
