"""What is nested in runs: the runs of graphs within a step, and the finished parts of a step.

Both are runs of the store that nobody is shown: their ids say in what they are nested (see `stategraph._values.ids`).
The parts of a step are the checkpoints of one such run, some at a time, as they came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from stategraph._values.ids import directly_nested, generation_of, given_id, is_parts_id, parts_id, step_of
from stategraph._values.progress import KeptParts, Part
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointError, CheckpointNotFoundError, NotSerializableError, StepConflictError
from stategraph.state import State, evolve
from stategraph.stores._codec.msgpack import encode_value
from stategraph.stores._rows.records import RunRecord, WriteBatch
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.base import RetentionPolicy

_KEEP_ALL = RetentionPolicy("full")
_TRIES = 5  # of a save, while others write


def save_parts(log: RunLog, run_id: str, parts: Sequence[Part]) -> None:
    """Keep finished parts of a step, as `CheckpointStore.save_parts`."""
    for (step, node), some in groupby(parts, lambda part: (part.step, part.node)):
        together = list(some)
        values = {part.label: [part.made_of, part.value] for part in together}
        try:
            _add(log, parts_id(run_id, step, node), State(values, parent=ParentStep(run_id, step - 1)))
        except NotSerializableError as error:
            raise named_by_part(error, together, run_id) from error.__cause__
        except CheckpointError as error:
            raise _of_outer_run(error, run_id) from error.__cause__


def _add(log: RunLog, kept_at: str, parts: State) -> None:
    """Keep the values of a State as the next checkpoint of a run of parts."""
    for _ in range(_TRIES):
        run = log.runs.find(kept_at)
        incarnation = log.runs.incarnation_of(run) if run else log.runs.incarnation_for(kept_at)
        added = evolve(parts, run_id=kept_at, step=run.step + 1 if run else 1)
        row, base = log.encoder.snapshot(added, incarnation, run and log.next_place(run, added))
        new = log.next_run(run, row, base)._replace(policy=_KEEP_ALL)
        if log.write(WriteBatch(log.sealer.sealed_run(new), run, (row,))):
            return
        log.runs.remove_left_over(kept_at)
    raise StepConflictError(given_id(kept_at), "its parts were not saved: others keep writing them")


def load_parts(log: RunLog, run_id: str, step: int, node: str) -> KeptParts:
    """Return the parts that are kept of a step, as `CheckpointStore.load_parts`."""
    try:
        return KeptParts(log.read(parts_id(run_id, step, node), partial(_values, log)))
    except CheckpointNotFoundError:
        return KeptParts({})
    except CheckpointError as error:
        raise _of_outer_run(error, run_id) from error.__cause__


def _values(log: RunLog, run: RunRecord) -> dict[str, Sequence[Any]]:
    found: dict[str, Sequence[Any]] = {}
    for row in log.visible(run):
        chain = log.table.chain(run.run_id, row.sequence)
        if chain:  # not if they were dropped meanwhile
            found.update(log.encoder.data(run.run_id, chain, run.incarnation))
    return found


def drop(log: RunLog, run_id: str, up_to: int, *, newer_parts: bool = False) -> None:
    """Forget what is nested in the steps of a run up to one, and all parts if `newer_parts`.

    Of a run of which nothing is forgotten, the runs within its story stay.
    """
    nested_ids = log.table.nested_ids(run_id)
    is_told = _in_story(log, run_id) if nested_ids else _is_none
    for nested_id in nested_ids:
        direct = directly_nested(run_id, nested_id)
        is_over = step_of(direct) <= up_to or (newer_parts and is_parts_id(direct))
        if is_over and (is_parts_id(direct) or not is_told(direct)):
            log.remove(nested_id)


def _is_none(nested_id: str) -> bool:
    """Say that a nested run belongs to no story."""
    return False


def _in_story(log: RunLog, run_id: str) -> Callable[[str], bool]:
    """Return what says of a run that is nested directly in a run whether it belongs to the story of that."""
    run = log.runs.find(run_id)
    if run is None or not log.keeps_all(run):
        return _is_none
    step, generation = run.step, log.load(run_id).generation
    return lambda nested_id: step_of(nested_id) <= step or generation_of(nested_id) != generation


def named_by_part(error: NotSerializableError, parts: Sequence[Part], run_id: str) -> NotSerializableError:
    """Return the error for parts that cannot be kept exactly, with the name of the first such part."""
    for part in parts:
        try:
            encode_value(part.value, "")
        except NotSerializableError as found:
            of = f"part {part.label!r} of node {part.node!r}"
            return NotSerializableError(f"{found.path} in {of}" if found.path else of, found.reason, run_id)
    error.run_id = run_id
    return error


def _of_outer_run(error: CheckpointError, run_id: str) -> CheckpointError:
    """Return the error as one of the run that somebody can load or delete."""
    if error.run_id:
        error.run_id = run_id
    return error
