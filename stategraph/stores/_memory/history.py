"""What few runs ask of a memory store: lists, copies of runs, runs that are taken back to a step, and pruning."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from stategraph._owners.free import held_if_free
from stategraph._owners.holds import Owning
from stategraph._values import clock
from stategraph._values.ids import is_nested_id, step_of
from stategraph._values.provenance import ParentStep
from stategraph.errors import RunExistsError
from stategraph.state import State, evolve, time_ns_of
from stategraph.stores._checks import check_limit, check_status, from_cursor
from stategraph.stores._defaults import forked_from, keeps_nested, rolled_back
from stategraph.stores._memory.encoded import about, provenance_of, renamed
from stategraph.stores._memory.held import HeldRun, HeldRuns, as_kept, state_of
from stategraph.stores.base import RetentionPolicy
from stategraph.stores.summaries import Pruned, Summary


def history(held: HeldRuns, run_id: str) -> list[Summary]:
    """Return the checkpoints of a run, in order, without their data."""
    run = held.runs.get(run_id)
    return [] if run is None else [Summary.of(about(kept)) for kept in tuple(run.kept)]


def runs(held: HeldRuns, status: str | None, graph: str | None, limit: int, after: str | None) -> list[Summary]:
    """Return the newest checkpoint of each run, without its data; the run that began last comes first."""
    check_status(status)
    before = from_cursor(after)
    newest_first = sorted(held.runs.items(), key=lambda item: item[1].number, reverse=True)
    found = (
        Summary.of(about(run.kept[-1]), str(run.number))
        for run_id, run in newest_first
        if not is_nested_id(run_id) and (before is None or run.number < before)
    )
    wanted = (run for run in found if status in (None, run.status) and graph in (None, run.graph))
    return list(itertools.islice(wanted, check_limit(limit)))


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


def prune(held: HeldRuns, store: Owning) -> Pruned:
    """Remove runs whose time is over, and the checkpoints of others that are not kept any more."""
    now = clock.now_ns()
    over = [run_id for run_id, run in held.runs.items() if not is_nested_id(run_id) and _is_over(run, now)]
    removed = []
    for run_id in over:
        with held_if_free(store, run_id) as hold:
            if hold is not None:
                held.drop(run_id)
                removed.append(run_id)
    return Pruned(tuple(removed), sum(run.cut() for run in held.runs.values()))


def _is_over(run: HeldRun, now: int) -> bool:
    newest = provenance_of(run.kept[-1])
    return run.policy.is_over(newest.status, time_ns_of(newest), now)
