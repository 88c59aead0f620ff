"""The store and the observer as a run may use them; their failures become errors of stategraph.

The engine never calls these functions. It puts them into commands.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, cast

from stategraph._owners.holds import Hold, acting, lost, on_behalf_of, own
from stategraph._protocol.commands import Stopped
from stategraph._text.shown import describe_exception, shorten
from stategraph._util.callables import failures
from stategraph._values.events import EventType, Listener, notify
from stategraph._values.provenance import RunStatus
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointSaveError,
    RunBusyError,
    RunLostError,
    StepConflictError,
)
from stategraph.state import State

if TYPE_CHECKING:
    from stategraph._protocol.store import Store


class RunIO:
    """The store and the observer of a graph, for one run. A CheckpointError from here has the State at stake in it.

    Args:
        store: Keeps the States.
        observer: Hears of events.
        source: The name of the graph.
        policy: What the store is to keep of the run. It is told before the first save, not earlier: a run that is never
            saved must leave nothing in a store.
        persist: The only keys that are saved; None for all.
        settle: Waits until runs of the store have ended that were dropped before.
    """

    def __init__(
        self,
        store: Store,
        observer: Listener,
        source: str,
        policy: Any = None,
        persist: AbstractSet[str] | None = None,
        settle: Callable[[], object] = bool,
    ) -> None:
        self.whole = store
        self._settle = settle
        self.store = store if persist is None else _selective(store, persist)
        self.hold: Hold | None = None
        self.heeds_cancel = False
        self.kept: State | None = None  # what was saved right before it was found out that the run is cancelled
        self.observer = observer
        self._source = source
        self._policy = policy
        self._is_told = False
        self.place: dict[str, Any] = {}  # of the run in the tree of all events
        self.before: dict[int, State] = {}  # what is to be saved with the next State, by its identity

    @property
    def is_cancelled(self) -> bool:
        """Whether the run is known to be cancelled."""
        return self.hold is not None and self.hold.is_cancelled

    @property
    def is_lost(self) -> bool:
        """Whether the run is known to be taken by others."""
        return self.hold is not None and self.hold.is_lost

    def own(self, about: tuple[Hold, bool]) -> None:
        """Become the owner of a run, which the last takes away from whoever has it."""
        self._settle()  # it may be this run that was dropped a moment ago
        hold, take_over = about
        try:
            own(self.whole, hold, take_over=take_over)
        except (CheckpointError, RunBusyError):
            raise
        except failures() as error:
            raise CheckpointError(hold.run_id, f"the {self.store} failed: {describe_exception(error)}") from error
        self.hold = hold

    def save(self, state: State) -> None:
        """Save a State; raises a CheckpointError if that fails."""
        before, hold = acting.hold, self.hold
        acting.hold = hold
        try:
            if self.before or not self._is_told:
                self._save_story(state)
            else:
                self.store.save(state)
        except failures() as error:
            raise self.unsaved(state, error)  # noqa: B904 - sets the cause itself
        finally:
            acting.hold = before
        if hold is not None and hold.is_cancelled:
            self.heed_cancel(state)

    def heed_cancel(self, state: State) -> None:
        """Raise Stopped if the save of a State has told that the run was cancelled."""
        if self.heeds_cancel and self.hold is not None and self.hold.is_cancelled:
            self.kept = state
            self.stop_if_cancelled(state)

    def stop_if_cancelled(self, state: State) -> None:
        """Raise Stopped if the run was cancelled before it came to its end with this State."""
        is_ended = state.status in (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)
        if not is_ended and self.hears_of_cancel():
            raise Stopped("it was cancelled")

    def hears_of_cancel(self, _: object = None) -> bool:
        """Return whether the run was cancelled, by whatever process."""
        return self.hold is not None and (self.hold.is_cancelled or self.whole._is_cancelled(self.hold))

    def cancel(self, about: tuple[str, str | None]) -> None:
        """Tell whoever is at work on a run that it is cancelled, and by whom."""
        self.whole._cancel(*about)

    def cancelled_by(self, run_id: str) -> str | None:
        """Return who has cancelled a run that was at work, if that was said."""
        return self.whole._cancelled_by(run_id)

    def take_up(self, hold: Hold) -> None:
        """Go on with a run that was cancelled."""
        with on_behalf_of(hold):
            self.whole._take_up(hold)

    def save_with_next(self, state: State) -> None:
        """Keep a State until the next save, which saves both in one go, if nothing of a run is ever to be replaced.

        So its story tells of the input and of the last step, at no further sync.
        """
        if self._policy is not None and self._policy.keeps_all:
            self.before.pop(id(state), None)
            self.before[id(state)] = state

    def _save_story(self, state: State) -> None:
        """Save a State, and what is to be saved with it, once the store knows what it is to keep."""
        if not self._is_told:
            self._tell_policy(state.run_id)
        before, self.before = self.before, {}
        before.pop(id(state), None)
        if before:
            self.store.save_many((*before.values(), state))
        else:
            self.store.save(state)

    def amend(self, state: State) -> None:
        """Save a State in place of the newest one; raises a CheckpointError if that fails."""
        with on_behalf_of(self.hold):
            try:
                if not self._is_told:
                    self._tell_policy(state.run_id)
                self.store.amend(state)
            except failures() as error:
                raise self.unsaved(state, error)  # noqa: B904 - sets the cause itself

    def write(self, write: Callable[[], State]) -> State:
        """Return what a write to the store returns that is made on behalf of the owner of the run."""
        with on_behalf_of(self.hold):
            return write()

    def load(self, run_id: str) -> State:
        """Return the newest State of the run; raise a CheckpointError if there is none, or something else comes."""
        self._settle()  # it may be this run that was dropped a moment ago
        try:
            state = self.store.load(run_id)
        except CheckpointError:
            raise
        except failures() as error:
            reason = f"the {self.store} could not load it: {describe_exception(error)}"
            if isinstance(error, LookupError):
                reason += " (a store says with CheckpointNotFoundError that a run is not there)"
            raise CheckpointError(run_id, reason) from error
        if type(state) is not State or state.run_id != run_id:
            raise CheckpointCorruptError(run_id, f"the {self.store} gave {shorten(state)} for it")
        return state

    def flush(self, state: State) -> None:
        """Wait until all that was saved before is durable; raises a CheckpointError if it will not be."""
        try:
            with on_behalf_of(self.hold):
                self.store.flush()
        except failures() as error:
            raise self.unsaved(state, error)  # noqa: B904 - sets the cause itself
        if self.heeds_cancel and state.status is RunStatus.PAUSED:
            self.stop_if_cancelled(state)

    def delete(self, state: State) -> None:
        """Delete the run of a completed State; raises a CheckpointError if that fails, or a save before it has."""
        self.flush(state)  # or a save behind the run that has failed would seem to be a failure to delete
        try:
            with on_behalf_of(self.hold):
                self.store._discard(state.run_id)
        except RunLostError as error:
            error.state = state
            raise
        except failures() as error:
            reason = f"it is complete, but the {self.store} could not delete it: {describe_exception(error)}"
            failure = CheckpointError(state.run_id, reason)
            failure.state = state
            raise failure from error

    def nested(self, source: str, persist: AbstractSet[str] | None) -> RunIO:
        """Return the services for a nested run, whose graph has its own keys that are saved."""
        nested = RunIO(self.whole, self.observer, source, self._policy, persist, self._settle)
        nested.hold = self.hold
        return nested

    def unsaved(self, state: State, error: BaseException) -> CheckpointError:
        """Return the error for a State that could not be saved: the store's own, if it is a CheckpointError."""
        self._is_told = False  # a store need not remember the policy of a run that it could not begin
        if isinstance(error, StepConflictError) and self.hold is not None and self.whole._has_lost(self.hold):
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

    def notify(self, about: tuple[EventType, Mapping[str, Any]]) -> None:
        """Tell the observer of an event: its type and its data."""
        self.place = self.place or {"call_id": os.urandom(8).hex()}
        notify(self.observer, about[0], self._source, {**about[1], **self.place})

    def _tell_policy(self, run_id: str) -> None:
        self.store.retain(run_id, self._policy)
        self._is_told = True


def _selective(store: Store, persist: AbstractSet[str]) -> Store:
    from stategraph._engine.selective_store import SelectiveStore  # imported when used: few graphs save only some keys

    return cast("Store", SelectiveStore(store, persist))
