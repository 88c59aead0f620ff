"""Maintenance of a store: verify all runs, sign them again, and remove what retention no longer keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from operator import attrgetter

from stategraph._owners.base import OwnableStore, owned, owned_if_free
from stategraph._util.validators import maps_texts
from stategraph._values.ids import is_parts_id
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    FormatError,
    RunBusyError,
)
from stategraph.stores._checks import RunFilter
from stategraph.stores._codec.type_codecs import unknown_shown
from stategraph.stores._rows.entries import copied, entry_of
from stategraph.stores._rows.loading import (
    chains,
    check_gapless,
    check_indexed,
    each_run,
    listing,
    newest_chain,
    read,
    summaries,
    visible,
)
from stategraph.stores._rows.records import (
    MAX_STEP,
    CheckpointRecord,
    Removal,
    RunRecord,
    Unreadable,
    WriteBatch,
)
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.summaries import Damage, Pruned, Rekeyed, Verified

_PAGE = 1_000  # runs to list at a time
_TOGETHER, _SHORT = 20, 10  # runs to read at a time, if they have no more checkpoints than that
_BATCH = 20  # runs to remove in one transaction: other writers wait for its end


def verify(log: RunLog, heads: Mapping[str, str]) -> Verified:
    """Read all runs, as `RowStore.verify`. Remember none of them."""
    if not (maps_texts(heads) and all(head.count("-") == 2 for head in heads.values())):
        raise ConfigError("heads", heads, "what store.heads() returned")
    statuses: Counter[str] = Counter()
    nested = checkpoints = 0
    damaged = [Damage("", reason) for reason in log.table.problems()]
    unreadable: list[Damage] = []
    for run_id, status, checked in _all_runs(log):
        try:
            if isinstance(status, CheckpointError):
                raise status
            checkpoints += checked or read(log, run_id, lambda run: _checked(log, run))
        except CheckpointNotFoundError:  # it was deleted at the same time
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
    damaged += _put_back(log, heads)
    return Verified(dict(sorted(statuses.items())), nested, checkpoints, tuple(damaged), tuple(unreadable))


def heads(log: RunLog) -> dict[str, str]:
    """Return a digest of the newest checkpoint of each run, as `RowStore.heads`."""
    run_ids = listing(log, attrgetter("run_id"))[0]
    nested_ids = (nested_id for run_id in run_ids for nested_id in log.table.nested_ids(run_id))
    newest: dict[str, str] = {}
    for run_id in (*run_ids, *nested_ids):
        try:
            newest[run_id] = _head(log, run_id)
        except CheckpointError as error:
            log.report(run_id, error)
    return {run_id: head for run_id, head in newest.items() if head}


def _head(log: RunLog, run_id: str) -> str:
    run = log.find(run_id)
    return "" if run is None else f"{run.incarnation.hex()}-{run.version:016x}-{run.seal.hex()}"


def _put_back(log: RunLog, heads: Mapping[str, str]) -> Iterator[Damage]:
    """Yield the runs that are older than these heads of them."""
    for run_id, before in heads.items():
        with suppress(CheckpointError):  # it is among the damaged runs
            (incarnation, version, _), now = before.split("-"), _head(log, run_id)
            if now != before and not (now.startswith(f"{incarnation}-") and now.split("-")[1] > version):
                reason = "it is older than its head, or gone: an older copy was put back, or it was deleted since"
                yield Damage(run_id, reason)


def _all_runs(log: RunLog) -> Iterator[tuple[str, str | CheckpointError | None, int]]:
    """Yield each run with its status, None if it is nested, or the error that makes it unreadable.

    The number of its checkpoints follows; 0 if it has not been checked.
    """
    runs = each_run(log, RunFilter(), _PAGE)
    while some := [*islice(runs, _TOGETHER)]:
        readable = {run.run_id: run for run in some if isinstance(run, RunRecord)}
        rows: dict[str, list[CheckpointRecord]] = {}
        with suppress(CheckpointError, FormatError):  # then each is read alone, which finds out which one is damaged
            rows = log.table.short([run.run_id for run in readable.values() if run.sequence < _SHORT])
        nested_ids = log.table.nested_ids(*readable) if readable else []
        for run in some:
            if isinstance(run, Unreadable):
                yield run.run_id, run.error, 0
            else:
                yield run.run_id, run.status.value, _checked_rows(log, run, rows.get(run.run_id, []))
        yield from ((nested_id, None, 0) for nested_id in nested_ids)


def _checked_rows(log: RunLog, run: RunRecord, rows: Sequence[CheckpointRecord]) -> int:
    """Check a run that has these rows and no entries; return their number. 0 if it must be read: it may be damaged."""
    with suppress(CheckpointError, ConfigError), unknown_shown():
        run = log.sealer.check_run(run)
        if rows and rows[-1].seal == run.tip:
            if run.policy.keeps_all:
                check_gapless(run, rows)
            for _, chain in groupby(rows, attrgetter("base")):
                log.encoder.check_content(run.run_id, [*chain], run.incarnation)
            return len([*run.summaries_of(log.sealer.shown(run.run_id, row, run.incarnation) for row in rows)])
    return 0


def _checked(log: RunLog, run: RunRecord) -> int:
    """Read all checkpoints and entries of a run; return the number of checkpoints."""
    with unknown_shown():  # a value of an unknown type is not damaged
        for _ in summaries(log, run):
            pass
        rows = log.table.index(run.run_id)
        for chain in chains(log, run, rows):
            log.encoder.check_content(run.run_id, chain, run.incarnation)
        for record in log.table.entries(run.run_id, 0, MAX_STEP):
            entry_of(log, run, record)
    return len(rows)


def rekey(store: OwnableStore, log: RunLog) -> Rekeyed:
    """Sign all runs again, as `RowStore.rekey`."""
    left: list[Damage] = []
    signed = 0
    for run in each_run(log, RunFilter(), _PAGE):
        try:
            if isinstance(run, Unreadable):
                raise run.error
            with owned(store, run.run_id):
                for run_id in (run.run_id, *log.table.nested_ids(run.run_id)):
                    signed += _is_signed_again(log, run_id, left)
        except (CheckpointError, RunBusyError) as error:
            left.append(Damage(run.run_id, getattr(error, "reason", str(error))))
    return Rekeyed(signed, tuple(left))


def _is_signed_again(log: RunLog, run_id: str, left: list[Damage]) -> bool:
    """Sign a run again; return whether that is done. Add a run that has to be left as it is."""
    try:
        return read(log, run_id, lambda run: _signed_again(log, run))
    except CheckpointNotFoundError:  # deleted at the same time, or the remains of a deleted run
        return False
    except CheckpointError as error:
        left.append(Damage(run_id, error.reason))
        return False


def _signed_again(log: RunLog, run: RunRecord) -> bool | None:
    """Check and sign one chain after another, each in one commit, and the entries with the last; return None if others
    write to the run."""
    visible(log, run)  # checks that the newest checkpoint is there
    log.forget(run.run_id)
    for chain in chains(log, run, log.table.index(run.run_id)):
        checked = log.encoder.check(run.run_id, chain, run.incarnation)
        rows = log.sealer.seal_chain(run.run_id, checked, run.incarnation)
        is_last = rows[-1].sequence == run.sequence
        tip = rows[-1].seal if is_last else run.tip
        entries = copied(log, run, None, run.run_id, run.incarnation) if is_last else ()
        new = log.sealer.sealed_run(run._replace(version=run.version + 1, tip=tip))
        if not log.write(WriteBatch(new, run, tuple(rows), outer=log.outer_of(new), entries=entries)):
            return None
        run = new
    return True


def prune(store: OwnableStore, log: RunLog) -> Pruned:
    """Remove expired runs and superfluous checkpoints, as `CheckpointStore.prune`."""
    now = log.table.now_ns()
    due: list[RunRecord] = []
    removed: list[str] = []
    cut = 0
    found, damaged = listing(log, lambda run: run)
    for run in found:
        try:
            if not run.policy.is_over(run.status, run.time_ns, now):
                cut += _prune_rows(log, run)
            else:
                log.encoder.check(run.run_id, newest_chain(log, run), run.incarnation)
                due.append(run)
        except (CheckpointCorruptError, FormatError) as error:
            if not _has_changed(log, run):  # otherwise its rows were read at different times
                damaged.append(run.run_id)
                log.report(run.run_id, error)
    for start in range(0, len(due), _BATCH):
        removed += _removed(store, log, due[start : start + _BATCH])
    if removed or cut:
        log.table.erase()
    return Pruned(tuple(removed), cut, tuple(damaged))


def _has_changed(log: RunLog, run: RunRecord) -> bool:
    try:
        return log.is_stale(run)
    except (CheckpointCorruptError, FormatError):
        return False


def _removed(store: OwnableStore, log: RunLog, runs: Sequence[RunRecord]) -> list[str]:
    """Remove those runs that have no owner and have not changed since they were checked; return their ids."""
    with owned_if_free(store, [run.run_id for run in runs]) as ownerships:
        due = [run for run in runs if run.run_id in ownerships]
        outcomes = log.table.commit([Removal(run.run_id, run.version, ownership=ownerships[run.run_id]) for run in due])
    removed: list[str] = []
    for run, outcome in zip(due, outcomes, strict=True):
        if isinstance(outcome, Exception):
            raise outcome
        if outcome:
            removed.append(run.run_id)
            log.forget_all(run.run_id)
    return removed


def _prune_rows(log: RunLog, run: RunRecord) -> int:
    """Remove the rows of a run that no kept checkpoint builds on; return their number, 0 if others write to it."""
    kept = visible(log, run)
    lowest = min((row.base for row in kept), default=0)
    superfluous = len(log.table.index(run.run_id, 0, lowest - 1)) if lowest else 0
    if not superfluous:
        return 0
    check_indexed(log, run, kept)
    shorter = log.sealer.sealed_run(run._replace(version=run.version + 1))
    if not log.write(WriteBatch(shorter, run, cut_below=lowest)):
        return 0
    log.forget(run.run_id)
    return superfluous
