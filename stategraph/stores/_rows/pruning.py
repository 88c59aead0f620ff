"""Pruning: what the policies of runs say is due goes. What is damaged stays, for whoever loads it to see."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stategraph._values import clock
from stategraph.errors import CheckpointCorruptError, FormatError
from stategraph.stores._rows.records import Head, Write
from stategraph.stores.summaries import Pruned

if TYPE_CHECKING:
    from stategraph.stores._rows.store import RowStore


def prune(store: RowStore) -> Pruned:
    """As `CheckpointStore.prune`."""
    now = clock.now_ns()
    removed, cut = [], 0
    runs = store._heads_of.listing(lambda head: head)
    for head in runs.told:
        try:
            if not head.policy.is_over(head.status, head.time_ns, now):
                cut += _cut(store, head)
            elif _is_removed(store, head):
                removed.append(head.run_id)
        except (CheckpointCorruptError, FormatError) as error:
            if not _went_on(store, head):  # or what was read is not of one time
                runs.damaged.append(head.run_id)
                store._heads_of.report(head.run_id, error)
    if removed or cut:
        store._erase()
    return Pruned(tuple(removed), cut, tuple(runs.damaged))


def _went_on(store: RowStore, head: Head) -> bool:
    try:
        return store._chains.is_stale(head)
    except (CheckpointCorruptError, FormatError):
        return False


def _is_removed(store: RowStore, head: Head) -> bool:
    """Remove a run whose time is over -> whether it was removed. What is damaged stays, for whoever loads it to see."""
    rows = store._chain(head.run_id, None)
    if store._chains.is_stale(head):  # it went on meanwhile
        return False
    if not rows or not store._chains.is_newest(head, rows[-1]):
        raise CheckpointCorruptError(head.run_id, f"its newest step {head.step} is missing")
    store._rows.check(head.run_id, rows, head.incarnation)
    is_removed = store._remove(head.run_id, head.version)
    if is_removed:
        store._forget_all(head.run_id)
    return is_removed


def _cut(store: RowStore, head: Head) -> int:
    """Remove the rows of a run that no visible checkpoint builds on -> how many; none if it goes on meanwhile."""
    lowest = min((row.base for row in store._chains.visible(head)), default=0)
    superfluous = sum(row.step < lowest for row in store._index(head.run_id))
    if not superfluous:
        return 0
    for chain in store._chains.groups(head, store._chains.visible(head)):
        store._rows.check(head.run_id, chain, head.incarnation)
    shorter = store._sealer.sealed_head(head._replace(version=head.version + 1))
    if not store._made(Write(shorter, head, cut_below=lowest)):
        return 0
    store._known.forget(head.run_id)
    return superfluous
