"""Containers that others refer to again and again: written out, they take room for each time.

Python keeps such a container once, and so does a State; stored bytes know no references. Where a list holds another
one twice, and that one a third one twice, and so on, a few dozen small lists become more bytes than there is memory. So
what is written again is counted before anything is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from stategraph._util.atoms import ATOMS
from stategraph._values.frozen import MAX_DEPTH

MOST_REPEATED = 10_000_000
"""Values that may be written because a container is referred to again. As bytes they are 10 MB and more, and loaded
they take some hundred MB: they are containers of their own then. What is there once may be of any size."""

CONTAINER = 10
"""Values that a container counts as, besides those in it: in memory it takes as much, and more."""

TOO_OFTEN = (
    f"it refers to the same containers so often that it would be written out as more than {MOST_REPEATED:,} values; "
    "keep each of them once, and refer to it by a name or a number"
)


def is_writable(containers: list[Any]) -> bool:
    """Whether settled containers are within `MAX_DEPTH` levels, and few enough of them are written more than once."""
    level = containers
    for depth in range(MAX_DEPTH):
        if sum(map(len, level)) > _MANY and len(set(map(id, level))) < len(level):
            return _is_writable_again(level, MAX_DEPTH - depth)
        level = _within(level)
        if not level:
            return True
    return False


_MANY = 10_000  # items: of fewer, it takes less to look at them again than to find out that they are the same


def _within(level: Iterable[Any]) -> list[Any]:
    """-> the containers that are in those of a level."""
    inner = []
    for container in level:
        items = container.values() if isinstance(container, dict) else container
        if len(items) > _SOME and ATOMS.issuperset(map(type, items)):
            continue
        for item in items:
            if type(item) not in ATOMS:
                inner.append(item)
    return inner


_SOME = 16  # items: to look at each of fewer takes no longer than to find out that all are atoms


def _is_writable_again(level: Iterable[Any], levels: int) -> bool:
    """-> the same for a level where a container is more than once, and the levels that are left with it."""
    found = {id(container): container for container in level}
    times = Counter(map(id, level))
    repeated = 0
    for _ in range(levels):
        if not found:
            return True
        repeated += sum((times[key] - 1) * (len(container) + CONTAINER) for key, container in found.items())
        if repeated > MOST_REPEATED:
            return False
        inner: dict[int, Any] = {}
        inner_times: Counter[int] = Counter()
        for key, container in found.items():
            for item in _within([container]):
                inner[id(item)] = item
                inner_times[id(item)] += times[key]
        found, times = inner, inner_times
    return not found
