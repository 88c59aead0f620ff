"""RowStore: everything that stores of rows have in common. Such a store reads and writes rows, and nothing else."""

from __future__ import annotations

import builtins
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs

from stategraph.answers import gives_back
from stategraph.dropped import reaper
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    NotSerializableError,
    RunExistsError,
    StepConflictError,
)
from stategraph.ids import check_run_id
from stategraph.provenance import Part
from stategraph.state import State, time_ns_of
from stategraph.stores.base import (
    check_limit,
    check_number,
    check_status,
    check_step,
    forked_from,
    from_cursor,
    rolled_back,
)
from stategraph.stores.bodies import Bodies
from stategraph.stores.changes import have_same_data, is_about_same
from stategraph.stores.commit import SharedCommits
from stategraph.stores.inner_runs import InnerRuns
from stategraph.stores.pauses import pause_text
from stategraph.stores.policy import Policy
from stategraph.stores.pruning import prune
from stategraph.stores.row_operations import RowOperations
from stategraph.stores.rows import Head, Row, Sealer, SigningKey, Write, is_of, signing_key
from stategraph.stores.summaries import Pruned, Summary
from stategraph.stores.tails import Rows, Tail

_TRIES = 5  # of a save, while others write to the same run
_MOST_TAILS = 1_000  # runs whose last saved State is remembered; the next save of another one is a snapshot


