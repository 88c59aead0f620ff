"""The finished parts of a step.

Parts are kept in a run that no list shows: its id names the outer run and the step (see `stategraph._values.ids`). Each
of its checkpoints has the parts that were saved together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from stategraph._values.ids import directly_nested, given_id, is_parts_id, parts_id, step_of
from stategraph._values.progress import KeptParts, Part
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointError, CheckpointNotFoundError, NotSerializableError, StepConflictError
from stategraph.state import State, evolve
from stategraph.stores._checks import is_in_story
from stategraph.stores._codec.msgpack import encode_value
from stategraph.stores._rows.loading import load, read, visible
from stategraph.stores._rows.records import RunRecord, WriteBatch
from stategraph.stores._rows.run_log import RunLog
from stategraph.stores.base import RetentionPolicy

_KEEP_ALL = RetentionPolicy("full")
_TRIES = 5  # attempts at a save while others write


def save_parts(log: RunLog, run_id: str, parts: Sequence[Part]) -> None:
    """Save finished parts of a step, as `CheckpointStore.save_parts`."""
    for (step, node), some in groupby(parts, lambda part: (part.step, part.node)):
        same_step = list(some)
        values = {part.label: [part.made_of, part.value] for part in same_step}
        try:
            _add(log, parts_id(run_id, step, node), State(values, parent=ParentStep(run_id, step - 1)))
        except NotSerializableError as error:
            raise named_by_part(error, same_step, run_id) from error.__cause__
        except CheckpointError as error:
            raise _of_outer_run(error, run_id) from error.__cause__


def _add(log: RunLog, kept_at: str, parts: State) -> None:
    """Save parts as the next checkpoint of their run."""
    for _ in range(_TRIES):
        run = log.find(kept_at)
        incarnation = run.incarnation if run else log.incarnation_for(kept_at)
        log.check_known(kept_at, incarnation)
        added = evolve(parts, run_id=kept_at, step=run.step + 1 if run else 1)
        row, base = log.encoder.snapshot(added, incarnation, run and (run.sequence + 1, 0))
        new = log.sealer.sealed_run(log.next_run(run, row, base)._replace(policy=_KEEP_ALL))
        if log.write(WriteBatch(new, run, (row,), outer=log.outer_of(new))):
            return
        log.remove_left_over(kept_at)
    raise StepConflictError(given_id(kept_at), "its parts were not saved: others keep writing them")


def load_parts(log: RunLog, run_id: str, step: int, node: str) -> KeptParts:
    """Return the kept parts of a step, as `CheckpointStore.load_parts`."""
    try:
        return KeptParts(read(log, parts_id(run_id, step, node), partial(_values, log)))
    except CheckpointNotFoundError:
        return KeptParts({})
    except CheckpointError as error:
        raise _of_outer_run(error, run_id) from error.__cause__


def _values(log: RunLog, run: RunRecord) -> dict[str, Sequence[Any]]:
    found: dict[str, Sequence[Any]] = {}
    for row in visible(log, run):
        chain = log.table.chain(run.run_id, row.sequence)
        if chain:  # it was not removed at the same time
            found.update(log.encoder.data(run.run_id, chain, run.incarnation))
    return found


def drop(log: RunLog, run_id: str, up_to: int, *, newer_parts: bool = False) -> None:
    """Remove the nested runs and parts of a run up to a step, and all later parts too if `newer_parts`.

    With retention "full", nested runs that belong to the history stay.
    """
    nested_ids = log.table.nested_ids(run_id)
    run = log.find(run_id) if nested_ids else None
    story = (run.step, load(log, run_id).generation) if run and log.policy_of(run_id, run).keeps_all else None
    for nested_id in nested_ids:
        direct = directly_nested(run_id, nested_id)
        is_over = step_of(direct) <= up_to or (newer_parts and is_parts_id(direct))
        if is_over and (story is None or is_parts_id(direct) or not is_in_story(direct, *story)):
            log.remove(nested_id)


def named_by_part(error: NotSerializableError, parts: Sequence[Part], run_id: str) -> NotSerializableError:
    """Return the error for parts that cannot be kept exactly; it names the first such part."""
    for part in parts:
        try:
            encode_value(part.value, "")
        except NotSerializableError as found:
            of = f"part {part.label!r} of node {part.node!r}"
            return NotSerializableError(f"{found.path} in {of}" if found.path else of, found.reason, run_id)
    error.run_id = run_id
    return error


def _of_outer_run(error: CheckpointError, run_id: str) -> CheckpointError:
    """Attribute an error to the outer run, which users can load or delete."""
    if error.run_id:
        error.run_id = run_id
    return error
