"""The toolkit for stores that keep one State of a run as bytes, and its errors for other bytes."""

import itertools
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest

from stategraph import (
    CheckpointCorruptError,
    ErrorInfo,
    FormatError,
    InvalidRunIdError,
    ParentStep,
    RunStatus,
    State,
    StepConflictError,
)
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.stores._rows.records import FORMAT, pack_row, unpack_row
from stategraph.stores._rows.seals import Sealer
from stategraph.stores.toolkit import check_follows, state_from_bytes, state_to_bytes

STATE = State(
    {"topic": "records", "orders": [{"total": 12}]},
    run_id="a",
    checkpoint_node="draft",
    timestamp=datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC),
    step=3,
    status=RunStatus.FAILED,
    graph="review",
    structure=GraphStructure(("draft", "publish"), (EdgeStructure("draft", "publish", "always()"),)),
    error=ErrorInfo("ValueError", "no topic", "publish"),
    parent=ParentStep("b", 2),
)
KEPT = state_to_bytes(STATE)
UNUSED = 3  # the bytes before it give the number of parts
"""The place of the byte for the step before, which matters to stores that chain rows."""
ROW = unpack_row("a", KEPT)


def forged(**changes: Any) -> bytes:
    """Return a row with other values and a checksum that is right: anyone who can write to a store can make one."""
    return pack_row(Sealer().seal("a", ROW._replace(**changes), b""))


def test_the_bytes_give_the_state_back() -> None:
    """The loaded State has all of its provenance, to the microsecond."""
    loaded = state_from_bytes("a", KEPT)

    assert loaded == STATE
    assert (loaded.timestamp, loaded.fingerprint) == (STATE.timestamp, STATE.fingerprint)


# --------------------------------------------------------------------------- damage


def test_a_changed_byte_is_found_out() -> None:
    """Anywhere: what comes back is an error, or the State that was saved where the byte has no meaning."""
    unnoticed = []
    for place, bits in itertools.product(range(len(KEPT)), (0x01, 0x80, 0xFF)):
        damaged = bytearray(KEPT)
        damaged[place] ^= bits
        try:
            state = state_from_bytes("a", bytes(damaged))
        except (CheckpointCorruptError, FormatError):
            continue
        assert state == STATE, (place, bits)
        unnoticed.append((place, bits))

    assert {place for place, _ in unnoticed} <= {UNUSED}


def test_the_bytes_of_another_run_are_refused() -> None:
    """The bytes of another run are refused, as after a file was moved."""
    with pytest.raises(CheckpointCorruptError, match="run 'b'"):
        state_from_bytes("b", KEPT)
    with pytest.raises(InvalidRunIdError):
        state_from_bytes("../a", KEPT)


@pytest.mark.parametrize("version", [FORMAT + 1, 255, 10**9])
def test_a_newer_format_is_refused(version: int) -> None:
    """It may be all right: the error says to update, not that something is damaged."""
    with pytest.raises(FormatError, match=rf"format {version}; .* reads up to {FORMAT}; update"):
        state_from_bytes("a", forged(format=version))
    with pytest.raises(FormatError):
        state_from_bytes("a", pack_row(ROW._replace(format=version, payload=b"?")))


# --------------------------------------------------------------------------- what may follow


def at(step: int, **data: Any) -> State:
    return State(data, run_id="a", step=step)


def test_a_later_step_follows() -> None:
    """A later step with any data may follow, and so may the same step with the same data and another status."""
    check_follows(at(1, n=1), at(2))
    check_follows(at(1, n=1), at(9, n="x"))
    check_follows(at(1, n=1), attrs.evolve(at(1, n=1), status="failed", checkpoint_node="b"))


@pytest.mark.parametrize("data", [{"n": 2}, {"n": 1.0}, {"n": True}, {}, {"n": 1, "m": 1}], ids=repr)
def test_the_same_step_with_other_data_does_not(data: dict[str, Any]) -> None:
    """Values of another type are other data."""
    with pytest.raises(StepConflictError, match="step 1 is saved with other data"):
        check_follows(at(1, n=1), at(1, **data))
