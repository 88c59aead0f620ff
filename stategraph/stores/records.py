"""Records: a State as the bytes that a durable store keeps.

A record is ``b"SG"``, the version of the format (one byte), a checksum (16 bytes of BLAKE2b over the run id and what follows)
and a body: provenance and data in the encoding of `stategraph.stores.codec`, the data as bytes within, so that provenance can
be read and data be compared without decoding them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import attrs

from stategraph.errors import CheckpointCorruptError, FormatError, NotSerializableError, StateGraphError
from stategraph.frozen import freeze_items
from stategraph.state import ErrorInfo, ParentStep, RunStatus, State, data_of, time_ns_of
from stategraph.stores import codec
from stategraph.structure import EdgeStructure, GraphStructure

FORMAT_VERSION = 1
_MAGIC = b"SG"
_DIGEST_SIZE = 16
_HEAD_SIZE = len(_MAGIC) + 1 + _DIGEST_SIZE


@attrs.frozen
class Record:
    """A State with its data still in bytes."""

    run_id: str
    step: int
    provenance: dict[str, Any]
    data: bytes

    @classmethod
    def of(cls, state: State) -> Record:
        """-> the record of a State.

        Raises:
            NotSerializableError: a value in it cannot be kept exactly.
        """
        try:
            data = codec.encode(data_of(state))
        except NotSerializableError as error:
            error.run_id = state.run_id
            raise
        return cls(state.run_id, state.step, _provenance_of(state), data)

    def state(self) -> State:
        """-> the State.

        Raises:
            CheckpointCorruptError: its data cannot be decoded here.
        """
        try:
            data = codec.decode(self.data)
            return State(freeze_items(data), run_id=self.run_id, step=self.step, **_restored(self.provenance))
        except (codec.DecodeError, StateGraphError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise CheckpointCorruptError(self.run_id, f"its step {self.step} cannot be restored: {error}") from error

    def to_bytes(self) -> bytes:
        """-> the bytes to keep."""
        body = codec.encode({"step": self.step, "data": self.data, **self.provenance})
        return b"".join((_MAGIC, bytes([FORMAT_VERSION]), _digest(self.run_id, body), body))

    @classmethod
    def from_bytes(cls, run_id: str, kept: bytes) -> Record:
        """-> the record that was kept for a run.

        Raises:
            CheckpointCorruptError: this is not what was kept for this run.
            FormatError: a newer version of stategraph wrote it.
        """
        if kept[: len(_MAGIC)] != _MAGIC or len(kept) < _HEAD_SIZE:
            raise CheckpointCorruptError(run_id, "what the store holds for it is no checkpoint of stategraph")
        if kept[len(_MAGIC)] > FORMAT_VERSION:
            raise FormatError(
                run_id,
                f"its checkpoint has format {kept[len(_MAGIC)]} and this version of stategraph reads up to "
                f"{FORMAT_VERSION}; update stategraph",
            )
        body = kept[_HEAD_SIZE:]
        if kept[len(_MAGIC) + 1 : _HEAD_SIZE] != _digest(run_id, body):
            raise CheckpointCorruptError(run_id, "its checkpoint is damaged: the checksum does not match")
        try:
            fields = codec.decode(body)
            return cls(run_id, fields.pop("step"), provenance=fields, data=fields.pop("data"))
        except (codec.DecodeError, AttributeError, LookupError, TypeError) as error:
            raise CheckpointCorruptError(run_id, f"its checkpoint cannot be decoded: {error}") from error


def _digest(run_id: str, body: bytes) -> bytes:
    """-> the checksum; it covers the run id, so that a record put in the place of another run's is found out."""
    digest = hashlib.blake2b(run_id.encode() + b"\0", digest_size=_DIGEST_SIZE)
    digest.update(body)
    return digest.digest()


def _provenance_of(state: State) -> dict[str, Any]:
    return {
        "node": state.checkpoint_node,
        "time_ns": time_ns_of(state),
        "status": state.status.value,
        "graph": state.graph,
        "structure": None if state.structure is None else attrs.asdict(state.structure),
        "error": None if state.error is None else attrs.asdict(state.error),
        "parent": None if state.parent is None else attrs.asdict(state.parent),
    }


def _restored(provenance: dict[str, Any]) -> dict[str, Any]:
    """-> the keywords that give a State this provenance."""
    structure, error, parent = provenance["structure"], provenance["error"], provenance["parent"]
    return {
        "checkpoint_node": provenance["node"],
        "timestamp": provenance["time_ns"],
        "status": RunStatus(provenance["status"]),
        "graph": provenance["graph"],
        "structure": None if structure is None else _structure(structure),
        "error": None if error is None else ErrorInfo(**error),
        "parent": None if parent is None else ParentStep(**parent),
    }


def _structure(kept: dict[str, Any]) -> GraphStructure:
    return GraphStructure(tuple(kept["nodes"]), tuple(EdgeStructure(**edge) for edge in kept["edges"]))
