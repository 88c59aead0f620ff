"""Protection against hash collisions: values chosen to have the same hash, which make a set or a dict very slow.

Python randomizes the hashes of str and bytes, but anybody can compute those of numbers and of what consists of numbers.
So collisions are counted before a set or a dict is made from stored values. What could not be loaded again is not saved
either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from decimal import Decimal
from typing import Any

from stategraph._util.atoms import ATOMS
from stategraph._values.registered_types import find_by_class

_MOST = 1_000
"""Comparisons that a set may take for each value in it, nested ones included: some microseconds. With good hashes it
takes one or two; a class with a poor ``__hash__`` may still have some hundred instances in a set."""

TOO_ALIKE = f"too many of its values have the same hash: to make it would take more than {_MOST:,} comparisons for each"

_TEXT = frozenset({str, bytes})
_WORD = 64  # bits of an int


def are_too_alike(items: Collection[Any]) -> bool:
    """Return whether it would take too long to make a set of these items, or a dict with these keys.

    Raises:
        TypeError: An item is not hashable.
    """
    types = {*map(type, items)}
    if types <= _TEXT or (len(items) <= _MOST and types <= ATOMS and not types >= _SLOW):
        return False
    if len({*map(hash, items)}) == len(items):
        return False
    work, size = _cost_of_set(items, is_slow=Decimal in map(type, _with_nested(items)))
    return work > _MOST * size


_SLOW = frozenset({int, Decimal})
"""To compare an int with a Decimal, Python converts it, in a time that grows with the square of its length."""


def _with_nested(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items, and all that is nested in them."""
    level = [*items]
    while level:
        yield from level
        level = [part for item in level for part in _parts_of(item)]


def _cost_of_set(items: Collection[Any], is_slow: bool) -> tuple[int, int]:
    """Return what `_cost_of` does, for the items of a set: each is compared with all those of the same hash."""
    times = Counter(map(hash, items))
    work = size = 1
    for item in items:
        once, values = _cost_of(item, is_slow)
        work += once * times[hash(item)]
        size += values
    return work, size


def _cost_of(item: Any, is_slow: bool) -> tuple[int, int]:
    """Return how many steps it may take to compare a value with another one, and how many values it consists of.

    Args:
        item: The value.
        is_slow: Whether an int may be compared with a Decimal.
    """
    if isinstance(item, int):
        words = item.bit_length() // _WORD + 1
        return words * words if is_slow else words, words
    if isinstance(item, set | frozenset):
        return _cost_of_set(item, is_slow)
    work = size = 1
    for part in _parts_of(item):
        once, values = _cost_of(part, is_slow)
        work += once
        size += values
    return work, size


def _parts_of(item: Any) -> Collection[Any]:
    if isinstance(item, dict):
        return [*item, *item.values()]
    if isinstance(item, list | tuple | set | frozenset):
        return item
    registered = find_by_class(type(item))
    if registered is None or registered.is_enum:
        return ()
    return [getattr(item, name) for name in registered.fields if hasattr(item, name)]
