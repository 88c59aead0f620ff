"""Going on from a State with a past."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stategraph._engine.context import NOTHING_GIVEN, RunContext
from stategraph._engine.saving import save
from stategraph._protocol.commands import Amend, Load, Parts, Task
from stategraph._values.progress import evolved
from stategraph._values.provenance import RunStatus
from stategraph.errors import CheckpointNotFoundError, GraphMismatchError, RunExistsError
from stategraph.state import State, data_of, evolve, with_data


def continued(
    run: RunContext, state: State, *, restart: bool
) -> Task[tuple[State, State, Collection[str], Collection[str]]]:
    """Compare a State that has a past with its checkpoint.

    Values that are new to the run can be answers again; of a run that was deleted when it completed, none is known.

    Returns:
        The checkpoint and the State, each with all of its keys, and the keys that were set and removed between them.

    Raises:
        GraphMismatchError: a run of another graph, which could still go on there, would be lost.
        RunExistsError: the run is not complete, and is not to be begun again.
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
    answered = progress.answered - new
    left = evolved(progress.without_step(), answered=answered)
    # Where it is not what was saved last, all keys are new.
    is_newest = newest is not None and newest.step == state.step
    saved = evolve(newest if newest is not None and is_newest else with_data(state, {}), progress=left)
    all_keys, changes = yield from with_all_keys(run, saved, differing_items(saved, state))
    made = {key: value for key, value in data_of(all_keys).items() if key not in saved and key not in state}
    state = evolve(with_data(state, {**data_of(state), **made}), progress=all_keys.progress)
    return all_keys, state, changes.keys(), saved.keys() - state.keys()


def newest_of(run: RunContext, run_id: str) -> Task[State | None]:
    """Return the newest saved State of the run, None if there is none."""
    if not run.plan.saves:
        return None
    try:
        saved: State = yield (Load, run.services.load, run_id)
    except CheckpointNotFoundError:
        return None
    return saved


def _check_complete(run: RunContext, newest: State, state: State) -> None:
    """Raise RunExistsError if a run that has begun and is not complete would be left where it stands.

    A State that was made by hand for a later step than any is none of that run: whoever makes one knows.
    """
    is_of_run = state.graph is not None or state.step <= newest.step
    if is_of_run and newest.graph is not None and newest.status is not RunStatus.COMPLETED:
        raise RunExistsError(newest.run_id, run.plan.store, newest.status.value)


def check_not_of_another(run: RunContext, newest: State | None) -> None:
    """Raise GraphMismatchError if a run is one of another graph and not complete."""
    if newest is None or newest.graph in (None, run.plan.graph) or newest.status is RunStatus.COMPLETED:
        return
    change = f"it is a run of graph {newest.graph!r} that is not complete, not of {run.plan.graph!r}"
    way_out = "Resume it with that graph, or execute the State under a run_id of its own (store.fork makes a copy)."
    raise GraphMismatchError(newest.run_id, (change,), way_out)


def check_same(run: RunContext, saved: State, state: State) -> None:
    """Raise RunExistsError unless a run that is to begin has begun before with the same State."""
    from stategraph._values.sameness import differing_items

    has_same_data = saved.keys() == state.keys() and not differing_items(saved, state)
    if not has_same_data or with_data(saved, {}) != with_data(state, {}):  # objects may refuse to be compared
        raise RunExistsError(state.run_id, run.plan.store)


def replace_newest(run: RunContext, state: State) -> Task[None]:
    """Save a State that is executed once more in place of the one that it was."""
    if run.plan.loads_parts:  # parts of the step that did not complete were made of other data
        yield (Parts, run.services.drop_parts, (state.run_id, state.step + 1, True))
    yield from save(run, (Amend, run.services.amend, state), state)


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
