"""Copies of runs, with their history and all that is within their next step, sealed for the run that they become."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from stategraph._values.ids import given_id, is_parts_id, outer_id, step_of
from stategraph._values.provenance import ParentStep
from stategraph.errors import CheckpointCorruptError, CheckpointNotFoundError, RunExistsError, StepConflictError
from stategraph.state import State, evolve
from stategraph.stores._rows.records import Head, Row, Write

if TYPE_CHECKING:
    from stategraph.stores._rows.store import RowStore


class Copies:
    """Copies the runs of a store."""

    def __init__(self, store: RowStore) -> None:
        self._store = store

    def make(self, source: Head, copy: State, *, is_within_kept: bool) -> None:
        """Begin a run with this State, the history that another run has before it and, where that is kept, all that is
        within the step after.

        Raises:
            RunExistsError: there is a run of this id.
            StepConflictError: others wrote to the source meanwhile.
            CheckpointCorruptError: what is to be copied is damaged.
        """
        incarnation = self._store._heads_of.incarnation_for(copy.run_id)
        with self._of_one_time(source):
            writes = [*self._writes(source, copy, incarnation, is_within_kept=is_within_kept)]
        if self._store._chains.is_stale(source):
            raise _overtaken(source)
        self._begin(writes)

    def _writes(self, source: Head, copy: State, incarnation: bytes, *, is_within_kept: bool) -> Iterator[Write]:
        inner = self._within(source.run_id, copy.step, copy.run_id, incarnation) if is_within_kept else ()
        yield self._copied_run(source, copy, incarnation)
        for write in inner:
            yield attrs.evolve(write, outer=incarnation)  # made only together with the copy that it is within

    @contextmanager
    def _of_one_time(self, head: Head) -> Iterator[None]:
        """What is read of a run seems to be damaged where others write to it meanwhile."""
        try:
            yield
        except CheckpointCorruptError:
            if self._store._chains.is_stale(head):
                raise _overtaken(head) from None
            raise

    def _begin(self, writes: Sequence[Write]) -> None:
        """Make writes that begin runs, in one transaction. Where another process begins one of them at the same time,
        the others are taken back."""
        store = self._store
        for write in writes:
            store._heads_of.remove_left_over(write.head.run_id)
            if store._head(write.head.run_id) is not None:
                raise RunExistsError(write.head.run_id, str(store))
        made = store._apply(writes)
        if all(made):
            return
        for write, is_made in zip(writes, made, strict=True):
            if is_made:
                store._remove(write.head.run_id, write.head.version)
        raise RunExistsError(writes[made.index(False)].head.run_id, str(store))

    def _copied_run(self, source: Head, copy: State, incarnation: bytes) -> Write:
        """Return the write that keeps a State as the newest of a new run, with what another run has before it."""
        store = self._store
        row, _ = store._rows.snapshot(copy, incarnation)
        head = store._next_head(None, copy, row, incarnation)._replace(policy=source.policy)
        return Write(store._sealer.sealed_head(head), None, (*self._earlier(source, copy, incarnation), row))

    def _earlier(self, source: Head, copy: State, incarnation: bytes) -> Iterator[Row]:
        """Yield the checkpoints of a run before a step, and what they build on."""
        store = self._store
        visible = [row for row in store._chains.visible(source) if row.step < copy.step]
        for chain in store._chains.groups(source, visible):
            yield from store._rows.copied(source, copy.run_id, incarnation, chain)

    # ------------------------------------------------------------------ all that is within

    def _within(self, run_id: str, step: int, new_run_id: str, incarnation: bytes) -> Iterator[Write]:
        """Yield the writes that copy what is within the step after this one of a run."""
        store = self._store
        for inner_id in store._ids_within(run_id):
            if outer_id(inner_id) != run_id or step_of(inner_id) != step + 1:
                continue
            head = store._heads_of.find(inner_id)
            if head is not None:
                new_id, parent = new_run_id + inner_id.removeprefix(run_id), ParentStep(new_run_id, step)
                copied = self._copied_parts if is_parts_id(inner_id) else self._copied_nested
                with self._of_one_time(head):
                    writes = [*copied(head, new_id, parent, incarnation)]
                yield from writes

    def _copied_parts(self, head: Head, new_id: str, parent: ParentStep, incarnation: bytes) -> Iterator[Write]:
        store = self._store
        copies: list[Row] = []
        for at in store._chains.visible(head):
            copies += store._rows.copied(head, new_id, incarnation, store._chain(head.run_id, at.step))
        if not copies:  # they were dropped meanwhile
            return
        tip = copies[-1].seal
        copy = head._replace(run_id=new_id, number=0, parent=parent, incarnation=incarnation, tip=tip)
        yield Write(store._sealer.sealed_head(copy), None, tuple(copies))

    def _copied_nested(self, head: Head, new_id: str, parent: ParentStep, incarnation: bytes) -> Iterator[Write]:
        try:
            state = self._store.load(head.run_id)
        except CheckpointNotFoundError:  # its last step was joined meanwhile
            return
        yield self._copied_run(head, evolve(state, run_id=new_id, parent=parent), incarnation)
        yield from self._within(head.run_id, state.step, new_id, incarnation)


def _overtaken(head: Head) -> StepConflictError:
    return StepConflictError(given_id(head.run_id), "others wrote to it while it was copied: fork it again")
