"""States in memory with objects that may still change: those are kept as bytes."""

from __future__ import annotations

from itertools import chain

import attrs

from stategraph._values.frozen import are_settled
from stategraph.state import State, data_of, evolve, with_data
from stategraph.stores._codec.delta import Delta, combine
from stategraph.stores._codec.msgpack import decode, encode
from stategraph.stores._codec.pauses import pause_from_json, pause_to_json


@attrs.frozen
class EncodedState:
    """A State with objects that may still change.

    Attributes:
        state: The State without its data.
        payload: The data, as bytes.
        pause: What it waits for, as a str.
    """

    state: State
    payload: bytes
    pause: str | None

    @property
    def step(self) -> int:
        """The step of the State."""
        return self.state.step

    def restored(self) -> State:
        """Return the State, with copies of the objects in it."""
        data, about = combine([decode(self.payload)])
        return evolve(with_data(self.state, data), progress=about["progress"], pause=pause_from_json(self.pause))


def encoded_if_needed(state: State) -> State | EncodedState:
    """Return a State, encoded if objects in it may change.

    Raises:
        NotSerializableError: one of them cannot be kept exactly.
    """
    if are_settled(data_of(state).values()) and not _waits_with_objects(state):
        return state
    payload = encode(Delta.between(None, state, {}).parts())
    return EncodedState(with_data(state, {}), payload, pause_to_json(state.pause))


def _waits_with_objects(state: State) -> bool:
    """Return whether objects may change in what a State waits for, has emitted so far, or was given anew."""
    shown = () if state.pause is None else [pause.value for pause in state.pause.each]
    chunks = () if state.partial is None else state.partial.chunks
    progress = state.progress
    old = () if progress is None else chain(*progress.replaced.values(), *progress.answer.values())
    return not are_settled((*shown, *chunks, *old))


def about(kept: State | EncodedState) -> State:
    """Return a State for a summary of it: without its data, if these would have to be decoded."""
    if isinstance(kept, State) or kept.pause is None:
        return provenance_of(kept)
    return evolve(kept.state, pause=pause_from_json(kept.pause))


def provenance_of(kept: State | EncodedState) -> State:
    """Return a State for its provenance: without its data and its pause, if these would have to be decoded."""
    return kept if isinstance(kept, State) else kept.state


def renamed(kept: State | EncodedState, run_id: str) -> State | EncodedState:
    """Return a State as one of another run."""
    state = evolve(provenance_of(kept), run_id=run_id)
    return state if isinstance(kept, State) else EncodedState(state, kept.payload, kept.pause)
