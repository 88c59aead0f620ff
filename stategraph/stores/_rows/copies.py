"""Copies of runs for `fork`: their history, and all that is nested in their next step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import attrs

from stategraph._values.ids import given_id, is_parts_id, outer_id, step_of
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointCorruptError, CheckpointNotFoundError, RunExistsError, StepConflictError
from stategraph.state import State, evolve
from stategraph.stores._rows.encoder import Place
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, WriteBatch
from stategraph.stores._rows.run_log import RunLog


def copy_run(log: RunLog, source: RunRecord, copy: State, place: Place, *, with_nested: bool) -> None:
    """Begin a run with this State and the history that another run has before it.

    Args:
        log: The runs of the store.
        source: The other run.
        copy: The State, of the run that begins.
        place: Where the State that it is a copy of stands in its run.
        with_nested: Copy all that is nested in the step after, too.

    Raises:
        RunExistsError: there is a run of this id.
        StepConflictError: others wrote to the source meanwhile.
        CheckpointCorruptError: what is to be copied is damaged.
    """
    incarnation = log.runs.incarnation_for(copy.run_id)
    with _of_one_time(log, source):
        batches = [_copied_run(log, source, copy, place, incarnation)]
        for batch in _nested(log, source.run_id, copy.step, copy.run_id, incarnation) if with_nested else ():
            batches.append(attrs.evolve(batch, outer=incarnation))  # written only together with its outer run
    is_of_one_read = len(batches) == len(batches[0].put) == 1
    if not is_of_one_read and log.is_stale(source) and (len(batches) > 1 or not _has_grown(log, source)):
        raise _overtaken(source)
    begin_runs(log, batches)


def _has_grown(log: RunLog, run: RunRecord) -> bool:
    """Return whether all that others may have done to a run is to add to it: what it held before stands as it was."""
    now = log.table.run(run.run_id)
    return now is not None and now.incarnation == run.incarnation and log.keeps_all(run) and log.keeps_all(now)


@contextmanager
def _of_one_time(log: RunLog, run: RunRecord) -> Iterator[None]:
    """Raise StepConflictError in place of CheckpointCorruptError if others wrote to the run while it was read."""
    try:
        yield
    except CheckpointCorruptError:
        if log.is_stale(run):
            raise _overtaken(run) from None
        raise


def begin_runs(log: RunLog, batches: Sequence[WriteBatch]) -> None:
    """Write batches that begin runs, in one transaction. Where another process begins one of them at the same time,
    the others are taken back."""
    for batch in batches:
        log.runs.remove_left_over(batch.run.run_id)
        if log.table.run(batch.run.run_id) is not None:
            raise RunExistsError(batch.run.run_id, str(log.table))
    written = log.table.apply(batches)
    if all(written):
        return
    for batch, is_written in zip(batches, written, strict=True):
        if is_written:
            log.table.remove(batch.run.run_id, batch.run.version)
    raise RunExistsError(batches[written.index(False)].run.run_id, str(log.table))


def _copied_run(log: RunLog, source: RunRecord, copy: State, place: Place, incarnation: bytes) -> WriteBatch:
    """Return the batch that keeps a State as the newest of a new run, with what another run has before it."""
    row, base = log.encoder.snapshot(copy, incarnation, place)
    run = log.next_run(None, row, base)._replace(policy=source.policy)
    return WriteBatch(log.sealer.sealed_run(run), None, (*_earlier(log, source, copy.run_id, place, incarnation), row))


def _earlier(
    log: RunLog, source: RunRecord, new_run_id: str, place: Place, incarnation: bytes
) -> Iterator[CheckpointRecord]:
    """Yield copies of the checkpoints of a run before a place, and of what they build on."""
    visible = [row for row in log.visible(source) if row.sequence < place[0]]
    for chain in log.holding(source, visible):
        yield from log.encoder.copied(source, new_run_id, incarnation, chain)


# --------------------------------------------------------------------------- what is nested


def _nested(log: RunLog, run_id: str, step: int, new_run_id: str, incarnation: bytes) -> Iterator[WriteBatch]:
    """Yield the batches that copy what is nested in the step after this one of a run."""
    for nested_id in log.table.nested_ids(run_id):
        if outer_id(nested_id) != run_id or step_of(nested_id) != step + 1:
            continue
        run = log.runs.find(nested_id)
        if run is not None:
            new_id, parent = new_run_id + nested_id.removeprefix(run_id), ParentStep(new_run_id, step)
            copied = _copied_parts if is_parts_id(nested_id) else _copied_nested_run
            with _of_one_time(log, run):
                batches = [*copied(log, run, new_id, parent, incarnation)]
            yield from batches


def _copied_parts(
    log: RunLog, run: RunRecord, new_id: str, parent: ParentStep, incarnation: bytes
) -> Iterator[WriteBatch]:
    copies: list[CheckpointRecord] = []
    for at in log.visible(run):
        copies += log.encoder.copied(run, new_id, incarnation, log.table.chain(run.run_id, at.sequence))
    if not copies:  # they were dropped meanwhile
        return
    tip = copies[-1].seal
    copy = run._replace(run_id=new_id, number=0, parent=parent, incarnation=incarnation, tip=tip)
    yield WriteBatch(log.sealer.sealed_run(copy), None, tuple(copies))


def _copied_nested_run(
    log: RunLog, run: RunRecord, new_id: str, parent: ParentStep, incarnation: bytes
) -> Iterator[WriteBatch]:
    try:
        run, row, state = log.load_with_run(run.run_id, None)
    except CheckpointNotFoundError:  # its last step was joined meanwhile
        return
    place = row.sequence, row.revision
    yield _copied_run(log, run, evolve(state, run_id=new_id, parent=parent), place, incarnation)
    yield from _nested(log, run.run_id, state.step, new_id, incarnation)


def _overtaken(run: RunRecord) -> StepConflictError:
    return StepConflictError(given_id(run.run_id), "others wrote to it while it was copied: fork it again")
