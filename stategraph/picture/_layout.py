"""Where everything in a picture stands: boxes, the ways between them, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from stategraph.picture._places import arrange
from stategraph.picture._ranks import Item, Line, rows_of
from stategraph.picture._run import in_time
from stategraph.picture._sketch import Box, Sketch, Way
from stategraph.picture._text import cut, width_of

Point: TypeAlias = tuple[float, float]

NAME, SMALL, LEADING = 13.0, 11.0, 15.0
STACK = 5.0
"""How far the sheets of a stack stand out."""
_PADDING, _LOOP, _DOT = 12.0, 30.0, 12.0
_ROW_GAP, _LABEL_GAP, _LANE = 32.0, 20.0, 9.0


@attrs.frozen
class PlacedBox:
    """A box: its upper left corner, its size, its lines of text, and what is drawn in it, with the corner of that."""

    box: Box
    x: float
    y: float
    width: float
    height: float
    texts: tuple[str, ...]
    inside: Drawing | None
    corner: Point


@attrs.frozen
class Label:
    """A text in the middle of a rectangle."""

    text: str
    x: float
    y: float
    width: float
    height: float


@attrs.frozen
class PlacedWay:
    """A way: the points that it goes through; from one to the next upright, or in a bend that begins and ends upright.

    The way of a node to itself is one bend to the right of it. That which leads to the entry is no edge.
    """

    way: Way | None
    points: tuple[Point, ...]
    label: Label | None


@attrs.frozen
class Drawing:
    """A graph with everything in its place."""

    width: float
    height: float
    boxes: tuple[PlacedBox, ...]
    ways: tuple[PlacedWay, ...]
    start: Point | None


def drawing_of(sketch: Sketch) -> Drawing:
    """Return a sketch with everything in its place. The same sketch gives the same drawing."""
    insides = [None if box.inside is None or not box.inside.boxes else drawing_of(box.inside) for box in sketch.boxes]
    texts = [texts_of(box) for box in sketch.boxes]
    numbers = {box.name: number for number, box in enumerate(sketch.boxes)}
    loops: dict[str, list[Way]] = {}
    between: list[Way] = []
    for way in sketch.ways:
        (loops.setdefault(way.source, []) if way.source == way.target else between).append(way)
    sizes = [
        _size_of(text, inside, len(loops.get(box.name, ())))
        for box, text, inside in zip(sketch.boxes, texts, insides, strict=True)
    ]
    items = [_item_of(box, size, loops.get(box.name, ())) for box, size in zip(sketch.boxes, sizes, strict=True)]
    lines = [Line(numbers[way.source], numbers[way.target], _label_size(way)) for way in between]
    entry = next((number for number, box in enumerate(sketch.boxes) if box.is_entry), None)
    if entry is not None:
        items.append(Item(_DOT, _DOT, is_box=True))
        lines.append(Line(len(items) - 1, entry, None))
    rows = rows_of(items, lines, None if entry is None else len(items) - 1)
    arrange(rows, lines)
    plan = _Plan(items, lines, rows)
    boxes = [
        _placed(box, plan.corner(number), sizes[number], texts[number], insides[number])
        for number, box in enumerate(sketch.boxes)
    ]
    routed = [
        PlacedWay(way, tuple(plan.route(line)), _label_at(way, line.sign))
        for way, line in zip([*between, None], lines, strict=False)
    ]
    looped = [
        _loop(way, boxes[numbers[name]], place, len(ways))
        for name, ways in loops.items()
        for place, way in enumerate(ways)
    ]
    start = None if entry is None else (items[-1].middle, items[-1].y + _DOT / 2)
    return Drawing(plan.width, plan.height, tuple(boxes), (*routed, *looped), start)


# --------------------------------------------------------------------------- how large it is


def texts_of(box: Box) -> tuple[str, ...]:
    """Return the lines of text in a box; the first is its name."""
    visit = box.visit
    told = [f"×{visit.times}"] if visit.times > 1 else []
    if visit.seconds is not None:
        told.append(in_time(visit.seconds))
    if visit.retries:
        told.append(f"{visit.retries} retr{'y' if visit.retries == 1 else 'ies'}")
    if visit.parts:
        told.append(f"{visit.parts} part{'' if visit.parts == 1 else 's'} done")
    is_told = visit.status not in ("", "done")
    status = [f"{visit.status}: {visit.said}" if visit.said else visit.status] if is_told else []
    return (cut(box.name) or "(no name)", *(cut(line) for line in (*box.notes, " · ".join(told), *status) if line))


def label_of(way: Way) -> str:
    """Return what stands at a way."""
    said = "on error" if way.is_failure else way.label
    return cut(" ".join(filter(None, (said, f"×{way.taken}" if way.taken > 1 else ""))))


def _size_of(texts: Sequence[str], inside: Drawing | None, loops: int) -> Point:
    width = max(width_of(text, SMALL if line else NAME * 1.06) for line, text in enumerate(texts)) + 2 * _PADDING + 8
    height = max(14.0 + LEADING * len(texts), 20.0 * loops)
    if inside is None:
        return max(width, 76.0), height
    return max(width, inside.width + 2 * _PADDING), height + inside.height + _PADDING


def _is_stack(box: Box) -> bool:
    return box.kind in ("map", "parallel")


def _item_of(box: Box, size: Point, loops: Sequence[Way]) -> Item:
    """Return the room that a box takes, with what stands out of it to the right and below."""
    beside = STACK if _is_stack(box) else 0.0
    if loops:
        beside += _LOOP + max(width_of(label_of(way), SMALL) for way in loops)
    return Item(size[0] + beside, size[1] + (STACK if _is_stack(box) else 0.0), is_box=True, lean=beside / 2)


def _label_size(way: Way) -> Point | None:
    label = label_of(way)
    return (width_of(label, SMALL) + 10.0, LEADING + 3.0) if label else None


# --------------------------------------------------------------------------- where it stands


class _Plan:
    """The rows of a drawing, once their items stand side by side.

    Args:
        items: The room that boxes take.
        lines: The lines between them.
        rows: The rows, from the top.
    """

    def __init__(self, items: Sequence[Item], lines: Sequence[Line], rows: Sequence[list[Item]]) -> None:
        self._items, self._lines = items, lines
        self._tops: list[float] = []
        self._bottoms: list[float] = []
        self._gaps = _gaps(rows)
        y = 0.0
        for row, gap in zip(rows, self._gaps, strict=True):
            height = max((item.height for item in row), default=0.0)
            for item in row:
                item.y = y + (height - item.height) / 2
            self._tops.append(y)
            self._bottoms.append(y + height)
            y += height + gap
        self.height = self._bottoms[-1] if rows else 0.0
        self.width = max((item.x + item.width for row in rows for item in row), default=0.0)
        self._ports = self._all_ports()
        self._lanes = self._all_lanes()

    def corner(self, number: int) -> Point:
        """Return the upper left corner of a box."""
        item = self._items[number]
        return item.x, item.y

    def route(self, line: Line) -> list[Point]:
        """Return the points that a line goes through, from its source to its target."""
        upper, lower = line.chain[0], line.chain[-1]
        first, last = self._ports[id(line), True], self._ports[id(line), False]
        points = [(first, upper.y + upper.height), (first, self._bottoms[upper.row])]
        if line.goes_around:
            lane = self._lanes[id(line)]
            under = self._bottoms[upper.row] + self._gaps[upper.row]
            over = self._tops[lower.row] - self._gaps[lower.row - 1]
            points += [(lane, under), (lane, max(over, under))]
        for item in line.chain[1:-1]:
            points += [(item.middle, self._tops[item.row]), (item.middle, self._bottoms[item.row])]
        points += [(last, self._tops[lower.row]), (last, lower.y)]
        points = [point for place, point in enumerate(points) if not place or point != points[place - 1]]
        return points[::-1] if line.is_back else points

    def _all_ports(self) -> dict[tuple[int, bool], float]:
        """Return where each line leaves its upper box, and where it meets the lower one."""
        sides: dict[tuple[int, bool], list[Line]] = {}
        for line in self._lines:
            sides.setdefault((id(line.chain[0]), True), []).append(line)
            sides.setdefault((id(line.chain[-1]), False), []).append(line)
        ports = {}
        for (_, is_upper), lines in sides.items():
            item = lines[0].chain[0 if is_upper else -1]
            lines.sort(key=lambda line, is_upper=is_upper: _toward(line, is_upper))  # type: ignore[misc]
            room = min((item.width - 2 * item.lean) * 0.9, 46.0 * len(lines))
            for place, line in enumerate(lines):
                ports[id(line), is_upper] = item.middle + room * ((place + 1) / (len(lines) + 1) - 0.5)
        return ports

    def _all_lanes(self) -> dict[int, float]:
        """Give each line that goes around a lane right of everything: its own, as long as it needs it."""
        lanes: dict[int, float] = {}
        ends: list[int] = []
        right = self.width
        around = [line for line in self._lines if line.goes_around]
        for line in sorted(around, key=lambda line: line.chain[0].row):
            lane = next((lane for lane, end in enumerate(ends) if end < line.chain[0].row), len(ends))
            ends[lane : lane + 1] = [line.chain[-1].row]
            lanes[id(line)] = right + _LANE * (lane + 2)
            self.width = max(self.width, lanes[id(line)] + _LANE)
        return lanes


def _toward(line: Line, is_upper: bool) -> float:
    if line.goes_around:
        return float("inf")
    return line.chain[1 if is_upper else -2].middle


def _gaps(rows: Sequence[list[Item]]) -> list[float]:
    """Return the room below each row: more where lines have far to go to the side."""
    gaps = []
    for place, row in enumerate(rows):
        following = rows[place + 1] if place + 1 < len(rows) else []
        is_label = not any(item.is_box for item in row) or not any(item.is_box for item in following)
        far = max((abs(item.middle - other.middle) for item in row for other in item.below), default=0.0)
        gaps.append((_LABEL_GAP if is_label else _ROW_GAP) + min(far * 0.14, 70.0))
    return gaps


def _placed(box: Box, corner: Point, size: Point, texts: tuple[str, ...], inside: Drawing | None) -> PlacedBox:
    place = (0.0, 0.0)
    if inside is not None:
        place = corner[0] + (size[0] - inside.width) / 2, corner[1] + 12.0 + LEADING * len(texts)
    return PlacedBox(box, *corner, *size, texts, inside, place)


def _label_at(way: Way | None, sign: Item | None) -> Label | None:
    return None if way is None or sign is None else Label(label_of(way), sign.x, sign.y, sign.width, sign.height)


def _loop(way: Way, placed: PlacedBox, place: int, count: int) -> PlacedWay:
    """Return the way of a node to itself, at the right side of its box."""
    right, height = placed.x + placed.width, placed.height / count
    middle, half = placed.y + height * (place + 0.5), min(height * 0.28, 18.0)
    top, bottom = middle - half, middle + half
    text = label_of(way)
    far = right + _LOOP - 4.0
    label = Label(text, far, middle - 9.0, width_of(text, SMALL), 18.0) if text else None
    points = ((right, top), (far + 4.0, top), (far + 4.0, bottom), (right, bottom))
    return PlacedWay(way, points, label)
