"""Histories and lists of runs in memory."""

from __future__ import annotations

import itertools

from stategraph._values.ids import is_nested_id
from stategraph.stores._checks import check_limit, check_status, from_cursor
from stategraph.stores._memory.encoded import about
from stategraph.stores._memory.held import HeldRuns
from stategraph.stores.summaries import Summary


def history(held: HeldRuns, run_id: str) -> list[Summary]:
    """Return the checkpoints of a run, in order, without their data."""
    run = held.runs.get(run_id)
    return [] if run is None else [Summary.of(about(kept)) for kept in tuple(run.kept)]


def runs(held: HeldRuns, status: str | None, graph: str | None, limit: int, after: str | None) -> list[Summary]:
    """Return the newest checkpoint of each run, without its data; the run that began last comes first."""
    check_status(status)
    before = from_cursor(after)
    newest_first = sorted(held.runs.items(), key=lambda item: item[1].number, reverse=True)
    found = (
        Summary.of(about(run.kept[-1]), str(run.number))
        for run_id, run in newest_first
        if not is_nested_id(run_id) and (before is None or run.number < before)
    )
    wanted = (run for run in found if status in (None, run.status) and graph in (None, run.graph))
    return list(itertools.islice(wanted, check_limit(limit)))
