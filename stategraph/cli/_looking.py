"""Looking at runs that may not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stategraph.errors import CheckpointNotFoundError

if TYPE_CHECKING:
    from stategraph.state import State
    from stategraph.stores.base import CheckpointStore
    from stategraph.stores.summaries import Summary


def look(store: CheckpointStore, run_id: str, step: int | None = None, revision: int | None = None) -> State:
    """Return a State, raising as `CheckpointStore.load`. A store that keeps no revisions is not asked for one."""
    return store.load(run_id, step) if revision is None else store.load(run_id, step, revision)


def story(store: CheckpointStore, run_id: str) -> list[Summary]:
    """Return the checkpoints of a run, of which there is one at least.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    rows = store.history(run_id)
    if not rows:
        raise CheckpointNotFoundError(run_id, str(store))
    return rows
