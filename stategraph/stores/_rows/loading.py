"""Loading States and histories: each as it was at one time, and as it was written."""

from __future__ import annotations

from functools import partial

from stategraph.errors import CheckpointNotFoundError
from stategraph.state import State
from stategraph.stores._rows.records import RunRecord
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.summaries import Summary


def load(log: RunLog, run_id: str, step: int | None = None) -> State:
    """Return the newest State of a run, or the one at a step; raise as `CheckpointStore.load`."""
    return log.read(run_id, partial(_loaded, log, step), step)


def load_with_run(log: RunLog, run_id: str, step: int | None) -> tuple[RunRecord, State]:
    """Return a State, and the record of its run as it was then."""

    def read(run: RunRecord) -> tuple[RunRecord, State] | None:
        state = _loaded(log, step, run)
        return None if state is None or log.chains.is_stale(run) else (run, state)

    return log.read(run_id, read, step)


def _loaded(log: RunLog, step: int | None, run: RunRecord) -> State | None:
    """Return the State of a step (None: the newest); None if somebody else writes to the run meanwhile."""
    rows = log.table.chain(run.run_id, step)
    if not rows:
        log.chains.check_absent(run, step)
    if not rows or (step is not None and not log.chains.is_visible(run, step)):
        if log.chains.is_stale(run):
            return None
        raise CheckpointNotFoundError(run.run_id, str(log.table), step)
    is_newest = log.chains.is_newest(run, rows[-1])
    if not is_newest and (step is None or step >= run.step):
        return None
    state = log.encoder.state(run.run_id, rows, run.incarnation)
    if is_newest:
        log.known.remember(run, log.encoder.base_of(state, rows, run.incarnation))
    return state


def history(log: RunLog, run_id: str) -> list[Summary]:
    """Return the checkpoints of a run without their data; none for a run that does not exist."""
    try:
        return log.read(run_id, partial(_summaries, log))
    except CheckpointNotFoundError:
        return []


def _summaries(log: RunLog, run: RunRecord) -> list[Summary]:
    rows = log.chains.visible(run)
    if log.sealer.signs:  # which covers the payloads: who signs wants to be sure rather than fast
        for chain in log.chains.holding(run, rows):
            log.encoder.check(run.run_id, chain, run.incarnation)
    return [run.summary_of(row) for row in rows]
