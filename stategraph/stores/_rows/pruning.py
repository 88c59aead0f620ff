"""Pruning: what the policies of runs say is due goes. What is damaged stays, for whoever loads it to see."""

from __future__ import annotations

from typing import cast

from stategraph._owners.free import held_if_free
from stategraph._owners.holds import Owning
from stategraph._values import clock
from stategraph.errors import CheckpointCorruptError, FormatError, RunBusyError, RunLostError
from stategraph.stores._rows.records import RunRecord, WriteBatch
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.summaries import Pruned


def prune(log: RunLog) -> Pruned:
    """Remove what is due of all runs, as `CheckpointStore.prune`."""
    now = clock.now_ns()
    removed, cut = [], 0
    runs = log.runs.listing(lambda run: run)
    for run in runs.found:
        try:
            if not run.policy.is_over(run.status, run.time_ns, now):
                cut += _cut(log, run)
            elif _is_removed(log, run):
                removed.append(run.run_id)
        except (CheckpointCorruptError, FormatError) as error:
            if not _went_on(log, run):  # or what was read is not of one time
                runs.damaged.append(run.run_id)
                log.runs.report(run.run_id, error)
    if removed or cut:
        log.table.erase()
    return Pruned(tuple(removed), cut, tuple(runs.damaged))


def _went_on(log: RunLog, run: RunRecord) -> bool:
    try:
        return log.is_stale(run)
    except (CheckpointCorruptError, FormatError):
        return False


def _is_removed(log: RunLog, run: RunRecord) -> bool:
    """Remove a run whose time is over; return False if it goes on meanwhile.

    Raises:
        CheckpointCorruptError: it is damaged; it stays.
    """
    rows = log.table.chain(run.run_id, None)
    if log.is_stale(run):  # it went on meanwhile
        return False
    if not rows or not log.is_newest(run, rows[-1]):
        raise CheckpointCorruptError(run.run_id, f"its newest step {run.step} is missing")
    log.encoder.check(run.run_id, rows, run.incarnation)
    with held_if_free(cast(Owning, log.table.store), run.run_id) as hold:
        try:
            return hold is not None and log.remove(run.run_id, run.version)
        except (RunBusyError, RunLostError):
            return False


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
