"""Several States of one run, saved in few transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stategraph.errors import NotSerializableError, StepConflictError
from stategraph.state import State
from stategraph.stores._rows.encoder import Tail, ascending_groups
from stategraph.stores._rows.records import Head, Row, Write

if TYPE_CHECKING:
    from stategraph.stores._rows.store import RowStore


class SavesTogether:
    """Saves what has gathered of a run."""

    def __init__(self, store: RowStore) -> None:
        self._store = store

    def save(self, states: Sequence[State]) -> None:
        """Save several States of one run in few transactions; of a run that keeps the newest only, the newest."""
        if not states or self._save_newest(states):
            return
        run_id = states[0].run_id
        for ascending in ascending_groups(states):
            first, *others = ascending
            known = self._store._known.get(run_id)
            if known is None or first.step <= known[0].step:
                self._store.save(first)
                known = self._store._known.get(run_id)
            else:
                others = ascending
            if others and (known is None or not self._save_together(*known, others)):
                for state in others:
                    self._store.save(state)

    def _save_newest(self, states: Sequence[State]) -> bool:
        """Save the newest State only, if the run keeps no other and this is known for sure -> whether it was saved.

        What is remembered of the run may be out of date: another handle may have said that all of it is to be kept.
        The save finds out, for it is made only if nobody else has written to the run.
        """
        known = self._store._known.get(states[-1].run_id)
        if known is None or self._store._known.policy_of(states[-1].run_id, known[0]).visible != 1:
            return False
        try:
            following = self._store._next(known, states[-1], may_change_data=False)
        except (NotSerializableError, StepConflictError):  # one by one: what came before it can be kept, and is
            return False
        return following is not None and self._store._is_saved(*following)

    def _save_together(self, head: Head, tail: Tail, states: Sequence[State]) -> bool:
        """Save later States of a run in one transaction -> False if somebody else has written to the run."""
        rows: list[Row] = []
        refused: NotSerializableError | None = None
        try:
            for state in states:
                row, tail = self._store._rows.following(tail, state)
                rows.append(row)
        except NotSerializableError as error:  # what came before it can be kept, and is
            error.run_id = head.run_id
            refused = error
        if rows:
            new = self._store._next_head(head, tail.state, rows[-1])
            cut = max((self._store._chains.cut_below(new, row) for row in rows if row.is_snapshot), default=0)
            if not self._store._made(Write(new, head, tuple(rows), cut_below=cut)):
                self._store._known.forget(head.run_id)
                return False
            self._store._remember(new, tail)
        if refused is not None:
            raise refused
        return True
