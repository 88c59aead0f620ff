"""Where everything in a picture stands: boxes in rows, labels below them, and lines from the bottom of a box to the top
of another one.

A box stands below all boxes that lead to it, but for edges that close cycles. Lines to the next row are direct; all
others go around, in lanes to the right of the boxes. Below each row is a strip, in which each line that leaves the row
has a place of its own: as wide as its label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean
from typing import TypeAlias

import attrs

from stategraph.picture._run import in_time
from stategraph.picture._sketch import Box, Sketch, Way, cut, width_of

Point: TypeAlias = tuple[float, float]

NAME, SMALL, LEADING = 13.0, 11.0, 15.0
STACK = 5.0
"""How far the sheet of a stack stands out."""
_PADDING, _DOT = 12.0, 12.0
_GAP, _ROW_GAP, _STRIP_GAP, _LANE, _TIP = 26.0, 30.0, 14.0, 9.0, 12.0
_SWEEPS = 9
_SINGLE_IN_A_ROW = 4


@attrs.define(eq=False)
class _Slot:
    """The room that a box or a label takes: its size, its row, the middle of it, and its upper edge."""

    width: float
    height: float
    row: int = 0
    middle: float = 0.0
    y: float = 0.0

    @property
    def x(self) -> float:
        return self.middle - self.width / 2


@attrs.define(eq=False)
class _Line:
    """A line between two boxes: where it leaves and enters them, the room of its label, and its lane if it has one."""

    way: Way | None
    source: _Slot
    target: _Slot
    label: _Slot
    leaves: float = 0.0
    enters: float = 0.0
    lane: float = 0.0

    @property
    def is_direct(self) -> bool:
        return self.target.row == self.source.row + 1

    @property
    def rows(self) -> tuple[int, int]:
        """The first and the last row below which the lane passes."""
        ends = self.source.row, self.target.row - 1
        return min(ends), max(ends)


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
class PlacedWay:
    """A way: the points that it goes through, and its label, with the rectangle that this stands in.

    The way without a Way leads from the dot to the entry.
    """

    way: Way | None
    points: tuple[Point, ...]
    label: str
    x: float
    y: float
    width: float
    height: float


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
    insides = [drawing_of(box.inside) if box.inside is not None and box.inside.boxes else None for box in sketch.boxes]
    slots = {box.name: _slot_of(box, inside) for box, inside in zip(sketch.boxes, insides, strict=True)}
    lines = [_Line(way, slots[way.source], slots[way.target], _label_slot(way)) for way in sketch.ways]
    dot = _Slot(_DOT, _DOT)
    entry = next((slots[box.name] for box in sketch.boxes if box.is_entry), None)
    if entry is not None:
        lines.append(_Line(None, dot, entry, _Slot(10.0, 0.0)))
    rows = _rows([*slots.values(), *([] if entry is None else [dot])], lines, dot)
    _arrange(rows, lines)
    by_row: list[list[_Line]] = [[] for _ in rows]
    for line in lines:
        by_row[line.source.row].append(line)
    _place_labels(rows, lines, by_row)
    left = min((slot.x for slot in (*slots.values(), *(line.label for line in lines))), default=0.0)
    right = max((slot.x + slot.width for slot in (*slots.values(), *(line.label for line in lines))), default=0.0)
    right = _place_lanes([line for line in lines if not line.is_direct], right)
    frames, height = _place_rows(rows, by_row)
    start = None if entry is None else (dot.middle - left, dot.y + _DOT / 2)
    boxes = (_placed(box, slots[box.name], left, inside) for box, inside in zip(sketch.boxes, insides, strict=True))
    return Drawing(right - left, height, tuple(boxes), tuple(_routed(line, frames, left) for line in lines), start)


# --------------------------------------------------------------------------- texts and sizes


def texts_of(box: Box) -> tuple[str, ...]:
    """Return the lines of text in a box; the first is its name."""
    visit = box.visit
    counts = " · ".join(
        (
            *([f"×{visit.times}"] if visit.times > 1 else []),
            *([] if visit.seconds is None else [in_time(visit.seconds)]),
            *([f"{visit.retries} retr{'y' if visit.retries == 1 else 'ies'}"] if visit.retries else []),
            *([f"{visit.parts} part{'' if visit.parts == 1 else 's'} done"] if visit.parts else []),
        )
    )
    status = "" if visit.status == "done" else ": ".join(filter(None, (visit.status, visit.said)))
    return (cut(box.name) or "(no name)", *(cut(line) for line in (*box.notes, counts, status) if line))


def label_of(way: Way) -> str:
    """Return what stands at a way."""
    reason = "on error" if way.is_failure else way.label
    return cut(" ".join(filter(None, (reason, f"×{way.taken}" if way.taken > 1 else ""))))


def _slot_of(box: Box, inside: Drawing | None) -> _Slot:
    """Return the room that a box takes, with the sheet below it if it is a stack."""
    texts = texts_of(box)
    width = max(width_of(text, SMALL if line else NAME * 1.06) for line, text in enumerate(texts)) + 2 * _PADDING + 8
    width, height = max(width, 76.0), 14.0 + LEADING * len(texts)
    if inside is not None:
        width, height = max(width, inside.width + 2 * _PADDING), height + inside.height + _PADDING
    sheet = _sheet_of(box)
    return _Slot(width + sheet, height + sheet)


def _sheet_of(box: Box) -> float:
    return STACK if box.kind in ("map", "parallel") else 0.0


def _label_slot(way: Way) -> _Slot:
    label = label_of(way)
    return _Slot(width_of(label, SMALL) + 10.0, LEADING + 3.0) if label else _Slot(10.0, 0.0)


# --------------------------------------------------------------------------- rows


def _rows(slots: Sequence[_Slot], lines: Sequence[_Line], start: _Slot) -> list[list[_Slot]]:
    """Give each box a row below those of all boxes that lead to it, and return the rows."""
    targets: dict[_Slot, list[_Slot]] = {slot: [] for slot in slots}
    for line in lines:
        targets[line.source].append(line.target)
    order = {slot: place for place, slot in enumerate(_walk(targets, start))}
    for slot, place in order.items():
        for target in targets[slot]:
            if order[target] > place:
                target.row = max(target.row, slot.row + 1)
    joined = {end for line in lines for end in (line.source, line.target)}
    for place, slot in enumerate(slot for slot in slots if slot not in joined):  # such as the branches of a node
        slot.row = place // _SINGLE_IN_A_ROW
    rows: list[list[_Slot]] = [[] for _ in range(max((slot.row for slot in slots), default=-1) + 1)]
    for slot in slots:
        rows[slot.row].append(slot)
    return rows


def _walk(targets: dict[_Slot, list[_Slot]], start: _Slot) -> list[_Slot]:
    """Return the boxes in an order in which edges lead from earlier to later ones, but for those that close cycles."""
    seen: set[_Slot] = set()
    left: list[_Slot] = []  # in the reverse of that order: depth first, each box after all that it leads to
    for root in sorted(targets, key=lambda slot: slot is not start):
        trail = [] if root in seen else [(root, iter(targets[root]))]
        seen.add(root)
        while trail:
            following = next((target for target in trail[-1][1] if target not in seen), None)
            if following is None:
                left.append(trail.pop()[0])
            else:
                seen.add(following)
                trail.append((following, iter(targets[following])))
    return left[::-1]


# --------------------------------------------------------------------------- from left to right


def _arrange(rows: Sequence[list[_Slot]], lines: Iterable[_Line]) -> None:
    """Order the boxes of each row, and place them near those in the rows above and below that they are joined to."""
    above: dict[_Slot, list[_Slot]] = {}
    below: dict[_Slot, list[_Slot]] = {}
    for line in lines:
        if line.is_direct:
            above.setdefault(line.target, []).append(line.source)
            below.setdefault(line.source, []).append(line.target)
    for row in rows:
        _spread(row, [0.0] * len(row))
    for sweep in range(_SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wishes = {
                slot: fmean(other.middle for other in near[slot]) if slot in near else slot.middle for slot in row
            }
            row.sort(key=wishes.__getitem__)
            _spread(row, [wishes[slot] for slot in row])


def _spread(slots: Sequence[_Slot], wishes: Sequence[float]) -> None:
    """Place slots side by side in their order, near to where they are wished.

    The mean of two ways to do it: one never moves a slot to the left of its wish, and the other never to the right.
    """
    offsets = [0.0, *accumulate((one.width + other.width) / 2 + _GAP for one, other in pairwise(slots))]
    starts = [wish - offset for wish, offset in zip(wishes, offsets, strict=False)]
    right = accumulate(starts, max)
    left = reversed([*accumulate(reversed(starts), min)])
    for slot, offset, one, other in zip(slots, offsets, right, left, strict=False):
        slot.middle = offset + (one + other) / 2


def _place_labels(rows: Sequence[list[_Slot]], lines: Iterable[_Line], by_row: Sequence[list[_Line]]) -> None:
    """Place where lines leave and enter boxes, and their labels in the strips below the rows."""
    for line in lines:
        line.label.middle = line.target.middle if line.is_direct else float("inf")  # as if they stood in their lanes
    for row in by_row:
        row.sort(key=lambda line: (line.source.middle, line.label.middle))
        _attach(row, "source", "leaves")
        _spread(
            [line.label for line in row],
            [(line.leaves + line.target.middle) / 2 if line.is_direct else line.leaves for line in row],
        )
    _attach(sorted(lines, key=lambda line: (not line.is_direct, line.label.middle)), "target", "enters")


def _attach(lines: Iterable[_Line], side: str, place: str) -> None:
    """Let the lines of each box meet it side by side, in their order."""
    by_box: dict[_Slot, list[_Line]] = {}
    for line in lines:
        by_box.setdefault(getattr(line, side), []).append(line)
    for slot, of_box in by_box.items():
        room = min(slot.width * 0.8, 46.0 * len(of_box))
        for number, line in enumerate(of_box, 1):
            setattr(line, place, slot.middle + room * (number / (len(of_box) + 1) - 0.5))


def _place_lanes(lines: Iterable[_Line], right: float) -> float:
    """Give each line a lane right of everything, which it shares with lines that need it elsewhere; return the edge."""
    ends: list[int] = []  # the last row that each lane is used at
    for line in sorted(lines, key=lambda line: line.rows):
        first, last = line.rows
        lane = next((lane for lane, end in enumerate(ends) if end < first), len(ends))
        ends[lane : lane + 1] = [last]
        line.lane = right + _LANE * (lane + 1)
    return right + _LANE * len(ends)


# --------------------------------------------------------------------------- from the top to the bottom


@attrs.frozen
class _Frame:
    """A row: its upper and its lower edge, and the lower edge of the strip below it."""

    top: float
    bottom: float
    strip: float


def _place_rows(rows: Sequence[list[_Slot]], by_row: Sequence[list[_Line]]) -> tuple[list[_Frame], float]:
    """Place the rows below each other; return them, and how high they are."""
    y = _ROW_GAP if any(not line.target.row for row in by_row for line in row) else 0.0
    frames: list[_Frame] = []
    for row, lines in zip(rows, by_row, strict=True):
        height = max(slot.height for slot in row)
        for slot in row:
            slot.y = y + (height - slot.height) / 2
        bottom = y + height
        for line in lines:
            line.label.y = bottom + _STRIP_GAP
        strip = bottom + (_STRIP_GAP if lines else 0.0) + max((line.label.height for line in lines), default=0.0)
        frames.append(_Frame(y, bottom, strip))
        y = strip + _ROW_GAP
    return frames, frames[-1].strip + (_ROW_GAP if by_row[-1] else 0.0) if frames else 0.0


def _routed(line: _Line, frames: Sequence[_Frame], left: float) -> PlacedWay:
    """Return a line with the points that it goes through."""
    source, target, label = line.source, line.target, line.label
    here, there = frames[source.row], frames[target.row]
    points = [
        (line.leaves, source.y + source.height),
        (line.leaves, here.bottom),
        (label.middle, label.y),
        (label.middle, here.strip),
    ]
    if not line.is_direct:
        points += [(line.lane, here.strip + _ROW_GAP), (line.lane, there.top - _ROW_GAP)]
    points += [(line.enters, there.top - _TIP), (line.enters, target.y)]
    shifted = [(x - left, y) for x, y in points]
    path = [shifted[0], *(after for before, after in pairwise(shifted) if before != after)]
    text = "" if line.way is None else label_of(line.way)
    return PlacedWay(line.way, tuple(path), text, label.x - left, label.y, label.width, label.height)


def _placed(box: Box, slot: _Slot, left: float, inside: Drawing | None) -> PlacedBox:
    x, texts, sheet = slot.x - left, texts_of(box), _sheet_of(box)
    width, corner = slot.width - sheet, (0.0, 0.0)
    if inside is not None:
        corner = x + (width - inside.width) / 2, slot.y + 12.0 + LEADING * len(texts)
    return PlacedBox(box, x, slot.y, width, slot.height - sheet, texts, inside, corner)
