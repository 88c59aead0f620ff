"""Going on from a State with a past."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from stategraph._engine.context import NOTHING_GIVEN, RunContext
from stategraph._protocol.commands import Task
from stategraph._values.progress import Progress, evolved
from stategraph.state import State, data_of, evolve, with_data


def continued(
    run: RunContext, state: State, newest: State | None
) -> Task[tuple[State, State, Collection[str], Collection[str]]]:
    """Compare a State that has a past with its checkpoint.

    Values that are new to the run can be answers again; of a run that was deleted when it completed, none is known.

    Returns:
        The checkpoint and the State, each with all of its keys, and the keys that were set and removed between them.
    """
    progress = cast(Progress, state.progress)
    from stategraph._values.sameness import differing_items  # imported when used: a plain resume compares nothing

    new = set() if newest is None else differing_items(newest, state).keys()
    answered = progress.answered - new
    left = evolved(progress.without_step(), answered=answered)
    # Where it is not what was saved last, all keys are new.
    is_newest = newest is not None and newest.step == state.step
    saved = evolve(newest if newest is not None and is_newest else with_data(state, {}), progress=left)
    all_keys, changes = yield from with_all_keys(run, saved, differing_items(saved, state))
    made = {key: value for key, value in data_of(all_keys).items() if key not in saved and key not in state}
    state = evolve(with_data(state, {**data_of(state), **made}), progress=all_keys.progress)
    return all_keys, state, changes.keys(), saved.keys() - state.keys()


def with_all_keys(
    run: RunContext, saved: State, updates: Mapping[str, Any], inputs: Mapping[str, Any] = NOTHING_GIVEN
) -> Task[tuple[State, Mapping[str, Any]]]:
    """Return a saved State with the keys that were not saved, and the updates that remain to be laid over it.

    Args:
        run: The run.
        saved: The State.
        updates: Keys that are given.
        inputs: What the run began with, where that is known.
    """
    if saved.progress is None or not saved.progress.origins:
        return saved, updates
    from stategraph._engine.recompute import whole

    return (yield from whole(run, saved, updates, inputs))