class RowStore(RowOperations):
    """Base of stores that keep rows. Seven operations make one; the rest is here, once for all of them.

    Args:
        sign_with: Rows are signed (HMAC-SHA-256) with the key that this function gives, or that the environment
            variable of this name holds. Unsigned or otherwise signed rows are refused.
        serializer: Name of the serializer of new rows: "msgpack", "json", or one that was registered. All that are
            known are read.
        compress: Whether new rows are compressed where that pays; it takes the extra ``stategraph[zstd]``.

    Raises:
        ConfigError: an option is not allowed, or the environment variable is not set.
        UnknownNameError: no serializer has this name.
    """

    def __init__(
        self, *, sign_with: SigningKey | str | None = None, serializer: str = "msgpack", compress: bool = False
    ) -> None:
        self._rows = Rows(Sealer(signing_key(sign_with)), Bodies(serializer, compress))
        self._commits = SharedCommits(self._apply, self._is_inside)
        self._inner_runs = InnerRuns(self)
        self._tails: OrderedDict[str, tuple[Head, Tail]] = OrderedDict()
        self._policies: dict[str, Policy] = {}
        self._lock = reaper.known_lock()  # a finaliser may come while it is held, and use the store

    def at_rest(self) -> AbstractContextManager[object]:
        """-> keeps other threads out while the process is forked (see `stategraph.stores.forks`)."""
        return nullcontext()

    def renew(self) -> None:
        """In a forked child: have locks of its own. Those who committed in the parent are not here."""
        self._commits, self._lock = SharedCommits(self._apply, self._is_inside), reaper.known_lock()

    # ------------------------------------------------------------------ saving

    def save(self, state: State) -> None:
        self._keep(state, may_change_data=False)

    def amend(self, state: State) -> None:
        self._keep(state, may_change_data=True)

    def save_many(self, states: Sequence[State]) -> None:
        """Save several States of one run in few transactions; of a run that keeps the newest only, the newest."""
        if not states:
            return
        run_id = states[0].run_id
        known = self._tails.get(run_id)
        if known is not None and (self._policies.get(run_id) or known[0].policy).visible == 1:
            self._save_newest(states)
            return
        for ascending in _ascending(states):
            first, *others = ascending
            known = self._tails.get(run_id)
            if known is None or first.step <= known[0].step:
                self.save(first)
                known = self._tails.get(run_id)
            else:
                others = ascending
            if others and (known is None or not self._save_together(*known, others)):
                for state in others:
                    self.save(state)

    def _save_newest(self, states: Sequence[State]) -> None:
        try:
            self.save(states[-1])
        except NotSerializableError:  # what came before it can be kept, and is
            for state in states[:-1]:
                self.save(state)
            raise

    def _save_together(self, head: Head, tail: Tail, states: Sequence[State]) -> bool:
        """Save later States of a run in one transaction -> False if somebody else has written to the run."""
        rows: builtins.list[Row] = []
        refused: NotSerializableError | None = None
        try:
            for state in states:
                row, tail = self._rows.following(tail, state)
                rows.append(row)
        except NotSerializableError as error:  # what came before it can be kept, and is
            error.run_id = head.run_id
            refused = error
        if rows:
            new = self._next_head(head, tail.state)
            cut = max((self._cut(new, row) for row in rows if row.is_snapshot), default=0)
            if not self._made(Write(new, head, tuple(rows), cut_below=cut)):
                self._forget(head.run_id)
                return False
            self._remember(new, tail)
        if refused is not None:
            raise refused
        return True

    def _keep(self, state: State, may_change_data: bool) -> None:
        for _ in range(_TRIES):
            known = self._tails.get(state.run_id)
            try:
                following = self._next(known, state, may_change_data)
            except NotSerializableError as error:
                error.run_id = state.run_id
                raise
            except StepConflictError:
                if known is None or not self._is_stale(known[0]):
                    raise
                following = None
            if following is not None:
                old, head, row, tail = following
                cut = self._cut(head, row) if row.is_snapshot else 0
                if self._made(Write(head, old, (row,), cut_below=cut)):
                    self._remember(head, tail)
                    return
            self._forget(state.run_id)  # somebody else has written: compare with what there is now
        raise StepConflictError(state.run_id, f"step {state.step} was not saved: others keep writing to the run")

    def _next(
        self, known: tuple[Head, Tail] | None, state: State, may_change_data: bool
    ) -> tuple[Head | None, Head, Row, Tail] | None:
        """-> the head before; head, row and tail with a State; None if somebody else writes to the run meanwhile."""
        if known is None:
            row, tail = self._rows.snapshot(state)  # what cannot be kept is found out before the store is asked
            head = self._head(state.run_id)
            if head is None or head.step < state.step:
                return head, self._next_head(head, state), row, tail
            try:
                self.load(state.run_id)
            except CheckpointNotFoundError:  # it was deleted meanwhile
                return None
            known = self._tails.get(state.run_id)
            if known is None:
                return None
        head, tail = known
        if state.step > head.step:
            return head, self._next_head(head, state), *self._rows.following(tail, state)
        same_data = have_same_data(tail.state, state, tail.encoded)
        check_step(state.run_id, head.step, state.step, may_change_data or same_data)
        if not (same_data and is_about_same(tail.state, state)):
            return head, self._next_head(head, state), *self._rows.snapshot(state)
        saved = self._chain(state.run_id, state.step)
        if not saved or saved[-1].seal != tail.seal:
            return None
        return head, self._next_head(head, state), *self._rows.again(tail, saved[-1], state)

    def _is_stale(self, head: Head) -> bool:
        """Whether somebody else has written to the run since."""
        now = self._head(head.run_id)
        return now is None or now.version != head.version

    def _next_head(self, head: Head | None, state: State) -> Head:
        return Head(
            run_id=state.run_id,
            number=head.number if head else 0,
            version=head.version + 1 if head else int.from_bytes(os.urandom(6)),
            step=state.step,
            node=state.checkpoint_node,
            time_ns=time_ns_of(state),
            status=state.status,
            error=state.error,
            graph=state.graph,
            parent=state.parent,
            policy=self._policies.get(state.run_id) or (head.policy if head else Policy()),
            pause=None if state.pause is None else pause_text(state.pause),
        )

    def _cut(self, head: Head, snapshot: Row) -> int:
        """-> the step below which rows go, now that a snapshot is written: those no visible checkpoint builds on."""
        visible = head.policy.visible
        if visible is None:
            return 0
        if visible == 1:
            return snapshot.step
        older = [row for row in self._index(head.run_id) if row.step < snapshot.step]
        return min([row.base for row in older[-(visible - 1) :]], default=snapshot.step)

    def _made(self, write: Write) -> bool:
        """Make a write, together with those of other threads -> whether it was made."""
        try:
            return self._commits.commit(write)
        except CheckpointError as error:
            error.run_id = error.run_id or write.head.run_id
            raise

    def _commit(self, write: Write) -> None:
        if not self._made(write):
            self._forget(write.head.run_id)
            raise StepConflictError(write.head.run_id, "others wrote to the run at the same time")

    def _remember(self, head: Head, tail: Tail) -> None:
        with self._lock:
            self._tails[head.run_id] = head, tail
            self._tails.move_to_end(head.run_id)
            while len(self._tails) > _MOST_TAILS:
                run_id, (saved, _) = self._tails.popitem(last=False)
                if self._policies.get(run_id) == saved.policy:
                    del self._policies[run_id]  # the store itself knows it

    def _forget(self, run_id: str) -> None:
        with self._lock:
            self._tails.pop(run_id, None)

    def _forget_all(self, run_id: str) -> None:
        """Forget a run that is not there any more."""
        self._forget(run_id)
        self._policies.pop(run_id, None)

    # ------------------------------------------------------------------ runs within runs

    keeps_parts = True

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        self._inner_runs.save_parts(run_id, parts)

    def load_parts(self, run_id: str, step: int, node: str) -> dict[str, Any]:
        return self._inner_runs.load_parts(check_run_id(run_id), step, node)

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        self._inner_runs.drop(check_run_id(run_id), step, newer_parts=newer_too)

    # ------------------------------------------------------------------ loading

    def load(self, run_id: str, step: int | None = None) -> State:
        if step is not None:
            check_number(step)
        head = self._head(check_run_id(run_id))  # first: a write before the rows are read makes its version an old one
        rows = [] if head is None else self._chain(run_id, step)
        if head is not None and not rows:
            self._check_absent(head, step)
        if head is None or not rows or (step is not None and not self._is_visible(head, step)):
            raise CheckpointNotFoundError(run_id, str(self), step)
        state = self._rows.state(run_id, rows)
        if step is None and is_of(head, rows[-1]):
            self._remember(head, self._rows.tail(state, rows))
        return state

    def _check_absent(self, head: Head, step: int | None) -> None:
        """Raise CheckpointCorruptError if a step that is not there was not removed, but lost."""
        if step is None or step == head.step:
            if not self._is_stale(head):
                raise CheckpointCorruptError(head.run_id, f"its newest step {head.step} is missing")
            return
        later = next((row for row in self._index(head.run_id) if row.step > step), None)
        if later is not None and later.base < step:  # what builds on it shows that it was there
            self._rows.check(head.run_id, self._chain(head.run_id, later.step))

    def list(self) -> builtins.list[str]:
        return sorted(head.run_id for head in self._heads(None, None, -1, None))

    def history(self, run_id: str) -> builtins.list[Summary]:
        head = self._head(check_run_id(run_id))
        return [] if head is None else [head.summary_of(row) for row in self._visible(head)]

    def runs(
        self, status: str | None = None, graph: str | None = None, limit: int = 100, after: str | None = None
    ) -> builtins.list[Summary]:
        check_status(status)
        return [head.summary() for head in self._heads(status, graph, check_limit(limit), from_cursor(after))]

    def _is_visible(self, head: Head, step: int) -> bool:
        return head.policy.visible is None or any(row.step == step for row in self._visible(head))

    def _visible(self, head: Head) -> builtins.list[Row]:
        """-> the checkpoints of a run that retention keeps; more rows may be there, which these build on."""
        rows = self._index(head.run_id)
        if not (rows and is_of(head, rows[-1])) and not self._is_stale(head):
            raise CheckpointCorruptError(head.run_id, f"its newest step {head.step} is missing, or is another")
        return rows[-head.policy.visible :] if head.policy.visible else rows

    # ------------------------------------------------------------------ time travel, and forgetting

    def rollback(self, run_id: str, step: int) -> State:
        check_number(step)
        state = self.load(run_id, step)
        head = self._head(run_id)
        if head is None:
            raise CheckpointNotFoundError(run_id, str(self), step)
        state = rolled_back(state)
        row, tail = self._rows.snapshot(state)
        back = self._next_head(head, state)
        # Dropped first: parts of a later step must not be left for another way to come to that step.
        self._inner_runs.drop(run_id)
        self._commit(Write(back, head, (row,), cut_above=step))
        self._remember(back, tail)
        return state

    def fork(self, run_id: str, new_run_id: str, step: int | None = None) -> State:
        check_run_id(new_run_id)
        source = self.load(run_id, step)
        forked = forked_from(source, new_run_id)
        head = self._head(run_id)
        if head is None:
            raise CheckpointNotFoundError(run_id, str(self), step)
        policy = attrs.evolve(head.policy, is_part=False)
        # What is within a step whose answers are taken back was made with these.
        is_kept = source.pause is not None or not gives_back(source)
        inner = self._inner_runs.copies(run_id, source.step, new_run_id) if is_kept else ()
        self._begin([self._copy_of(head, forked, policy), *inner])
        return forked

    def _copy_of(self, source: Head, copy: State, policy: Policy) -> Write:
        """-> the write that keeps a State as the newest of a new run, with the history of another run up to there."""
        earlier = self._copied(source.run_id, copy.run_id, copy.step)
        row, _ = self._rows.snapshot(copy)
        return Write(attrs.evolve(self._next_head(None, copy), policy=policy), None, (*earlier, row))

    def _begin(self, writes: Sequence[Write]) -> None:
        """Make writes that begin runs, in one transaction. Where another process begins one of them at the same time,
        the others are taken back."""
        for write in writes:
            if self._head(write.head.run_id) is not None:
                raise RunExistsError(write.head.run_id, str(self))
        made = self._apply(writes)
        if all(made):
            return
        for write, is_made in zip(writes, made, strict=True):
            if is_made:
                self._remove(write.head.run_id, write.head.version)
        raise RunExistsError(writes[made.index(False)].head.run_id, str(self))

    def _copied(self, run_id: str, new_run_id: str, below: int) -> builtins.list[Row]:
        """-> the checkpoints of a run before a step, and what they build on, sealed for another run."""
        head = self._head(run_id)
        visible = [row for row in self._visible(head) if row.step < below] if head else []
        newest_on = {row.base: row.step for row in visible}  # the last one builds on all that have the same base
        copies: builtins.list[Row] = []
        for step in newest_on.values():
            rows = self._chain(run_id, step)
            self._rows.check(run_id, rows)
            copies += self._rows.resealed(new_run_id, rows)
        return copies

    def delete(self, run_id: str) -> None:
        self._inner_runs.drop(check_run_id(run_id))
        self._remove(run_id)
        self._forget_all(run_id)

    def retain(self, run_id: str, policy: Policy) -> None:
        self._policies[check_run_id(run_id)] = policy

    def prune(self) -> Pruned:
        return prune(self)


def _ascending(states: Sequence[State]) -> Iterator[builtins.list[State]]:
    """-> the States in groups whose steps go up: a run completes at the step that it saved last."""
    group: builtins.list[State] = []
    for state in states:
        if group and state.step <= group[-1].step:
            yield group
            group = []
        group.append(state)
    yield group
