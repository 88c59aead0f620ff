"""The content of a picture: boxes, ways between them, and the run over them. It has no coordinates."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import count, islice
from math import fsum
from typing import TypeAlias
from unicodedata import east_asian_width

import attrs

from stategraph._text.shown import one_line, span
from stategraph._values.progress import NodeOutline
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.picture._run import Visit, Walk

DEPTH = 4
"""How deep nested graphs are drawn. Of deeper ones only the name is drawn."""

MOST_BOXES, MOST_WAYS = 4_000, 5_000
"""How many boxes and lines of a graph are drawn, and how many of both before nested graphs are left out.

A graph may be nested in many places.
"""

_FUNCTION, _NOWHERE = NodeOutline(), Visit()


@attrs.frozen(eq=False)
class Box:
    """A node, or the dot where runs start.

    Attributes:
        name: Its name.
        kind: Its kind, as in a NodeOutline.
        notes: Short facts about it.
        is_exit: Whether runs complete here.
        inside: The nested graph, or the branches.
        visit: How often a run was here, and with which result.
        is_start: Whether it is the dot.
    """

    name: str = ""
    kind: str = ""
    notes: tuple[str, ...] = ()
    is_exit: bool = False
    inside: Sketch | None = None
    visit: Visit = _NOWHERE
    is_start: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The lines of text in the box. The first is the name."""
        visit = self.visit
        counts = (
            f"×{visit.times}" if visit.times > 1 else "",
            "" if visit.seconds is None else span(visit.seconds),
            f"{visit.retries} retr{'y' if visit.retries == 1 else 'ies'}" if visit.retries else "",
            f"{visit.parts} part{'' if visit.parts == 1 else 's'} done" if visit.parts else "",
        )
        status = "" if visit.status == "done" else ": ".join(filter(None, (visit.status, visit.said)))
        lines = (*self.notes, " · ".join(filter(None, counts)), status)
        return (cut(self.name) or "(no name)", *(cut(line) for line in lines if line))


@attrs.frozen
class Way:
    """All edges from one node to another, either those with predicates or those for failures.

    Attributes:
        source: The node that it leaves, or the dot.
        target: The node that it leads to.
        label: The predicate in short; empty for an edge that is always taken.
        is_failure: Whether it is taken after a failure of the node.
        taken: How often a run has taken it.
    """

    source: Box
    target: Box
    label: str = ""
    is_failure: bool = False
    taken: int = 0

    @property
    def reason(self) -> str:
        """When it is taken; empty for always."""
        return "on error" if self.is_failure else self.label

    @property
    def text(self) -> str:
        """The text beside its line."""
        return cut(" ".join(filter(None, (self.reason, f"×{self.taken}" if self.taken > 1 else ""))))


@attrs.frozen
class Sketch:
    """A graph, or the branches of a node."""

    boxes: tuple[Box, ...]
    ways: tuple[Way, ...]


def sketch_of(structure: GraphStructure, walk: Walk) -> Sketch:
    """Return the sketch of a graph and of a run on it."""
    return _sketch_of(structure, walk, DEPTH, count())


def _sketch_of(structure: GraphStructure, walk: Walk, depth: int, drawn: Iterator[int]) -> Sketch:
    boxes: dict[str, Box] = {}
    names = list(dict.fromkeys(structure.nodes))
    for name in names[:MOST_BOXES]:
        outline = structure.outlines.get(name, _FUNCTION)
        inside, notes = None, outline.notes
        if outline.nested is not None and depth:
            if next(drawn) < MOST_BOXES:
                inside = _sketch_of(outline.nested, walk.nested.get(name, Walk()), depth - 1, drawn)
            else:
                notes = (*notes, "its graph is not drawn")
        visit = walk.visits.get(name, _NOWHERE)
        boxes[name] = Box(name, outline.kind, notes, name in structure.exits, inside, visit)
        next(drawn)
    labels = _labels_of(structure.edges, boxes)
    if len(labels) > MOST_WAYS:  # those that the run has taken come first
        labels = dict(sorted(labels.items(), key=lambda item: item[0][:2] not in walk.taken))
    ways = list(islice(_ways_of(labels, boxes, walk.taken), MOST_WAYS))
    several = [*boxes.values()]
    for more, what in ((len(names) - len(boxes), "nodes"), (len(labels) - len(ways), "edges")):
        several += [Box(f"{more:,} more {what}, not drawn")] if more else []
    for _ in ways:
        next(drawn)
    if structure.entry not in boxes:
        return Sketch((*several,), (*ways,))
    start = Box(is_start=True)
    return Sketch((start, *several), (Way(start, boxes[structure.entry]), *ways))


