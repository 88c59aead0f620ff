"""Records: a State as the bytes that a durable store keeps, and what is done with bytes that are none."""

from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stategraph import (
    CheckpointCorruptError,
    CheckpointError,
    ErrorInfo,
    FormatError,
    NotSerializableError,
    Observer,
    ParentStep,
    RunStatus,
    State,
)
from stategraph.stores import codec
from stategraph.stores.records import FORMAT_VERSION, Record, _digest
from stategraph.structure import EdgeStructure, GraphStructure

STATE = State(
    {"topic": "records", "orders": [{"total": 12}]},
    run_id="a",
    checkpoint_node="draft",
    timestamp=datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC),
    step=3,
    status=RunStatus.FAILED,
    graph="review",
    structure=GraphStructure(("draft", "publish"), (EdgeStructure("draft", "publish", "always()"),)),
    error=ErrorInfo("ValueError", "no topic \ud800", "publish"),
    parent=ParentStep("b", 2),
)
KEPT = Record.of(STATE).to_bytes()
FIELDS: dict[str, Any] = codec.decode(KEPT[19:])


def loaded(kept: bytes, run_id: str = "a") -> State:
    """-> the State in the bytes; whatever else comes of them is a CheckpointError."""
    return Record.from_bytes(run_id, kept).state()


def forged(body: bytes) -> bytes:
    """-> a record with a checksum that is right: whoever can write to a store can make one."""
    return b"".join((b"SG", bytes([FORMAT_VERSION]), _digest("a", body), body))


def test_a_record_gives_the_state_back() -> None:
    """With all of its provenance, and to the microsecond."""
    assert loaded(KEPT) == STATE
    assert loaded(KEPT).timestamp == STATE.timestamp
    assert loaded(KEPT).fingerprint == STATE.fingerprint


def test_a_fresh_state_has_a_record_as_well() -> None:
    """No field needs to be set."""
    state = State()

    assert loaded(Record.of(state).to_bytes(), state.run_id) == state


def test_the_observer_is_not_kept() -> None:
    """It belongs to the process."""
    state = attrs.evolve(STATE, observer=Observer())

    assert Record.of(state).to_bytes() == KEPT
    assert loaded(KEPT).observer is None


def test_what_cannot_be_kept_names_run_and_place() -> None:
    """The error carries both."""
    with pytest.raises(NotSerializableError) as caught:
        Record.of(State({"orders": [object()]}, run_id="review-42"))

    assert (caught.value.run_id, caught.value.path) == ("review-42", "orders[0]")


# --------------------------------------------------------------------------- damage


@pytest.mark.parametrize("place", range(len(KEPT)))
def test_a_changed_byte_is_found_out(place: int) -> None:
    """Anywhere: what comes back is the State that was saved, or an error."""
    for bits in (0x01, 0x80, 0xFF):
        damaged = bytearray(KEPT)
        damaged[place] ^= bits
        try:
            state = loaded(bytes(damaged))
        except (CheckpointCorruptError, FormatError):
            continue
        assert state == STATE


@pytest.mark.parametrize("size", range(len(KEPT)))
def test_a_cut_record_is_found_out(size: int) -> None:
    """A write that was torn is no checkpoint."""
    with pytest.raises(CheckpointCorruptError):
        loaded(KEPT[:size])


@pytest.mark.parametrize("added", [b"\0", KEPT], ids=["a byte", "a record"])
def test_a_record_with_something_behind_it_is_found_out(added: bytes) -> None:
    """All bytes count."""
    with pytest.raises(CheckpointCorruptError):
        loaded(KEPT + added)


def test_the_record_of_another_run_is_refused() -> None:
    """A row that was moved is not what was saved for this run."""
    with pytest.raises(CheckpointCorruptError, match="run 'b'"):
        loaded(KEPT, "b")


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 255])
def test_a_newer_format_is_refused(version: int) -> None:
    """It may be all right: the error says to update, not that something is damaged."""
    with pytest.raises(FormatError, match=f"format {version} .*update stategraph"):
        loaded(KEPT[:2] + bytes([version]) + KEPT[3:])


def test_a_format_that_never_was_is_refused() -> None:
    """The version is as much a part of the record as the rest."""
    with pytest.raises(CheckpointError):
        loaded(KEPT[:2] + b"\0" + KEPT[3:])


@pytest.mark.parametrize("kept", [b"", b"SG", b"SG\x01", b"PK\x03\x04" + b"\0" * 99, b"SG\x01" + b"\0" * 16], ids=repr)
def test_what_is_no_record_is_refused(kept: bytes) -> None:
    """In words of stategraph."""
    with pytest.raises(CheckpointCorruptError):
        loaded(kept)


@settings(max_examples=200, deadline=None, print_blob=True)
@given(st.binary(max_size=80))
def test_random_bytes_are_refused(kept: bytes) -> None:
    """With and without a checksum that is right."""
    for record in (kept, b"SG\x01" + kept, forged(kept)):
        with pytest.raises(CheckpointError):
            loaded(record)


# --------------------------------------------------------------------------- forgery

_WRONG: dict[str, list[Any]] = {
    "step": [None, "x", -1, 1.5, [], True],
    "data": [None, 5, "x", b"", b"\xc1", codec._pack([1]), codec._pack(5), codec._pack({"a": 1})[:-1], {}],
    "node": [None, 5, [], b"x"],
    "time_ns": [None, "x", 1.5, [], 10**30, -(10**30)],
    "status": [None, "done", 5, [], {}],
    "graph": [5, [], {}],
    "structure": [5, [], "x", {}, {"nodes": 5, "edges": []}, {"nodes": [], "edges": [5]}, {"nodes": [], "edges": [{}]}],
    "error": [5, [], "x", {}, {"type": "a"}, {"type": 5, "message": [], "node": None}],
    "parent": [5, [], "x", {}, {"run_id": 5, "step": "x"}, {"run_id": "../b", "step": -1}],
}


@pytest.mark.parametrize(("field", "value"), [(name, value) for name, values in _WRONG.items() for value in values])
def test_a_forged_field_is_refused(field: str, value: Any) -> None:
    """With a CheckpointError at loading, not with something else when the State is used."""
    with pytest.raises(CheckpointError):
        loaded(forged(codec.encode({**FIELDS, field: value})))


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_field_is_refused(field: str) -> None:
    """Nothing has a default in a record."""
    rest = {name: value for name, value in FIELDS.items() if name != field}

    with pytest.raises(CheckpointCorruptError):
        loaded(forged(codec.encode(rest)))


@pytest.mark.parametrize("body", [[], 5, "x", {}, {"step": 1}, [["step", 1]], None], ids=repr)
def test_a_forged_body_is_refused(body: Any) -> None:
    """Whatever value it is."""
    with pytest.raises(CheckpointCorruptError):
        loaded(forged(codec._pack(body)))


@pytest.mark.parametrize("key", [5, None, b"a"], ids=repr)
def test_forged_data_with_keys_that_are_no_text_is_refused(key: Any) -> None:
    """As a State would refuse them."""
    data = codec._pack(codec._prepare({key: 1}, "", -1))

    with pytest.raises(CheckpointCorruptError):
        loaded(forged(codec.encode({**FIELDS, "data": data})))


def test_an_unknown_class_in_a_record_names_the_way_out() -> None:
    """The process that resumes may have forgotten to register it."""
    import ormsgpack

    data = codec._pack({"order": ormsgpack.Ext(codec._OBJECT, codec._pack(["shop.Order", {}]))})

    with pytest.raises(CheckpointCorruptError, match="register_type"):
        loaded(forged(codec.encode({**FIELDS, "data": data})))
