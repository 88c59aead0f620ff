"""States as a memory store keeps them: as they are or, with objects in them that may still change, as bytes."""

from __future__ import annotations

from itertools import chain
from typing import TypeAlias

import attrs

from stategraph._values.frozen import are_settled
from stategraph.state import State, data_of, evolve, with_data


@attrs.frozen
class Encoded:
    """A State with objects that may still change.

    Attributes:
        head: The State without its data.
        payload: The State as bytes.
    """

    head: State
    payload: bytes

    @property
    def step(self) -> int:
        """The step of the State."""
        return self.head.step


Kept: TypeAlias = State | Encoded


def as_kept(state: State) -> Kept:
    """Return a State as it is kept.

    Raises:
        NotSerializableError: an object in it cannot be kept exactly.
    """
    if state.observer is not None:
        state = evolve(state, observer=None)
    if are_settled(data_of(state).values()) and not _has_further_objects(state):
        return state
    from stategraph.stores.toolkit import state_to_bytes  # imported when used: 20 ms

    return Encoded(with_data(state, {}), state_to_bytes(state))


def _has_further_objects(state: State) -> bool:
    """Return whether objects may change in what a State waits for, has emitted so far, or was given again."""
    pause, progress = state.pause, state.progress
    if pause is None and progress is None:
        return False
    shown = () if pause is None else [one.value for one in pause.each]
    chunks = () if state.partial is None else state.partial.chunks
    old = () if progress is None else chain(*progress.replaced.values(), *progress.answer.values())
    return not are_settled((*shown, *chunks, *old))


def state_of(kept: Kept) -> State:
    """Return a State that is kept, with copies of the objects in it."""
    if isinstance(kept, State):
        return kept
    from stategraph.stores.toolkit import state_from_bytes

    return state_from_bytes(kept.head.run_id, kept.payload)


def head_of(kept: Kept, *, with_pause: bool = False) -> State:
    """Return a State for its provenance: without its data and its pause, if these would have to be decoded."""
    if isinstance(kept, State) or (with_pause and kept.head.pause is not None):
        return state_of(kept)
    return kept.head


def has_data_of(kept: Kept, state: State) -> bool:
    """Return whether a State has the data of one that is kept."""
    if isinstance(kept, State) and data_of(kept) is data_of(state):  # as where only how the run stands is new
        return True
    from stategraph.stores._codec.delta import have_same_data

    return have_same_data(state_of(kept), state, {})


def is_same_save(kept: Kept, state: State) -> bool:
    """Return whether a State is one that is kept and has its data, saved twice."""
    from stategraph.stores._codec.delta import are_of_one_save

    return are_of_one_save(state_of(kept), state)
