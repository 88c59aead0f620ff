"""RowStore: everything that stores of rows have in common. Such a store reads and writes rows, and nothing else."""

from __future__ import annotations

import builtins
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from stategraph import clock
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointNotFoundError,
    FormatError,
    NotSerializableError,
    RunExistsError,
    StateGraphError,
    StepConflictError,
)
from stategraph.ids import check_run_id
from stategraph.state import ParentStep, RunStatus, State, evolve, time_ns_of
from stategraph.stores.base import CheckpointStore, check_follows, check_limit, forked_from, from_cursor
from stategraph.stores.changes import Change, have_same_data, restore
from stategraph.stores.codec import DecodeError
from stategraph.stores.commit import SharedCommits
from stategraph.stores.policy import Policy
from stategraph.stores.rows import FORMAT, Head, Row, Sealer, Write
from stategraph.stores.summaries import Pruned, Summary

_ROW_WEIGHT = 512  # bytes that a row costs besides its body, when deltas are weighed against a snapshot
_LIGHT = 16_384  # bytes of deltas that are always allowed: below, a snapshot saves nothing
_MOST_TAILS = 1_000  # runs whose last saved State is remembered; for others the next save is a snapshot


@attrs.frozen
class _Tail:
    """The newest checkpoint of a run as it was saved or loaded here: what the next one is compared with.

    Attributes:
        state: The State.
        head: The run with it.
        row: Its row.
        before: The seal of the row that it builds on.
        encoded: The bytes of its values that are not settled, by key.
        snapshot: Bytes of the snapshot that it builds on.
        since: Bytes of the rows since that snapshot.
    """

    state: State
    head: Head
    row: Row
    before: bytes
    encoded: dict[str, bytes]
    snapshot: int
    since: int


