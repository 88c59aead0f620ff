"""Sameness: two values are the same if a store would save them as the same, which is stricter than equality.

These are equal, but not the same: 1, 1.0 and True; 0.0 and -0.0; one moment in two time zones; Decimals with different
numbers of trailing zeros. If they counted as the same, an update from one to the other would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from enum import Enum
from itertools import chain, repeat
from operator import attrgetter, eq, is_
from typing import Any, TypeAlias
from uuid import UUID

from stategraph._text.shown import shorten
from stategraph._values.frozen import FrozenDict, FrozenList, FrozenSet, UnsettledDict, UnsettledList, UnsettledSet
from stategraph._values.registered_types import RegisteredType, find_by_class

_Known: TypeAlias = dict[tuple[int, int], tuple[Any, Any]]
"""Compared pairs, by their ids. The values are held so that no other objects get these ids."""

_EXACT: frozenset[type] = frozenset({type(None), bool, int, str, bytes, date, timedelta, UUID})
"""Types whose equal instances are the same."""

_EXACT_IN_SETS = _EXACT - {bool}
"""Types for which equal items of two sets are the same."""

_ORDINARY: dict[type, type] = {
    **dict.fromkeys((FrozenList, UnsettledList), list),
    **dict.fromkeys((FrozenDict, UnsettledDict), dict),
    **dict.fromkeys((FrozenSet, UnsettledSet), set),
}


def is_same(one: Any, other: Any, known: _Known | None = None) -> bool:
    """Return whether two values are the same in type, value and order of keys, at all levels.

    A read-only container may be the same as an ordinary one, and nans are the same. Instances of registered classes are
    the same if their fields are. Other objects are the same if they are equal and the parts of their copies are the
    same.

    Args:
        one: Any value.
        other: Any value.
        known: Pairs that were compared before. They need no second comparison, as one difference decides.
    """
    if one is other:
        return True
    kind = _kind_of(one)
    if kind is not _kind_of(other):
        return False
    if kind in _EXACT:
        return bool(one == other)
    exact_form = _EXACT_FORMS.get(kind) or _EXACT_FORMS_IN.get(kind.__module__.partition(".")[0])
    if exact_form is not None:
        return bool(exact_form(one) == exact_form(other))
    known = {} if known is None else known
    if (id(one), id(other)) in known:
        return True
    known[id(one), id(other)] = one, other
    try:
        return _COMPARING.get(kind, _are_same_objects)(one, other, known)
    except Exception:  # raised by a method of the values
        return False


def differing_items(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of `after` whose keys are not in `before`, or whose values are not the same."""
    return {key: value for key, value in after.items() if key not in before or not is_same(before[key], value)}


def _kind_of(value: object) -> type:
    kind = type(value)
    return _ORDINARY.get(kind, kind)


def _clock_form(value: datetime | time) -> tuple[Any, ...]:
    return value.replace(tzinfo=None).isoformat(), value.fold, _zone_form(value.tzinfo)


def _zone_form(zone: tzinfo | None) -> tuple[Any, ...]:
    if isinstance(zone, timezone):
        return timezone, zone.__reduce__()
    key = getattr(zone, "key", None)  # a ZoneInfo does not equal another object with its key
    return type(zone), zone if key is None else key


_EXACT_FORMS: dict[type, Callable[[Any], Any]] = {
    float: float.hex,
    complex: repr,
    datetime: _clock_form,
    time: _clock_form,
}
"""Forms that are equal only for the same values, for types whose equal instances may differ."""

_EXACT_FORMS_IN: dict[str, Callable[[Any], Any]] = {
    "decimal": str,
    "pathlib": attrgetter("drive", "root", "parts"),  # a copy knows how it was joined; equality ignores case on Windows
}
"""Such forms by the module of the types, which is not imported here: few States hold one."""


def _are_same_items(ones: Collection[Any], others: Collection[Any], known: _Known) -> bool:
    """Compare two collections item by item; items of exact types all at once."""
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
    """Return whether each item is the same as an item of the other set: as the equal one, if there is one."""
    equal = {item: item for item in others}
    return all(
        is_same(item, equal[item], known)
        if item in equal
        # A candidate that differs decides nothing, so each comparison has its own memory.
        else any(is_same(item, found, {**known}) for found in others)
        for item in ones
    )


def _are_same_objects(one: Any, other: Any, known: _Known) -> bool:
    registered = find_by_class(type(one))
    if registered is not None and not registered.is_enum:
        return is_same(registered.values_of(one), registered.values_of(other), known)
    is_equal = isinstance(one, tzinfo) or one == other  # a ZoneInfo does not equal another object with its key
    return bool(is_equal) and is_same(_parts_of(one), _parts_of(other), known)


def check_kept(registered: RegisteredType, value: object, data: object) -> None:
    """Raise ValueError unless `decode` brings back a value from its data, which `encode` returned.

    Some classes have no equality, or one that is no answer, as that of arrays; then the data decide.
    """
    again: Any = registered.restore(registered.values_of(value), registered.version)
    is_kept = type(again) is type(value) and is_same(registered.values_of(again), data)
    has_equality = type(value).__eq__ is not object.__eq__ and (value == value) is True  # noqa: PLR0124 - nan is not
    if not is_kept or (has_equality and (value == again) is False):
        found = f"{shorten(value)} comes back as {shorten(again)}"
        raise ValueError(f"encode and decode of {registered.name} do not keep it: {found}")
    registered.proven.add(type(value))


def _parts_of(value: Any) -> list[Any]:
    """Return the parts of a copy of an object, as `copy` and `pickle` obtain them."""
    if isinstance(value, Enum | type):  # singletons
        return []
    parts = value.__reduce_ex__(4)
    return [list(part) if isinstance(part, Iterator) else part for part in parts]


_COMPARING: dict[type, Callable[[Any, Any, _Known], bool]] = {
    **dict.fromkeys((list, tuple), _are_same_items),
    **dict.fromkeys((set, frozenset), _are_same_sets),
    dict: _are_same_dicts,
}
