"""The toolkit: a State as bytes, for stores that keep one State of a run, and what is done with bytes that are none."""

import itertools
from datetime import UTC, datetime
from typing import Any

import attrs
import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stategraph import (
    CheckpointCorruptError,
    CheckpointError,
    ErrorInfo,
    FormatError,
    InvalidRunIdError,
    NotSerializableError,
    Observer,
    ParentStep,
    RunStatus,
    State,
    StepConflictError,
)
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.state import time_ns_of
from stategraph.stores._codec import msgpack as codec
from stategraph.stores._rows.columns import pack_row, unpack_row
from stategraph.stores._rows.records import FORMAT
from stategraph.stores._rows.seals import Sealer
from stategraph.stores.toolkit import check_follows, state_from_bytes, state_to_bytes
from stategraph.testing.corpus import Order

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
UNUSED = 3  # what is before it says how many parts there are
"""The place of the byte for the step before, which matters to stores that chain rows."""
ROW = unpack_row("a", KEPT)
BODY = codec.decode(ROW.payload)


def forged(**changes: Any) -> bytes:
    """-> a row with other values and a checksum that is right: whoever can write to a store can make one."""
    return pack_row(Sealer().seal("a", ROW._replace(**changes), b""))


def payload(*parts: Any) -> bytes:
    """-> the bytes of a payload with these parts, whether a State has such ones or not."""
    return codec._pack([codec._MsgpackEncoder().prepare(part, "", -1) for part in parts])


def test_the_bytes_give_the_state_back() -> None:
    """With all of its provenance, and to the microsecond."""
    loaded = state_from_bytes("a", KEPT)

    assert loaded == STATE
    assert (loaded.timestamp, loaded.fingerprint) == (STATE.timestamp, STATE.fingerprint)


def test_a_fresh_state_has_bytes_as_well() -> None:
    """No field needs to be set."""
    state = State()

    assert state_from_bytes(state.run_id, state_to_bytes(state)) == state


def test_the_observer_is_not_kept() -> None:
    """It belongs to the process."""
    assert state_to_bytes(attrs.evolve(STATE, observer=Observer())) == KEPT


def test_what_cannot_be_kept_names_its_place() -> None:
    """The error is made before there are any bytes."""
    with pytest.raises(NotSerializableError) as caught:
        state_to_bytes(State({"orders": [object()]}, run_id="review-42"))

    assert caught.value.path == "orders[0]"


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


def test_cut_bytes_are_found_out() -> None:
    """A write that was torn is no checkpoint."""
    for size in range(len(KEPT)):
        with pytest.raises(CheckpointCorruptError):
            state_from_bytes("a", KEPT[:size])


@pytest.mark.parametrize("added", [b"\0", KEPT], ids=["a byte", "a checkpoint"])
def test_bytes_after_the_end_do_not_count(added: bytes) -> None:
    """A file that was once longer is still the checkpoint that was written last."""
    assert state_from_bytes("a", KEPT + added) == STATE


def test_the_bytes_of_another_run_are_refused() -> None:
    """A file that was moved is not what was saved for this run."""
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


@pytest.mark.parametrize("kept", [b"", b"SG", b"\xc1", b"PK\x03\x04" + b"\0" * 99, b"\x9b" + b"\xc0" * 11], ids=repr)
def test_what_is_no_checkpoint_is_refused(kept: bytes) -> None:
    """In words of stategraph."""
    with pytest.raises(CheckpointCorruptError):
        state_from_bytes("a", kept)


@settings(max_examples=80, deadline=None, print_blob=True)
@given(st.binary(max_size=80))
def test_random_bytes_are_refused(kept: bytes) -> None:
    """With and without a checksum that is right."""
    for made in (kept, forged(payload=kept)):
        with pytest.raises(CheckpointError):
            state_from_bytes("a", made)


# --------------------------------------------------------------------------- forgery

_WRONG: dict[str, list[Any]] = {
    "step": [-1, 10**15, 4],
    "base": [-1, 2, 4],
    "time_ns": [-(2**63)],
    "encoding": ["", "pickle", "msgpack+gzip", "os.system"],
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in _WRONG.items() for value in values])
def test_a_forged_field_is_refused(field: str, value: Any) -> None:
    """With a CheckpointError at loading, not with something else when the State is used."""
    with pytest.raises(CheckpointError):
        state_from_bytes("a", forged(**{field: value}))


