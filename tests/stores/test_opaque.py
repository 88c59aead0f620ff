"""Values that a process cannot construct can be shown, are kept exactly, and are never executed."""

import enum
import uuid
from datetime import datetime
from typing import Any

import attrs
import pytest

from stategraph import FormatError, Pause, State, register_type
from stategraph._values import registered_types as types
from stategraph.stores import DiskStore, Opaque, SqliteStore
from stategraph.stores._codec.type_codecs import unknown_shown

STORES = {
    "sqlite": lambda path: SqliteStore(path / "runs.db"),
    "sqlite, json": lambda path: SqliteStore(path / "runs.db", serializer="json"),
    "disk": lambda path: DiskStore(path / "runs"),
}


def make_enum(members) -> Any:
    """Return an enum."""
    return enum.Enum("Colour", members)


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    """Return a durable store."""
    with STORES[request.param](tmp_path) as store:
        yield store


@pytest.fixture
def strange(monkeypatch):
    """Return values of classes, and a function after which this process does not know them."""
    order, colour = f"order-{uuid.uuid4()}", f"colour-{uuid.uuid4()}"
    cls = register_type(attrs.make_class("Order", ["number", "note"], frozen=True), name=order)
    hue = register_type(make_enum({"RED": 1}), name=colour)

    def forget():
        monkeypatch.delitem(types._by_name, order)
        monkeypatch.delitem(types._by_name, colour)

    return cls(7, "two"), hue.RED, forget


def test_unknown_values_are_shown(store, strange):
    """An unknown value is shown with its type and parts, in lists, as a key and in a set."""
    order, colour, forget = strange
    store.save(State({"a": order, "b": [{colour: (order,)}], "c": {order, 1}}, run_id="a", step=1))
    forget()
    with pytest.raises(FormatError):
        store.load("a")

    state = store.load("a", unknown="opaque")

    shown = state["a"]
    assert type(shown) is Opaque
    assert dict(shown.fields) == {"number": 7, "note": "two"}
    assert repr(shown) == f"{shown.type}(number=7, note='two')"
    ((key, (inside,)),) = state["b"][0].items()
    assert (inside, repr(key)) == (shown, f"{key.type}.RED")
    assert state["c"] == {shown, 1}
    assert hash(inside) == hash(shown)


def test_unknown_values_are_saved_exactly(store, strange):
    """A copy that was made by a process that does not know it is the same to one that does."""
    order, colour, forget = strange
    data = {"a": order, "b": [colour, {1: order}], "c": {colour}}
    store.save(State(data, run_id="a", step=1))
    known = dict(types._by_name)
    forget()

    store.save(State(dict(store.load("a", unknown="opaque")), run_id="b", step=1))
    with unknown_shown():
        assert store.diff("a", 1, 1, "b").changed == {}
    types._by_name.update(known)

    assert dict(store.load("b")) == data


def test_runs_and_history_show_what_a_pause_asks(store, strange):
    """Though its value is of a type that is not registered here: no run is left out of a list for that."""
    order, _, forget = strange
    pause = Pause(reason="look", node="ask", value=order, response_param="ok", at=datetime(2026, 1, 1).astimezone())
    store.save(State(run_id="a", step=1, status="paused", pause=pause))
    forget()

    (row,), (same,) = store.runs(), store.history("a")
    assert dict(row.pause.value.fields) == dict(same.pause.value.fields) == {"number": 7, "note": "two"}
