"""What a memory store holds: runs, and their States as they are kept."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import attrs

from stategraph._values.frozen import are_settled
from stategraph._values.ids import is_nested_id, outer_id, step_of
from stategraph.state import State, data_of, evolve
from stategraph.stores.base import RetentionPolicy

if TYPE_CHECKING:
    from stategraph.stores._memory.encoded import EncodedState

    Kept: TypeAlias = State | EncodedState


@attrs.define(eq=False)
class HeldRun:
    """A run.

    Attributes:
        number: Counts runs in the order in which they began.
        policy: What is kept of it.
        kept: Its checkpoints, in order.
        created_ns: When it began; nanoseconds since 1970, UTC.
        parts: Finished parts of its steps, by step, node and label.
    """

    number: int
    policy: RetentionPolicy
    kept: list[Kept]
    created_ns: int
    parts: dict[tuple[int, str, str], Kept] = attrs.field(factory=dict)

    def cut(self) -> int:
        """Drop the checkpoints that retention does not keep; return how many."""
        superfluous = self.policy.first_kept(self.kept)
        del self.kept[:superfluous]
        return superfluous


@attrs.define(eq=False)
class HeldRuns:
    """What a memory store holds.

    Attributes:
        runs: The runs, by id.
        policies: What is to be kept of runs that have not begun.
        nested: The ids of the runs that are nested directly in a run, by its id.
        numbers: Counts the runs.
        changes: Another number after each change.
        counter: Counts the changes.
    """

    runs: dict[str, HeldRun] = attrs.field(factory=dict)
    policies: dict[str, RetentionPolicy] = attrs.field(factory=dict)
    nested: dict[str, set[str]] = attrs.field(factory=dict)
    numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    changes: int = 0
    counter: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))

    def begin(self, run_id: str, run: HeldRun) -> None:
        """Add a run."""
        self.runs[run_id] = run
        self.policies.pop(run_id, None)
        while is_nested_id(run_id):
            self.nested.setdefault(outer_id(run_id), set()).add(run_id)
            run_id = outer_id(run_id)

    def drop(self, run_id: str) -> None:
        """Forget a run and all that is nested in it."""
        self.runs.pop(run_id, None)
        self.drop_nested(run_id)

    def drop_nested(
        self, run_id: str, up_to: int | None = None, is_told: Callable[[str], bool] = lambda nested_id: False
    ) -> None:
        """Forget the runs that are nested in steps of a run, in all of them or up to one, if no story tells of them."""
        for nested_id in self.nested.pop(run_id, set()):
            if (up_to is not None and step_of(nested_id) > up_to) or is_told(nested_id):
                self.nested.setdefault(run_id, set()).add(nested_id)
            else:
                self.drop(nested_id)


def as_kept(state: State) -> Kept:
    """Return a State as it is kept: as it is, unless objects in it may change."""
    if state.observer is not None:
        state = evolve(state, observer=None)
    if are_settled(data_of(state).values()) and state.pause is None and state.progress is None:
        return state
    from stategraph.stores._memory.encoded import encoded_if_needed

    return encoded_if_needed(state)


def state_of(kept: Kept) -> State:
    """Return a State that is kept."""
    return kept if isinstance(kept, State) else kept.restored()
