"""Looking at runs that may not be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stategraph.errors import CheckpointCorruptError, CheckpointNotFoundError, FormatError, InvalidRunIdError

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


def standing(store: CheckpointStore, run_id: str) -> str:
    """Say how a run stands that somebody is about to change. A damaged one may be changed, too: that is the way out.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    try:
        newest = story(store, run_id)[-1]
    except (CheckpointCorruptError, FormatError, InvalidRunIdError):  # ids are damaged as well
        return "damaged"
    return f"{newest.status}, step {newest.step}"
