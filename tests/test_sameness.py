"""Equal values of different types are different, and an update from one to the other is kept."""

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from itertools import chain
from pathlib import PureWindowsPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import attrs
import pytest

from stategraph import State, register_type
from stategraph._values.frozen import freeze
from stategraph._values.sameness import differing_items, is_same
from stategraph.stores.memory import MemoryStore
from stategraph.testing import KEPT_VALUES
from tests.scenarios import make_graph


@register_type
@attrs.frozen
class Amount:
    value: Any


@attrs.frozen
class Unregistered:
    value: Any
    note: Any = attrs.field(default=None, eq=False)


class Level(IntEnum):
    LOW = 1


class Pair(NamedTuple):
    a: Any
    b: Any


NAN, OTHER_NAN = float("nan"), float("nan")
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)

EQUAL_AND_NOT_THE_SAME: dict[str, tuple[Any, Any]] = {
    "int and bool": (1, True),
    "int and float": (1, 1.0),
    "int and Decimal": (1, Decimal(1)),
    "int and Fraction": (1, Fraction(1)),
    "int and IntEnum": (1, Level.LOW),
    "zeros": (0.0, -0.0),
    "complex zeros": (complex(0, 0.0), complex(0, -0.0)),
    "Decimals": (Decimal("1.0"), Decimal("1.00")),
    "ranges": (range(0), range(1, 1)),
    "steps of ranges": (range(0, 3, 2), range(0, 4, 2)),
    "zones": (NOON, NOON.astimezone(timezone(timedelta(hours=1)))),
    "names of zones": (NOON, NOON.replace(tzinfo=timezone(timedelta(0), "GMT"))),
    "kinds of zones": (NOON, NOON.replace(tzinfo=ZoneInfo("UTC"))),
    "zones of times": (time(12, tzinfo=UTC), time(13, tzinfo=timezone(timedelta(hours=1)))),
    "folds": (datetime(2024, 10, 27, 2), datetime(2024, 10, 27, 2, fold=1)),
    "cases of paths": (PureWindowsPath("a"), PureWindowsPath("A")),
    "sets": (frozenset({1}), frozenset({True})),
    "set and frozenset": ({1}, frozenset({1})),
    "orders": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "tuples": ((1, 2), (1, 2.0)),
    "named tuples": (Pair(1, 2), (1, 2)),
    "items of named tuples": (Pair(1, 2), Pair(1, True)),
    "dicts": (OrderedDict(a=1), {"a": 1}),
    "values of ordered dicts": (OrderedDict(a=1), OrderedDict(a=True)),
    "registered objects": (Amount(1), Amount(True)),
    "other objects": (Unregistered(1), Unregistered(True)),
    "fields that are not compared": (Unregistered(1, "a"), Unregistered(1, "b")),
}


PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda value: value,
    "item": lambda value: ["x", value],
    "item of a tuple": lambda value: ("x", value),
    "value": lambda value: {"x": value},
    "key": lambda value: {value: "x", "y": 1},
    "set": lambda value: {value, "x"},
    "frozenset": lambda value: frozenset({value, "x"}),
    "tuple in a set": lambda value: {(value, "x"), "y"},
    "set in a set": lambda value: {frozenset({value, "x"}), (1, 2)},
    "tuple as key": lambda value: {("x", (value,)): 1},
    "registered": lambda value: Amount((value,)),
    "registered in a set": lambda value: {Amount(value), "x"},
    "registered as key": lambda value: {Amount((value,)): 1},
}


HASHABLE = [name for name, (one, _) in EQUAL_AND_NOT_THE_SAME.items() if not isinstance(one, set | dict)]
NEEDS_HASH = {place for place in PLACES if "set" in place or "key" in place}


@pytest.mark.parametrize("place", PLACES)
def test_equal_values_of_other_types_are_not_the_same(place: str) -> None:
    """Equal but different values differ at any depth and in both directions."""
    for name in HASHABLE if place in NEEDS_HASH else EQUAL_AND_NOT_THE_SAME:
        one, other = map(PLACES[place], EQUAL_AND_NOT_THE_SAME[name])

        assert not is_same(one, other), name
        assert not is_same(other, one), name
        assert not is_same(freeze(one), freeze(other)), name
        assert differing_items({"a": one, "b": 1}, {"a": other, "b": 1}).keys() == {"a"}, name


@pytest.mark.parametrize("place", PLACES)
def test_a_copy_is_the_same(place: str) -> None:
    """Read-only or not."""
    for kept in [*KEPT_VALUES.values(), *chain(*EQUAL_AND_NOT_THE_SAME.values())]:
        with suppress(TypeError):  # it has no hash
            check_copy(PLACES[place](kept))


def check_copy(value: Any) -> None:
    assert is_same(value, copy.deepcopy(value))
    assert is_same(freeze(value), copy.deepcopy(freeze(value)))


@pytest.mark.parametrize("place", PLACES)
def test_a_nan_is_the_same_as_another(place: str) -> None:
    assert is_same(PLACES[place](NAN), PLACES[place](OTHER_NAN))
    assert not is_same(PLACES[place](NAN), PLACES[place](1.0))
    assert is_same(PLACES[place](Decimal("NaN")), PLACES[place](Decimal("NaN")))
    assert is_same(PLACES[place](complex(NAN, 1)), PLACES[place](complex(OTHER_NAN, 1)))


def test_zones_of_one_key_are_the_same() -> None:
    """Two objects of one time zone, as in two processes, are the same."""
    zone = ZoneInfo("Europe/Berlin")
    ZoneInfo.clear_cache()

    assert is_same(datetime(2024, 1, 1, tzinfo=zone), datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")))
    assert is_same(time(12, tzinfo=zone), time(12, tzinfo=ZoneInfo.no_cache("Europe/Berlin")))
    assert not is_same(datetime(2024, 1, 1, tzinfo=zone), datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Vienna")))


def test_objects_that_are_shared_are_compared_once() -> None:
    def nested(value: Any) -> Any:
        return functools.reduce(lambda inner, _: Amount([inner, inner]), range(60), Amount(value))

    assert is_same(nested(1), nested(1))
    assert not is_same(nested(1), nested(True))


@pytest.mark.parametrize(
    ("before", "after"), [({1}, {True}), ({1: 2}, {True: 2}), ([0.0], [-0.0]), (Amount(1), Amount(1.0))], ids=repr
)
def test_a_nested_graph_gives_back_what_became_of_a_value(before: Any, after: Any) -> None:
    """A nested graph returns a changed value, even if it equals the given one."""
    inner = make_graph({"change": lambda state: state.set("value", after)}, store=MemoryStore(), name="inner")
    graph = make_graph({"inner": inner.as_node()}, store=MemoryStore())

    final = graph.execute(State({"value": before}))

    assert repr(copy.deepcopy(final["value"])) == repr(after)
