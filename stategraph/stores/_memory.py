"""States in a memory store: as they are or, if they hold mutable objects, as bytes."""

from __future__ import annotations

from itertools import chain
from typing import TypeAlias

import attrs

from stategraph._values.frozen import are_settled
from stategraph.state import State, data_of, evolve, with_data


@attrs.frozen
class Encoded:
    """A State with mutable objects.

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
    """Return a State in the form in which it is kept.

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
    """Return whether there are mutable objects in the pause, the emitted chunks, or replaced values and answers."""
    pause, progress = state.pause, state.progress
    if pause is None and progress is None:
        return False
    shown = () if pause is None else [one.value for one in pause.each]
    chunks = () if state.partial is None else state.partial.chunks
    old = () if progress is None else chain(*progress.replaced.values(), *progress.answer.values())
    return not are_settled((*shown, *chunks, *old))


def state_of(kept: Kept) -> State:
    """Return a kept State, with copies of the objects in it."""
    if isinstance(kept, State):
        return kept
    from stategraph.stores.toolkit import state_from_bytes

    return state_from_bytes(kept.head.run_id, kept.payload)


def head_of(kept: Kept, *, with_pause: bool = False) -> State:
    """Return a State for its provenance, without its data and its pause if they would have to be decoded."""
    if isinstance(kept, State) or (with_pause and kept.head.pause is not None):
        return state_of(kept)
    return kept.head


def has_data_of(kept: Kept, state: State) -> bool:
    """Return whether a State has the same data as a kept one."""
    if isinstance(kept, State) and data_of(kept) is data_of(state):  # for instance if only the status is new
        return True
    from stategraph.stores._codec.delta import have_same_data

    return have_same_data(state_of(kept), state, {})


def is_same_save(kept: Kept, state: State) -> bool:
    """Return whether a State with the data of a kept one is the same save again."""
    from stategraph.stores._codec.delta import are_of_one_save

    return are_of_one_save(state_of(kept), state)
