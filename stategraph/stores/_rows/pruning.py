"""Pruning: what the policies of runs say is due goes. What is damaged stays, for whoever loads it to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from stategraph._owners.free import held_if_free
from stategraph._owners.holds import Owning
from stategraph._values import clock
from stategraph.errors import CheckpointCorruptError, FormatError
from stategraph.stores._rows.records import RunRecord, WriteBatch
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.summaries import Pruned


def prune(log: RunLog) -> Pruned:
    """Remove what is due of all runs, as `CheckpointStore.prune`."""
    now = clock.now_ns()
    due: list[RunRecord] = []
    removed: list[str] = []
    cut = 0
    runs = log.runs.listing(lambda run: run)
    for run in runs.found:
        try:
            if not run.policy.is_over(run.status, run.time_ns, now):
                cut += _cut(log, run)
            elif _is_whole(log, run):
                due.append(run)
        except (CheckpointCorruptError, FormatError) as error:
            if not _went_on(log, run):  # or what was read is not of one time
                runs.damaged.append(run.run_id)
                log.runs.report(run.run_id, error)
        if len(due) == log.table.removed_together:
            removed += _removed(log, due)
            due.clear()
    removed += _removed(log, due)
    if removed or cut:
        log.table.erase()
    return Pruned(tuple(removed), cut, tuple(runs.damaged))


def _went_on(log: RunLog, run: RunRecord) -> bool:
    try:
        return log.is_stale(run)
    except (CheckpointCorruptError, FormatError):
        return False


def _is_whole(log: RunLog, run: RunRecord) -> bool:
    """Check a run whose time is over; return False if it goes on meanwhile.

    Raises:
        CheckpointCorruptError: it is damaged; it stays.
    """
    rows = log.table.chain(run.run_id, None)
    if not rows or not log.is_newest(run, rows[-1]):
        if log.is_stale(run):
            return False
        raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing")
    log.encoder.check(run.run_id, rows, run.incarnation)
    return True


def _removed(log: RunLog, runs: Sequence[RunRecord]) -> list[str]:
    """Remove runs that nobody owns, and that are as they were when they were checked; return their ids."""
    removed: list[str] = []
    with held_if_free(cast(Owning, log.table.store), [run.run_id for run in runs]) as holds:
        left = [(run, holds[run.run_id]) for run in runs if run.run_id in holds]
        while left:
            outcomes = log.table.remove_all(left)
            removed += [run.run_id for (run, _), is_removed in zip(left, outcomes, strict=False) if is_removed]
            left = left[len(outcomes) :]
    for run_id in removed:
        log.known.forget_all(run_id)
    return removed


def _cut(log: RunLog, run: RunRecord) -> int:
    """Remove the rows of a run that no visible checkpoint builds on; return how many, 0 if it goes on meanwhile."""
    lowest = min((row.base for row in log.visible(run)), default=0)
    superfluous = sum(row.sequence < lowest for row in log.table.index(run.run_id))
    if not superfluous:
        return 0
    for chain in log.holding(run, log.visible(run)):
        log.encoder.check(run.run_id, chain, run.incarnation)
    shorter = log.sealer.sealed_run(run._replace(version=run.version + 1))
    if not log.write(WriteBatch(shorter, run, cut_below=lowest)):
        return 0
    log.known.forget(run.run_id)
    return superfluous
