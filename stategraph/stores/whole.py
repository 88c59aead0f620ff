"""A whole State as bytes: for stores that keep bytes under a name, such as a folder of files."""

from __future__ import annotations

from stategraph.ids import check_run_id
from stategraph.state import State
from stategraph.stores.packing import pack_row, unpack_row
from stategraph.stores.rows import Sealer
from stategraph.stores.tails import Rows

_ROWS = Rows(Sealer())


def state_to_bytes(state: State) -> bytes:
    """-> the State as bytes, with the version of the format and a checksum.

    Raises:
        NotSerializableError: a value cannot be kept exactly.
    """
    row, _ = _ROWS.snapshot(state)
    return pack_row(row, None)


def state_from_bytes(run_id: str, kept: bytes) -> State:
    """-> the State of a run that `state_to_bytes` made these bytes of.

    Raises:
        CheckpointCorruptError: they are damaged, or of another run.
        FormatError: a newer version of stategraph made them.
    """
    row, _ = unpack_row(check_run_id(run_id), kept)
    return _ROWS.state(run_id, [row])
