"""StoreSession: the store, owner, saved keys and queue of a run. The engine puts its methods into commands.

Errors of the store become errors of stategraph that hold the affected State.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any, TypeVar, cast

import attrs

from stategraph._owners.base import NewEntriesError, Ownership, current, lost, on_behalf_of, own
from stategraph._owners.company import company
from stategraph._protocol import Stopped, StoreFailed
from stategraph._text.shown import describe_exception
from stategraph._util.callables import failures
from stategraph._values.entries import Entry
from stategraph._values.ids import nested_id
from stategraph._values.progress import KeptParts, Part, Pause, Repeat
from stategraph._values.registered_types import Older, noting_older
from stategraph.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointSaveError,
    RunLostError,
    StateGraphError,
    StepConflictError,
)
from stategraph.state import State, taken_of

_Answer = TypeVar("_Answer")

LOOK_AGAIN = 0.05
"""Seconds between two checks for a cancellation by another process, while no save of the run notices it."""


class StoreSession:
    """The store of a graph, for one run.

    Args:
        store: Keeps the States; a `stategraph.stores.CheckpointStore`.
        policy: How the store keeps the run. The store receives it just before the first save: a run that is never saved
            must leave nothing in a store.
        persist: The only keys that are saved; None for all.
        queue: Takes the saves if the run does not wait for them; a `stategraph.stores._save_queue.SaveQueue`.

    Attributes:
        ownership: The owner of the run, once it has one.
        older: The values in loaded States that were saved by an older version of their class.
        look_at: When to check for a cancellation by other processes again, by time.monotonic.
    """

    def __init__(
        self,
        store: Any,
        policy: Any = None,
        persist: AbstractSet[str] | None = None,
        queue: Any = None,
    ) -> None:
        self.store, self.queue = store, queue
        self.ownership: Ownership | None = None
        self.look_at = 0.0
        self.older: Older = {}
        self._policy, self._persist = policy, persist
        self._before: dict[int, State] = {}  # saved together with the next State, compared by identity
        self._knows_policy = False
        self._is_plain = False  # whether a save is nothing but a call of `store.save`
        self.queue_of_chunks: Callable[[], Any] | None = None  # makes a queue for chunks
        self._chunks: Any = None

    def nested(self, persist: AbstractSet[str] | None) -> StoreSession:
        """Return the session of a nested run, whose graph has its own saved keys."""
        nested = StoreSession(self.store, self._policy, persist, self.queue)
        nested.ownership, nested.older = self.ownership, self.older
        return nested

    # ------------------------------------------------------------------ owning, and being cancelled

    @property
    def is_cancelled(self) -> bool:
        """Whether the run is known to be cancelled."""
        return self.ownership is not None and self.ownership.is_cancelled

    @property
    def inbox(self) -> int:
        """The number of the newest entry that the inbox of the run is known to have had; 0 for none."""
        return (self.ownership.inbox or 0) if self.ownership is not None else 0

    def own(self, about: tuple[Ownership, bool]) -> None:
        """Become the owner of a run; if the second item is true, take it from its owner."""
        ownership, take_over = about
        self._query(ownership.run_id, "look up its owner", lambda: own(self.store, ownership, take_over=take_over))
        self.ownership = ownership

    def check_cancelled(self) -> bool:
        """Return whether any process cancelled the run."""
        self.look_at = monotonic() + LOOK_AGAIN
        return self.ownership is not None and (self.ownership.is_cancelled or self.store._is_cancelled(self.ownership))

    def stop_if_cancelled(self, state: State) -> None:
        """Raise Stopped if any process cancelled the run, or RunLostError with its last State."""
        with self._saving(state):
            if self.check_cancelled():
                raise Stopped("it was cancelled")

    def look_out(self, run: Any, _: None) -> None:
        """Raise if the run should stop at once: it was cancelled, or lost. A store that fails now may save later."""
        try:
            self.stop_if_cancelled(run.state)
        except RunLostError as error:
            raise StoreFailed from error
        except CheckpointError:
            return

    def write(self, about: tuple[str, Callable[[], _Answer]]) -> _Answer:
        """Write to the store, as the owner of the run if this is one; return the result."""
        run_id, write = about
        return self._query(run_id, "change it", write)

    # ------------------------------------------------------------------ saving

    def save(self, state: State) -> None:
        """Save a State; raise a CheckpointError if the store fails."""
        before, current.ownership = current.ownership, self.ownership
        try:
            if self._is_plain:
                self.store.save(state)  # the most frequent case by far
            else:
                self._save_all(self.to_save(state))
        except failures() as error:
            raise self._unsaved(state, error)  # noqa: B904 - sets the cause itself
        finally:
            current.ownership = before

    def _save_all(self, states: Sequence[State]) -> None:
        if self.queue is not None:
            self.queue.save(states)
        elif len(states) > 1:
            self.store.save_many(states)
        else:
            self.store.save(states[0])
            self._is_plain = self._persist is None and self._chunks is None
        company.clear(self.ownership)

    @property
    def keeps_all(self) -> bool:
        """Whether the store keeps the full history of the run."""
        return self._policy is not None and bool(self._policy.keeps_all)

    def save_with_next(self, state: State) -> None:
        """Save a State together with the next one, if the store keeps the full history of the run.

        The history then includes the input and the last step without another sync.
        """
        if self.keeps_all:
            self._before.pop(id(state), None)
            self._before[id(state)] = state
            self._is_plain = False

    def to_save(self, state: State) -> list[State]:
        """Return the States to save for a new State: those before it, then itself, with only the persisted keys."""
        if self._chunks is not None:
            self._chunks.flush()
        self._set_policy(state.run_id)
        self._before.pop(id(state), None)
        states, self._before = [*self._before.values(), state], {}
        return [self._persisted(each) for each in states]

    def _set_policy(self, run_id: str) -> None:
        if not self._knows_policy:
            self.store.retain(run_id, self._policy)
            self._knows_policy = True

    def _persisted(self, state: State) -> State:
        if self._persist is None:
            return state
        from stategraph._progress import persisted  # imported when used: few graphs save only some keys

        return persisted(state, self._persist)

    def connection(self, state: State) -> Any:
        """Return the connection of the transaction that the save of the step after a State commits."""
        ownership = self.ownership
        if ownership is None or ownership.transaction is None:
            self.flush(state)  # nothing of the run may be queued: its save would wait for the node
            return self.store._begin_at_node(ownership)
        return ownership.transaction.connection

    def save_at_node(self, state: State) -> None:
        """Save the State after a node in the transaction in which it has written to its own tables."""
        with self._saving(state):
            self.store.save_many(self.to_save(state))

    def roll_back(self) -> None:
        """Roll back what a node that does not complete its step has written to its own tables."""
        if self.ownership is not None:
            self.ownership.roll_back()

    def end_save(self, about: tuple[State, BaseException | None]) -> None:
        """End the save of a State that was in a batch with others; given its exception, raise as `save`."""
        state, error = about
        if error is not None:
            raise self._unsaved(state, error)
        company.clear(self.ownership)

    def amend(self, state: State) -> None:
        """Replace the newest saved State; raise a CheckpointError if the store fails."""
        with self._saving(state):
            self._drain()
            self._set_policy(state.run_id)
            self.store.amend(self._persisted(state))

    def flush(self, state: State) -> None:
        """Wait until all saves are durable; raise a CheckpointError if one fails."""
        with self._saving(state):
            self._drain()
            self.store.flush()

    def save_parts(self, about: tuple[State, Sequence[Part]]) -> None:
        """Save finished parts of the step after a State; raise a CheckpointError if the store fails."""
        state, parts = about
        with self._saving(state):
            (self.queue or self.store).save_parts(state.run_id, parts)

    @contextmanager
    def _saving(self, state: State) -> Iterator[None]:
        """Write as the owner of the run; turn a failure into a CheckpointError that holds the State."""
        with on_behalf_of(self.ownership):
            try:
                yield
            except failures() as error:
                raise self._unsaved(state, error)  # noqa: B904 - sets the cause itself

    def _drain(self) -> None:
        for queue in (self.queue, self._chunks):
            if queue is not None:
                queue.flush()

    def keep_chunk(self, state: State, entry: Entry) -> None:
        """Append a chunk to the journal of the step after a State, soon: with others, before the next save."""
        with self._saving(state):
            if self._chunks is None and self.queue_of_chunks is not None:
                self._chunks, self._is_plain = self.queue or self.queue_of_chunks(), False
            self._chunks.append(state.run_id, [entry])

    def _unsaved(self, state: State, error: BaseException) -> CheckpointError:
        """Return the error for a State that could not be saved: the store's own, if it is a CheckpointError."""
        self._knows_policy = self._is_plain = False  # a store may forget the policy of a run it could not begin
        if isinstance(error, StepConflictError) and self.ownership is not None and self.store._has_lost(self.ownership):
            failure: CheckpointError = lost(state.run_id)
            failure.__cause__ = None if isinstance(error, RunLostError) else error
        elif isinstance(error, CheckpointError):
            failure = error
        else:
            reason = f"step {state.step} could not be saved in the {self.store}: {describe_exception(error)}"
            failure = CheckpointSaveError(state.run_id, reason)
            failure.__cause__ = error
        failure.state = state
        return failure

    def delete(self, state: State) -> None:
        """Delete the run of a completed State; raise a CheckpointError if the deletion or an earlier save fails."""
        self.flush(state)  # otherwise a failed save would look like a failed deletion
        if self.inbox > taken_of(state):
            raise NewEntriesError(state.run_id)
        try:
            self._query(state.run_id, "delete it, which is complete", lambda: self.store._discard(state.run_id))
        except CheckpointError as error:
            error.state = state
            raise

    # ------------------------------------------------------------------ loading

    def load(self, run_id: str, loads: Callable[[], State] | None = None) -> State:
        """Return the newest State of the run; raise a CheckpointError if there is none or the store fails."""
        with noting_older(self.older):
            state: State = self._query(run_id, "load it", loads or partial(self.store.load, run_id))
        return state

    def find(self, run_id: str) -> State | None:
        """Return the newest State of the run, None if there is none; raise a CheckpointError if the store fails."""
        try:
            return self.load(run_id)
        except CheckpointNotFoundError:
            return None

    def load_parts(self, about: tuple[str, int, str, str]) -> KeptParts:
        """Return the saved parts of a step of a run, or their attempts."""
        run_id, step, node, kind = about

        def load() -> KeptParts:
            if kind == "part":
                return cast(KeptParts, self.store.load_parts(run_id, step, node))
            return KeptParts.of(self.store.entries(run_id, step=step, kinds=(kind,)), node)

        return self._query(run_id, "load its parts", load)

    def store_entries(self, state: State, entries: Sequence[Entry]) -> list[Entry]:
        """Append entries to the journal of the step after a State; raise a CheckpointError if the store fails."""
        with self._saving(state):
            kept: list[Entry] = self.store.append(state.run_id, entries)
            return kept

    def settle_effect(self, about: tuple[State, Pause, Any]) -> None:
        """Keep the answer to a pause that asks for the outcome of an effect, in the journal of its step."""
        state, pause, answer = about
        suffix, step, place = pause.effect
        effect = Entry("effect", {}, step, place, pause.response_param or "")
        with self._saving(state):
            found = self.store.entries(f"{state.run_id}{suffix}", step=step, kinds=("effect",))
            effect = next((entry for entry in found if entry.identity == effect.identity), effect)
            value = {} if isinstance(answer, Repeat) else {**effect.value, "result": answer}
            self.store.append(f"{state.run_id}{suffix}", [attrs.evolve(effect, value=value)])

    def watch_inbox(self, run: Any) -> None:
        """Let the saves of a run notice new entries of its inbox, unless it is nested or its store keeps none."""
        ownership = self.ownership
        if ownership is not None and ownership.inbox is None and run.outer_step is None and self.store.keeps_entries:
            ownership.inbox = taken_of(run.state)

    def refuse_new_entries(self, refuses: bool) -> None:
        """Whether a save of the owner fails if the inbox has entries that it does not know: while it decides."""
        if self.ownership is not None:
            self.ownership.refuses_new_entries = refuses

    def unread(self, about: tuple[str, int]) -> list[Entry]:
        """Return the entries of the inbox of a run after a number."""
        run_id, after = about
        entries: list[Entry] = self._query(
            run_id, "read its inbox", lambda: self.store.entries(run_id, step=0, after=after)
        )
        return entries

    def entries(self, about: tuple[str, int, Collection[str]]) -> list[Entry]:
        """Return the entries of a step of a run of some kinds."""
        run_id, step, kinds = about
        read = lambda: self.store.entries(run_id, step=step, kinds=kinds)  # noqa: E731
        found: list[Entry] = self._query(run_id, "read its entries", read)
        return found

    def entry_named(self, about: tuple[str, str, str]) -> Entry | None:
        """Return the entry of the inbox of a run that has a kind and a name."""
        found: Entry | None = self._query(about[0], "read its inbox", lambda: self.store._entry_named(*about))
        return found

    def done_at(self, about: tuple[State, tuple[int, str]]) -> list[str]:
        """Return the labels of the finished parts of a step, its effects, and the ids of its nested runs."""
        state, (step, name) = about
        if not self.store.keeps_parts:
            return []
        found = self.entries((state.run_id, step, ("effect",))) if self.store.keeps_entries else ()
        effects = [f"effect {each.name}" for each in found if each.value and f"{each.place}/".startswith(f"{name}/")]
        return [*self.load_parts((state.run_id, step, name, "part")), *effects, *self.nested_at(about)]

    def nested_at(self, about: tuple[State, tuple[int, str]]) -> list[str]:
        """Return the ids of the nested runs of a step."""
        state, (step, name) = about
        runs = self._query(state.run_id, "list its nested runs", lambda: [*self.store.iter_runs(parent=state.run_id)])
        own = nested_id(state.run_id, step, name, state.generation)
        return [run.run_id for run in runs if run.run_id == own or run.run_id.startswith(f"{own}~")]

    def effects_in(self, run_ids: Sequence[str]) -> list[str]:
        """Return the keys of the effects of nested runs."""
        read = lambda: [key for run_id in run_ids for key in self.store._effects_in(run_id)]  # noqa: E731
        return self._query(run_ids[0], "read its effects", read)

    def has_parts(self, run_id: str) -> bool:
        """Return whether the step under way of a run has begun parts or a nested graph."""
        step = self._query(run_id, "find its parts", lambda: self.store.under_way(run_id))
        return bool(step.done or step.failed or step.at_work)

    def redo(self, about: tuple[str, Sequence[str], bool]) -> None:
        """Have parts of the step under way of a run done again."""
        self._query(about[0], "find its parts", lambda: self.store._redo(*about))

    def drop_parts(self, about: tuple[str, int, bool]) -> None:
        """Delete the parts and nested runs of the steps up to this one; if the last item is true, also newer parts."""
        run_id, step, newer_too = about
        if self.queue is not None:
            with on_behalf_of(self.ownership):
                self.queue.drop_parts(run_id, step, newer_too=newer_too)
        else:
            self._query(run_id, "drop its parts", lambda: self.store.drop_parts(run_id, step, newer_too=newer_too))

    def _query(self, run_id: str, purpose: str, ask: Callable[[], _Answer]) -> _Answer:
        """Query the store; raise a CheckpointError if it fails."""
        try:
            with on_behalf_of(self.ownership):
                self._drain()
                return ask()
        except StateGraphError:
            raise
        except failures() as error:
            reason = f"the {self.store} could not {purpose}: {describe_exception(error)}"
            raise CheckpointError(run_id, reason) from error
