"""A sketch as a flowchart of Mermaid, which GitHub and many editors draw."""

from __future__ import annotations

from collections.abc import Iterator

from stategraph.picture._layout import label_of, texts_of
from stategraph.picture._sketch import Box, Sketch, Way

_PLAIN = frozenset(" .,_=+-/×·≠")
_STYLES = {
    "done": "stroke:#1a7f37,stroke-width:2px",
    "handled": "stroke:#d1242f,stroke-width:2px",
    "failed": "stroke:#d1242f,stroke-width:4px",
    "waiting": "stroke:#9a6700,stroke-width:4px",
    "under way": "stroke:#0969da,stroke-width:4px",
    "next": "stroke:#0969da,stroke-width:2px,stroke-dasharray:7 3",
    "maybe": "stroke:#0969da,stroke-width:2px,stroke-dasharray:2 3",
}
_SHAPES = {"map": ("[[", "]]"), "parallel": ("[/", "/]"), "pause": ("{{", "}}"), "graph": ("[", "]")}


def mermaid_of(sketch: Sketch) -> str:
    """Return the text of a flowchart."""
    chart = _Chart()
    lines = ["flowchart TB", *chart.lines(sketch, (), "  ")]
    for status, nodes in chart.by_status.items():
        kind = status.replace(" ", "")
        lines += [f"  classDef {kind} {_STYLES[status]}", f"  class {','.join(nodes)} {kind}"]
    return "\n".join(lines) + "\n"


def text_of(text: str) -> str:
    """Return a text of which nothing is taken for syntax, markup or a link: all but plain characters as numbers."""
    return "".join(char if char.isalnum() or char in _PLAIN else f"#{ord(char)};" for char in text)


class _Chart:
    """What has been named so far: nodes are named by numbers, so that no name is a word of the language."""

    def __init__(self) -> None:
        self.by_status: dict[str, list[str]] = {}
        self._numbers: dict[tuple[str, ...], str] = {}

    def lines(self, sketch: Sketch, path: tuple[str, ...], indent: str) -> Iterator[str]:
        for box in sketch.boxes:
            yield from self._node(box, path, indent)
            if box.is_entry:
                start = self._number((*path, box.name, ""))
                yield f"{indent}{start}(( )) --> {self._number((*path, box.name))}"
        for way in sketch.ways:
            yield self._way(way, path, indent)

    def _number(self, path: tuple[str, ...]) -> str:
        return self._numbers.setdefault(path, f"n{len(self._numbers)}")

    def _node(self, box: Box, path: tuple[str, ...], indent: str) -> Iterator[str]:
        number = self._number((*path, box.name))
        status = box.visit.status
        if status:
            self.by_status.setdefault(status, []).append(number)
        done = "✓ " if status == "done" else ""  # the others say it in words
        texts = [text_of(text) for text in texts_of(box)]
        if box.inside is not None and box.inside.boxes:
            yield f'{indent}subgraph {number} ["{done}{" · ".join(texts)}"]'
            yield from self.lines(box.inside, (*path, box.name), indent + "  ")
            yield f"{indent}end"
        else:
            opening, closing = _SHAPES.get(box.kind, ("([", "])") if box.is_exit else ("[", "]"))
            yield f'{indent}{number}{opening}"{done}{"<br/>".join(texts)}"{closing}'

    def _way(self, way: Way, path: tuple[str, ...], indent: str) -> str:
        arrow = "-.->" if way.is_failure else "==>" if way.taken else "-->"
        label = text_of(label_of(way))
        ends = self._number((*path, way.source)), self._number((*path, way.target))
        return f"{indent}{ends[0]} {arrow}" + (f'|"{label}"| ' if label else " ") + ends[1]
