"""RowStore: everything that stores of rows have in common. Such a store reads and writes rows, and nothing else."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from stategraph._values.answers import gives_back
from stategraph._values.ids import check_given_id, check_run_id, is_nested_id
from stategraph._values.provenance import Part
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointNotFoundError,
    InvalidRunIdError,
    NotSerializableError,
    StepConflictError,
)
from stategraph.state import State
from stategraph.stores._codec.delta import have_same_data, have_same_provenance
from stategraph.stores._codec.payload import PayloadCodec
from stategraph.stores._rows.chains import Chains
from stategraph.stores._rows.copies import Copies
from stategraph.stores._rows.encoder import Rows, Tail
from stategraph.stores._rows.group_commit import SharedCommits
from stategraph.stores._rows.integrity import Sealer, SigningKey, former_keys, signing_key
from stategraph.stores._rows.known import KnownRuns
from stategraph.stores._rows.nested import InnerRuns
from stategraph.stores._rows.operations import RowOperations
from stategraph.stores._rows.pruning import prune
from stategraph.stores._rows.records import Head, Row, Write
from stategraph.stores._rows.runs import Heads
from stategraph.stores._rows.together import SavesTogether
from stategraph.stores.base import (
    check_limit,
    check_number,
    check_status,
    check_step,
    forked_from,
    from_cursor,
    rolled_back,
)
from stategraph.stores.retention import Policy
from stategraph.stores.summaries import Pruned, Summary

_TRIES = 5  # of a save, while others write to the same run
_READS = 100  # of a run that others write to: reading is over long before the next save is

_Read = TypeVar("_Read")


class RowStore(RowOperations):
    """Base of stores that keep rows. Eight operations make one; the rest is here, once for all of them.

    Args:
        sign_with: Rows are signed (HMAC-SHA-256) with the key that this function gives, or that the environment
            variable of this name holds: at least 16 bytes. Unsigned or otherwise signed rows are refused. What that
            promises, and what it cannot, stands in docs/signing.md.
        verify_with: Keys that rows were signed with before, each as for `sign_with`. They are still read; new rows are
            signed with the new one.
        serializer: Name of the serializer of new rows: "msgpack", "json", or one that was registered. All that are
            known are read.
        compress: Whether new rows are compressed where that pays; it takes the extra ``stategraph[zstd]``.

    Raises:
        ConfigError: an option is not allowed, or the environment variable is not set.
        UnknownNameError: no serializer has this name.
    """

    def __init__(
        self,
        *,
        sign_with: SigningKey | str | None = None,
        verify_with: Sequence[SigningKey | str] = (),
        serializer: str = "msgpack",
        compress: bool = False,
    ) -> None:
        self.signing_key = signing_key(sign_with)
        self._sealer = Sealer(self.signing_key, former_keys(verify_with))
        self._rows = Rows(self._sealer, PayloadCodec(serializer, compress))
        self._commits = SharedCommits(self._apply, self._is_inside)
        self._known = KnownRuns()
        self._heads_of, self._chains = Heads(self, self._sealer, self._known), Chains(self, self._rows, self._known)
        self._inner_runs, self._copies, self._together = InnerRuns(self), Copies(self), SavesTogether(self)

    def at_rest(self) -> AbstractContextManager[object]:
        """-> keeps other threads out while the process is forked (see `stategraph.stores._files.fork_safety`)."""
        return nullcontext()

    def renew(self) -> None:
        """In a forked child: have locks of its own. Those who committed in the parent are not here."""
        self._commits = SharedCommits(self._apply, self._is_inside)
        self._known.renew()

    def _closed_error(self, run_id: str) -> CheckpointError:
        """-> the error for whoever uses it after it was closed."""
        way_out = "get_checkpoint_store opens a fresh one; a graph keeps the store that it was made with: make it anew"
        return CheckpointError(run_id, f"the {self} is closed; {way_out}")

    # ------------------------------------------------------------------ saving

    def save(self, state: State) -> None:
        self._keep(state, may_change_data=False)

    def amend(self, state: State) -> None:
        self._keep(state, may_change_data=True)

    def save_many(self, states: Sequence[State]) -> None:
        self._together.save(states)

    def _keep(self, state: State, may_change_data: bool) -> None:
        for _ in range(_TRIES):
            known = self._known.get(state.run_id)
            try:
                following = self._next(known, state, may_change_data)
            except NotSerializableError as error:
                error.run_id = state.run_id
                raise
            except StepConflictError:
                if known is None or not self._chains.is_stale(known[0]):
                    raise
                self._known.forget(state.run_id)
                continue
            if following is not None and self._is_saved(*following):
                return
            self._known.forget(state.run_id)  # somebody else has written: compare with what there is now
            self._heads_of.remove_left_over(state.run_id)
        raise StepConflictError(state.run_id, f"step {state.step} was not saved: others keep writing to the run")

    def _is_saved(self, old: Head | None, head: Head, row: Row, tail: Tail) -> bool:
        """Save a State -> whether it was saved: not if somebody else has written to the run."""
        cut = self._chains.cut_below(head, row) if row.base == row.step else 0
        is_made = self._made(Write(head, old, (row,), cut_below=cut))
        if is_made:
            self._known.remember(head, tail)
            if old is None:
                self._heads_of.forget(head.run_id)
        return is_made

    def _next(
        self, known: tuple[Head, Tail] | None, state: State, may_change_data: bool
    ) -> tuple[Head | None, Head, Row, Tail] | None:
        """-> the head before; head, row and tail with a State; None if somebody else writes to the run meanwhile."""
        if known is None:
            begun = self._heads_of.incarnation_for(state.run_id)
            row, tail = self._rows.snapshot(state, begun)  # what cannot be kept is found out before the store is asked
            head = self._heads_of.find(state.run_id)
            if head is None:
                return None, self._next_head(None, state, row, begun), row, tail
            if is_nested_id(state.run_id) and head.incarnation != begun:  # the run around has begun anew meanwhile
                return None
            if head.step < state.step:
                row, tail = self._rows.snapshot(state, head.incarnation)
                return head, self._next_head(head, state, row), row, tail
            try:
                self.load(state.run_id)
            except CheckpointNotFoundError:  # it was deleted meanwhile
                return None
            known = self._known.get(state.run_id)
            if known is None or known[0].incarnation != head.incarnation:
                return None
        head, tail = known
        if state.step > head.step:
            row, tail = self._rows.following(tail, state)
            return head, self._next_head(head, state, row), row, tail
        same_data = have_same_data(tail.state, state, tail.encoded)
        check_step(state.run_id, head.step, state.step, may_change_data or same_data)
        if not (same_data and have_same_provenance(tail.state, state)):
            row, tail = self._rows.snapshot(state, head.incarnation)
            return head, self._next_head(head, state, row), row, tail
        saved = self._chain(state.run_id, state.step)
        if not saved or saved[-1].seal != tail.seal:
            if self._chains.is_stale(head):
                return None
            raise CheckpointCorruptError(state.run_id, f"its newest step {head.step} is missing, or is another")
        row, tail = self._rows.again(tail, saved[-1], state)
        return head, self._next_head(head, state, row), row, tail

    def _next_head(self, old: Head | None, state: State, row: Row, incarnation: bytes = b"") -> Head:
        """-> the head of a run whose newest State is this one, in this row; of one that begins if there is no old."""
        return self._sealer.sealed_head(
            Head(
                run_id=state.run_id,
                number=old.number if old else 0,
                version=old.version + 1 if old else int.from_bytes(os.urandom(6)),
                step=state.step,
                node=state.checkpoint_node,
                time_ns=row.time_ns,
                status=state.status,
                error=state.error,
                graph=state.graph,
                parent=state.parent,
                policy=self._known.policy_of(state.run_id, old),
                pause=row.pause,
                incarnation=old.incarnation if old else incarnation,
                tip=row.seal,
            )
        )

    def _made(self, write: Write) -> bool:
        """Make a write, together with those of other threads -> whether it was made."""
        try:
            return self._commits.commit(self._heads_of.within(write) if is_nested_id(write.head.run_id) else write)
        except CheckpointError as error:
            error.run_id = error.run_id or write.head.run_id
            raise

    def _commit(self, write: Write) -> None:
        if not self._made(write):
            self._known.forget(write.head.run_id)
            raise StepConflictError(write.head.run_id, "others wrote to the run at the same time")

    def _remember(self, head: Head, tail: Tail) -> None:
        self._known.remember(head, tail)
        self._heads_of.forget(head.run_id)

    def _forget_all(self, run_id: str) -> None:
        """Forget a run that is not there any more."""
        self._known.forget_all(run_id)
        self._heads_of.forget(run_id)

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
        return self._read(check_run_id(run_id), lambda head: self._loaded(head, step), step)

    def _read(self, run_id: str, read: Callable[[Head], _Read | None], step: int | None = None) -> _Read:
        """-> what is read of a run, all of it of one time.

        Args:
            run_id: The run.
            read: ReadSet it, behind the head of the run; None, or CheckpointCorruptError, if others write meanwhile.
            step: What is asked for, for the error.

        Raises:
            CheckpointNotFoundError: there is no such run.
        """
        for _ in range(_READS):
            head = self._heads_of.find(run_id)  # first: a write before the rows are read makes its version an old one
            if head is None:
                self._known.forget_removed(run_id)
                raise CheckpointNotFoundError(run_id, str(self), step)
            try:
                found = read(head)
            except CheckpointCorruptError:
                if not self._chains.is_stale(head):
                    raise
            else:
                if found is not None:
                    return found
        raise CheckpointError(run_id, f"it was not read from the {self}: others keep writing to it")

    def _loaded_with_head(self, run_id: str, step: int | None) -> tuple[Head, State]:
        """Return a State, and the run as a whole as it was then."""
        if step is not None:
            check_number(step)

        def read(head: Head) -> tuple[Head, State] | None:
            state = self._loaded(head, step)
            return None if state is None or self._chains.is_stale(head) else (head, state)

        return self._read(check_run_id(run_id), read, step)

    def _loaded(self, head: Head, step: int | None) -> State | None:
        """-> the State of a step (None: the newest), None if somebody else writes to the run meanwhile."""
        rows = self._chain(head.run_id, step)
        if not rows:
            self._chains.check_absent(head, step)
        if not rows or (step is not None and not self._chains.is_visible(head, step)):
            if self._chains.is_stale(head):
                return None
            raise CheckpointNotFoundError(head.run_id, str(self), step)
        is_newest = self._chains.is_newest(head, rows[-1])
        if not is_newest and (step is None or step >= head.step):
            return None
        state = self._rows.state(head.run_id, rows, head.incarnation)
        if is_newest:
            self._remember(head, self._rows.tail(state, rows, head.incarnation))
        return state

    def list(self) -> builtins.list[str]:
        return sorted(self._heads_of.listing(lambda head: head.run_id).told)

    def history(self, run_id: str) -> builtins.list[Summary]:
        try:
            return self._read(check_run_id(run_id), self._told)
        except CheckpointNotFoundError:
            return []

    def _told(self, head: Head) -> builtins.list[Summary]:
        rows = self._chains.visible(head)
        if self._sealer.signs:  # which covers the bodies: who signs wants to be sure rather than fast
            for chain in self._chains.groups(head, rows):
                self._rows.check(head.run_id, chain, head.incarnation)
        return [head.summary_of(row) for row in rows]

    def runs(
        self, status: str | None = None, graph: str | None = None, limit: int = 100, after: str | None = None
    ) -> builtins.list[Summary]:
        check_status(status)
        found = self._heads_of.listing(Head.summary, status, graph, check_limit(limit), from_cursor(after))
        return found.told

    # ------------------------------------------------------------------ time travel, and forgetting

    def rollback(self, run_id: str, step: int) -> State:
        check_number(step)
        head, state = self._loaded_with_head(run_id, step)
        state = rolled_back(state)
        row, tail = self._rows.snapshot(state, head.incarnation)
        back = self._next_head(head, state, row)
        # In one go: parts of a later step are not left for another way to come to it, nor lost if others have written.
        self._commit(Write(back, head, (row,), cut_above=step, cut_within=True))
        self._remember(back, tail)
        self._erase()
        return state

    def fork(self, run_id: str, new_run_id: str, step: int | None = None) -> State:
        check_given_id(new_run_id)
        head, source = self._loaded_with_head(run_id, step)
        forked = forked_from(source, new_run_id)
        # What is within a step whose answers are taken back was made with these.
        is_kept = source.pause is not None or not gives_back(source)
        self._copies.make(head, forked, is_within_kept=is_kept)
        return forked

    def delete(self, run_id: str) -> None:
        self._discard(run_id)
        self._erase()

    def _discard(self, run_id: str) -> None:
        try:
            check_run_id(run_id)
        except InvalidRunIdError:
            if type(run_id) is not str or not self._remove_damaged(run_id):
                raise
        else:
            self._remove(run_id)
        self._forget_all(run_id)

    def retain(self, run_id: str, policy: Policy) -> None:
        self._known.retain(check_run_id(run_id), policy)

    def prune(self) -> Pruned:
        return prune(self)
