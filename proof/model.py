"""What a store holds, in the plainest way: dicts of States. Stores are compared with this."""

from __future__ import annotations

import copy
from typing import Any

import attrs

from stategraph._values.provenance import ParentStep, RunStatus
from stategraph.state import State, evolve, with_data
from stategraph.stores.base import CheckpointStore, Policy
from stategraph.stores.summaries import Summary
from stategraph.testing import is_same


def is_same_state(a: State, b: State) -> bool:
    """Whether two States agree in data, with values, types and the order of keys, and in provenance."""
    return is_same(dict(a), dict(b)) and with_data(a, {}) == with_data(b, {})


@attrs.define(eq=False)
class Run:
    """A run.

    Attributes:
        policy: What is kept of it, as the store has it.
        saved: Every State of it that was saved and not taken back, by step: whatever can be seen is one of these.
        visible: The steps that must be seen, in order.
        is_exact: Whether no others may be seen. Once a policy has changed, or a window was rolled back or forked, a
            step that was out of sight may be seen again.
    """

    policy: Policy
    saved: dict[int, State]
    visible: list[int]
    is_exact: bool = True

    @property
    def newest(self) -> State:
        """The State where it stands."""
        return self.saved[self.visible[-1]]


@attrs.define(eq=False)
class Story:
    """What a full history has said of a run, in order: it may only grow.

    Attributes:
        run_id: The run.
        said: Each row, and the State that was loaded as that revision.
    """

    run_id: str
    said: list[tuple[Summary, State]] = attrs.field(factory=list)

    def check(self, store: CheckpointStore) -> None:
        """Ask the store again for all of it, and remember what it says besides."""
        rows = store.history(self.run_id)
        before = [row for row, _ in self.said]
        if rows[: len(before)] != before:
            raise AssertionError(f"{before} was said before, and now {rows}")
        for row, state in self.said:
            loaded = store.load(self.run_id, row.step, row.revision)
            if not is_same_state(loaded, state):
                raise AssertionError(f"{loaded!r} {dict(loaded)} was {state!r} {dict(state)}")
        new = rows[len(before) :]
        self.said += [(row, store.load(self.run_id, row.step, row.revision)) for row in new]


class Model:
    """A store that is obviously right. Handles are the store objects that share what is kept; each knows the policies
    that it was told.

    Args:
        learns_at_once: Whether a policy holds from when it is told, and not from the next save on.
    """

    def __init__(self, *, learns_at_once: bool) -> None:
        self.runs: dict[str, Run] = {}
        self._told: dict[int, dict[str, Policy]] = {}
        self._learns_at_once = learns_at_once

    # ------------------------------------------------------------------ saving

    def refuses(self, state: State, *, may_change_data: bool = False) -> bool:
        """Whether a State may not be saved: it is behind, or other data of the newest step."""
        run = self.runs.get(state.run_id)
        if run is None or state.step > run.newest.step:
            return False
        same_data = may_change_data or _have_same_data(state, run.newest)
        return state.step < run.newest.step or not same_data

    def save(self, handle: int, state: State) -> None:
        """Keep a State that is not refused. What this handle was told counts from now on for all of them."""
        state = copy.deepcopy(state)
        told = self._told.get(handle, {}).pop(state.run_id, None)
        run = self.runs.get(state.run_id)
        if run is None:
            run = self.runs[state.run_id] = Run(told or Policy(), {}, [])
        elif told is not None:
            run.policy = told
        if state.step not in run.visible:
            run.visible.append(state.step)
        run.saved[state.step] = state
        self._trim(state.run_id)

    def retain(self, handle: int, run_id: str, policy: Policy) -> None:
        """Tell one handle what is to be kept."""
        self._told.setdefault(handle, {})[run_id] = policy
        run = self.runs.get(run_id)
        if run is None:
            return
        run.is_exact = run.is_exact and policy == run.policy
        if self._learns_at_once:
            run.policy = policy
        self._trim(run_id)

    def forget_handle(self, handle: int) -> None:
        """A store object is gone, with the policies that it was told."""
        self._told.pop(handle, None)

    def _trim(self, run_id: str) -> None:
        """What may go by one of the policies that are about need not be seen any more."""
        run = self.runs[run_id]
        about = [run.policy, *(told[run_id] for told in self._told.values() if run_id in told)]
        run.is_exact = run.is_exact and all(policy == run.policy for policy in about)
        fewest = min((policy.max_checkpoints for policy in about if policy.max_checkpoints), default=None)
        if fewest:
            del run.visible[:-fewest]

    # ------------------------------------------------------------------ time travel, and forgetting

    def rollback(self, handle: int, run_id: str, step: int, time_ns: int) -> State:
        """-> the State that a run is taken back to, at this time."""
        run = self.runs[run_id]
        state = evolve(run.saved[step], parent=run.newest.parent)  # a fork stays one
        for later in [one for one in run.saved if one > step]:
            del run.saved[later]
        run.visible = [one for one in run.visible if one <= step]
        run.is_exact = run.is_exact and run.policy.max_checkpoints in (None, 1)
        self.save(handle, evolve(state, generation=state.generation + 1, _time_ns=time_ns))
        return run.newest

    def fork(self, run_id: str, new_run_id: str, step: int) -> State:
        """-> the State where the copy stands."""
        run = self.runs[run_id]
        source = run.saved[step]
        is_over = source.status is RunStatus.COMPLETED
        forked = evolve(
            source,
            run_id=new_run_id,
            status=source.status if is_over else RunStatus.ACTIVE,
            error=None,
            parent=ParentStep(run_id, step),
        )
        saved = {one: evolve(state, run_id=new_run_id) for one, state in run.saved.items() if one < step}
        is_exact = run.is_exact and run.policy.max_checkpoints in (None, 1)
        visible = [one for one in run.visible if one <= step]
        self.runs[new_run_id] = Run(run.policy, {**saved, step: forked}, visible, is_exact)
        self._trim(new_run_id)
        return forked

    def delete(self, handle: int, run_id: str) -> None:
        """Forget a run."""
        self.runs.pop(run_id, None)
        self._told.get(handle, {}).pop(run_id, None)

    def due(self, now_ns: int) -> set[str]:
        """-> the runs that prune removes."""
        return {
            run_id
            for run_id, run in self.runs.items()
            if run.policy.is_over(run.newest.status, _time_ns(run.newest), now_ns)
        }


def _have_same_data(a: State, b: State) -> bool:
    """Whether the data are the same; the order of keys does not count."""
    return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)


def _time_ns(state: State) -> int:
    return state._time_ns


def differences(a: State, b: State) -> dict[str, Any]:
    """-> what `CheckpointStore.diff` tells of two States."""
    return {
        "added": {key: b[key] for key in b if key not in a},
        "removed": {key: a[key] for key in a if key not in b},
        "changed": {key: (a[key], b[key]) for key in a if key in b and a[key] != b[key]},
    }
