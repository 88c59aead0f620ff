"""What few runs ask of a memory store: lists, copies of runs, runs that are taken back to a step, and pruning."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from stategraph._owners.free import held_if_free
from stategraph._owners.holds import Owning, this_process
from stategraph._values import clock
from stategraph._values.ids import is_nested_id, step_of
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointNotFoundError, RunExistsError
from stategraph.state import State, evolve, time_ns_of
from stategraph.stores._checks import RunFilter, check_numbers
from stategraph.stores._defaults import forked_from, keeps_nested, rolled_back
from stategraph.stores._memory.encoded import about, provenance_of, renamed
from stategraph.stores._memory.held import HeldRun, HeldRuns, as_kept, state_of
from stategraph.stores.base import RetentionPolicy
from stategraph.stores.summaries import Pruned, Summary

if TYPE_CHECKING:
    from stategraph.stores._memory.held import Kept


def history(held: HeldRuns, run_id: str) -> list[Summary]:
    """Return the checkpoints of a run, in order, without their data."""
    run = held.runs.get(run_id)
    if run is None:
        return []
    kept = tuple(run.kept)
    owner = this_process()
    made = clock.to_datetime(run.created_ns)
    return [
        attrs.evolve(Summary.of(about(one)), revision=revision, created=made, owner=owner)
        for one, revision in zip(kept, _revisions(kept), strict=True)
    ]


def _revisions(kept: Sequence[Kept]) -> Iterator[int]:
    """Yield the revision of each checkpoint: how many of its step are before it."""
    counted: Counter[int] = Counter()
    for one in kept:
        yield counted[one.step]
        counted[one.step] += 1


def found(run: HeldRun | None, run_id: str, step: int | None, revision: int | None, store: object) -> tuple[int, Kept]:
    """Return the place of a checkpoint among those of its run, and the checkpoint; errors name the store.

    Raises:
        ValueError: the step or the revision is no number of one.
        CheckpointNotFoundError: it is not kept.
    """
    check_numbers(step, revision)
    kept = () if run is None else tuple(run.kept)
    wanted = kept[-1].step if step is None and kept else step
    places = [place for place, one in enumerate(kept) if one.step == wanted]
    if not places or (revision or 0) >= len(places):
        raise CheckpointNotFoundError(run_id, str(store), step, revision)
    place = places[-1 if revision is None else revision]
    return place, kept[place]


def runs(
    held: HeldRuns, which: RunFilter, limit: int, before: int | None, owner_of: Callable[[str], object]
) -> list[Summary]:
    """Return the newest checkpoint of each run, without its data; the run that began last comes first."""
    newest_first = sorted(held.runs.items(), key=lambda item: item[1].number, reverse=True)
    found = (
        _newest(run)
        for run_id, run in newest_first
        if which.takes_id(run_id) and (before is None or run.number < before)
    )
    return list(itertools.islice((run for run in found if which.takes(run, owner_of)), limit))


def _newest(run: HeldRun) -> Summary:
    kept = tuple(run.kept)
    *_, revision = _revisions(kept)
    made = clock.to_datetime(run.created_ns)
    return attrs.evolve(Summary.of(about(kept[-1]), str(run.number)), revision=revision, created=made)


def roll_back(held: HeldRuns, run_id: str, place: int, by: str | None) -> State:
    """Take a run back to one of its checkpoints."""
    run = held.runs[run_id]
    state = rolled_back(state_of(run.kept[place]), state_of(run.kept[-1]).parent, by)
    run.kept[len(run.kept) if run.policy.keeps_all else place :] = [as_kept(state)]  # in one go: others may read it
    run.parts.clear()
    if not run.policy.keeps_all:
        held.drop_nested(run_id)
    return state


def fork(held: HeldRuns, run_id: str, place: int, new_run_id: str, store: object) -> State:
    """Copy a run, up to one of its checkpoints; errors name the store."""
    run = held.runs[run_id]
    source = state_of(run.kept[place])
    forked = forked_from(source, new_run_id)
    policy = held.policies.get(new_run_id) or run.policy
    # What is nested in a step that was completed is the story of this run, and done again in the copy.
    with_nested = keeps_nested(source) and source.step == run.kept[-1].step
    copies = dict(_copies(held, run_id, place, forked, policy, with_nested=with_nested))
    for copy_id in copies:
        if copy_id in held.runs:
            raise RunExistsError(copy_id, str(store))
    for copy_id, copy in copies.items():
        copy.number = next(held.numbers)
        held.begin(copy_id, copy)
    return forked


def _copies(
    held: HeldRuns, run_id: str, place: int, newest: State, policy: RetentionPolicy, *, with_nested: bool = True
) -> Iterator[tuple[str, HeldRun]]:
    """Yield a run with the history that another one has before a place, and with this State; and copies of what is
    nested in the step after, each with its id."""
    source = held.runs[run_id]
    earlier = [renamed(kept, newest.run_id) for kept in source.kept[:place]]
    parts = {key: part for key, part in source.parts.items() if key[0] == newest.step + 1 and with_nested}
    kept = [*earlier, as_kept(newest)]
    yield newest.run_id, HeldRun(0, policy, kept, time_ns_of(newest), parts)
    for nested_id in held.nested.get(run_id, ()) if with_nested else ():
        run = held.runs.get(nested_id)
        if run is not None and step_of(nested_id) == newest.step + 1:
            new_id = newest.run_id + nested_id.removeprefix(run_id)
            copy = evolve(state_of(run.kept[-1]), run_id=new_id, parent=ParentStep(newest.run_id, newest.step))
            yield from _copies(held, nested_id, len(run.kept) - 1, copy, run.policy)


def prune(held: HeldRuns, store: Owning) -> Pruned:
    """Remove runs whose time is over, and the checkpoints of others that are not kept any more."""
    now = clock.now_ns()
    over = [run_id for run_id, run in held.runs.items() if not is_nested_id(run_id) and _is_over(run, now)]
    with held_if_free(store, over) as removed:
        for run_id in removed:
            held.drop(run_id)
    return Pruned(tuple(removed), sum(run.cut() for run in held.runs.values()))


def _is_over(run: HeldRun, now: int) -> bool:
    newest = provenance_of(run.kept[-1])
    return run.policy.is_over(newest.status, time_ns_of(newest), now)
