"""A long history, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator

from stategraph.errors import CheckpointCorruptError, CheckpointError
from stategraph.stores._rows.gaps import check_all, check_gapless
from stategraph.stores._rows.records import CheckpointRecord, RunRecord
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.summaries import Summary

_PAGE = 1_000  # sequence numbers


def iter_history(log: RunLog, run_id: str) -> Iterator[Summary]:
    """Yield the checkpoints of a run as it stands now, without their data, as `CheckpointStore.iter_history`.

    Where nothing of a run is ever replaced, they are read a page at a time. Else there are few, and with a key, what
    they are signed with covers their data: these are read at once.
    """
    run = log.runs.find(run_id)
    if run is None or not run.policy.keeps_all or log.sealer.signs:
        yield from log.history(run_id)
        return
    newest: CheckpointRecord | None = None
    for first in range(0, run.sequence + 1, _PAGE):
        rows = log.table.index(run_id, first, min(first + _PAGE - 1, run.sequence))
        if rows:
            _check(log, run, rows, newest)
            yield from run.summaries_of(rows)
            newest = rows[-1]
    if newest is None or newest.seal != run.tip:
        raise _not_whole(log, run, f"its newest step {run.step} is missing, or is another")


def _check(log: RunLog, run: RunRecord, rows: list[CheckpointRecord], before: CheckpointRecord | None) -> None:
    """Raise CheckpointCorruptError if a checkpoint of a page, or one before it, was lost."""
    try:
        if before is None:
            check_all(run, rows)
        else:
            check_gapless(run, [before, *rows])
    except CheckpointCorruptError as error:
        raise _not_whole(log, run, error.reason) from error


def _not_whole(log: RunLog, run: RunRecord, reason: str) -> CheckpointError:
    now = log.table.run(run.run_id)
    if now is not None and now.incarnation == run.incarnation and now.policy.keeps_all:
        return CheckpointCorruptError(run.run_id, reason)
    return CheckpointError(run.run_id, "while its history was read, others have deleted it, or some of its checkpoints")
