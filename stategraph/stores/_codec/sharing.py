"""A limit for shared containers: those that are referred to more than once, and stored once for each reference.

Memory holds such a container once; stored bytes have no references. Where a list holds another one twice, that one a
third one twice, and so on, a few dozen small lists become more bytes than there is memory. So the values that would be
written more than once are counted before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stategraph._util.atoms import ATOMS
from stategraph._values.frozen import MAX_DEPTH

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
