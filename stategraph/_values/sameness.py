"""Sameness: two values are the same if a store would keep them as the same, which is stricter than equality.

1, 1.0 and True are equal, and so are 0.0 and -0.0, the same moment in two time zones, and two Decimals with
different numbers of zeros at their ends. Code that takes them for the same loses the update that turned one into the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from enum import Enum
from itertools import chain, repeat
from operator import eq, is_
from typing import Any, TypeAlias
from uuid import UUID

from stategraph._values.frozen import FrozenDict, FrozenList, FrozenSet, UnsettledDict, UnsettledList, UnsettledSet
from stategraph._values.registered_types import find_by_class

_Known: TypeAlias = dict[tuple[int, int], tuple[Any, Any]]
"""Pairs that were compared before, by their ids. The values are kept so that no others get these ids."""

_EXACT: frozenset[type] = frozenset({type(None), bool, int, str, bytes, date, timedelta, UUID})
"""Types whose equal instances are the same."""

_EXACT_IN_SETS = _EXACT - {bool}
"""Types that no two equal and different items of sets can have."""

_ORDINARY: dict[type, type] = {
    **dict.fromkeys((FrozenList, UnsettledList), list),
    **dict.fromkeys((FrozenDict, UnsettledDict), dict),
    **dict.fromkeys((FrozenSet, UnsettledSet), set),
}


def is_same(one: Any, other: Any, known: _Known | None = None) -> bool:
    """Return whether two values are the same in type and value, all the way down, and in the order of their keys.

    That a container is read-only makes no difference, and a nan is the same as another. Instances of registered classes
    are the same if their fields are. Other objects are the same if they are equal and so is all that a copy would be
    made of.

    Args:
        one: Any value.
        other: Any value.
        known: Pairs that were compared before: they need not be compared again, as one difference decides it all.
    """
    if one is other:
        return True
    kind = _kind_of(one)
    if kind is not _kind_of(other):
        return False
    if kind in _EXACT:
        return bool(one == other)
    exact_form = str if kind.__module__ == "decimal" else _EXACT_FORMS.get(kind)  # not imported: few States hold one
    if exact_form is not None:
        return bool(exact_form(one) == exact_form(other))
    known = {} if known is None else known
    if (id(one), id(other)) in known:
        return True
    known[id(one), id(other)] = one, other
    try:
        return _COMPARING.get(kind, _are_same_objects)(one, other, known)
    except Exception:  # of a method of the values
        return False


def differing_items(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is in `after` under new keys, or not the same as in `before`."""
    return {key: value for key, value in after.items() if key not in before or not is_same(before[key], value)}


def _kind_of(value: object) -> type:
    kind = type(value)
    return _ORDINARY.get(kind, kind)


def _clock_form(value: datetime | time) -> tuple[Any, ...]:
    return value.replace(tzinfo=None).isoformat(), value.fold, _zone_form(value.tzinfo)


def _zone_form(zone: tzinfo | None) -> tuple[Any, ...]:
    if isinstance(zone, timezone):
        return timezone, zone.__reduce__()
    key = getattr(zone, "key", None)  # of a ZoneInfo, which equals no other object of its key
    return type(zone), zone if key is None else key


_EXACT_FORMS: dict[type, Callable[[Any], Any]] = {
    float: float.hex,
    complex: repr,
    datetime: _clock_form,
    time: _clock_form,
}
"""Forms that are equal for the same values only. Equal instances of these types may differ; a nan equals nothing."""


def _are_same_items(ones: Collection[Any], others: Collection[Any], known: _Known) -> bool:
    """Compare values with others in their order: those of exact types all at once."""
    if len(ones) != len(others):
        return False
    if _EXACT.issuperset(map(type, ones)):
        return all(map(is_, map(type, ones), map(type, others))) and all(map(eq, ones, others))
    return all(map(is_same, ones, others, repeat(known)))


def _are_same_dicts(one: dict[Any, Any], other: dict[Any, Any], known: _Known) -> bool:
    return _are_same_items(one, other, known) and _are_same_items(one.values(), other.values(), known)


def _are_same_sets(one: Collection[Any], other: Collection[Any], known: _Known) -> bool:
    if _EXACT_IN_SETS.issuperset(map(type, chain(one, other))):
        return one == other
    return len(one) == len(other) and _has_each(one, other, known) and _has_each(other, one, known)


def _has_each(ones: Collection[Any], others: Collection[Any], known: _Known) -> bool:
    """Return whether each of the items is the same as an item of the other set: the equal one, if there is one."""
    equal = {item: item for item in others}
    return all(
        is_same(item, equal[item], known)
        if item in equal
        # Of several candidates, one that differs decides nothing: each is compared with a memory of its own.
        else any(is_same(item, found, {**known}) for found in others)
        for item in ones
    )


def _are_same_objects(one: Any, other: Any, known: _Known) -> bool:
    registered = find_by_class(type(one))
    if registered is not None and not registered.is_enum:
        return is_same(registered.values_of(one), registered.values_of(other), known)
    is_equal = isinstance(one, tzinfo) or one == other  # a ZoneInfo equals no other object of its key
    return bool(is_equal) and is_same(_parts_of(one), _parts_of(other), known)


def _parts_of(value: Any) -> list[Any]:
    """Return what a copy of an object is made of, as `copy` and `pickle` ask for it."""
    if isinstance(value, Enum | type):  # what there is once
        return []
    parts = value.__reduce_ex__(4)
    return [list(part) if isinstance(part, Iterator) else part for part in parts]


_COMPARING: dict[type, Callable[[Any, Any, _Known], bool]] = {
    **dict.fromkeys((list, tuple), _are_same_items),
    **dict.fromkeys((set, frozenset), _are_same_sets),
    dict: _are_same_dicts,
}
