"""The doors of selective persistence: what the engine asks about keys that are not saved.

Behind them are `recompute` and `stategraph._progress.origins`, which are imported for runs that have such keys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from stategraph._engine.context import NOTHING_GIVEN, RunContext
from stategraph._protocol.commands import Task
from stategraph.state import State


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
