"""Pruning: what the policies of runs say is due goes. What is damaged stays, for whoever loads it to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from stategraph import clock
from stategraph.errors import CheckpointCorruptError, FormatError
from stategraph.stores.rows import Head, Write, is_of
from stategraph.stores.summaries import Pruned

if TYPE_CHECKING:
    from stategraph.stores.row_store import RowStore


def prune(store: RowStore) -> Pruned:
    """As `CheckpointStore.prune`."""
    now = clock.now_ns()
    removed, cut = [], 0
    for head in store._heads(None, None, -1, None):
        if head.policy.is_over(head.status, head.time_ns, now):
            if _is_removed(store, head):
                removed.append(head.run_id)
        else:
            cut += _cut(store, head)
    if removed or cut:
        store._erase()
    return Pruned(tuple(removed), cut)


def _is_removed(store: RowStore, head: Head) -> bool:
    """Remove a run whose time is over -> whether it was removed."""
    if store._is_stale(head) or not _is_sealed(store, head):  # it went on meanwhile; or the head is wrong
        return False
    store._inner_runs.drop(head.run_id)  # first: nothing of it is to be found by a run that takes its id
    is_removed = store._remove(head.run_id, head.version)
    if is_removed:
        store._forget_all(head.run_id)
    return is_removed


def _is_sealed(store: RowStore, head: Head) -> bool:
    """Whether the newest checkpoint, which has a seal, says of the run what its head says, which has none."""
    try:
        rows = store._chain(head.run_id, None)
        store._rows.check(head.run_id, rows)
    except (CheckpointCorruptError, FormatError):
        return False
    return bool(rows) and is_of(head, rows[-1])


def _cut(store: RowStore, head: Head) -> int:
    """Remove the rows of a run that no visible checkpoint builds on -> how many."""
    try:
        lowest = min((row.base for row in store._visible(head)), default=0)
        superfluous = sum(row.step < lowest for row in store._index(head.run_id))
    except CheckpointCorruptError:
        return 0
    if superfluous:
        store._commit(Write(attrs.evolve(head, version=head.version + 1), head, cut_below=lowest))
        store._forget(head.run_id)
    return superfluous
