"""Values in sets, and keys, whose hashes are the same: each is compared with all of them, and that can take for ever.

Nobody can foresee the hashes of texts, but those of numbers, and of what is made of numbers, anybody can. So they are
counted before a set or a dict is made of what was stored. What could not be loaded again is not saved either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from decimal import Decimal
from typing import Any

from stategraph._util.atoms import ATOMS
from stategraph._values.registered_types import find_by_class

_MOST = 1_000
"""Comparisons for each value, nested ones included, that a set may take: some microseconds. Where hashes are as they
should be it takes one or two; classes whose own hashes are poor may have some hundred instances in a set."""

TOO_ALIKE = f"too many of its values have the same hash: to make it would take more than {_MOST:,} comparisons for each"

_TEXT = frozenset({str, bytes})
_WORD = 64  # bits of an int


def are_too_alike(items: Collection[Any]) -> bool:
    """Whether it would take too long to make a set of these, or a dict with these as keys.

    Raises:
        TypeError: one of them has no hash.
    """
    kinds = {*map(type, items)}
    if kinds <= _TEXT or (len(items) <= _MOST and kinds <= ATOMS and not kinds >= _SLOW):
        return False
    if len({*map(hash, items)}) == len(items):
        return False
    work, size = _comparing_all(items, is_slow=Decimal in map(type, _all_in(items)))
    return work > _MOST * size


_SLOW = frozenset({int, Decimal})
"""To be compared with a Decimal, an int becomes one, in a time that grows with the square of its length."""


def _all_in(items: Iterable[Any]) -> Iterator[Any]:
    """-> these, and what they hold."""
    level = [*items]
    while level:
        yield from level
        level = [part for item in level for part in _parts_of(item)]


def _comparing_all(items: Collection[Any], is_slow: bool) -> tuple[int, int]:
    """-> as `_comparing`, for the items of a set: each may be compared with those of the same hash."""
    times = Counter(map(hash, items))
    work = size = 1
    for item in items:
        once, values = _comparing(item, is_slow)
        work += once * times[hash(item)]
        size += values
    return work, size


def _comparing(item: Any, is_slow: bool) -> tuple[int, int]:
    """-> how much work it can be to compare a value with another one, and how large it is.

    Args:
        item: The value.
        is_slow: Whether an int may be compared with a Decimal.
    """
    if isinstance(item, int):
        words = item.bit_length() // _WORD + 1
        return words * words if is_slow else words, words
    if isinstance(item, set | frozenset):
        return _comparing_all(item, is_slow)
    work = size = 1
    for part in _parts_of(item):
        once, values = _comparing(part, is_slow)
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
