"""Pruning in memory: what the policies of runs say is due goes."""

from __future__ import annotations

from stategraph._values import clock
from stategraph._values.ids import is_nested_id
from stategraph.state import time_ns_of
from stategraph.stores._memory.encoded import provenance_of
from stategraph.stores._memory.held import HeldRun, HeldRuns
from stategraph.stores.summaries import Pruned


def prune(held: HeldRuns) -> Pruned:
    """Remove runs whose time is over, and the checkpoints of others that are not kept any more."""
    now = clock.now_ns()
    over = [run_id for run_id, run in held.runs.items() if not is_nested_id(run_id) and _is_over(run, now)]
    for run_id in over:
        held.drop(run_id)
    return Pruned(tuple(over), sum(run.cut() for run in held.runs.values()))


def _is_over(run: HeldRun, now: int) -> bool:
    newest = provenance_of(run.kept[-1])
    return run.policy.is_over(newest.status, time_ns_of(newest), now)
