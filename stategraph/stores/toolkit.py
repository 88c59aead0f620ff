"""Helpers for stores that keep each State as one piece, such as a file: its bytes, and the checks that `save` needs."""

from __future__ import annotations

from functools import cache

from stategraph._values.ids import check_run_id
from stategraph.state import State, check_successor
from stategraph.stores._codec.states import have_same_data
from stategraph.stores._rows.encoder import CheckpointEncoder
from stategraph.stores._rows.records import pack_row, unpack_row
from stategraph.stores._rows.seals import Sealer

__all__ = ["check_follows", "check_run_id", "state_from_bytes", "state_to_bytes"]


@cache
def _encoder(serializer: str = "msgpack") -> CheckpointEncoder:
    return CheckpointEncoder(Sealer(), serializer)


def state_to_bytes(state: State, serializer: str = "msgpack") -> bytes:
    """Return a State as bytes, with the version of the format and a checksum.

    Args:
        state: The State.
        serializer: The name of the serializer of its data.

    Raises:
        NotSerializableError: a value cannot be kept exactly.
        UnknownNameError: no serializer has this name.
    """
    row, _ = _encoder(serializer).encode(state)
    return pack_row(row)


def state_from_bytes(run_id: str, kept: bytes) -> State:
    """Return the State of a run from the bytes that `state_to_bytes` returned.

    Raises:
        CheckpointCorruptError: the bytes are damaged, or belong to another run.
        FormatError: a newer version of stategraph made them, or they hold a type that is not registered here.
    """
    row = unpack_row(check_run_id(run_id), kept)
    return _encoder().state(run_id, [row])


def check_follows(saved: State, state: State) -> None:
    """Check that `save` may replace the saved State of a run with another one.

    That State must have a later step, or the same step and the same data, and not be from before a rollback.

    Raises:
        StepConflictError: it may not.
    """
    same_data = state.step == saved.step and have_same_data(saved, state, {})
    check_successor(saved, state, same_data)
