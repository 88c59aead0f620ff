"""Verifying a store: all that it holds is read, down to the last row, and what is damaged is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stategraph._values.ids import is_parts_id
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigError,
)
from stategraph.stores._checks import RunFilter
from stategraph.stores._codec.opaque import unknown_shown
from stategraph.stores._rows.records import RunRecord, Unreadable
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.summaries import Damage, Verified

_PAGE = 1_000  # runs that are looked for at a time


def verify(log: RunLog) -> Verified:
    """Read everything, as `CheckpointStore.verify`. Nothing of what is read is kept in memory."""
    statuses: Counter[str] = Counter()
    nested = checkpoints = 0
    damaged = [Damage("", reason) for reason in log.table.problems()]
    unreadable: list[Damage] = []
    for run_id, status in _all_runs(log):
        try:
            if isinstance(status, CheckpointError):
                raise status
            checkpoints += log.read(run_id, lambda run: _checked(log, run))
        except CheckpointNotFoundError:  # it was deleted meanwhile
            continue
        except CheckpointCorruptError as error:
            damaged.append(Damage(run_id, error.reason))
        except CheckpointError as error:
            unreadable.append(Damage(run_id, error.reason))
        except ConfigError as error:
            unreadable.append(Damage(run_id, str(error)))
        if status is None:
            nested += not is_parts_id(run_id)
        else:
            statuses["damaged" if isinstance(status, CheckpointError) else status] += 1
    return Verified(dict(sorted(statuses.items())), nested, checkpoints, tuple(damaged), tuple(unreadable))


def _all_runs(log: RunLog) -> Iterator[tuple[str, str | CheckpointError | None]]:
    """Yield the ids of all runs, each with its status, None if it is nested, or why it cannot be read."""
    before = None
    while page := log.table.runs(RunFilter(), _PAGE, before):
        for run in page:
            if isinstance(run, Unreadable):
                yield run.run_id, run.error
                continue
            yield run.run_id, run.status.value
            yield from ((nested_id, None) for nested_id in log.table.nested_ids(run.run_id))
        numbers = [run.number for run in page if run.number is not None]
        if len(page) < _PAGE or not numbers:
            return
        before = min(numbers)


def _checked(log: RunLog, run: RunRecord) -> int:
    """Return how many checkpoints a run has. Raises what is wrong with one of them."""
    with unknown_shown():  # what is not known here is not damaged
        log.summaries(run)
        rows = log.table.index(run.run_id)
        for chain in log.holding(run, rows):
            if is_parts_id(run.run_id):
                log.encoder.data(run.run_id, chain, run.incarnation)
            else:
                log.encoder.state(run.run_id, chain, run.incarnation)
    return len(rows)
