"""The "memory" store: for tests, and for runs that need not outlive their process."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from stategraph._owners.holds import Hold, Holds, acting, held, is_acting, lost
from stategraph._values.ids import check_given_id, check_run_id, is_nested_id
from stategraph.errors import CheckpointNotFoundError, CheckpointSaveError
from stategraph.state import State, data_of, time_ns_of
from stategraph.stores._files.fork_safety import protect_at_fork
from stategraph.stores._memory.held import HeldRun, HeldRuns, as_kept, state_of
from stategraph.stores.base import CheckpointStore, RetentionPolicy

if TYPE_CHECKING:
    from stategraph._values.progress import KeptParts, Part
    from stategraph.stores._checks import RunFilter
    from stategraph.stores._memory.held import Kept
    from stategraph.stores.summaries import Pruned, Summary

_MOST_WAITING = 10_000  # policies of runs that are not saved yet


class MemoryStore(CheckpointStore):
    """Keeps States as they are, for they are immutable: saving one takes the same short time whatever its size."""

    keeps_parts = True
    never_waits = True
    compares_holds = True

    def __init__(self) -> None:
        self._held = HeldRuns()
        self._owned = Holds()
        self.renew()
        protect_at_fork(self)

    def at_rest(self) -> AbstractContextManager[object]:
        """Keep other threads from changing it while the process is forked (see `_files.fork_safety`)."""
        return self._lock

    def renew(self) -> None:
        """Take a lock of its own, in a forked child."""
        self._lock = threading.RLock()
        self._is_in_use: Callable[[], bool] = self._lock._is_owned  # type: ignore[attr-defined]

    @property
    def _alone(self) -> AbstractContextManager[bool]:
        """The lock. Raises if this thread holds it, further down its stack."""
        if self._is_in_use():
            from stategraph.stores._rows.access import used_below

            raise used_below(self)
        return self._lock

    def __str__(self) -> str:
        return "memory store"

    # ------------------------------------------------------------------ saving and loading

    def save(self, state: State) -> None:
        try:
            self._keep(state)
        except AttributeError as error:
            from stategraph.stores._checks import check_state

            check_state(state, error)
            raise

    def amend(self, state: State) -> None:
        self._keep(state, may_change_data=True)

    @property
    def _holds(self) -> Holds:
        return self._owned

    def _own(self, hold: Hold, *, take_over: bool = False) -> None:
        hold.store = self
        with self._lock if take_over else nullcontext():  # so that nothing is written by a former owner afterwards
            self._owned.take(hold, take_over=take_over)

    def _keep(self, state: State, may_change_data: bool = False) -> None:
        kept, run_id = as_kept(state), state.run_id
        hold = acting.hold
        if hold is None or hold.store is not self or (hold.run_id != run_id and not is_acting(self, run_id)):
            with held(self, run_id):
                self._keep(state, may_change_data)
            return
        compared: Kept | None = None
        is_again = False
        while True:
            if self._is_in_use():
                from stategraph.stores._rows.access import used_below

                raise used_below(self, run_id, CheckpointSaveError)
            with self._lock:
                if hold.is_lost:
                    raise lost(run_id)
                self._held.changes = next(self._held.counter)
                run = self._held.runs.get(run_id)
                if run is None:
                    policy = self._held.policies.get(run_id) or RetentionPolicy()
                    self._held.begin(run_id, HeldRun(next(self._held.numbers), policy, [kept], time_ns_of(state)))
                    return
                newest = run.kept[-1]
                if newest is compared:
                    run.kept[len(run.kept) - (is_again or not run.policy.keeps_all) :] = [kept]
                    return
                if newest.step < state.step:
                    if run.policy.retention == "latest":
                        run.kept = [kept]
                    else:
                        run.kept.append(kept)
                        run.cut()
                    return
            # Out here: whoever made the values may use the store while they are compared.
            same_data = may_change_data or _have_same_data(newest, state)
            if newest.step > state.step or not same_data:
                from stategraph.stores._checks import check_step

                check_step(run_id, newest.step, state.step, same_data)
            compared, is_again = newest, _is_saved_again(newest, state)

    def retain(self, run_id: str, policy: RetentionPolicy) -> None:
        with self._alone:
            run = self._held.runs.get(check_run_id(run_id))
            if run is not None:
                run.policy = policy
                return
            policies = self._held.policies
            policies[run_id] = policy
            while len(policies) > _MOST_WAITING:
                del policies[next(iter(policies))]

    def load(
        self, run_id: str, step: int | None = None, revision: int | None = None, *, unknown: str | None = None
    ) -> State:  # all values are here: none is unknown
        run = self._held.runs.get(check_run_id(run_id))
        if step is None and revision is None:
            if run is None:
                raise CheckpointNotFoundError(run_id, str(self))
            return state_of(run.kept[-1])
        from stategraph.stores._memory.history import found  # imported when used, as below: few runs ask for it

        return state_of(found(run, run_id, step, revision, self)[1])

    def delete(self, run_id: str, *, take_over: bool = False) -> None:
        with held(self, check_run_id(run_id), take_over=take_over) as hold, self._alone:
            hold.check()
            self._held.changes = next(self._held.counter)
            self._held.drop(run_id)
            self._held.policies.pop(run_id, None)

    def list(self) -> builtins.list[str]:
        return sorted(run_id for run_id in tuple(self._held.runs) if not is_nested_id(run_id))

    # ------------------------------------------------------------------ imported when used: few runs ask for it

    def save_parts(self, run_id: str, parts: Sequence[Part]) -> None:
        from stategraph.stores._memory.parts import parts_as_kept

        kept = parts_as_kept(run_id, parts)
        with held(self, run_id) as hold, self._alone:
            hold.check()
            if run_id in self._held.runs:
                self._held.runs[run_id].parts.update(kept)

    def load_parts(self, run_id: str, step: int, node: str) -> KeptParts:
        from stategraph.stores._memory.parts import load_parts

        return load_parts(self._held, check_run_id(run_id), step, node)

    def drop_parts(self, run_id: str, step: int, *, newer_too: bool = False) -> None:
        from stategraph.stores._memory.parts import drop_parts

        with held(self, check_run_id(run_id)) as hold, self._alone:
            hold.check()
            drop_parts(self._held, run_id, step, newer_too=newer_too)

    def history(self, run_id: str) -> builtins.list[Summary]:
        from stategraph.stores._memory.history import history

        return history(self._held, check_run_id(run_id))

    def _runs(self, which: RunFilter, limit: int, after: int | None) -> builtins.list[Summary]:
        from stategraph.stores._memory.history import runs

        return runs(self._held, which, limit, after, self.owner)

    def rollback(
        self, run_id: str, step: int, revision: int | None = None, *, take_over: bool = False, by: str | None = None
    ) -> State:
        from stategraph.stores._checks import check_number
        from stategraph.stores._memory.history import found, roll_back

        check_number(step)
        if take_over:  # nobody loses a run to a step that is not there
            self.load(run_id, step, revision)
        # From the look to the change: whoever deletes the run meanwhile waits.
        with held(self, check_run_id(run_id), take_over=take_over) as hold, self._alone:
            hold.check()
            self._held.changes = next(self._held.counter)
            place, _ = found(self._held.runs.get(run_id), run_id, step, revision, self)
            return roll_back(self._held, run_id, place, by)

    def fork(self, run_id: str, new_run_id: str, step: int | None = None, revision: int | None = None) -> State:
        from stategraph.stores._memory.history import fork, found

        with held(self, check_given_id(new_run_id)) as hold, self._alone:
            hold.check()
            self._held.changes = next(self._held.counter)
            place, _ = found(self._held.runs.get(check_run_id(run_id)), run_id, step, revision, self)
            return fork(self._held, run_id, place, new_run_id, self)

    def prune(self) -> Pruned:
        from stategraph.stores._memory.history import prune

        with self._alone:
            self._held.changes = next(self._held.counter)
            return prune(self._held, self)

    def changed_since(self, token: str | None, run_id: str | None = None) -> str | None:
        with self._alone:
            now = str(self._held.changes)
        return None if now == token else now


def _have_same_data(kept: Kept, state: State) -> bool:
    if isinstance(kept, State) and data_of(kept) is data_of(state):  # as where only how the run stands is new
        return True
    from stategraph.stores._codec.delta import have_same_data  # imported when used: 20 ms

    return have_same_data(state_of(kept), state, {})


def _is_saved_again(kept: Kept, state: State) -> bool:
    if (kept if isinstance(kept, State) else kept.state).timestamp != state.timestamp:
        return False
    from stategraph.stores._codec.delta import are_of_one_save

    return _have_same_data(kept, state) and are_of_one_save(state_of(kept), state)
