"""Read-only lists, dicts and sets."""

import copy
import operator
import os
import pickle
import subprocess
import sys
from collections import OrderedDict, UserList, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stategraph
from stategraph import NotSerializableError, State
from stategraph._values.frozen import MAX_DEPTH, FrozenDict, FrozenList, freeze, freeze_items, is_settled
from stategraph.stores._codec.msgpack import encode
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
    """-> all ways to change a container, by name."""
    return next(changes for kind, (_, changes) in CHANGES.items() if isinstance(value, kind))


# --------------------------------------------------------------------------- what comes back


@pytest.mark.parametrize(
    "value", [LIST, DICT, SET, [], {}, set()], ids=lambda value: f"{type(value).__name__}-{len(value)}"
)
def test_a_frozen_container_is_still_what_it_was(value: Any) -> None:
    """An instance of its class, and equal both ways."""
    frozen = freeze(value)

    assert isinstance(frozen, type(value))
    assert frozen == value
    assert value == frozen


def test_containers_are_frozen_to_the_last_one() -> None:
    """In lists, in dicts and in tuples."""
    frozen = freeze([{"a": ([{1}],)}])

    for container in (frozen, frozen[0], frozen[0]["a"][0], frozen[0]["a"][0][0]):
        with pytest.raises(TypeError):
            container.clear()
    assert type(frozen[0]["a"]) is tuple


RECORDS: list[Any] = [{"id": number, 3: "x", "note": None} for number in range(20)]


@pytest.mark.parametrize("place", [0, 9, 19])
@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"a": [1]},
        {"a": {"b": 1}},
        {"a": (1, [2])},
        {("a", 1): 1},
        [1, [2]],
        "text",
        datetime(2025, 1, 2, tzinfo=UTC),
        (1, {2}),
    ],
    ids=repr,
)
def test_many_records_are_frozen_as_one_is(place: int, odd: Any) -> None:
    """Whatever stands among them; and the list is settled, for all of it is."""
    records = [*RECORDS[:place], odd, *RECORDS[place + 1 :]]

    frozen = freeze(records)

    assert type(frozen) is FrozenList
    assert is_same(frozen, [freeze(record) for record in records])
    assert [type(record) for record in frozen] == [type(freeze(record)) for record in records]
    assert is_settled(frozen)


@pytest.mark.parametrize(
    "odd", [object(), {"a": object()}, [bytearray(b"a")], (1, object())], ids=["", "{}", "[]", "()"]
)
@pytest.mark.parametrize("place", [0, 9, 19])
def test_one_part_that_is_not_settled_unsettles_a_list(place: int, odd: Any) -> None:
    """Wherever it stands."""
    frozen = freeze([*RECORDS[:place], odd, *RECORDS[place + 1 :]])

    assert not is_settled(frozen)
    with pytest.raises(TypeError):
        frozen.clear()


def test_what_was_frozen_is_shared_by_a_list_that_grew() -> None:
    """Its items are the same objects, the new ones are frozen, and the list it was made of stays as it is."""
    short = freeze(RECORDS)
    grown = [*short, {"id": 20}, 21]

    frozen = freeze(grown)

    assert all(map(operator.is_, short, frozen))
    assert type(frozen[20]) is FrozenDict
    assert frozen == grown
    assert type(grown[20]) is dict


@pytest.mark.parametrize(
    "value",
    [OrderedDict(a=1), defaultdict(list, a=[1]), deque([1]), UserList([1]), bytearray(b"a"), object()],
    ids=lambda value: type(value).__name__,
)
def test_other_objects_are_taken_as_they_are(value: Any) -> None:
    """Only the three builtin classes themselves are replaced."""
    assert freeze(value) is value
    assert freeze([value])[0] is value


