"""Read-only lists, dicts and sets."""

import copy
import dataclasses
import json
import operator
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import cattrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from stategraph import NotSerializableError, State
from stategraph._values.frozen import MAX_DEPTH, freeze, is_settled
from stategraph.testing import is_same

LIST = [3, [1], {"a": 2}]
DICT = {"a": 1, "b": [2], 3: {4}}
SET = {1, 2, ("a", "b")}


def _delete_slice(items: Any) -> None:
    del items[:]


def _set_slice(items: Any) -> None:
    items[0:1] = [9]


def _extended_slice(items: Any) -> None:
    items[::2] = [9, 9]


CHANGES_OF_A_LIST: dict[str, Callable[[Any], Any]] = {
    "__init__": lambda x: x.__init__([9]),
    "append": lambda x: x.append(9),
    "extend": lambda x: x.extend([9]),
    "insert": lambda x: x.insert(0, 9),
    "remove": lambda x: x.remove(3),
    "pop": lambda x: x.pop(),
    "pop at": lambda x: x.pop(0),
    "clear": lambda x: x.clear(),
    "reverse": lambda x: x.reverse(),
    "sort": lambda x: x.sort(key=str),
    "set item": lambda x: operator.setitem(x, 0, 9),
    "del item": lambda x: operator.delitem(x, 0),
    "set slice": _set_slice,
    "set extended slice": _extended_slice,
    "del slice": _delete_slice,
    "+=": lambda x: operator.iadd(x, [9]),
    "*=": lambda x: operator.imul(x, 2),
    "|=": lambda x: operator.ior(x, [9]),
    "set attribute": lambda x: setattr(x, "note", 1),
}

CHANGES_OF_A_DICT: dict[str, Callable[[Any], Any]] = {
    "__init__": lambda x: x.__init__({"a": 9}),
    "__init__ with keywords": lambda x: x.__init__(a=9),
    "set item": lambda x: operator.setitem(x, "a", 9),
    "del item": lambda x: operator.delitem(x, "a"),
    "clear": lambda x: x.clear(),
    "pop": lambda x: x.pop("a"),
    "pop with default": lambda x: x.pop("none", 0),
    "popitem": lambda x: x.popitem(),
    "setdefault": lambda x: x.setdefault("new", 9),
    "setdefault of a key that is there": lambda x: x.setdefault("a"),
    "update": lambda x: x.update({"a": 9}),
    "update with keywords": lambda x: x.update(a=9),
    "|=": lambda x: operator.ior(x, {"a": 9}),
    "set attribute": lambda x: setattr(x, "note", 1),
}

CHANGES_OF_A_SET: dict[str, Callable[[Any], Any]] = {
    "__init__": lambda x: x.__init__({9}),
    "add": lambda x: x.add(9),
    "clear": lambda x: x.clear(),
    "discard": lambda x: x.discard(1),
    "pop": lambda x: x.pop(),
    "remove": lambda x: x.remove(1),
    "update": lambda x: x.update({9}),
    "difference_update": lambda x: x.difference_update({1}),
    "intersection_update": lambda x: x.intersection_update({1}),
    "symmetric_difference_update": lambda x: x.symmetric_difference_update({1}),
    "|=": lambda x: operator.ior(x, {9}),
    "&=": lambda x: operator.iand(x, {1}),
    "-=": lambda x: operator.isub(x, {1}),
    "^=": lambda x: operator.ixor(x, {1}),
    "set attribute": lambda x: setattr(x, "note", 1),
}

CHANGES: dict[type, tuple[Any, dict[str, Callable[[Any], Any]]]] = {
    list: (LIST, CHANGES_OF_A_LIST),
    dict: (DICT, CHANGES_OF_A_DICT),
    set: (SET, CHANGES_OF_A_SET),
}

_NOT_CHANGING: dict[type, str] = {
    list: "copy count index",
    dict: "copy fromkeys get items keys values",
    set: "copy difference intersection isdisjoint issubset issuperset symmetric_difference union",
}


def each_change(value: Any) -> dict[str, Callable[[Any], Any]]:
    """Return all ways to change a container, by name."""
    return next(changes for kind, (_, changes) in CHANGES.items() if isinstance(value, kind))


