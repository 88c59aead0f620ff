"""State: an immutable mapping that knows its run."""

import json
import pickle
from array import array
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address
from typing import Any

import attrs
import pytest
from pydantic import HttpUrl, SecretStr

from stategraph import (
    ErrorInfo,
    Event,
    EventType,
    InvalidRunIdError,
    NotSerializableError,
    Observer,
    ParentStep,
    RunStatus,
    State,
)
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.stores.memory import MemoryStore
from stategraph.stores.serializers import from_plain
from stategraph.testing import fixed


class Recorder(Observer):
    """Records events; two recorders are never equal."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


PROVENANCE: dict[str, Any] = {
    "run_id": "review-42",
    "checkpoint_node": "draft",
    "timestamp": datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC),
    "step": 3,
    "status": RunStatus.FAILED,
    "graph": "review",
    "structure": GraphStructure(("draft",), (EdgeStructure("draft", "draft", "always()"),)),
    "error": ErrorInfo("ValueError", "no topic", "publish"),
    "parent": ParentStep("review-41", 2),
    "observer": Recorder(),
}


def provenance_of(state: State) -> dict[str, Any]:
    return {name: getattr(state, name) for name in PROVENANCE}


@pytest.fixture
def state() -> State:
    return State({"topic": "states", "orders": [{"total": 12}]}, **PROVENANCE)


# --------------------------------------------------------------------------- a mapping


def test_a_state_is_a_mapping() -> None:
    """It reads as a dict does."""
    state = State({"a": 1, "b": None})

    assert isinstance(state, Mapping)
    assert dict(state) == dict(state.items()) == {"a": 1, "b": None}
    assert list(state) == list(state.keys()) == ["a", "b"]
    assert list(state.values()) == [1, None]
    assert len(state) == 2
    assert "b" in state
    assert "c" not in state
    assert {**state} == {"a": 1, "b": None}


def test_an_absent_key_is_a_key_error() -> None:
    """A state never makes up a value."""
    with pytest.raises(KeyError, match="topic"):
        State()["topic"]


def test_a_state_keeps_nothing_of_its_mutable_input() -> None:
    """Data is taken as it is at that moment."""
    data: dict[str, Any] = {"orders": [{"total": 1}]}
    state = State(data)

    data["orders"][0]["total"] = 2
    data["new"] = True

    assert dict(state) == {"orders": [{"total": 1}]}


# --------------------------------------------------------------------------- attrs


def test_a_state_is_a_frozen_attrs_class(state: State) -> None:
    """No field can be set or deleted, and there is no room for others."""
    assert attrs.has(State)
    for name in ("run_id", "step", "observer", "_data", "other"):
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(state, name, 1)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            delattr(state, name)


# --------------------------------------------------------------------------- a new state for every change


class Key(StrEnum):
    TOPIC = "topic"


CHANGES: dict[str, Any] = {
    "set": lambda state: state.set("topic", "new"),
    "set by enum": lambda state: state.set(Key.TOPIC, "new"),
    "update": lambda state: state.update({"topic": "new"}),
    "update by keyword": lambda state: state.update(topic="new"),
    "keywords win": lambda state: state.update({"topic": "old"}, topic="new"),
    "merge": lambda state: state.merge({"topic": "new"}),
    "merge a state": lambda state: state.merge(State({"topic": "new"}, run_id="other", step=99)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_gives_a_new_state(state: State, change: Any) -> None:
    """The old one stays as it was; order, provenance and all other values are shared."""
    before = dict(state)

    changed = change(state)

    assert dict(state) == before
    assert list(changed.items()) == [("topic", "new"), ("orders", [{"total": 12}])]
    assert type(next(iter(changed))) is str
    assert changed["orders"] is state["orders"]
    assert provenance_of(changed) == PROVENANCE


def test_remove_leaves_out_one_key(state: State) -> None:
    """All else stays."""
    changed = state.remove("topic")

    assert list(changed) == ["orders"]
    assert changed["orders"] is state["orders"]
    assert provenance_of(changed) == PROVENANCE
    assert "topic" in state


def test_set_checkpoint_node_records_node_and_time(state: State) -> None:
    """Everything else is kept, the step included: the engine counts steps."""
    with fixed():
        moved = state.set_checkpoint_node("publish")

    assert provenance_of(moved) == {
        **PROVENANCE,
        "checkpoint_node": "publish",
        "timestamp": datetime(2020, 1, 1, tzinfo=UTC),
    }
    assert moved["orders"] is state["orders"]


# --------------------------------------------------------------------------- provenance


def test_a_fresh_state_has_a_run_of_its_own() -> None:
    """A fresh State has a new run id and an empty provenance."""
    state = State()

    assert state.run_id != State().run_id
    assert (state.checkpoint_node, state.step, state.status) == ("", 0, RunStatus.ACTIVE)
    assert (state.graph, state.structure, state.fingerprint) == (None, None, None)
    assert (state.error, state.parent, state.observer) == (None, None, None)
    assert state.timestamp.tzinfo is UTC


def test_equal_states_have_equal_data_and_provenance(state: State) -> None:
    """The observer is not compared."""
    assert State({"topic": "states", "orders": [{"total": 12}]}, **{**PROVENANCE, "observer": None}) == state


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"topic": "other"}},
        {"run_id": "review-43"},
        {"checkpoint_node": ""},
        {"timestamp": PROVENANCE["timestamp"] + timedelta(microseconds=1)},
        {"step": 4},
        {"status": RunStatus.ACTIVE},
        {"graph": None},
        {"structure": None},
        {"error": None},
        {"parent": None},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_states_that_differ_in_one_thing_differ(state: State, changes: dict[str, Any]) -> None:
    """Every field but the observer counts."""
    assert attrs.evolve(state, **changes) != state


# --------------------------------------------------------------------------- repr


# --------------------------------------------------------------------------- copying


def test_a_pickled_state_is_equal_and_read_only() -> None:
    """Processes may hand states to each other."""
    state = State({"orders": [{"total": {1}}]}, **{**PROVENANCE, "observer": None})

    loaded = pickle.loads(pickle.dumps(state))

    assert loaded == state
    assert provenance_of(loaded) == {**PROVENANCE, "observer": None}
    with pytest.raises(TypeError):
        loaded["orders"][0]["total"].add(2)


# --------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize("data", [None, 5, "text", [1], [("a", 1)], {1, 2}], ids=repr)
def test_data_that_is_no_mapping_is_a_type_error(data: Any) -> None:
    """The same from every way in."""
    with pytest.raises(TypeError):
        State(data)
    with pytest.raises(TypeError):
        State().merge(data)


@pytest.mark.parametrize("key", [None, 5, b"a", ("a",), 1.5], ids=repr)
def test_a_key_that_is_no_str_is_a_type_error(key: Any) -> None:
    """The same from every way in."""
    for change in (
        lambda: State({key: 1}),
        lambda: State().set(key, 1),
        lambda: State().update({key: 1}),
        lambda: State().merge({key: 1}),
    ):
        with pytest.raises(TypeError, match="key of a State is a str"):
            change()


_WRONG: dict[str, list[Any]] = {
    "step": [-1, 1.0, "1", True, None],
    "status": ["done", None, 5, []],
    "timestamp": [datetime(2024, 1, 1), "2024-01-01", None, 1.5, True, 10**40],
    "checkpoint_node": [None, 5, b"draft"],
    "graph": [5, ["review"]],
    "error": ["boom", ValueError("boom")],
    "parent": ["review-41", ("review-41", 2)],
    "structure": ["draft", 5],
}


@pytest.mark.parametrize("field", _WRONG)
def test_a_provenance_field_that_is_wrong_is_refused(field: str) -> None:
    """A wrong provenance field is refused at once, not when the State is saved or loaded."""
    for value in _WRONG[field]:
        with pytest.raises((TypeError, ValueError), match=f"(?i){field}"):
            State(**{field: value})


@pytest.mark.parametrize("run_id", ["", "../x", "a b", "x" * 201, None, 5], ids=lambda run_id: repr(run_id)[:20])
def test_a_run_id_that_breaks_its_grammar_is_refused(run_id: Any) -> None:
    """No run id is a path or a part of a query."""
    with pytest.raises(InvalidRunIdError):
        State(run_id=run_id)


# --------------------------------------------------------------------------- events


def test_an_observer_hears_of_what_is_done_with_its_state() -> None:
    """An observer of a State gets the changes of it and of all States made of it."""
    observer = Recorder()

    State({"a": 1}, run_id="r", observer=observer).set("b", 2).update(c=3, d=4).remove("a").merge({"e": 5}).clone()

    assert [(event.type, event.data.get("keys")) for event in observer.events] == [
        (EventType.STATE_CREATE, None),
        (EventType.STATE_SET, ("b",)),
        (EventType.STATE_SET, ("c", "d")),
        (EventType.STATE_SET, ("a",)),
        (EventType.STATE_MERGE, ("e",)),
        (EventType.STATE_CLONE, None),
    ]
    assert {event.data["run_id"] for event in observer.events} == {"r"}
    assert {event.source for event in observer.events} == {"state"}


# --------------------------------------------------------------------------- as JSON


@pytest.mark.parametrize("data", [{}, {"a": 1, "b": [None, True, 1.5, "é\n"], "c": {"d": {}}}], ids=str)
def test_plain_data_are_json_as_they_are(data: dict[str, Any]) -> None:
    """Plain data become plain JSON."""
    assert json.loads(State(data).to_json()) == data


def test_types_that_json_lacks_are_tagged() -> None:
    """Values without a JSON type are tagged as the serializer does, and come back exactly."""
    text = State({"when": date(2026, 1, 2), "$x": (1, 2), "parts": {3}}).to_json()

    assert from_plain(json.loads(text)) == {"when": date(2026, 1, 2), "$x": (1, 2), "parts": {3}}


# --------------------------------------------------------------------------- values that no store keeps


class Scalar:
    """As a number of an array has it."""

    ndim = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value

    def item(self) -> int:
        return self.value

    tolist = item


class Whole:
    """A whole number of another library."""

    def __index__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        (array("i", [1]), r"array\.array is not kept exactly; make it plain values: value\.tolist\(\)"),
        (Scalar(1), r"Scalar is not kept exactly; make it a plain value: value\.item\(\)"),
        (Whole(), r"Whole is not kept exactly; make it an int: int\(value\)"),
        (SecretStr("s"), r"pydantic\.types\.SecretStr, which is not kept.*such as str\(value\) if that is exact"),
        (HttpUrl("http://a.example"), r"HttpUrl.* not kept.*str\(value\)"),
        (IPv4Address("10.0.0.1"), r"ipaddress\.IPv4Address, which is not kept.*such as str\(value\) if that is exact"),
    ],
)
def test_the_error_for_a_value_of_another_library_says_how_to_keep_it(value: Any, way_out: str) -> None:
    """The error names the key and the type, and the way to keep the value."""
    with pytest.raises(NotSerializableError, match=rf"^rows\[0\] cannot be saved: .*{way_out}"):
        MemoryStore().save(State({"rows": [value]}, run_id="a"))
