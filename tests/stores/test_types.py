"""Registered classes, and values that were saved before their class changed."""

import dataclasses
import enum
import re
import sys
import uuid
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from stategraph import CheckpointCorruptError, FormatError, State, register_type
from stategraph._values import registered_types as types
from stategraph.stores.sqlite import SqliteStore


@pytest.fixture(params=["msgpack", "json"])
def store(request, tmp_path):
    with SqliteStore(tmp_path / "runs.db", serializer=request.param) as store:
        yield store


@pytest.fixture
def name():
    return f"order-{uuid.uuid4()}"


def register(name, fields, **options):
    return register_type(attrs.make_class("Order", fields), name=name, **options)


def make_enum(members) -> Any:
    return enum.Enum("Colour", members)


def make_registered_enum(name) -> Any:
    return register_type(make_enum({"RED": 1}), name=name)


def save(store, value):
    store.save(State({"value": value}, run_id="a", step=1))


def load(store):
    return store.load("a")["value"]


def test_a_value_of_an_older_version_is_upgraded(store, name):
    """The upgrade gets the fields and the version that were saved, and its fields become the new value."""
    save(store, register(name, ["number", "total"])(7, 9.5))
    seen = []

    def upgrade(values, version):
        seen.append((dict(values), version))
        return {"number": values["number"], "cents": int(values["total"] * 100), "currency": "EUR"}

    order = register(name, ["number", "cents", "currency"], version=3, upgrade=upgrade)

    assert load(store) == order(7, 950, "EUR")
    assert seen == [({"number": 7, "total": 9.5}, 1)]


@pytest.mark.parametrize("make", [lambda name: register(name, ["a"])(1), lambda name: make_registered_enum(name).RED])
def test_a_type_that_is_not_registered_here_is_told_from_damage(store, name, make, monkeypatch):
    """The error for an unregistered type names the type and the missing call, after which the value loads."""
    value = make(name)
    save(store, value)
    with monkeypatch.context() as patch:
        patch.delitem(types._by_name, name)

        with pytest.raises(FormatError, match=f"does not know the type '{name}': import the module that registers it"):
            load(store)

    assert load(store) == value


def test_a_class_that_has_moved_can_be_loaded_by_the_name_that_the_error_gives(store, monkeypatch):
    """It may have another module, or be one of a notebook."""
    name = f"__main__.{uuid.uuid4().hex}"
    save(store, register(name, ["a"])(1))
    monkeypatch.delitem(types._by_name, name)

    with pytest.raises(FormatError, match=re.escape(f"has another module or name here, register_type(name='{name}')")):
        load(store)

    again = register(name, ["a"])
    assert load(store) == again(1)