# --------------------------------------------------------------------------- what comes back


# --------------------------------------------------------------------------- refused values


@pytest.mark.parametrize("part", [1, object()], ids=["settled", "unsettled"])
@pytest.mark.parametrize("kind", CHANGES)
def test_every_way_to_change_one_is_refused(kind: type, part: object) -> None:
    """Every changing method raises a TypeError and changes nothing."""
    value, changes = CHANGES[kind]
    frozen = freeze([value, part])[0]
    before = copy.deepcopy(value)
    for change in changes.values():
        with pytest.raises((TypeError, AttributeError)):
            change(frozen)

        assert frozen == before


@pytest.mark.parametrize("kind", CHANGES)
def test_no_method_is_forgotten(kind: type) -> None:
    """Each public method of the builtin is harmless or refused; the test finds methods of new Pythons."""
    frozen = type(freeze(CHANGES[kind][0]))
    refused = {name for name in dir(kind) if getattr(frozen, name) is getattr(frozen, "clear")}  # noqa: B009

    public = {name for name in dir(kind) if not name.startswith("_")}
    assert public - refused == set(_NOT_CHANGING[kind].split())
    in_place = {f"__i{name}__" for name in "add sub mul or and xor matmul".split()}
    assert {name for name in dir(kind) if name in in_place | {"__setitem__", "__delitem__"}} <= refused


# --------------------------------------------------------------------------- ordinary ones again


@pytest.mark.parametrize("value", [LIST, DICT, SET], ids=["list", "dict", "set"])
def test_a_deepcopy_is_ordinary(value: Any) -> None:
    """A deep copy has ordinary containers at every depth, which can be edited."""
    copied = copy.deepcopy(freeze([value]))

    assert copied == [value]
    assert type(copied) is list
    assert type(copied[0]) is type(value)
    for part in copied[0].values() if type(value) is dict else copied[0]:
        assert type(part) in (int, str, tuple, list, dict, set)


def test_operators_of_lists_and_dicts_give_ordinary_ones() -> None:
    """So that ``state["log"] + [entry]`` is all it takes to make a longer list."""
    items, mapping = freeze([1, 2]), freeze({"a": 1})

    for made, expected in (
        (operator.add(items, [3]), [1, 2, 3]),
        (operator.add([0], items), [0, 1, 2]),
        (items * 2, [1, 2, 1, 2]),
        (items[:1], [1]),
        ([*items, 3], [1, 2, 3]),
        (sorted(items), [1, 2]),
        (mapping | {"b": 2}, {"a": 1, "b": 2}),
        ({"b": 2} | mapping, {"b": 2, "a": 1}),
        ({**mapping}, {"a": 1}),
    ):
        assert made == expected
        assert type(made) in (list, dict)


# --------------------------------------------------------------------------- sharing


# --------------------------------------------------------------------------- settled or not


# --------------------------------------------------------------------------- too deep


def nested(make: Callable[[Any], Any], levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = make(value)
    return value


@pytest.mark.parametrize("make", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,)], ids=["list", "dict", "tuple"])
def test_the_depth_is_limited(make: Callable[[Any], Any]) -> None:
    """A value at the limit of depth is frozen, and every deeper one is refused."""
    assert freeze(nested(make, MAX_DEPTH)) == nested(make, MAX_DEPTH)
    for levels in (MAX_DEPTH + 1, 10_000):
        with pytest.raises(NotSerializableError, match="nested deeper"):
            freeze(nested(make, levels))


def _list_in_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def _dict_in_itself() -> Any:
    value: dict[str, Any] = {}
    value["a"] = [value]
    return value


def _tuple_in_itself() -> Any:
    inner: list[Any] = []
    value = (inner,)
    inner.append(value)
    return value


@pytest.mark.parametrize("make", [_list_in_itself, _dict_in_itself, _tuple_in_itself])
def test_a_value_that_contains_itself_is_refused(make: Callable[[], Any]) -> None:
    """It could never be saved."""
    with pytest.raises(NotSerializableError, match="contains itself"):
        freeze(make())