@pytest.mark.parametrize("value", [None, "x", b"x", 1.5, [], {}, True, 2**64 - 1], ids=repr)
def test_a_forged_part_of_a_row_is_refused(value: Any) -> None:
    """Whatever its type is; the first part, the step before, is for stores that chain rows."""
    parts = ormsgpack.unpackb(KEPT)
    for place in range(1, len(parts)):
        if parts[place] is value:
            continue
        forged_parts = [*parts[:place], value, *parts[place + 1 :]]
        with pytest.raises(CheckpointError):
            state_from_bytes("a", ormsgpack.packb(forged_parts))

    assert state_from_bytes("a", ormsgpack.packb([value, *parts[1:]])) == STATE


_DATA, _GROWN, _GONE, _ABOUT = BODY
_GRAPH, _NODES, _EDGES, _PARENT, _GENERATION, _LABELS = _ABOUT
_BODIES: dict[str, bytes] = {
    "number": codec._pack(5),
    "empty list": codec._pack([]),
    "too few parts": payload(_DATA, _GROWN, _GONE),
    "cut": payload(_DATA, _GROWN, _GONE, _ABOUT)[:-1],
    "data with a number as key": payload({5: 1}, _GROWN, _GONE, _ABOUT),
    "nothing to grow": payload(_DATA, {"absent": [1]}, _GONE, _ABOUT),
    "removed that is no list": payload(_DATA, _GROWN, 5, _ABOUT),
    "no provenance": payload(_DATA, _GROWN, _GONE, None),
    "parent that is a path": payload(_DATA, _GROWN, _GONE, [_GRAPH, _NODES, _EDGES, ["../b", -1], 0, _LABELS]),
    "labels that are numbers": payload(_DATA, _GROWN, _GONE, [_GRAPH, _NODES, _EDGES, _PARENT, _GENERATION, {"a": 1}]),
}


@pytest.mark.parametrize("name", _BODIES)
def test_a_forged_body_is_refused(name: str) -> None:
    """With a CheckpointError at loading, not with something else when the State is used."""
    with pytest.raises(CheckpointError):
        state_from_bytes("a", forged(payload=_BODIES[name]))


def test_a_change_is_no_checkpoint_of_its_own() -> None:
    """What it builds on is not there."""
    with pytest.raises(CheckpointCorruptError, match="builds on an earlier checkpoint"):
        state_from_bytes("a", forged(base=2))


def test_an_unknown_class_in_it_names_the_way_out() -> None:
    """The process that resumes may have forgotten to register it."""
    unknown = codec._pack(["shop.Order", 1, {}])
    order = ormsgpack.packb([{"order": ormsgpack.Ext(31, unknown)}, {}, [], _ABOUT])

    with pytest.raises(FormatError, match=r"does not know the type 'shop\.Order'; register_type it"):
        state_from_bytes("a", forged(payload=order))


# --------------------------------------------------------------------------- what may follow


def at(step: int, **data: Any) -> State:
    return State(data, run_id="a", step=step)


def test_a_later_step_follows() -> None:
    """With any data; so does the same step with the same data and another status."""
    check_follows(at(1, n=1), at(2))
    check_follows(at(1, n=1), at(9, n="x"))
    check_follows(at(1, n=1), attrs.evolve(at(1, n=1), status="failed", checkpoint_node="b"))


@pytest.mark.parametrize("data", [{"n": 2}, {"n": 1.0}, {"n": True}, {}, {"n": 1, "m": 1}], ids=repr)
def test_the_same_step_with_other_data_does_not(data: dict[str, Any]) -> None:
    """Values of another type are other data."""
    with pytest.raises(StepConflictError, match="step 1 is saved with other data"):
        check_follows(at(1, n=1), at(1, **data))


def test_an_earlier_step_does_not() -> None:
    """Whatever its data are."""
    with pytest.raises(StepConflictError, match="step 1 is behind step 2"):
        check_follows(at(2), at(1))


def test_objects_are_compared_by_what_is_kept_of_them() -> None:
    """Their own idea of equality does not count."""
    check_follows(at(1, order=Order(1, ["tea"])), at(1, order=Order(1, ["tea"])))
    with pytest.raises(StepConflictError):
        check_follows(at(1, order=Order(1, ["tea"])), at(1, order=Order(1, ["milk"])))


def test_time_is_kept_to_the_nanosecond() -> None:
    """As the State has it."""
    state = State(run_id="a", timestamp=1_700_000_000_123_456_789)

    assert time_ns_of(state_from_bytes("a", state_to_bytes(state))) == 1_700_000_000_123_456_789
