"""The plainest model of a store, which real stores are compared with: dicts of States."""

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
    """Return whether two States have the same provenance and data, in values, types and order of keys."""
    return is_same(dict(a), dict(b)) and with_data(a, {}) == with_data(b, {})


@attrs.define(eq=False)
class Run:
    """A run.

    Attributes:
        policy: Its retention policy in the store.
        saved: Every State that was saved and not rolled back, by step; each visible State is one of these.
        visible: The steps that must be visible, in order.
        is_exact: Whether no other step may be visible. After a change of policy, or a rollback or fork of a window, a
            hidden step may become visible again.
    """

    policy: Policy
    saved: dict[int, State]
    visible: list[int]
    is_exact: bool = True

    @property
    def newest(self) -> State:
        """The newest State."""
        return self.saved[self.visible[-1]]


@attrs.define(eq=False)
class Story:
    """The rows that a full history has shown of a run; the history may only grow.

    Attributes:
        run_id: The run.
        said: Each row with the State of its revision.
    """

    run_id: str
    said: list[tuple[Summary, State]] = attrs.field(factory=list)

    def check(self, store: CheckpointStore) -> None:
        """Check that the store still shows all rows, and remember new ones."""
        rows = store.history(self.run_id)
        before = [row for row, _ in self.said]
        if rows[: len(before)] != before:
            raise AssertionError(f"{before} was shown before, and now {rows}")
        for row, state in self.said:
            loaded = store.load(self.run_id, row.step, row.revision)
            if not is_same_state(loaded, state):
                raise AssertionError(f"{loaded!r} {dict(loaded)} was {state!r} {dict(state)}")
        new = rows[len(before) :]
        self.said += [(row, store.load(self.run_id, row.step, row.revision)) for row in new]


class Model:
    """A store that is obviously right. Handles are store objects on the same data; each has its own policies.

    Args:
        learns_at_once: Whether a policy takes effect at once, and not with the next save.
    """

    def __init__(self, *, learns_at_once: bool) -> None:
        self.runs: dict[str, Run] = {}
        self._policies: dict[int, dict[str, Policy]] = {}
        self._learns_at_once = learns_at_once

    # ------------------------------------------------------------------ saving

    def refuses(self, state: State, *, may_change_data: bool = False) -> bool:
        """Return whether a State may not be saved: it is older than the newest, or has other data of the same step."""
        run = self.runs.get(state.run_id)
        if run is None or state.step > run.newest.step:
            return False
        same_data = may_change_data or _have_same_data(state, run.newest)
        return state.step < run.newest.step or not same_data

    def save(self, handle: int, state: State) -> None:
        """Keep a State that is not refused. The policy of this handle takes effect for all handles."""
        state = copy.deepcopy(state)
        policy = self._policies.get(handle, {}).pop(state.run_id, None)
        run = self.runs.get(state.run_id)
        if run is None:
            run = self.runs[state.run_id] = Run(policy or Policy(), {}, [])
        elif policy is not None:
            run.policy = policy
        if state.step not in run.visible:
            run.visible.append(state.step)
        run.saved[state.step] = state
        self._trim(state.run_id)

    def retain(self, handle: int, run_id: str, policy: Policy) -> None:
        """Set the policy of a run in one handle."""
        self._policies.setdefault(handle, {})[run_id] = policy
        run = self.runs.get(run_id)
        if run is None:
            return
        run.is_exact = run.is_exact and policy == run.policy
        if self._learns_at_once:
            run.policy = policy
        self._trim(run_id)

    def forget_handle(self, handle: int) -> None:
        """Forget a store object with its policies."""
        self._policies.pop(handle, None)

    def _trim(self, run_id: str) -> None:
        """Hide steps that one of the pending policies lets go."""
        run = self.runs[run_id]
        about = [run.policy, *(policies[run_id] for policies in self._policies.values() if run_id in policies)]
        run.is_exact = run.is_exact and all(policy == run.policy for policy in about)
        fewest = min((policy.max_checkpoints for policy in about if policy.max_checkpoints), default=None)
        if fewest:
            del run.visible[:-fewest]

    # ------------------------------------------------------------------ time travel, and forgetting

    def rollback(self, handle: int, run_id: str, step: int, time_ns: int) -> State:
        """Roll a run back; return its new State."""
        run = self.runs[run_id]
        state = evolve(run.saved[step], parent=run.newest.parent)  # a fork stays one
        generation = run.newest.generation + 1
        for later in [one for one in run.saved if one > step]:
            del run.saved[later]
        run.visible = [one for one in run.visible if one <= step]
        run.is_exact = run.is_exact and run.policy.max_checkpoints in (None, 1)
        self.save(handle, evolve(state, generation=generation, _time_ns=time_ns))
        return run.newest

    def fork(self, run_id: str, new_run_id: str, step: int) -> State:
        """Fork a run; return the State of the copy."""
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
        self._policies.get(handle, {}).pop(run_id, None)

    def due(self, now_ns: int) -> set[str]:
        """Return the runs that prune removes."""
        return {
            run_id
            for run_id, run in self.runs.items()
            if run.policy.is_over(run.newest.status, _time_ns(run.newest), now_ns)
        }


def _have_same_data(a: State, b: State) -> bool:
    """Return whether the data are the same in any order of keys."""
    return a.keys() == b.keys() and all(is_same(a[key], b[key]) for key in a)


def _time_ns(state: State) -> int:
    return state._time_ns


def differences(a: State, b: State) -> dict[str, Any]:
    """Return the differences of two States as `CheckpointStore.diff` does."""
    return {
        "added": {key: b[key] for key in b if key not in a},
        "removed": {key: a[key] for key in a if key not in b},
        "changed": {key: (a[key], b[key]) for key in a if key in b and a[key] != b[key]},
    }