class RowStore(CheckpointStore):
    """Base of stores that keep rows. Five operations make one; the rest is here, once for all of them.

    Args:
        sign_with: Gives the key that rows are signed with (HMAC-SHA-256). Unsigned or otherwise signed rows are refused.
    """

    def __init__(self, *, sign_with: Callable[[], bytes] | None = None) -> None:
        self._sealer = Sealer(sign_with)
        self._commits = SharedCommits(self._apply)
        self._tails: OrderedDict[str, _Tail] = OrderedDict()
        self._policies: dict[str, Policy] = {}
        self._lock = threading.Lock()

    # ------------------------------------------------------------------ what a store of rows implements

    @abstractmethod
    def _apply(self, writes: Sequence[Write]) -> Sequence[bool]:
        """Make writes in one transaction -> which of them were made.

        One is made if its run has the version before the one that the write gives it. Those that are made are durable
        when this returns.
        """

    @abstractmethod
    def _head(self, run_id: str) -> Head | None:
        """-> a run as a whole."""

    @abstractmethod
    def _heads(self, status: str | None, graph: str | None, limit: int, before: int | None) -> builtins.list[Head]:
        """-> runs with this status and graph (None: any), with a number below `before`; the highest number first."""

    @abstractmethod
    def _chain(self, run_id: str, step: int | None) -> builtins.list[Row]:
        """-> the row of a step (None: of the newest), and before it those that it builds on, in order, as they were at one
        time; empty if there is none."""

    @abstractmethod
    def _index(self, run_id: str) -> builtins.list[Row]:
        """-> all rows of a run, in order; their bodies may be left out."""

    @abstractmethod
    def _remove(self, run_id: str) -> None:
        """Remove a run and all of its rows."""

    # ------------------------------------------------------------------ saving

    def save(self, state: State) -> None:
        self._keep(state, may_change_data=False)

    def amend(self, state: State) -> None:
        self._keep(state, may_change_data=True)

    def save_many(self, states: Sequence[State]) -> None:
        """Save several States of one run in one transaction; of a run that keeps the newest only, the newest."""
        tail = self._tails.get(states[0].run_id)
        if tail is None or tail.head.policy.visible == 1 or states[0].step <= tail.row.step:
            for state in states if tail is None or tail.head.policy.visible != 1 else states[-1:]:
                self.save(state)
            return
        puts: builtins.list[Row] = []
        version, cut = tail.head.version + 1, 0
        for state in states:
            write, tail = self._following(tail, state, may_change_data=False)
            puts += write.put
            cut = max(cut, write.cut_below)
        tail = attrs.evolve(tail, head=attrs.evolve(tail.head, version=version))
        self._commit(Write(tail.head, tuple(puts), cut_below=cut))
        self._remember(tail)

    def retain(self, run_id: str, policy: Policy) -> None:
        self._policies[check_run_id(run_id)] = policy

    def _keep(self, state: State, may_change_data: bool) -> None:
        for _ in range(3):
            tail = self._tails.get(state.run_id)
            try:
                following = self._following(tail, state, may_change_data)
            except NotSerializableError as error:
                error.run_id = state.run_id
                raise
            write, new_tail = following
            if self._commits.commit(write):
                self._remember(new_tail)
                return
            self._forget(state.run_id)  # somebody else has written: compare with what there is now
        raise StepConflictError(state.run_id, f"step {state.step} was not saved: others keep writing to the run")

    def _following(self, tail: _Tail | None, state: State, may_change_data: bool) -> tuple[Write, _Tail]:
        """-> the write that puts a State behind the tail, and the tail that it will be then."""
        if tail is None:
            whole = Change.between(None, state, {})
            body = whole.to_body()  # what cannot be kept is found out before the store is asked
            head = self._head(state.run_id)
            if head is None or head.step < state.step:
                return self._snapshot(state, head, body, whole)
            self.load(state.run_id)
            tail = self._tails[state.run_id]
        change = Change.between(tail.state, state, tail.encoded)
        if state.step > tail.row.step:
            return self._next(tail, state, change)
        same_data = have_same_data(tail.state, state, tail.encoded)
        check_follows(state.run_id, tail.row.step, state.step, may_change_data or same_data)
        if not same_data or change.about is not None:
            whole = Change.between(None, state, {})
            return self._snapshot(state, tail.head, whole.to_body(), whole)
        return self._again(tail, state)

    def _next(self, tail: _Tail, state: State, change: Change) -> tuple[Write, _Tail]:
        """-> the write of a later step: what changed, or all if that has become the lighter way."""
        body = change.to_body()
        since = tail.since + len(body) + _ROW_WEIGHT
        if since > tail.snapshot + _LIGHT:
            whole = Change.between(None, state, {})
            return self._snapshot(state, tail.head, whole.to_body(), whole)
        row = self._sealer.seal(state.run_id, self._row(state, tail.row.base, body), tail.row.seal)
        head = self._next_head(tail.head, state)
        return Write(head, (row,)), _Tail(state, head, row, tail.row.seal, change.encoded, tail.snapshot, since)

    def _snapshot(self, state: State, head: Head | None, body: bytes, whole: Change) -> tuple[Write, _Tail]:
        """-> the write of all data, with what retention removes before it."""
        row = self._sealer.seal(state.run_id, self._row(state, state.step, body), b"")
        new_head = self._next_head(head, state)
        write = Write(new_head, (row,), cut_below=self._cut(new_head, row))
        return write, _Tail(state, new_head, row, b"", whole.encoded, len(body), 0)

    def _again(self, tail: _Tail, state: State) -> tuple[Write, _Tail]:
        """-> the write of the newest step with another status, time or error."""
        saved = self._chain(state.run_id, state.step)[-1]
        row = attrs.evolve(
            saved, node=state.checkpoint_node, time_ns=time_ns_of(state), status=state.status, error=state.error
        )
        row = self._sealer.seal(state.run_id, row, tail.before)
        head = self._next_head(tail.head, state)
        return Write(head, (row,)), attrs.evolve(tail, state=state, head=head, row=row)

    def _next_head(self, head: Head | None, state: State) -> Head:
        policy = self._policies.get(state.run_id) or (head.policy if head else Policy())
        return Head(
            run_id=state.run_id,
            number=head.number if head else 0,
            version=head.version + 1 if head else 1,
            generation=head.generation if head else 0,
            step=state.step,
            node=state.checkpoint_node,
            time_ns=time_ns_of(state),
            status=state.status,
            error=state.error,
            graph=state.graph,
            parent=state.parent,
            policy=policy,
        )

    def _cut(self, head: Head, row: Row) -> int:
        """-> the step below which rows go, now that a snapshot is written: those that no visible checkpoint builds on."""
        visible = head.policy.visible
        if visible is None:
            return 0
        if visible == 1:
            return row.step
        older = [known for known in self._index(head.run_id) if known.step < row.step]
        return min([known.base for known in older[-(visible - 1) :]], default=row.step)

    # ------------------------------------------------------------------ loading

    def load(self, run_id: str, step: int | None = None) -> State:
        rows = self._chain(check_run_id(run_id), step)
        if not rows or (step is not None and not self._is_visible(run_id, step)):
            raise CheckpointNotFoundError(run_id, str(self), step)
        state = self._state_of(run_id, rows)
        if step is None:
            head = self._head(run_id)
            if head is not None and head.step == state.step:
                self._remember(self._tail_of(state, head, rows))
        return state

    def _state_of(self, run_id: str, rows: Sequence[Row]) -> State:
        """-> the State that a snapshot and its changes make. Raises CheckpointCorruptError if they do not."""
        self._check_chain(run_id, rows)
        newest = rows[-1]
        try:
            data, about = restore([row.body for row in rows])
            return State(
                data,
                run_id=run_id,
                step=newest.step,
                checkpoint_node=newest.node,
                timestamp=newest.time_ns,
                status=newest.status,
                error=newest.error,
                **about,
            )
        except (DecodeError, StateGraphError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise CheckpointCorruptError(run_id, f"its step {newest.step} cannot be restored: {error}") from error

    def _check_chain(self, run_id: str, rows: Sequence[Row]) -> None:
        """Raise unless these are a snapshot and all rows up to the newest, as they were written."""
        before = b""
        for row in rows:
            if row.format > FORMAT:
                raise FormatError(
                    run_id, f"its step {row.step} has format {row.format}; this version reads up to {FORMAT}"
                )
            if row.base != rows[0].step:
                raise CheckpointCorruptError(run_id, f"its step {row.step} builds on step {row.base}, which is missing")
            self._sealer.check(run_id, row, before)
            before = row.seal

    def _tail_of(self, state: State, head: Head, rows: Sequence[Row]) -> _Tail:
        """-> the tail of a State that was loaded from these rows."""
        *earlier, newest = rows
        before = earlier[-1].seal if earlier else b""
        since = sum(len(row.body) + _ROW_WEIGHT for row in rows[1:])
        row = attrs.evolve(newest, body=b"")
        return _Tail(state, head, row, before, {}, len(rows[0].body), since)

    def _is_visible(self, run_id: str, step: int) -> bool:
        return any(row.step == step for row in self._visible(run_id))

    def _visible(self, run_id: str) -> builtins.list[Row]:
        """-> the checkpoints of a run that retention keeps; more rows may be there that these build on."""
        head = self._head(check_run_id(run_id))
        if head is None:
            raise CheckpointNotFoundError(run_id, str(self))
        rows = self._index(run_id)
        return rows[-head.policy.visible :] if head.policy.visible else rows

    def _remember(self, tail: _Tail) -> None:
        with self._lock:
            self._tails[tail.head.run_id] = tail
            self._tails.move_to_end(tail.head.run_id)
            while len(self._tails) > _MOST_TAILS:
                self._tails.popitem(last=False)

    def _forget(self, run_id: str) -> None:
        with self._lock:
            self._tails.pop(run_id, None)

    # ------------------------------------------------------------------ runs

    def list(self) -> builtins.list[str]:
        return sorted(head.run_id for head in self._heads(None, None, -1, None))

    def delete(self, run_id: str) -> None:
        self._remove(check_run_id(run_id))
        self._forget(run_id)
        self._policies.pop(run_id, None)

    def history(self, run_id: str) -> builtins.list[Summary]:
        head = self._head(check_run_id(run_id))
        return [] if head is None else [_step_summary(head, row) for row in self._visible(run_id)]

    def runs(
        self, status: str | None = None, graph: str | None = None, limit: int = 100, after: str | None = None
    ) -> builtins.list[Summary]:
        heads = self._heads(status, graph, check_limit(limit), from_cursor(after))
        return [_run_summary(head) for head in heads]

    def rollback(self, run_id: str, step: int) -> State:
        state = self.load(run_id, step)
        head = self._head(run_id)
        if head is None:
            raise CheckpointNotFoundError(run_id, str(self), step)
        back = attrs.evolve(self._next_head(head, state), generation=head.generation + 1)
        self._commit(Write(back, cut_above=step))
        self._forget(run_id)
        return state

    def fork(self, run_id: str, new_run_id: str, step: int | None = None) -> State:
        check_run_id(new_run_id)
        source = self.load(run_id, step)
        forked = forked_from(source, new_run_id)
        rows = self._copied(run_id, new_run_id, source.step)
        whole = Change.between(None, forked, {})
        last = self._sealer.seal(new_run_id, self._row(forked, forked.step, whole.to_body()), b"")
        head = attrs.evolve(self._next_head(None, forked), policy=self._policy_of(run_id))
        if not self._commits.commit(Write(head, (*rows, last))):
            raise RunExistsError(new_run_id, str(self))
        return forked

    def prune(self) -> Pruned:
        now = clock.now_ns()
        removed, cut = [], 0
        for head in self._heads(None, None, -1, None):
            if head.policy.is_over(head.status, head.time_ns, now):
                self.delete(head.run_id)
                removed.append(head.run_id)
            else:
                cut += self._cut_now(head)
        return Pruned(tuple(removed), cut)

    def _copied(self, run_id: str, new_run_id: str, below: int) -> builtins.list[Row]:
        """-> the checkpoints of a run before a step, and what they build on, sealed for another run."""
        visible = [row.step for row in self._visible(run_id) if row.step < below]
        copies: dict[int, Row] = {}
        for step in visible:
            rows = self._chain(run_id, step)
            self._check_chain(run_id, rows)
            before = b""
            for row in rows:
                copies[row.step] = self._sealer.seal(new_run_id, row, before)
                before = copies[row.step].seal
        return builtins.list(copies.values())

    def _cut_now(self, head: Head) -> int:
        """Remove the rows of a run that no visible checkpoint builds on -> how many."""
        index = self._index(head.run_id)
        visible = self._visible(head.run_id)
        lowest = min((row.base for row in visible), default=0)
        superfluous = sum(row.step < lowest for row in index)
        if superfluous:
            self._commit(Write(attrs.evolve(head, version=head.version + 1), cut_below=lowest))
            self._forget(head.run_id)
        return superfluous

    def _commit(self, write: Write) -> None:
        if not self._commits.commit(write):
            raise StepConflictError(write.head.run_id, "others wrote to the run at the same time; try again")

    def _policy_of(self, run_id: str) -> Policy:
        head = self._head(run_id)
        return head.policy if head else Policy()

    def _row(self, state: State, base: int, body: bytes) -> Row:
        return Row(
            state.step, base, state.checkpoint_node, time_ns_of(state), state.status, state.error, FORMAT, "msgpack", body
        )


def _step_summary(head: Head, row: Row) -> Summary:
    return Summary(
        head.run_id, head.graph, row.step, row.node, clock.to_datetime(row.time_ns), row.status, row.error, head.parent
    )


def _run_summary(head: Head) -> Summary:
    return Summary(
        head.run_id,
        head.graph,
        head.step,
        head.node,
        clock.to_datetime(head.time_ns),
        head.status,
        head.error,
        head.parent,
        str(head.number),
    )
