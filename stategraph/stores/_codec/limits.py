"""Limits for values that would take more memory or time than there is: shared containers, and hash collisions.

Memory holds a shared container, which is referred to more than once, only once; stored bytes have no references. Where
a list holds another one twice, that one a third one twice, and so on, a few dozen small lists become more bytes than
there is memory. So the values that would be written more than once are counted before anything is written.

Values chosen to have the same hash make a set or a dict very slow. Python randomizes the hashes of str and bytes, but
anybody can compute those of numbers and of what consists of numbers. So collisions are counted before a set or a dict
is made from stored values. What could not be loaded again is not saved either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from decimal import Decimal
from typing import Any

from stategraph._util.atoms import ATOMS
from stategraph._values.frozen import MAX_DEPTH
from stategraph._values.registered_types import find_by_class

MOST_REPEATED = 10_000_000
"""Values that may be written for repeated references. As bytes they take 10 MB and more, and some hundred MB when they
are loaded, as each reference becomes a container of its own. What is referred to once may be of any size."""

CONTAINER = 10
"""Values that a container counts as, besides its items: it takes at least as much memory."""

TOO_OFTEN = (
    f"it refers to the same containers so often that it would be written out as more than {MOST_REPEATED:,} values; "
    "keep each of them once, and refer to it by a name or a number"
)


def is_writable(containers: list[Any]) -> bool:
    """Return whether settled containers have at most `MAX_DEPTH` levels and few enough shared containers."""
    level, unknown = containers, list[Any]()
    items = count = 0
    met: set[int] = set()
    for _ in range(MAX_DEPTH):
        unknown += level
        items += sum(map(len, level))
        if items > _MANY:
            met.update(map(id, unknown))
            count += len(unknown)
            unknown.clear()
            if len(met) < count:
                return _is_writable_again(containers)
        level = _next_level(level)
        if not level:
            return True
    return False


_MANY = 10_000  # items: with fewer, it takes less to visit shared ones again than to find them


def _next_level(level: Iterable[Any]) -> list[Any]:
    """Return the containers that are items of these."""
    nested = []
    for container in level:
        items = container.values() if isinstance(container, dict) else container
        if len(items) > _SOME and ATOMS.issuperset(map(type, items)):
            continue
        for item in items:
            if type(item) not in ATOMS:
                nested.append(item)
    return nested


_SOME = 16  # items: with fewer, to look at each takes no longer than to find out that all are atoms


def _is_writable_again(containers: list[Any]) -> bool:
    """Return what `is_writable` does, where containers are shared: each is visited once, whatever its depths."""
    once = 0  # values that are written if each container is written once
    known: dict[int, tuple[int, int]] = {}  # by id of a container: values that it is written as, and its levels

    def measure(container: Any, levels: int) -> tuple[int, int]:
        nonlocal once
        if id(container) not in known:
            if not levels:
                return 0, 1
            nested = [measure(item, levels - 1) for item in _next_level([container])]
            own = len(container) + CONTAINER
            once += own
            size = own + sum(size for size, _ in nested)
            known[id(container)] = size, 1 + max((deep for _, deep in nested), default=0)
        return known[id(container)]

    sizes = [measure(container, MAX_DEPTH) for container in containers]
    repeated = sum(size for size, _ in sizes) - once
    return repeated <= MOST_REPEATED and max(deep for _, deep in sizes) <= MAX_DEPTH


# --------------------------------------------------------------------------- hash collisions

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
