"""Limits of what is written: how deep containers nest, and how often shared ones are written out.

Memory holds a shared container, which is referred to more than once, only once; stored bytes have no references. Where
a list holds another one twice, that one a third one twice, and so on, a few dozen small lists become more bytes than
there is memory. So the values that would be written more than once are counted before anything is written.
"""

from __future__ import annotations

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

_MANY = 300_000  # containers of a level: to find those that are shared takes no longer than to look into so many again
_SOME = 16  # items: with fewer, to look at each takes no longer than to find out that all are atoms


def is_writable(containers: list[Any]) -> bool:
    """Return whether settled containers have at most `MAX_DEPTH` levels, and so few items that it does not matter which
    of them are shared. Of others the encoder finds that out."""
    level, items = containers, 0
    for _ in range(MAX_DEPTH):
        items += sum(map(len, level))
        if items > MOST_REPEATED or len(level) > _MANY:
            return False
        level = _next_level(level)
        if not level:
            return True
    return False


def _next_level(level: list[Any]) -> list[Any]:
    """Return the containers that are items of these."""
    nested = []
    for container in level:
        items = container.values() if isinstance(container, dict) else container
        if len(items) > _SOME and ATOMS.issuperset(map(type, items)):
            continue
        nested += [item for item in items if type(item) not in ATOMS]
    return nested