# --------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("value", "change"),
    [
        pytest.param(value, change, id=f"{kind.__name__} {name}")
        for kind, (value, changes) in CHANGES.items()
        for name, change in changes.items()
    ],
)
@pytest.mark.parametrize("part", [1, object()], ids=["settled", "unsettled"])
def test_every_way_to_change_one_is_refused(value: Any, change: Callable[[Any], Any], part: object) -> None:
    """With a TypeError; nothing has changed after it."""
    outer = freeze([value, part])
    frozen = outer[0]
    before = copy.deepcopy(value)

    with pytest.raises((TypeError, AttributeError)):
        change(frozen)

    assert frozen == before


@pytest.mark.parametrize("kind", CHANGES)
def test_the_error_names_the_way_out(kind: type) -> None:
    """Every refused method says what to do instead."""
    value, changes = CHANGES[kind]
    for name in changes.keys() - {"set attribute", "|="}:
        with pytest.raises(TypeError, match=rf"this {kind.__name__} .* State\.set\(key, value\)"):
            changes[name](freeze(value))


@pytest.mark.parametrize("kind", CHANGES)
def test_no_method_is_forgotten(kind: type) -> None:
    """Each public method of the builtin is either harmless or refused; a new Python's new method shows up here."""
    frozen = type(freeze(CHANGES[kind][0]))
    refused = {name for name in dir(kind) if getattr(frozen, name) is getattr(frozen, "clear")}  # noqa: B009

    public = {name for name in dir(kind) if not name.startswith("_")}
    assert public - refused == set(_NOT_CHANGING[kind].split())
    in_place = {f"__i{name}__" for name in "add sub mul or and xor matmul".split()}
    assert {name for name in dir(kind) if name in in_place | {"__setitem__", "__delitem__"}} <= refused


# --------------------------------------------------------------------------- ordinary ones again


@pytest.mark.parametrize("value", [LIST, DICT, SET], ids=["list", "dict", "set"])
def test_a_deepcopy_is_ordinary(value: Any) -> None:
    """To the last container, and that is how to edit one."""
    copied = copy.deepcopy(freeze([value]))

    assert copied == [value]
    assert type(copied) is list
    assert type(copied[0]) is type(value)
    for part in copied[0].values() if type(value) is dict else copied[0]:
        assert type(part) in (int, str, tuple, list, dict, set)


def test_a_deepcopy_keeps_what_was_one_object_one_object() -> None:
    """As deepcopy does for ordinary containers."""
    box = bytearray(b"a")

    copied = copy.deepcopy(freeze([box, {"again": box}]))

    assert copied[0] is copied[1]["again"]
    assert copied[0] is not box


@pytest.mark.parametrize("value", [LIST, DICT, SET], ids=["list", "dict", "set"])
@pytest.mark.parametrize("make", [copy.copy, lambda value: value.copy()], ids=["copy.copy", "copy method"])
def test_a_shallow_copy_is_ordinary(value: Any, make: Callable[[Any], Any]) -> None:
    """Its parts are the same objects."""
    frozen = freeze(value)

    copied = make(frozen)

    assert type(copied) is type(value)
    assert copied == value
    assert all(map(operator.is_, copied, frozen))


@pytest.mark.parametrize("value", [LIST, DICT, SET, [object.__new__(UserList)]], ids=["list", "dict", "set", "object"])
def test_a_pickled_one_is_frozen_again(value: Any) -> None:
    """Also where it is unsettled."""
    frozen = freeze(value)

    loaded = pickle.loads(pickle.dumps(frozen))

    assert type(loaded) is type(frozen)
    if is_settled(frozen):
        assert loaded == frozen


@pytest.mark.parametrize("name", ["or_", "and_", "sub", "xor"])
@pytest.mark.parametrize("other", [{1, 9}, frozenset({1, 9}), freeze({1, 9})], ids=["set", "frozenset", "frozen"])
def test_operators_of_sets_give_ordinary_sets(name: str, other: Any) -> None:
    """Whichever side the frozen one is on, the result can be changed and is what sets give."""
    operate = getattr(operator, name)

    here, there = operate(freeze(SET), other), operate(other, freeze(SET))

    assert here == operate(set(SET), other)
    assert there == operate(other, set(SET))
    assert type(here) is set
    assert type(there) in (set, frozenset)


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


