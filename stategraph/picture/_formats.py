"""A picture as SVG and as Mermaid.

The SVG is one image that runs no code and loads nothing. GitHub and many editors draw Mermaid.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from stategraph.picture._layout import LEADING, STACK, Drawing, Line, Point, Slot, drawing_of
from stategraph.picture._sketch import Box, Sketch, Way, marked_up

# --------------------------------------------------------------------------- SVG


_MARGIN, _HEAD = 16.0, 20.0

_STYLE = """
.sg{--page:#fff;--ink:#1f2328;--soft:#59636e;--line:#818b98;--box:#f6f8fa;--nest:#fff;--taken:#1f2328}
.sg{--done:#1a7f37;--failed:#d1242f;--wait:#9a6700;--work:#0969da;--on:#fff}
@media (prefers-color-scheme:dark){
.sg{--page:#0d1117;--ink:#f0f6fc;--soft:#9198a1;--line:#6e7681;--box:#161b22;--nest:#0d1117;--taken:#f0f6fc}
.sg{--done:#3fb950;--failed:#f85149;--wait:#d29922;--work:#4493f8;--on:#0d1117}}
.sg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:var(--ink);font-size:11px}
.sg .page,.sg .under{fill:var(--page)}.sg .title,.sg .name{font-size:13px;font-weight:600}
.sg .note,.sg .label,.sg .caption{fill:var(--soft)}.sg .node>.shape{fill:var(--box);stroke:var(--line);stroke-width:1.3}
.sg .nest>.shape{fill:var(--nest)}.sg .nest .under{fill:var(--nest)}.sg .exit{fill:none;stroke:var(--line)}
.sg .way{fill:none;stroke:var(--line);stroke-width:1.3;stroke-linejoin:round}
.sg .tip,.sg .start{fill:var(--line);stroke:none}
.sg .taken>.way{stroke:var(--taken);stroke-width:2.4}.sg .taken>.tip{fill:var(--taken)}
.sg .taken>.label{fill:var(--ink)}
.sg .failure>.way{stroke-dasharray:5 4}.sg .mark{stroke:var(--on);stroke-width:2;fill:none;stroke-linecap:round}
.sg .done>.shape{stroke:var(--done)}.sg .done>.badge{fill:var(--done)}
.sg .failed>.shape{stroke:var(--failed);stroke-width:3}.sg .failed>.badge,.sg .handled>.badge{fill:var(--failed)}
.sg .handled>.shape{stroke:var(--failed)}
.sg .waiting>.shape{stroke:var(--wait);stroke-width:3}.sg .waiting>.badge{fill:var(--wait)}
.sg .working>.shape{stroke:var(--work);stroke-width:3}.sg .working>.badge{fill:var(--work)}
.sg .next>.shape{stroke:var(--work);stroke-width:2;stroke-dasharray:7 3}.sg .next>.badge{fill:var(--work)}
.sg .maybe>.shape{stroke:var(--work);stroke-width:2;stroke-dasharray:2 3}.sg .maybe>.badge{fill:var(--work)}
""".replace("\n", "")

_MARKS = {
    "done": "m-3.5 0l2.5 2.5l4.5-5",
    "handled": "m0-4v4.5m0 3v.1",
    "failed": "m-3-3l6 6m0-6l-6 6",
    "waiting": "m-2-3.5v7m4-7v7",
    "under way": "m-2-3.5l5 3.5l-5 3.5z",
    "next": "m-3-3.5l3 3.5l-3 3.5m3-7l3 3.5l-3 3.5",
    "maybe": "m-2-1.6q0-2.2 2-2.2t2 2q0 1.400-2 2.300m0 3v.1",
}
"""The sign on the badge of each status, so that statuses differ without colours."""


def svg_of(sketch: Sketch, title: str, caption: str) -> str:
    """Return a sketch with a title above it as SVG."""
    drawing = drawing_of(sketch)
    wide = max(drawing.width, 7.6 * len(marked_up(title)), 6.4 * len(marked_up(caption)))
    width, top = wide + 2 * _MARGIN, _MARGIN + _HEAD * (2 if caption else 1) + 6.0
    height = top + drawing.height + _MARGIN
    about = marked_up(f"graph {title}" + (f": {caption}" if caption else ""))
    caption_line = f'<text class="caption" x="{_MARGIN:g}" y="{_MARGIN + 30:g}">{marked_up(caption)}</text>'
    return "".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="sg" width="{width:.0f}" height="{height:.0f}" ',
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{about}">',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{width:.0f}" height="{height:.0f}" rx="6"/>',
            f'<text class="title" x="{_MARGIN:g}" y="{_MARGIN + 12:g}">{marked_up(title)}</text>',
            caption_line if caption else "",
            *_graph(drawing, (_MARGIN + (wide - drawing.width) / 2, top)),
            "</svg>\n",
        ]
    )


def _graph(drawing: Drawing, corner: Point) -> Iterator[str]:
    x, y = corner
    yield f'<g class="graph" transform="translate({x:.1f} {y:.1f})">'
    for line in drawing.lines:
        yield from _line(line)
    for slot in drawing.boxes:
        if slot.box is not None:
            yield from _node(slot, slot.box)
    for line in drawing.lines:
        yield from _label(line)
    yield "</g>"


# --------------------------------------------------------------------------- lines


def _classes(way: Way) -> str:
    return "edge" + (" failure" if way.is_failure else "") + (" taken" if way.taken else "")


def _line(line: Line) -> Iterator[str]:
    way = line.way
    if way.source.is_start:
        yield '<g class="edge">'
    else:
        source, target = marked_up(way.source.name), marked_up(way.target.name)
        yield f'<g class="{_classes(way)}" data-source="{source}" data-target="{target}">'
        reason = f": {way.reason}" if way.reason else ""
        yield f"<title>{source} → {target}{marked_up(reason)}</title>"
    x, y = line.points[-1]
    half = 5.5 if way.taken else 4.0
    yield f'<path class="way" d="M{" ".join(f"{at:.1f} {down:.1f}" for at, down in line.points)}"/>'
    yield f'<path class="tip" d="M{x:.1f} {y:.1f}l-{half:g}-{half + 3:g}h{2 * half:g}z"/></g>'


def _label(line: Line) -> Iterator[str]:
    label = line.label
    if label.height:
        size = f'x="{label.x:.1f}" y="{label.y:.1f}" width="{label.width:.1f}" height="{label.height:.1f}"'
        yield f'<g class="{_classes(line.way)}"><rect class="under" {size} rx="4"/>'
        yield f'<text class="label" x="{label.middle:.1f}" y="{label.y + 13:.1f}" text-anchor="middle">'
        yield f"{marked_up(line.way.text)}</text></g>"


# --------------------------------------------------------------------------- nodes


def _node(slot: Slot, box: Box) -> Iterator[str]:
    if box.is_start:
        yield f'<circle class="start" cx="{slot.middle:.1f}" cy="{slot.y + 6:.1f}" r="6"/>'
        return
    status = box.visit.status
    shown = {"under way": "working"}.get(status, status)
    classes = " ".join(filter(None, ("node", "nest" if slot.inside else "", shown)))
    about = [box.name, *([box.kind] if box.kind != "function" else []), *box.notes, status, box.visit.said]
    yield f'<g class="{classes}" data-node="{marked_up(box.name)}" data-kind="{marked_up(box.kind)}">'
    yield f"<title>{marked_up(' · '.join(filter(None, about)))}</title>"
    yield from _shape(slot, box)
    y = slot.y + 19.0
    for line, text in enumerate(box.texts):
        kind = "note" if line else "name"
        yield f'<text class="{kind}" x="{slot.middle:.1f}" y="{y:.1f}" text-anchor="middle">{marked_up(text)}</text>'
        y += LEADING
    if slot.inside is not None:
        yield from _graph(slot.inside, (slot.middle - slot.inside.width / 2, y - 7.0))
    if status in _MARKS:
        yield f'<circle class="badge" cx="{slot.x + 3:.1f}" cy="{slot.y + 3:.1f}" r="8"/>'
        yield f'<path class="mark" d="M{slot.x + 3:.1f} {slot.y + 3:.1f}{_MARKS[status]}"/>'
    yield "</g>"


def _shape(slot: Slot, box: Box) -> Iterator[str]:
    x, y, width, height = slot.x, slot.y, slot.width, slot.height
    if box.kind in ("map", "parallel"):
        yield _outline(box, "shape", x + STACK, y + STACK, width, height)
    yield _outline(box, "shape", x, y, width, height)
    if box.is_exit:
        yield _outline(box, "exit", x + 3, y + 3, width - 6, height - 6)


def _outline(box: Box, kind: str, x: float, y: float, width: float, height: float) -> str:
    if box.kind != "pause":
        return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="7"/>'
    xs, ys = (x, x + 10, x + width - 10, x + width), (y, y + height / 2, y + height)
    corners = (xs[0], ys[1]), (xs[1], ys[0]), (xs[2], ys[0]), (xs[3], ys[1]), (xs[2], ys[2]), (xs[1], ys[2])
    points = " ".join(f"{across:.1f},{down:.1f}" for across, down in corners)
    return f'<polygon class="{kind}" points="{points}"/>'


# --------------------------------------------------------------------------- Mermaid


_PLAIN = frozenset(" .,_=+-/×·≠")
_CLASSES = {
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
    """Return a sketch as a flowchart of Mermaid. Nodes are named by numbers, so that no name is a keyword."""
    by_status: dict[str, list[str]] = {}
    lines = ["flowchart TB", *_chart(sketch, "  ", map("n{}".format, count()), by_status)]
    for status, nodes in by_status.items():
        kind = status.replace(" ", "")
        lines += [f"  classDef {kind} {_CLASSES[status]}", f"  class {','.join(nodes)} {kind}"]
    return "\n".join(lines) + "\n"


def _chart(sketch: Sketch, indent: str, free: Iterator[str], by_status: dict[str, list[str]]) -> Iterator[str]:
    """Yield the lines of a graph. `free` yields the names of nodes, and `by_status` collects them."""
    names: dict[Box, str] = {}
    for box in sketch.boxes:
        names[box] = name = next(free)
        if box.visit.status:
            by_status.setdefault(box.visit.status, []).append(name)
        texts = [_quoted(text) for text in box.texts]
        if box.visit.status == "done":  # other statuses are in words
            texts[0] = f"✓ {texts[0]}"
        if box.is_start:
            yield f"{indent}{name}(( ))"
        elif box.inside is not None and box.inside.boxes:
            yield f'{indent}subgraph {name} ["{" · ".join(texts)}"]'
            yield from _chart(box.inside, indent + "  ", free, by_status)
            yield f"{indent}end"
        else:
            opening, closing = _SHAPES.get(box.kind, ("([", "])") if box.is_exit else ("[", "]"))
            yield f'{indent}{name}{opening}"{"<br/>".join(texts)}"{closing}'
    for way in sketch.ways:
        arrow = "-.->" if way.is_failure else "==>" if way.taken else "-->"
        label = f'|"{_quoted(way.text)}"|' if way.text else ""
        yield f"{indent}{names[way.source]} {arrow}{label} {names[way.target]}"


def _quoted(text: str) -> str:
    """Return a text in which Mermaid finds no syntax, markup or links: all but plain characters become numbers."""
    return "".join(char if char.isalnum() or char in _PLAIN else f"#{ord(char)};" for char in text)