_Labels: TypeAlias = Mapping[tuple[str, str, bool], Sequence[str]]


def _labels_of(edges: Iterable[EdgeStructure], boxes: Collection[str]) -> _Labels:
    """Return the labels of the edges between boxes, by their ends and whether they are for failures."""
    labels: dict[tuple[str, str, bool], list[str]] = {}
    for edge in edges:
        if edge.source in boxes and edge.target in boxes:
            is_failure = edge.label == "on_error"
            labels.setdefault((edge.source, edge.target, is_failure), []).append(edge.shown or edge.label)
    return labels


def _ways_of(labels: _Labels, boxes: Mapping[str, Box], taken: Mapping[tuple[str, str], int]) -> Iterator[Way]:
    """Yield one way for all edges with the same ends: in a history they are the same."""
    for (source, target, is_failure), texts in labels.items():
        label = "" if "always()" in texts or is_failure else " or ".join(map(_in_short, texts))
        is_other = is_failure and (source, target, False) in labels
        times = 0 if is_other else taken.get((source, target), 0)
        yield Way(boxes[source], boxes[target], label, is_failure, times)


_SHORTER = (
    (re.compile(r"[\w.]*<locals>\."), ""),
    (re.compile(r"<lambda>"), "lambda"),
    (re.compile(r"not_\(key_exists\('([^']*)'\)\)"), r"no \1"),
    (re.compile(r"not_\(key_equals\('([^']*)', ([^()]*)\)\)"), r"\1 ≠ \2"),
    (re.compile(r"key_exists\('([^']*)'\)"), r"\1 is there"),
    (re.compile(r"key_equals\('([^']*)', ([^()]*)\)"), r"\1 = \2"),
)


def _in_short(predicate: str) -> str:
    """Return the repr of a predicate in fewer words."""
    predicate = predicate[:_LONGEST_WHOLE]  # the time of a search may grow with the square of the length
    for long, short in _SHORTER:
        predicate = long.sub(short, predicate)
    return predicate


# --------------------------------------------------------------------------- text


_LONGEST = 34  # characters of a text in a picture
_LONGEST_WHOLE = 500  # characters of a title

_NARROW = frozenset("iljtfrI.,:;'|!()[]{}·` ")
_WIDE = frozenset("mwMW@%—…→")


def plain(text: str) -> str:
    """Return a text on one line, with a replacement for each unprintable character."""
    line = one_line(text[:_LONGEST_WHOLE])
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


def cut(text: str, limit: int = _LONGEST) -> str:
    """Return the beginning of a text, printable and on one line."""
    text = plain(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def width_of(text: str, size: float) -> float:
    """Return a generous estimate of the width of a text, for any font of this size."""
    return size * fsum(map(_width_of, text))  # not sum: Python 3.12 rounds it in another way


def _width_of(char: str) -> float:
    if char in _NARROW:
        return 0.4
    if char in _WIDE:
        return 0.98
    if char.isascii():
        return 0.72 if char.isupper() else 0.61
    return 1.05 if east_asian_width(char) in "WF" else 0.75


def marked_up(text: str) -> str:
    """Return a text escaped for XML."""
    return escape(plain(text))
