"""Time travel in memory: copies of runs, and runs that are taken back to a step."""

from __future__ import annotations

from collections.abc import Iterator

from stategraph._values.ids import step_of
from stategraph._values.provenance import ParentStep
from stategraph.errors import RunExistsError
from stategraph.state import State, evolve
from stategraph.stores._memory.encoded import renamed
from stategraph.stores._memory.held import HeldRun, HeldRuns, as_kept, state_of
from stategraph.stores._time_travel import forked_from, keeps_nested, rolled_back
from stategraph.stores.base import RetentionPolicy


def roll_back(held: HeldRuns, state: State) -> State:
    """Take a run back to this State of it."""
    state = rolled_back(state)
    run = held.runs[state.run_id]
    run.kept[:] = [*(one for one in run.kept if one.step < state.step), as_kept(state)]
    run.parts.clear()
    held.drop_nested(state.run_id)
    return state


def fork(held: HeldRuns, source: State, new_run_id: str, store: object) -> State:
    """Copy the run of a State, up to that; errors name the store."""
    forked = forked_from(source, new_run_id)
    policy = held.policies.get(new_run_id) or held.runs[source.run_id].policy
    copies = dict(_copies(held, source.run_id, forked, policy, with_nested=keeps_nested(source)))
    for copy_id in copies:
        if copy_id in held.runs:
            raise RunExistsError(copy_id, str(store))
    for copy_id, copy in copies.items():
        copy.number = next(held.numbers)
        held.begin(copy_id, copy)
    return forked


def _copies(
    held: HeldRuns, run_id: str, newest: State, policy: RetentionPolicy, *, with_nested: bool = True
) -> Iterator[tuple[str, HeldRun]]:
    """Yield a run with the history that another one has before this State, and copies of what is nested in the step
    after, each with its id."""
    source = held.runs[run_id]
    earlier = [renamed(kept, newest.run_id) for kept in source.kept if kept.step < newest.step]
    parts = {key: part for key, part in source.parts.items() if key[0] == newest.step + 1 and with_nested}
    yield newest.run_id, HeldRun(0, policy, [*earlier, as_kept(newest)], parts)
    for nested_id in held.nested.get(run_id, ()) if with_nested else ():
        run = held.runs.get(nested_id)
        if run is not None and step_of(nested_id) == newest.step + 1:
            new_id = newest.run_id + nested_id.removeprefix(run_id)
            copy = evolve(state_of(run.kept[-1]), run_id=new_id, parent=ParentStep(newest.run_id, newest.step))
            yield from _copies(held, nested_id, copy, run.policy)
