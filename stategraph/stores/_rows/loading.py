"""Loading: read the States and the history of a run from the chains of its checkpoints.

A chain is a snapshot and consecutive checkpoints that build on it. All rows of a loaded run are from the same moment.
If a checkpoint is missing, retention removed it; otherwise loading fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from stategraph._values.ids import is_nested_id
from stategraph.errors import CheckpointCorruptError, CheckpointError, CheckpointNotFoundError
from stategraph.state import State
from stategraph.stores._checks import RunFilter, later, place_of
from stategraph.stores._rows.records import MAX_STEP, CheckpointRecord, RunRecord, Unreadable
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.summaries import Summary

_READS = 100  # attempts at reading a run that others write to; one read is much shorter than the time between saves
_PAGE = 1_000  # sequence numbers
_LIST_PAGE = 100  # the fewest runs to read at once if few of them may match a filter
_ALL = RunFilter()

_Read = TypeVar("_Read")


def read(
    log: RunLog,
    run_id: str,
    read_run: Callable[[RunRecord], _Read | None],
    step: int | None = None,
    listed: RunRecord | None = None,
) -> _Read:
    """Read a run consistently.

    Args:
        log: The runs of the store.
        run_id: The run.
        read_run: Called with the record of the run; again if others write to the run at the same time and it returns
            None, or raises CheckpointCorruptError or CheckpointNotFoundError.
        step: The step to read, for the error.
        listed: The record of the run, if it was read before.

    Raises:
        CheckpointNotFoundError: there is no such run.
    """
    for _ in range(_READS):
        # First: a write before the rows are read makes this version stale.
        run, listed = listed or log.find(run_id), None
        if run is None:
            log.forget(run_id)
            raise CheckpointNotFoundError(run_id, log.table.store, step)
        try:
            found = read_run(run)
        except (CheckpointCorruptError, CheckpointNotFoundError):
            if not log.is_stale(run):
                raise
        else:
            if found is not None:
                return found
    raise CheckpointError(run_id, f"it was not read from the {log.table.store}: others keep writing to it")


# --------------------------------------------------------------------------- States


def load(
    log: RunLog, run_id: str, step: int | None = None, revision: int | None = None, listed: RunRecord | None = None
) -> State:
    """Return the newest State of a run, or the State of a step; raise as `CheckpointStore.load`."""
    return read(log, run_id, lambda run: loaded(log, run, step, revision), step, listed)[1]


def loaded(
    log: RunLog, run: RunRecord, step: int | None = None, revision: int | None = None
) -> tuple[CheckpointRecord, State]:
    """Return the row and the State of the newest checkpoint of a run, or of a step."""
    wanted = run.step if step is None else step
    at = run.sequence if step is None and revision is None else _sequence_of(log, run, wanted, revision)
    rows = newest_chain(log, run) if at == run.sequence else _earlier_chain(log, run, wanted, at, revision)
    state = log.encoder.state(run.run_id, rows, run.incarnation)
    if at == run.sequence:
        log.remember((run, log.encoder.base_of(state, rows), None, None))
    return rows[-1], state


def newest_chain(log: RunLog, run: RunRecord) -> list[CheckpointRecord]:
    """Return the newest row of a run with those that it builds on.

    Raises:
        CheckpointCorruptError: it is damaged, or others have written to the run.
    """
    rows = log.table.chain(run.run_id, None)  # a row that the record does not know shows that this is an older record
    if not rows or rows[-1].seal != run.tip:
        raise _newest_missing(run, rows)
    return rows


def _newest_missing(run: RunRecord, rows: Sequence[CheckpointRecord] = ()) -> CheckpointCorruptError:
    reason = f"its newest step {run.step} is missing, or is another than was saved"
    if rows and rows[-1].sequence > run.sequence:
        reason = (
            f"its record ends at step {run.step}, and later ones are there: an older copy of the record was put back"
        )
    return CheckpointCorruptError(run.run_id, reason)


def _earlier_chain(
    log: RunLog, run: RunRecord, step: int, at: int | None, revision: int | None
) -> list[CheckpointRecord]:
    """Return the row of an earlier step with those that it builds on."""
    rows = [] if at is None else log.table.chain(run.run_id, at)
    if not rows and step <= run.sequence:
        _check_absent(log, run, step)
    is_kept = rows and (run.policy.max_checkpoints is None or any(row.sequence == at for row in visible(log, run)))
    if not is_kept:
        raise CheckpointNotFoundError(run.run_id, log.table.store, step, revision)
    if log.sealer.is_keyed and (later := log.table.index(run.run_id, run.sequence + 1)):
        raise _newest_missing(run, later)
    if revision is None and run.sequence > run.step:
        _check_followed(log, run, rows[-1])
    return rows


def _sequence_of(log: RunLog, run: RunRecord, step: int, revision: int | None) -> int | None:
    """Return the sequence number of the given revision of a step, or of the newest one; None if there is none."""
    ahead = run.sequence - run.step
    if not ahead:  # most runs have one checkpoint of each step
        return None if revision or step > run.step else step
    rows = log.table.index(run.run_id, step, min(step + ahead, run.sequence))
    found = [row.sequence for row in rows if row.step == step and revision in (None, row.revision)]
    return found[-1] if found else None


def _check_absent(log: RunLog, run: RunRecord, step: int) -> None:
    """Raise CheckpointCorruptError if a missing checkpoint was lost, rather than removed or never saved.

    Later rows that build on it show that it existed. A row in its place may be a damaged form of it.
    """
    last = step + run.sequence - run.step  # the highest sequence number that a row of the step can have
    rows = log.table.index(run.run_id, step)
    after = next((row.sequence for row in rows if row.sequence > last), last)
    check_indexed(log, run, [row for row in rows if row.sequence <= after])


def _check_followed(log: RunLog, run: RunRecord, row: CheckpointRecord) -> None:
    """Raise CheckpointCorruptError if a newer revision of the step of this row was lost."""
    first = row.sequence + 1
    rows = log.table.index(run.run_id, first, first) or log.table.index(run.run_id, first, run.sequence)[:1]
    if not rows:
        raise _newest_missing(run)
    if log.sealer.is_keyed:
        check_indexed(log, run, rows)
    check_gapless(run, [row, *rows])


# --------------------------------------------------------------------------- checkpoints without their data


def visible(log: RunLog, run: RunRecord) -> list[CheckpointRecord]:
    """Return the checkpoints of a run that retention keeps. The table may hold more, which these build on."""
    rows = log.table.index(run.run_id)
    if not (rows and rows[-1].seal == run.tip) and not log.is_stale(run):
        raise _newest_missing(run, rows)
    return rows[run.policy.first_kept(rows) :]


def chains(log: RunLog, run: RunRecord, rows: Sequence[CheckpointRecord]) -> Iterator[list[CheckpointRecord]]:
    """Yield the chains of a run in which these checkpoints are.

    Raises:
        CheckpointCorruptError: a checkpoint is missing; others may have removed it at the same time.
    """
    newest_on = {row.base: row.sequence for row in rows}  # the last row builds on all others with the same base
    for sequence in newest_on.values():
        chain = log.table.chain(run.run_id, sequence)
        if not chain:
            raise CheckpointCorruptError(run.run_id, f"its checkpoint number {sequence} is missing")
        yield chain


def check_indexed(log: RunLog, run: RunRecord, rows: Sequence[CheckpointRecord]) -> None:
    """Check that the rows of an index are where they were sealed, with all rows that they build on.

    Raises:
        CheckpointCorruptError: a row, or a row that it builds on, is damaged.
        FormatError: a newer version wrote a row, or damage makes it look so.
    """
    found: set[tuple[int, int, bytes]] = set()
    for chain in chains(log, run, rows):
        log.encoder.check(run.run_id, chain, run.incarnation)
        found.update((row.sequence, row.base, row.seal) for row in chain)
    if not found.issuperset((row.sequence, row.base, row.seal) for row in rows):
        raise CheckpointCorruptError(run.run_id, "its checkpoints do not build on those that they name")


def check_gapless(run: RunRecord, rows: Sequence[CheckpointRecord]) -> None:
    """Raise CheckpointCorruptError if sequence numbers show that a checkpoint between two others was lost."""
    for row, after in pairwise(rows):
        if after.sequence != row.sequence + max(1, after.step - row.step):
            raise CheckpointCorruptError(run.run_id, f"a checkpoint that was saved after step {row.step} is missing")


def history(log: RunLog, run_id: str, after: str | None = None) -> list[Summary]:
    """Return the checkpoints of a run without their data, as `CheckpointStore.history`."""
    try:
        return read(log, run_id, lambda run: [*(summaries(log, run) if after is None else _newer(log, run, after))])
    except CheckpointNotFoundError:
        return []


def _newer(log: RunLog, run: RunRecord, after: str) -> Iterable[Summary]:
    """Return the checkpoints after the one with a cursor, without their data."""
    rows = log.table.index(run.run_id, place_of(after))
    if not rows or rows[0].cursor != after:  # it was replaced or removed, or another run has begun under this id
        return later([*summaries(log, run)], after, attrgetter("cursor"))
    if rows[-1].seal != run.tip:
        raise _newest_missing(run, rows)
    if run.policy.keeps_all:
        check_gapless(run, rows)
    newer = rows[max(1, run.policy.first_kept(rows)) :]
    return _shown(log, run, newer)


def _shown(log: RunLog, run: RunRecord, rows: Sequence[CheckpointRecord]) -> Iterator[Summary]:
    if log.sealer.is_keyed:  # a key proves the payload too: users of keys prefer certainty to speed
        check_indexed(log, run, rows)
    return run.summaries_of(log.sealer.shown(run.run_id, row, run.incarnation) for row in rows)


def iter_history(log: RunLog, run_id: str) -> Iterator[Summary]:
    """Yield the current checkpoints of a run without their data, as `CheckpointStore.iter_history`."""
    run = log.find(run_id)
    if run is None or not run.policy.keeps_all:  # it has few checkpoints
        yield from history(log, run_id)
        return
    try:
        yield from summaries(log, run, _PAGE)
    except CheckpointCorruptError as error:
        now = log.table.run(run_id)
        if now is not None and now.incarnation == run.incarnation and now.policy.keeps_all:
            raise
        reason = "while its history was read, others have deleted it, or some of its checkpoints"
        raise CheckpointError(run_id, reason) from error


def summaries(log: RunLog, run: RunRecord, page: int = MAX_STEP) -> Iterator[Summary]:
    """Yield the checkpoints of a run that retention keeps, without their data.

    Of a run that keeps all, read those with the sequence numbers of a page at a time.
    """
    for rows in _pages(log, run, page) if run.policy.keeps_all else (visible(log, run),):
        yield from _shown(log, run, rows)


def _pages(log: RunLog, run: RunRecord, page: int) -> Iterator[list[CheckpointRecord]]:
    """Yield the checkpoints of a run that keeps all, a page at a time. There must be no gap between them."""
    newest: list[CheckpointRecord] = []
    for first in range(0, run.sequence + 1, page):
        last = first + page - 1
        rows = log.table.index(run.run_id, first, last if last < run.sequence else MAX_STEP)
        if rows and rows[-1].sequence > run.sequence:
            if not log.is_stale(run):
                raise _newest_missing(run, rows)
            rows = [row for row in rows if row.sequence <= run.sequence]
        if rows and not newest and not rows[0].is_snapshot:
            raise CheckpointCorruptError(run.run_id, f"a checkpoint before step {rows[0].step} is missing")
        check_gapless(run, newest + rows)
        yield rows
        newest = rows[-1:] or newest
    if not (newest and (newest[0].seal == run.tip or _is_saved_again(log, run, newest[0]))):
        raise _newest_missing(run)


def _is_saved_again(log: RunLog, run: RunRecord, newest: CheckpointRecord) -> bool:
    """Return whether others have saved the newest State of a run once more since its record was read."""
    now = log.table.run(run.run_id)
    is_same_run = now is not None and now.incarnation == run.incarnation and now.version != run.version
    return is_same_run and newest.sequence == run.sequence


# --------------------------------------------------------------------------- lists of runs


def listing(
    log: RunLog,
    read: Callable[[RunRecord], _Read],
    which: RunFilter = _ALL,
    limit: int = -1,
    before: int | None = None,
    owner_of: Callable[[str], object] = str,
) -> tuple[list[_Read], list[str]]:
    """Read runs, newest first. Return the results, and the ids of damaged runs, which are left out and logged.

    Args:
        log: The runs of the store.
        read: Called with the record of each run; raises a CheckpointError if it is damaged.
        which: Only these runs.
        limit: The most runs to return; all if negative.
        before: Only runs with a number below this one.
        owner_of: Returns the owner of a run.
    """
    found: list[_Read] = []
    damaged: dict[str, None] = {}  # a run whose number cannot be read is on every page
    if which.owned and which.owned_ids is not None and not which.owned_ids:
        return found, []
    page = max(limit, _LIST_PAGE) if limit > 0 and which.is_narrow else limit
    for run in each_run(log, which, page, before):
        try:
            if isinstance(run, Unreadable):
                raise run.error
            if (wanted := _wanted(log, run, which, owner_of)) is not None:
                found.append(read(wanted))
        except CheckpointError as error:
            damaged[run.run_id] = None
            log.report(run.run_id, error)
        if len(found) == limit:
            break
    return found, [*damaged]


def each_run(log: RunLog, which: RunFilter, page: int, before: int | None = None) -> Iterator[RunRecord | Unreadable]:
    """Yield runs, newest first. Read a page of them at a time; all at once if it is negative."""
    while True:
        found = log.table.runs(which, page, before)
        yield from found
        numbers = [run.number for run in found if run.number is not None]
        if page < 0 or len(found) < page or not numbers:
            return
        before = min(numbers)


def _wanted(log: RunLog, run: RunRecord, which: RunFilter, owner_of: Callable[[str], object]) -> RunRecord | None:
    """Return a run, decrypted, if it matches a filter. Raise CheckpointCorruptError if it is damaged."""
    is_nested = is_nested_id(run.run_id)
    if is_nested and not which.takes_id(run.run_id):  # not a run, but parts of a step
        return None
    run = log.sealer.check_run(run)
    is_taken = which is _ALL or which.takes(run, owner_of)
    return run if is_taken and (not is_nested or log.is_of_its_run(run)) else None
