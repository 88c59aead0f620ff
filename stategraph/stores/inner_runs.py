"""Runs within runs: the graphs within a step of a run, and the parts of a step that are finished.

Both are runs of the store that nobody is shown: their ids, which nobody can give, tell what they belong to (see
`stategraph.ids`), and their policy says that they are parts. The parts of a step are the checkpoints of one such run,
some at a time, as they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from stategraph.errors import CheckpointError, CheckpointNotFoundError, NotSerializableError, StepConflictError
from stategraph.ids import directly_within, is_parts_id, outer_id, parts_id, step_of
from stategraph.provenance import ParentStep, Part
from stategraph.state import State, evolve
from stategraph.stores.codec import encode_value
from stategraph.stores.policy import Policy
from stategraph.stores.rows import Head, Write

if TYPE_CHECKING:
    from stategraph.stores.row_store import RowStore

_KEPT_WHOLE = Policy("full", is_part=True)
_TRIES = 5  # of a save, while others write


class _Inner(NamedTuple):
    """A run within a run: its id, the step of the outer run after which it began, and its head if it can be read."""

    run_id: str
    begun: int
    head: Head | None


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

    def _add(self, kept_id: str, parts: State) -> None:
        store = self._store
        for _ in range(_TRIES):
            head = store._head(kept_id)
            added = evolve(parts, run_id=kept_id, step=head.step + 1 if head else 1)
            row, _tail = store._rows.snapshot(added)
            new = attrs.evolve(store._next_head(head, added), policy=_KEPT_WHOLE)
            if store._made(Write(new, head, (row,))):
                return
        raise StepConflictError(outer_id(kept_id), "its parts were not saved: others keep writing them")

    def load_parts(self, run_id: str, step: int, node: str) -> dict[str, Any]:
        """As `CheckpointStore.load_parts`."""
        kept_id, found = parts_id(run_id, step, node), {}
        try:
            for row in self._store._index(kept_id):
                rows = self._store._chain(kept_id, row.step)
                if rows:  # not if they were dropped meanwhile
                    found.update(self._store._rows.data(kept_id, rows)[0])
        except CheckpointError as error:
            raise _of_outer(error, run_id) from error.__cause__
        return found

    # ------------------------------------------------------------------ all that is within a run

    def drop(self, run_id: str, up_to: int | None = None, *, newer_parts: bool = False) -> None:
        """Forget what is within a run: within the steps up to one, and all parts if `newer_parts`; or everything."""
        for inner_id, _head in self._store._inner(run_id):
            direct = directly_within(run_id, inner_id)
            if up_to is None or step_of(direct) <= up_to or (newer_parts and is_parts_id(direct)):
                self._store._remove(inner_id)
                self._store._forget_all(inner_id)

    def copies(self, run_id: str, step: int, new_run_id: str) -> Iterator[Write]:
        """-> the writes that copy what is within the step after this one of a run, for a copy of that run."""
        for inner in self._within(run_id):
            if inner.begun == step and inner.head is not None:
                new_id, parent = new_run_id + inner.run_id.removeprefix(run_id), ParentStep(new_run_id, step)
                copied = self._copied_parts if is_parts_id(new_id) else self._copied_run
                yield from copied(inner.head, new_id, parent)

    def _copied_parts(self, head: Head, new_id: str, parent: ParentStep) -> Iterator[Write]:
        store = self._store
        copies = []
        for at in store._index(head.run_id):
            rows = store._chain(head.run_id, at.step)
            store._rows.check(head.run_id, rows)  # a copy is sealed anew: damage would not be found any more
            copies += store._rows.resealed(new_id, rows)
        yield Write(attrs.evolve(head, run_id=new_id, number=0, parent=parent), None, tuple(copies))

    def _copied_run(self, head: Head, new_id: str, parent: ParentStep) -> Iterator[Write]:
        try:
            state = self._store.load(head.run_id)
        except CheckpointNotFoundError:  # its last step was joined meanwhile
            return
        yield self._store._copy_of(head, evolve(state, run_id=new_id, parent=parent), head.policy)
        yield from self.copies(head.run_id, state.step, new_id)

    def _within(self, run_id: str) -> Iterator[_Inner]:
        """-> what is directly within a run. Its ids say so, even where its heads are damaged."""
        for inner_id, head in self._store._inner(run_id):
            if outer_id(inner_id) == run_id:
                yield _Inner(inner_id, step_of(inner_id) - 1, head)


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
