"""What is to be drawn: boxes, ways between them, and how a run went over them. Nothing here knows where it goes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from itertools import count
from unicodedata import east_asian_width

import attrs

from stategraph._values.progress import NodeOutline
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.picture._run import Visit, Walk

DEPTH = 4
"""How deep nested graphs are drawn; of deeper ones the name is."""

MOST_BOXES = 4_000
"""How many boxes are drawn before nested graphs are no longer looked into: a graph may be nested in many places."""

_FUNCTION = NodeOutline()


@attrs.frozen
class Box:
    """A node.

    Attributes:
        name: Its name.
        kind: What it is, as in a NodeOutline.
        notes: What is to be known of it.
        is_entry: Whether runs start here.
        is_exit: Whether they complete here.
        inside: What is drawn in it.
        visit: How often a run was here, and how it went.
    """

    name: str
    kind: str
    notes: tuple[str, ...]
    is_entry: bool
    is_exit: bool
    inside: Sketch | None
    visit: Visit


@attrs.frozen
class Way:
    """All edges from one node to another that are taken for the same reason: a predicate, or a failure.

    Attributes:
        source: The name of the node that it leaves.
        target: The name of the node that it leads to.
        label: When it is taken, in few words; empty for always.
        is_failure: Whether it is taken when the node has failed.
        taken: How often a run has taken it.
    """

    source: str
    target: str
    label: str
    is_failure: bool
    taken: int


@attrs.frozen
class Sketch:
    """A graph, or the branches of a node."""

    boxes: tuple[Box, ...]
    ways: tuple[Way, ...]


def sketch_of(structure: GraphStructure, walk: Walk) -> Sketch:
    """Return what is to be drawn of a graph, and of a run on it."""
    return _sketch_of(structure, walk, DEPTH, count())


def _sketch_of(structure: GraphStructure, walk: Walk, depth: int, drawn: Iterator[int]) -> Sketch:
    names = tuple(dict.fromkeys(structure.nodes))
    exits, entry = frozenset(structure.exits), structure.entry
    boxes = []
    for name in names:
        outline = structure.outlines.get(name, _FUNCTION)
        inside = None
        if outline.nested is not None and depth and next(drawn) < MOST_BOXES:
            inside = _sketch_of(outline.nested, walk.nested.get(name, Walk()), depth - 1, drawn)
        visit = walk.visits.get(name, Visit())
        boxes.append(Box(name, outline.kind, outline.notes, name == entry, name in exits, inside, visit))
        next(drawn)
    return Sketch(tuple(boxes), tuple(_ways_of(structure.edges, frozenset(names), walk.taken)))


def _ways_of(
    edges: Iterable[EdgeStructure], names: frozenset[str], taken: Mapping[tuple[str, str], int]
) -> Iterator[Way]:
    """Yield one way for all edges of the same ends: a history does not say which of them was taken."""
    labels: dict[tuple[str, str, bool], list[str]] = {}
    for edge in edges:
        if edge.source in names and edge.target in names:
            is_failure = edge.label == "on_error"
            labels.setdefault((edge.source, edge.target, is_failure), []).append(edge.shown or edge.label)
    for (source, target, is_failure), texts in labels.items():
        label = "" if "always()" in texts or is_failure else " or ".join(map(in_short, texts))
        has_other = (source, target, not is_failure) in labels
        yield Way(source, target, label, is_failure, 0 if is_failure and has_other else taken.get((source, target), 0))


_SHORTER = (
    (re.compile(r"[\w.]*<locals>\."), ""),
    (re.compile(r"<lambda>"), "lambda"),
    (re.compile(r"not_\(key_exists\('([^']*)'\)\)"), r"no \1"),
    (re.compile(r"not_\(key_equals\('([^']*)', ([^()]*)\)\)"), r"\1 ≠ \2"),
    (re.compile(r"key_exists\('([^']*)'\)"), r"\1 is there"),
    (re.compile(r"key_equals\('([^']*)', ([^()]*)\)"), r"\1 = \2"),
)


def in_short(predicate: str) -> str:
    """Return what a predicate says of itself, in fewer words."""
    for long, short in _SHORTER:
        predicate = long.sub(short, predicate)
    return predicate


# --------------------------------------------------------------------------- text


LONGEST = 34  # characters of a text that is shown
_LONGEST_WHOLE = 500  # of a text beside the picture

_NARROW = frozenset("iljtfrI.,:;'|!()[]{}·` ")
_WIDE = frozenset("mwMW@%—…→")


def plain(text: str) -> str:
    """Return a text in one line, without what is not to be seen: controls, half surrogates, changes of direction."""
    line = " ".join(text[:_LONGEST_WHOLE].split())
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


def cut(text: str, limit: int = LONGEST) -> str:
    """Return the beginning of a text, as it is shown."""
    text = plain(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def width_of(text: str, size: float) -> float:
    """Return how wide a text of a size is, in whatever font, rather too wide than too narrow."""
    return size * sum(map(_width_of, text))


def _width_of(char: str) -> float:
    if char in _NARROW:
        return 0.4
    if char in _WIDE:
        return 0.98
    if char.isascii():
        return 0.72 if char.isupper() else 0.61
    return 1.05 if east_asian_width(char) in "WF" else 0.75


def marked_up(text: str) -> str:
    """Return a text as it stands in XML."""
    return escape(plain(text))
