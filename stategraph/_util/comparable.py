"""Options of stores and observers, as keys: equal only if they mean the same."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from stategraph._util.atoms import ATOMS


def comparable(value: Any) -> Hashable:
    """Return what equals that of another option if and only if both mean the same.

    Never its repr: that of an object may hide what is in it, as a secret does, or tell an address that was used before.
    """
    kind = type(value)
    if kind in ATOMS:
        return kind, repr(value)
    if isinstance(value, Mapping):
        return Mapping, frozenset((comparable(key), comparable(item)) for key, item in value.items())
    if kind is list or kind is tuple:
        return kind, tuple(map(comparable, value))
    if kind is set or kind is frozenset:
        return kind, frozenset(map(comparable, value))
    try:
        hash(value)
    except TypeError:
        return _Same(value)
    return kind, value


class _Same:
    """Equals only what stands for the same object."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)
