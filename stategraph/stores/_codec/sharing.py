"""Containers that others refer to again and again: written out, they take room for each time.

Python keeps such a container once, and so does a State; stored bytes know no references. Where a list holds another
one twice, and that one a third one twice, and so on, a few dozen small lists become more bytes than there is memory. So
what is written again is counted before anything is written.
"""

from __future__ import annotations

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


def _is_writable_again(containers: list[Any]) -> bool:
    """-> the same where a container is met more than once, at whatever depths: each is looked into once."""
    once = 0  # values that are written if each container is written once
    known: dict[int, tuple[int, int]] = {}  # by container, how many values it is written as, and how many levels it has

    def measure(container: Any, levels: int) -> tuple[int, int]:
        nonlocal once
        if id(container) not in known:
            if not levels:
                return 0, 1
            inner = [measure(item, levels - 1) for item in _within([container])]
            own = len(container) + CONTAINER
            once += own
            known[id(container)] = own + sum(size for size, _ in inner), 1 + max((deep for _, deep in inner), default=0)
        return known[id(container)]

    sizes = [measure(container, MAX_DEPTH) for container in containers]
    repeated = sum(size for size, _ in sizes) - once
    return repeated <= MOST_REPEATED and max(deep for _, deep in sizes) <= MAX_DEPTH