def test_a_value_that_a_script_has_saved_as_one_of_main(store, monkeypatch):
    """An older version named the classes of a script after `__main__`; the script still loads them."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None, raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/home/ann/billing.py", raising=False)
    name = f"Invoice{uuid.uuid4().hex}"
    save(store, register(f"__main__.{name}", ["a"])(1))
    invoice: Any = attrs.make_class(name, ["a"])
    invoice.__module__ = "__main__"

    register_type(invoice)

    assert load(store) == invoice(1)
    assert types.find_by_name(f"billing.{name}") is types.find_by_class(invoice)


def test_each_value_keeps_the_version_it_was_saved_with(store, name):
    """Saved again, it is one of the version that is registered then."""
    save(store, register(name, ["a"])(1))
    order = register(name, ["b"], version=2, upgrade=lambda values, version: {"b": values["a"]})
    upgraded = load(store)
    store.delete("a")
    save(store, [upgraded, order(2)])
    versions = []

    def upgrade(values, version):
        versions.append(version)
        return values

    order = register(name, ["b"], version=3, upgrade=upgrade)

    assert load(store) == [order(1), order(2)]
    assert versions == [2, 2]


def test_a_newer_version_is_refused(store, name):
    """The code that loads it is older than the one that saved it, which the error says."""
    save(store, register(name, ["a"], version=5)(1))
    register(name, ["a"], version=4, upgrade=lambda values, version: values)

    with pytest.raises(CheckpointCorruptError, match=r"version 5, and version 4 is registered.*update"):
        load(store)


def pydantic_model(**fields):
    return pytest.importorskip("pydantic").create_model("M", **fields)


def with_dataclass(default, make):
    return dataclasses.make_dataclass("D", ["a", ("b", Any, dataclasses.field(**{default: make}))])


def again(cls: Any, name: str, options: dict[str, Any]) -> Any:
    """Register a class as the later form of one that `register` has made."""
    cls.__module__, cls.__qualname__ = attrs.make_class("Order", []).__module__, "Order"
    return register_type(cls, name=name, **options)


NEW_FIELDS: dict[str, Callable[[], Any]] = {
    "attrs, a value": lambda: attrs.make_class("A", {"a": attrs.field(), "b": attrs.field(default=())}),
    "attrs, a factory": lambda: attrs.make_class(
        "A", {"a": attrs.field(), "b": attrs.field(factory=tuple)}, slots=True
    ),
    "dataclass, a value": lambda: with_dataclass("default", ()),
    "dataclass, a factory": lambda: with_dataclass("default_factory", tuple),
    "Pydantic": lambda: pydantic_model(a=(int, ...), b=(tuple[int, ...], ())),
}


@pytest.mark.parametrize("kind", NEW_FIELDS)
@pytest.mark.parametrize("options", [{}, {"version": 2, "upgrade": lambda values, version: values}])
def test_a_new_field_has_its_default_in_older_values(store, name, kind, options):
    """A class may get a field with a default, unless that is made of other fields."""
    before = again(pydantic_model(a=(int, ...)), name, {}) if kind == "Pydantic" else register(name, ["a"])
    save(store, before(a=1))
    grown = again(NEW_FIELDS[kind](), name, options)

    found = load(store)

    assert isinstance(found, grown)
    assert (found.a, found.b) == (1, ())
    made_of_others = attrs.field(default=attrs.Factory(lambda self: self.a, takes_self=True))
    again(attrs.make_class("A", {"a": attrs.field(), "b": made_of_others}), name, options)
    with pytest.raises(CheckpointCorruptError, match="fields"):
        load(store)


@pytest.mark.parametrize("version", [1, 2])
def test_changed_fields_without_an_upgrade_are_refused(store, name, version):
    """The error names the fields then and now, and the call that is missing."""
    save(store, register(name, ["a", "b"])(1, 2))
    register(name, ["a", "c"], version=version)

    with pytest.raises(CheckpointCorruptError) as caught:
        load(store)

    assert f"{name} was saved with fields ['a', 'b'], and {name} has ['a', 'c']" in str(caught.value)
    assert f"register_type(cls, name={name!r}, version=2, upgrade=function)" in str(caught.value)


@pytest.mark.parametrize(
    ("upgrade", "text"),
    [
        (lambda values, version: {**values, "c": 1}, "returned fields \\['a', 'c'\\]"),
        (lambda values, version: None, "raised TypeError"),
        (lambda values, version: values["typo"], "raised KeyError: 'typo'"),
        (lambda values, version: exec("raise RuntimeError('no')"), "raised RuntimeError: no"),
    ],
    ids=["other fields", "nothing", "a mistake", "any error"],
)
def test_an_upgrade_that_fails(store, name, upgrade, text):
    """The error says which, from which version, and what went wrong."""
    save(store, register(name, ["a"])(1))
    register(name, ["b"], version=2, upgrade=upgrade)

    with pytest.raises(CheckpointCorruptError, match=f"upgrade .*from version 1 {text}"):
        load(store)


def test_a_member_that_was_renamed_is_found_by_its_alias(store, name):
    """An alias keeps the old name of a renamed member."""
    save(store, register_type(make_enum({"RED": 1}), name=name).RED)

    colour = register_type(make_enum({"CRIMSON": 1, "RED": 1}), name=name)
    assert load(store) is colour.CRIMSON
    register_type(make_enum({"CRIMSON": 1}), name=name)
    with pytest.raises(CheckpointCorruptError, match="alias"):
        load(store)