@pytest.mark.parametrize("value", [LIST, DICT, SET, ([1],)], ids=["list", "dict", "set", "tuple"])
def test_what_is_frozen_is_shared(value: Any) -> None:
    """Freezing again gives the same object, inside other containers too."""
    frozen = freeze(value)

    assert freeze(frozen) is frozen
    assert freeze([frozen])[0] is frozen
    assert State({"a": frozen}).set("b", 1)["a"] is frozen


# --------------------------------------------------------------------------- settled or not


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1, 1.5, 1j, "a", b"a", range(3), Decimal(1), date.min, Path("a"), UUID(int=1)),
        *((), (1, ("a",)), frozenset({1, (2,)}), [], [1, [2]], {"a": {(1, 2): {3}}}, ([1],), {frozenset({1})}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_immutable_to_its_last_part_is_settled(value: Any) -> None:
    """Then the same object always holds the same value."""
    assert is_settled(freeze(value))


class _Text(str):
    __slots__ = ("note",)


@pytest.mark.parametrize(
    "part", [object(), bytearray(b"a"), _Text("a"), OrderedDict(), print], ids=lambda part: type(part).__name__
)
@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,), lambda x: [[{"a": (x,)}]]])
def test_what_holds_an_object_is_not_settled(wrap: Callable[[Any], Any], part: Any) -> None:
    """However deep the object is: it may change."""
    assert not is_settled(freeze(wrap(part)))


def test_a_hashable_object_unsettles_sets_and_keys() -> None:
    """Hashable does not mean immutable."""
    part = object()

    assert not is_settled(freeze({part}))
    assert not is_settled(freeze({part: 1}))
    assert not is_settled(frozenset({part}))


# --------------------------------------------------------------------------- too deep


def nested(make: Callable[[Any], Any], levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = make(value)
    return value


@pytest.mark.parametrize("make", [lambda x: [x], lambda x: {"a": x}, lambda x: (x,)], ids=["list", "dict", "tuple"])
def test_the_depth_is_limited(make: Callable[[Any], Any]) -> None:
    """As deep as allowed is fine, one more is refused, and so is any number more."""
    assert freeze(nested(make, MAX_DEPTH)) == nested(make, MAX_DEPTH)
    for levels in (MAX_DEPTH + 1, 10_000):
        with pytest.raises(NotSerializableError, match="nested deeper"):
            freeze(nested(make, levels))


def test_deep_frozensets_are_refused() -> None:
    """When they are saved, with their place in the State and without a RecursionError."""
    items = freeze_items({"x": [nested(lambda x: frozenset({x}), 900)]})

    with pytest.raises(NotSerializableError, match=r"x\[0\]"):
        encode([items])


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
def test_what_contains_itself_is_refused(make: Callable[[], Any]) -> None:
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
    """-> all lists, dicts and sets in a value."""
    found = [value] if isinstance(value, list | dict | set) else []
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for part in parts:
        found += containers_in(part)
    return found


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_freezing_changes_nothing_and_nothing_changes_it(value: Any) -> None:
    """A frozen value is the same, frozen again it is the same object, and it stays what it is."""
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


def test_the_first_value_of_a_type_that_takes_long_to_import_is_settled():
    """Such as a Decimal, which nothing had asked for in this process."""
    program = """
from decimal import Decimal
from pathlib import PurePosixPath
from stategraph import State
from stategraph._values.frozen import FrozenDict, FrozenList
state = State({"prices": [Decimal(1)], "files": {PurePosixPath("a"): 1}})
assert (type(state["prices"]), type(state["files"])) == (FrozenList, FrozenDict)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(stategraph.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_many_records_at_the_last_level_and_one_below_it() -> None:
    """The limit is the same for many as for one."""
    value: Any = RECORDS
    for _ in range(MAX_DEPTH - 2):
        value = [value]

    assert freeze(value) == value
    with pytest.raises(NotSerializableError, match=f"deeper than {MAX_DEPTH} levels"):
        freeze([value])