# --------------------------------------------------------------------------- laws for all values

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.decimals(allow_nan=False),
    st.dates(),
    st.uuids(),
)
HASHABLE = st.recursive(ATOMS, lambda parts: st.tuples(parts, parts) | st.frozensets(parts, max_size=3), max_leaves=4)
VALUES = st.recursive(
    ATOMS,
    lambda parts: st.one_of(
        st.lists(parts, max_size=4),
        st.tuples(parts, parts),
        st.dictionaries(HASHABLE, parts, max_size=4),
        st.sets(HASHABLE, max_size=4),
    ),
    max_leaves=12,
)


def containers_in(value: Any) -> list[Any]:
    """Return all lists, dicts and sets in a value."""
    found = [value] if isinstance(value, list | dict | set) else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for part in parts:
        found += containers_in(part)
    return found


@settings(max_examples=30)
@given(VALUES)
def test_freezing_changes_nothing_and_nothing_changes_it(value: Any) -> None:
    """A frozen value is equal, cannot be changed, and is the same object when it is frozen again."""
    frozen = freeze(value)

    for container in containers_in(frozen):
        for change in each_change(container).values():
            with pytest.raises((TypeError, AttributeError)):
                change(container)

    assert is_same(frozen, value)
    assert freeze(frozen) is frozen
    assert is_settled(frozen)
    assert is_same(copy.deepcopy(frozen), value)
    assert is_same(pickle.loads(pickle.dumps(frozen)), value)


# --------------------------------------------------------------------------- libraries that expect a list or a dict


@attrs.define
class InAttrs:
    it: Any


@dataclasses.dataclass
class InDataclass:
    it: Any


class InModel(BaseModel):
    it: Any


READERS: dict[str, Callable[[Any], Any]] = {
    "isinstance": lambda x: [isinstance(x["list"], list), isinstance(x["dict"], dict), isinstance(x["set"], set)],
    "json": lambda x: json.dumps([x["list"], x["dict"]], indent=1),
    "copy": lambda x: [copy.copy(x["list"]), copy.copy(x["dict"]), copy.copy(x["set"])],
    "deepcopy": lambda x: copy.deepcopy(x["list"]),
    "pickle": lambda x: pickle.loads(pickle.dumps(x["dict"])),
    "slices": lambda x: [x["list"][1:], x["list"][::-1], x["list"] + [1], [1] + x["list"], x["list"] * 2],
    "other dicts": lambda x: [x["dict"] | {"b": 1}, {"b": 1} | x["dict"], {**x["dict"]}, x["dict"].fromkeys("ab")],
    "a list of models": lambda x: TypeAdapter(list[dict[str, Any]]).validate_python(x["list"], strict=True),
    "sequences": lambda x: TypeAdapter(Sequence[Mapping[str, Any]]).validate_python(x["list"]),
    "strict sets": lambda x: TypeAdapter(set[int]).validate_python(x["set"], strict=True),
    "dumps of models": lambda x: [InModel(it=x["list"]).model_dump_json(), TypeAdapter(Any).dump_json(x["dict"])],
    "attrs.asdict": lambda x: attrs.asdict(InAttrs([x["list"], x["dict"]])),
    "dataclasses.asdict": lambda x: dataclasses.asdict(InDataclass([x["list"], x["dict"], x["set"]])),
    "cattrs": lambda x: cattrs.structure(x["list"], list[dict[str, Any]]),
    "a call of the class": lambda x: [type(x["list"])([1]), type(x["dict"])(a=1), type(x["set"])([1])],
    "unpacking": lambda x: [*x["list"], dict(**x["dict"]), sorted(x["set"])],
}


@pytest.mark.parametrize("reader", READERS)
def test_what_reads_a_list_reads_that_of_a_state(reader: str) -> None:
    """The result is that of ordinary containers, and what it made of them can be changed."""
    data = {"list": [{"n": 1}, {"n": [2]}], "dict": {"a": [1, {"b": 2}]}, "set": {1}}

    found = READERS[reader](State(data))

    assert is_same(found, READERS[reader](data))
