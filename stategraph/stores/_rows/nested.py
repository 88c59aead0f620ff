"""What is within runs: the runs of graphs within a step, and the parts of a step that are finished.

Both are runs of the store that nobody is shown: their ids say in what they are (see `stategraph._values.ids`).
They share the incarnation of the run that they are within, so that what a deleted run has left is never taken for a
part of one that has begun anew. The parts of a step are the checkpoints of one such run, some at a time, as they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from stategraph._values.ids import directly_within, given_id, is_parts_id, parts_id, step_of
from stategraph._values.provenance import ParentStep, Part
from stategraph.errors import CheckpointError, CheckpointNotFoundError, NotSerializableError, StepConflictError
from stategraph.state import State, evolve
from stategraph.stores._codec.msgpack import encode_value
from stategraph.stores._rows.records import Head, Write
from stategraph.stores.retention import Policy

if TYPE_CHECKING:
    from stategraph.stores._rows.store import RowStore

_KEPT_WHOLE = Policy("full")
_TRIES = 5  # of a save, while others write


class InnerRuns:
    """The runs within the runs of a store."""

    def __init__(self, store: RowStore) -> None:
        self._store = store

    # ------------------------------------------------------------------ parts

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        """As `CheckpointStore.save_parts`."""
        for (step, node), some in groupby(parts, lambda part: (part.step, part.node)):
            together = list(some)
            values = {part.label: part.value for part in together}
            try:
                self._add(parts_id(run_id, step, node), State(values, parent=ParentStep(run_id, step - 1)))
            except NotSerializableError as error:
                raise named_by_part(error, together, run_id) from error.__cause__
            except CheckpointError as error:
                raise _of_outer(error, run_id) from error.__cause__

    def _add(self, kept_at: str, parts: State) -> None:
        store = self._store
        for _ in range(_TRIES):
            head = store._heads_of.find(kept_at)
            incarnation = store._heads_of.incarnation_within(head) if head else store._heads_of.incarnation_for(kept_at)
            added = evolve(parts, run_id=kept_at, step=head.step + 1 if head else 1)
            row, _tail = store._rows.snapshot(added, incarnation)
            new = store._next_head(head, added, row, incarnation)._replace(policy=_KEPT_WHOLE)
            if store._made(Write(store._sealer.sealed_head(new), head, (row,))):
                return
            store._heads_of.remove_left_over(kept_at)
        raise StepConflictError(given_id(kept_at), "its parts were not saved: others keep writing them")

    def load_parts(self, run_id: str, step: int, node: str) -> dict[str, Any]:
        """As `CheckpointStore.load_parts`."""
        try:
            return self._store._read(parts_id(run_id, step, node), self._values)
        except CheckpointNotFoundError:
            return {}
        except CheckpointError as error:
            raise _of_outer(error, run_id) from error.__cause__

    def _values(self, head: Head) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for row in self._store._chains.visible(head):
            rows = self._store._chain(head.run_id, row.step)
            if rows:  # not if they were dropped meanwhile
                found.update(self._store._rows.data(head.run_id, rows, head.incarnation)[0])
        return found

    # ------------------------------------------------------------------ all that is within a run

    def drop(self, run_id: str, up_to: int, *, newer_parts: bool = False) -> None:
        """Forget what is within the steps of a run up to one, and all parts if `newer_parts`."""
        for inner_id in self._store._ids_within(run_id):
            direct = directly_within(run_id, inner_id)
            if step_of(direct) <= up_to or (newer_parts and is_parts_id(direct)):
                self._store._remove(inner_id)
                self._store._forget_all(inner_id)


def named_by_part(error: NotSerializableError, parts: Sequence[Part], run_id: str) -> NotSerializableError:
    """-> the error for parts of a run that cannot be kept, with the name of the first one of which that is true."""
    for part in parts:
        try:
            encode_value(part.value, "")
        except NotSerializableError as found:
            of = f"part {part.label!r} of node {part.node!r}"
            return NotSerializableError(f"{found.path} in {of}" if found.path else of, found.reason, run_id)
    error.run_id = run_id
    return error


def _of_outer(error: CheckpointError, run_id: str) -> CheckpointError:
    """-> the error as one of the run that somebody can load or delete."""
    if error.run_id:
        error.run_id = run_id
    return error
