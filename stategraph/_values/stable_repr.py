"""A repr that is the same in every process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import TypeAlias

from stategraph._util.atoms import ATOMS

_LONGEST = 50_000_000  # characters: no value that was written down has as many, but one that shares its parts may


Known: TypeAlias = dict[int, tuple[object, str]]
"""Containers by their ids, and their texts: each is made once, however often others refer to it."""


def repr_of(value: object, known: Known) -> str:
    """Return a repr that is the same in every process: sets in order, no addresses.

    Args:
        value: The value.
        known: Containers whose repr is known.

    Raises:
        ValueError: it is too long to be kept with every run of the graph.
    """
    if type(value) in ATOMS:
        return repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if not isinstance(value, list | tuple | set | frozenset | Mapping):
        return f"<{type(value).__qualname__}>"
    if id(value) not in known:
        text = _repr_of_container(value, known)
        if len(text) > _LONGEST:
            raise ValueError(f"a value of more than {_LONGEST:,} characters is too long to be a part of a graph")
        known[id(value)] = value, text
    return known[id(value)][1]


def _repr_of_container(value: Collection[object], known: Known) -> str:
    if isinstance(value, Mapping):
        items = [f"{repr_of(key, known)}: {repr_of(item, known)}" for key, item in value.items()]
    else:
        items = [repr_of(item, known) for item in value]
    if isinstance(value, set | frozenset):
        items.sort()
    opening, closing = "[]" if isinstance(value, list) else "()" if isinstance(value, tuple) else "{}"
    return f"{opening}{', '.join(items)}{closing}"
