"""The structures of graphs as values to encode, and back.

What a checkpoint needs to be resumed, and what it is drawn with, stand apart: the second came later, and a payload that
lacks it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._values.progress import NodeOutline
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.stores._codec.type_codecs import expect_list

COMPARED: Callable[[EdgeStructure], tuple[str, ...]] = attrgetter("source", "target", "label")
"""Returns what is compared of an edge."""

SHOWN: Callable[[EdgeStructure], str] = attrgetter("shown")
"""Returns what pictures show of it in place of its label."""

_KNOWN = "_drawing_"


def are_same(old: GraphStructure | None, new: GraphStructure | None) -> bool:
    """Return whether two structures are equal in all that is saved of them."""
    if old is None or new is None or old != new:
        return old is new
    return drawing_parts(old) == drawing_parts(new)


def drawing_parts(structure: GraphStructure) -> list[Any]:
    """Return what only pictures need: entry, exits, outlines, what they show of edges, and the structures nested in it.

    Each of these is listed once, however often it is nested, after those that are nested in it. The list is made once
    for a structure, which all States of a graph share, and is not to be changed.
    """
    known: list[Any] | None = vars(structure).get(_KNOWN)
    return known or vars(structure).setdefault(_KNOWN, _drawing_parts(structure))


def _drawing_parts(structure: GraphStructure) -> list[Any]:
    listed: dict[int, int] = {}
    nested: list[list[Any]] = []
    for one in _inside_out(structure, set()):
        listed[id(one)] = len(nested)
        nested.append([list(one.nodes), list(map(list, map(COMPARED, one.edges))), *_own_parts(one, listed)])
    last = nested.pop()[2:]
    return [*last, nested]


def _inside_out(structure: GraphStructure, seen: set[int]) -> Iterator[GraphStructure]:
    """Yield each structure once, after those that are nested in it."""
    if id(structure) not in seen:
        seen.add(id(structure))
        for outline in structure.outlines.values():
            if outline.nested is not None:
                yield from _inside_out(outline.nested, seen)
        yield structure


def _own_parts(structure: GraphStructure, listed: dict[int, int]) -> list[Any]:
    outlines = {
        name: [outline.kind, list(outline.notes), *([] if outline.nested is None else [listed[id(outline.nested)]])]
        for name, outline in structure.outlines.items()
    }
    shown = [[place, edge.shown] for place, edge in enumerate(structure.edges) if edge.shown]
    return [structure.entry, list(structure.exits), outlines, shown]


def structure_of(nodes: Any, edges: Any, drawing: Any = None) -> GraphStructure:
    """Return a structure from its parts. Raises TypeError, ValueError or LookupError if they are none."""
    own = [] if drawing is None else expect_list(drawing)
    known: list[GraphStructure] = []
    for parts in expect_list(own[4] if len(own) > 4 else []):
        known.append(_structure_of(known, *expect_list(parts)))
    return _structure_of(known, nodes, edges, *own[:4])


def _structure_of(known: list[GraphStructure], nodes: Any, edges: Any, *drawing: Any) -> GraphStructure:
    entry, exits, outlines, shown = (*drawing, *_NOTHING[len(drawing) :])
    if not (entry is None or type(entry) is str) or type(outlines) is not dict:
        raise TypeError(f"it holds {shorten([entry, outlines])} where an entry and outlines should be")
    made = {name: _outline_of(known, *expect_list(parts)) for name, parts in outlines.items()}
    between = [EdgeStructure(*expect_list(edge, 3)) for edge in expect_list(edges)]
    for place, text in map(expect_list, expect_list(shown)):
        between[_place(place)] = attrs.evolve(between[place], shown=text)
    return GraphStructure(tuple(expect_list(nodes)), tuple(between), entry, tuple(expect_list(exits)), made)


_NOTHING: list[Any] = [None, [], {}, []]


def _outline_of(known: list[GraphStructure], kind: Any, notes: Any, place: Any = None) -> NodeOutline:
    return NodeOutline(kind, expect_list(notes), None if place is None else known[_place(place)])


def _place(place: Any) -> int:
    if type(place) is not int or place < 0:
        raise TypeError(f"it holds {shorten(place)} where a place should be")
    return place
