"""What is known of a node besides its name, for pictures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import attrs

from stategraph._values.provenance import GraphStructure

Structures: TypeAlias = dict[int, GraphStructure | None]
"""The structures of graphs by their ids, so that each is made once; None for those that are being made."""

_is_str = attrs.validators.instance_of(str)


def _as_tuple(notes: Iterable[str]) -> tuple[str, ...]:
    return tuple(notes)


@attrs.frozen
class NodeOutline:
    """What a node is.

    Attributes:
        kind: "function", "pause", "map", "parallel" or "graph".
        notes: What is to be known of it, in few words each.
        nested: What is inside of it: the structure of its graph or, without edges, its branches.
    """

    kind: str = attrs.field(default="function", validator=_is_str)
    notes: tuple[str, ...] = attrs.field(
        default=(), converter=_as_tuple, validator=attrs.validators.deep_iterable(_is_str)
    )
    nested: GraphStructure | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of(GraphStructure))
    )
