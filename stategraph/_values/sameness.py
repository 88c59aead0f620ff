"""Whether two values are the same: exactly, as a store tells values apart, and not only equal.

1, 1.0 and True are equal, and so are 0.0 and -0.0, the same moment in two time zones, and two Decimals with
different numbers of zeros at their ends. Who takes such values for the same loses the update that made one of the
other.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from itertools import repeat
from operator import eq, is_
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeAlias
from uuid import UUID

from stategraph._values.frozen import FrozenDict, FrozenList, FrozenSet, UnsettledDict, UnsettledList, UnsettledSet
from stategraph._values.records import field_names, is_model, is_record
from stategraph._values.registered_types import RegisteredType, find_by_class

_Known: TypeAlias = dict[tuple[int, int], tuple[Any, Any]]
"""Pairs that are compared already, by their ids, and kept lest others get these."""

_EXACT: frozenset[type] = frozenset({type(None), bool, int, str, bytes, date, timedelta, UUID})
"""Types whose equal instances are the same."""


def is_same(one: Any, other: Any, known: _Known | None = None) -> bool:
    """Return whether two values are the same in type and value, all the way down, and in the order of their keys.

    That a container is read-only makes no difference, and a nan is the same as another. Instances of registered classes
    are the same if their fields are; other objects if they are equal, and so is all that is known of what they hold.

    Args:
        one: Any value.
        other: Any value.
        known: Pairs that need not be looked at again: one that is not the same decides it for the whole.
    """
    if one is other:
        return True
    kind = _kind_of(one)
    if kind is not _kind_of(other):
        return False
    if kind in _EXACT:
        return bool(one == other)
    tell = _TELLING.get(kind)
    if tell is not None:
        return bool(tell(one) == tell(other))
    known = {} if known is None else known
    if (id(one), id(other)) in known:
        return True
    known[id(one), id(other)] = one, other
    if kind is dict:
        return _are_same(one, other, known) and _are_same(one.values(), other.values(), known)
    if kind is list or kind is tuple:
        return _are_same(one, other, known)
    try:
        return _are_same_sets(one, other) if kind is set or kind is frozenset else _are_same_objects(one, other, known)
    except Exception:
        return False


def differing_items(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is in `after` under new keys, or not the same as in `before`."""
    return {key: value for key, value in after.items() if key not in before or not is_same(before[key], value)}


def _kind_of(value: object) -> type:
    kind = type(value)
    return _ORDINARY.get(kind, kind)


_ORDINARY: dict[type, type] = {
    **dict.fromkeys((FrozenList, UnsettledList), list),
    **dict.fromkeys((FrozenDict, UnsettledDict), dict),
    **dict.fromkeys((FrozenSet, UnsettledSet), set),
}


def _are_same(ones: Collection[Any], others: Collection[Any], known: _Known) -> bool:
    """Whether values are the same as others in their order: those of exact types all at once."""
    if len(ones) != len(others):
        return False
    if _EXACT.issuperset(map(type, ones)):
        return all(map(is_, map(type, ones), map(type, others))) and all(map(eq, ones, others))
    return all(map(is_same, ones, others, repeat(known)))


# --------------------------------------------------------------------------- what tells equal values apart


def _told_clock(value: datetime | time) -> tuple[Any, ...]:
    return value.replace(tzinfo=None).isoformat(), value.fold, _told_zone(value.tzinfo)


def _told_zone(zone: tzinfo | None) -> tuple[Any, ...]:
    if type(zone) is timezone:
        return timezone, zone.__getinitargs__()  # type: ignore[attr-defined]
    key = getattr(zone, "key", None)  # of a ZoneInfo, which two processes, or a cleared cache, make more than once
    return type(zone), zone if key is None else key


_TELLING: dict[type, Callable[[Any], Any]] = {
    float: float.hex,
    complex: repr,
    Decimal: str,
    range: lambda value: (value.start, value.stop, value.step),
    datetime: _told_clock,
    time: _told_clock,
    **dict.fromkeys((PosixPath, PurePosixPath, PureWindowsPath, WindowsPath), str),
}
"""By type, what is equal of two instances if they are the same."""


# --------------------------------------------------------------------------- objects


def _are_same_objects(one: Any, other: Any, known: _Known) -> bool:
    registered = _registration_of(type(one))
    if registered is not None:
        return is_same(registered.values_of(one), registered.values_of(other), known)
    return bool(one == other) and is_same(_parts_of(one), _parts_of(other), known)


def _registration_of(cls: type) -> RegisteredType | None:
    """Return the registration of a class whose instances are kept by their fields."""
    registered = find_by_class(cls)
    return None if registered is None or registered.is_enum else registered


def _parts_of(value: Any) -> list[Any]:
    """Return what tells equal objects apart, as far as it is known.

    These are their fields, their attributes and, of a class that derives from a builtin one, what tells apart the
    instances of that.
    """
    cls = type(value)
    if isinstance(value, Enum | type):  # what there is once
        return []
    if is_record(cls):
        beside = [value.model_fields_set, value.__pydantic_extra__, value.__pydantic_private__] if is_model(cls) else []
        return [*(getattr(value, name, _ABSENT) for name in field_names(cls)), *beside]
    told = [tell(value) for base, tell in _BUILTIN.items() if isinstance(value, base)]
    return [*told, object.__getstate__(value)]  # attributes: who compares ids only would lose all else


_ABSENT = object()
_BUILTIN: dict[type, Callable[[Any], Any]] = {
    **_TELLING,
    **{kind: kind for kind in (dict, list, tuple, set, frozenset)},
    deque: list,
    array: array.tobytes,
}


# --------------------------------------------------------------------------- sets


def _are_same_sets(one: Collection[Any], other: Collection[Any]) -> bool:
    if len(one) != len(other):
        return False
    kinds = {*map(type, one)}
    if kinds <= _EXACT and not kinds >= {bool, int}:  # of these types, only bool and int have equal instances
        return kinds == {*map(type, other)} and one == other
    number_of = _Numbers()
    return number_of(one) == number_of(other)


class _Numbers:
    """Numbers values, so that the same ones, and no others, have the same number.

    Items of sets have no order in which they could be compared. Each value is looked at once, however often it is
    referred to: to compare nested ones with ``==`` may take twice as long for every level.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._met: dict[int, tuple[Any, int]] = {}  # the values are kept, lest others get their ids

    def __call__(self, value: Any) -> int:
        if id(value) in self._met:
            return self._met[id(value)][1]
        number = self._numbers.setdefault(self._key(value), len(self._numbers))
        self._met[id(value)] = value, number
        return number

    def _key(self, value: Any) -> Any:
        kind = _kind_of(value)
        if kind in _EXACT:
            return kind, value
        if kind in _TELLING:
            return kind, _TELLING[kind](value)
        if kind is set or kind is frozenset:
            return kind, tuple(sorted(map(self, value)))
        if kind is list or kind is tuple:
            return kind, tuple(map(self, value))
        if kind is dict:
            return kind, tuple(map(self, value)), tuple(map(self, value.values()))
        registered = _registration_of(kind)
        if registered is not None:
            return kind, self(registered.values_of(value))
        return kind, value, self(_parts_of(value))
