"""Runs within runs: the graphs within a step of a run, and the parts of a step that are finished.

Both are runs of the store that nobody is shown: their ids begin with that of the run they belong to, and their policy
says that they are parts. The parts of a step are the checkpoints of one such run, some at a time, as they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import attrs

from stategraph.errors import CheckpointNotFoundError, StepConflictError
from stategraph.provenance import ParentStep, Part
from stategraph.state import State, evolve
from stategraph.stores.policy import Policy
from stategraph.stores.rows import Head, Write

if TYPE_CHECKING:
    from stategraph.stores.row_store import RowStore

_MARK = "/#"  # stands in no id that anybody may give a run
_KEPT_WHOLE = Policy("full", is_part=True)
_TRIES = 5  # of a save, while others write


def _parts_id(run_id: str, step: int, node: str) -> str:
    """-> the id of the run that holds the finished parts of a step."""
    return f"{run_id}{_MARK}{step}#{node}"


def is_parts_id(run_id: str) -> bool:
    """Whether a run holds parts of a step."""
    return _MARK in run_id


def outer_id(run_id: str) -> str:
    """-> the id that somebody has given: of a run that holds parts, that of the run it is within."""
    return run_id.partition(_MARK)[0]


class InnerRuns:
    """The runs within the runs of a store."""

    def __init__(self, store: RowStore) -> None:
        self._store = store

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        """As `CheckpointStore.save_parts`."""
        for (step, node), some in groupby(parts, lambda part: (part.step, part.node)):
            values = {part.label: part.value for part in some}
            self._add(_parts_id(run_id, step, node), State(values, parent=ParentStep(run_id, step - 1)))

    def _add(self, parts_id: str, parts: State) -> None:
        store = self._store
        for _ in range(_TRIES):
            head = store._head(parts_id)
            added = evolve(parts, run_id=parts_id, step=head.step + 1 if head else 1)
            row, _tail = store._rows.snapshot(added)
            new = attrs.evolve(store._next_head(head, added), policy=_KEPT_WHOLE)
            if store._made(Write(new, head, (row,))):
                return
        raise StepConflictError(outer_id(parts_id), "its parts were not saved: others keep writing them")

    def load_parts(self, run_id: str, step: int, node: str) -> dict[str, Any]:
        """As `CheckpointStore.load_parts`."""
        parts_id, found = _parts_id(run_id, step, node), {}
        for row in self._store._index(parts_id):
            rows = self._store._chain(parts_id, row.step)
            found.update(self._store._rows.data(parts_id, rows)[0])
        return found

    def drop(self, run_id: str, up_to: int | None = None, *, newer_parts: bool = False) -> None:
        """Forget what is within a run: within the steps up to one, and all parts if `newer_parts`; or everything."""
        for head in self._within(run_id):
            begun = head.parent.step if head.parent else 0
            if up_to is None or begun < up_to or (newer_parts and is_parts_id(head.run_id)):
                self._store._remove(head.run_id)
                self._store._forget(head.run_id)
                self.drop(head.run_id)

    def copy(self, run_id: str, step: int, new_run_id: str) -> None:
        """Copy what is within the step after this one of a run, for a copy of that run."""
        for head in self._within(run_id):
            if head.parent is not None and head.parent.step == step:
                self._copy(head, new_run_id + head.run_id.removeprefix(run_id), ParentStep(new_run_id, step))

    def _copy(self, head: Head, new_id: str, parent: ParentStep) -> None:
        store = self._store
        if is_parts_id(head.run_id):
            rows = [row for at in store._index(head.run_id) for row in store._chain(head.run_id, at.step)]
            copies = [copy for row in rows for copy in store._rows.resealed(new_id, [row])]
            new = attrs.evolve(head, run_id=new_id, number=0, parent=parent)
            store._commit(Write(new, None, tuple(copies)))
            return
        try:
            state = store.load(head.run_id)
        except CheckpointNotFoundError:  # its last step was joined meanwhile
            return
        store._copy_run(head, evolve(state, run_id=new_id, parent=parent))
        self.copy(head.run_id, state.step, new_id)

    def _within(self, run_id: str) -> Iterator[Head]:
        """-> the runs directly within a run."""
        for head in self._store._inner(run_id):
            if head.policy.is_part and head.parent is not None and head.parent.run_id == run_id:
                yield head
