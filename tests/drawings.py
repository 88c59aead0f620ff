"""Reader of SVG pictures: the places of boxes, lines and labels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from xml.etree import ElementTree as ET

import attrs

SVG = "{http://www.w3.org/2000/svg}"
STACK = 5.0
NEAR = 0.11  # coordinates are written with one digit


@attrs.frozen
class Rect:
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Rect) -> bool:
        """Return whether two share more than a border."""
        return (
            min(self.right, other.right) - max(self.left, other.left) > NEAR
            and min(self.bottom, other.bottom) - max(self.top, other.top) > NEAR
        )

    def has_at_border(self, x: float, y: float) -> bool:
        """Return whether a point is at its border."""
        return self.has(x, y, NEAR) and not self.has(x, y, -NEAR - 0.01)

    def has(self, x: float, y: float, more: float = 0.0) -> bool:
        """Return whether a point is in it, or in it with so much more at each side."""
        return self.left - more <= x <= self.right + more and self.top - more <= y <= self.bottom + more


@attrs.frozen
class Node:
    """A box, with the graphs in it."""

    name: str
    kind: str
    classes: frozenset[str]
    rect: Rect
    texts: tuple[str, ...]
    graphs: tuple[Graph, ...]


@attrs.frozen
class Edge:
    """A line: its ends, and points on it."""

    source: str | None
    target: str | None
    classes: frozenset[str]
    points: tuple[tuple[float, float], ...]


@attrs.frozen
class Graph:
    """The boxes and lines of one drawn graph."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    labels: tuple[tuple[str, Rect], ...]

    def node(self, name: str) -> Node:
        """Return the node of a name."""
        return next(node for node in self.nodes if node.name == name)


def read(svg: str) -> Graph:
    """Return the graph of a picture. Raises ParseError if it is no XML."""
    root = ET.fromstring(svg)
    return _graph(next(child for child in root if child.get("class") == "graph"), 0.0, 0.0)


def elements(svg: str) -> Iterator[ET.Element]:
    """Yield all that is in a picture."""
    return ET.fromstring(svg).iter()


def _graph(element: ET.Element, x: float, y: float) -> Graph:
    dx, dy = map(float, re.findall(r"-?[\d.]+", element.get("transform", "")))
    x, y = x + dx, y + dy
    nodes, edges, labels = [], [], []
    for child in element:
        classes = frozenset((child.get("class") or "").split())
        if "node" in classes:
            nodes.append(_node(child, classes, x, y))
        elif "edge" in classes and child.find(f"{SVG}path") is not None:
            edges.append(_edge(child, classes, x, y))
        elif "edge" in classes:
            labels.append((child.findtext(f"{SVG}text") or "", _rect(child.find(f"{SVG}rect"), x, y)))
    return Graph(tuple(nodes), tuple(edges), tuple(labels))


def _node(element: ET.Element, classes: frozenset[str], x: float, y: float) -> Node:
    shape = [child for child in element if child.get("class") == "shape"][-1]
    texts = tuple(text.text or "" for text in element.findall(f"{SVG}text"))
    graphs = tuple(_graph(child, x, y) for child in element if child.get("class") == "graph")
    name, kind = element.get("data-node", ""), element.get("data-kind", "")
    return Node(name, kind, classes, _rect(shape, x, y), texts, graphs)


def _rect(element: ET.Element | None, x: float, y: float) -> Rect:
    assert element is not None
    if element.tag == f"{SVG}polygon":
        corners = [tuple(map(float, point.split(","))) for point in element.get("points", "").split()]
        xs, ys = [x + corner[0] for corner in corners], [y + corner[1] for corner in corners]
        return Rect(min(xs), min(ys), max(xs), max(ys))
    left, top, width, height = (float(element.get(name, "0")) for name in ("x", "y", "width", "height"))
    return Rect(x + left, y + top, x + left + width, y + top + height)


def _edge(element: ET.Element, classes: frozenset[str], x: float, y: float) -> Edge:
    path = next(child for child in element if child.get("class") == "way")
    points = tuple((x + px, y + py) for px, py in _points(path.get("d", "")))
    return Edge(element.get("data-source"), element.get("data-target"), classes, points)


def _points(path: str) -> Iterator[tuple[float, float]]:
    """Yield points along a path of straight lines."""
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
    corners = [*zip(numbers[::2], numbers[1::2], strict=True)]
    yield corners[0]
    for (x, y), (to_x, to_y) in pairwise(corners):
        yield from ((x + (to_x - x) * step / 20, y + (to_y - y) * step / 20) for step in range(1, 21))
