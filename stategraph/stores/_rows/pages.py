"""A long history, a page at a time."""

from __future__ import annotations

from collections.abc import Iterator

from stategraph.errors import CheckpointCorruptError, CheckpointError
from stategraph.stores._rows.history import checked_pages
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.summaries import Summary


def iter_history(log: RunLog, run_id: str) -> Iterator[Summary]:
    """Yield the checkpoints of a run as it stands now, without their data, as `CheckpointStore.iter_history`.

    Where nothing of a run is ever replaced, they are read a page at a time. Else there are few, and with a key, what
    they are signed with covers their data: these are read at once.
    """
    run = log.runs.find(run_id)
    if run is None or not run.policy.keeps_all or log.sealer.signs:
        yield from log.history(run_id)
        return
    try:
        for rows in checked_pages(log.table, run):
            yield from run.summaries_of(rows)
    except CheckpointCorruptError as error:
        now = log.table.run(run_id)
        if now is not None and now.incarnation == run.incarnation and now.policy.keeps_all:
            raise
        reason = "while its history was read, others have deleted it, or some of its checkpoints"
        raise CheckpointError(run_id, reason) from error
