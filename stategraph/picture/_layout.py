"""The layout of a picture: boxes in rows, labels below the rows, and lines from box to box, bottom to top.

A box is below all boxes that lead to it, except by edges that close cycles. Lines to the next row are direct. All other
lines go around, in lanes to the right of the boxes. Below each row is a strip, where each line that leaves the row has
a place as wide as its label.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from statistics import fmean
from typing import TypeAlias

import attrs

from stategraph.picture._sketch import Box, Sketch, Way, width_of

Point: TypeAlias = tuple[float, float]

NAME, SMALL, LEADING = 13.0, 11.0, 15.0
STACK = 5.0
"""How far the second sheet of a stack extends into the gaps between boxes."""
_PADDING, _DOT = 12.0, 12.0
_GAP, _ROW_GAP, _STRIP_GAP, _LANE, _TIP = 26.0, 30.0, 14.0, 9.0, 12.0
_SWEEPS = 9
_SINGLE_IN_A_ROW = 4


@attrs.define(eq=False)
class Slot:
    """The place of a box or a label.

    Attributes:
        width: Its width.
        height: Its height.
        box: The box; None for a label.
        inside: The drawing in the box.
        row: The number of its row.
        middle: The x coordinate of its middle.
        y: Its upper edge.
    """

    width: float
    height: float
    box: Box | None = None
    inside: Drawing | None = None
    row: int = 0
    middle: float = 0.0
    y: float = 0.0

    @property
    def x(self) -> float:
        """Its left edge."""
        return self.middle - self.width / 2


@attrs.define(eq=False)
class Line:
    """A line between two boxes.

    Attributes:
        way: The way that it shows.
        source: The box that it leaves.
        target: The box that it leads to.
        label: The place of its label.
        lane: The x coordinate of its lane, unless it is direct.
        points: Its corners.
    """

    way: Way
    source: Slot
    target: Slot
    label: Slot
    lane: float = 0.0
    points: Sequence[Point] = ()

    @property
    def is_direct(self) -> bool:
        """Whether it leads to the next row."""
        return self.target.row == self.source.row + 1

    @property
    def rows(self) -> tuple[int, int]:
        """The first and the last row below which its lane passes."""
        ends = self.source.row, self.target.row - 1
        return min(ends), max(ends)


@attrs.define
class _Row:
    """A row: its boxes, the lines that leave it, its upper and lower edges, and the lower edge of its strip."""

    slots: list[Slot] = attrs.field(factory=list)
    lines: list[Line] = attrs.field(factory=list)
    top: float = 0.0
    bottom: float = 0.0
    strip: float = 0.0


@attrs.frozen
class Drawing:
    """A graph with coordinates."""

    width: float
    height: float
    boxes: Sequence[Slot]
    lines: Sequence[Line]


def drawing_of(sketch: Sketch) -> Drawing:
    """Return the drawing of a sketch. The same sketch gives the same drawing."""
    slots = {box: _slot_of(box) for box in sketch.boxes}
    lines = [Line(way, slots[way.source], slots[way.target], _label_slot(way)) for way in sketch.ways]
    boxes = [*slots.values()]
    rows = _rows(boxes, lines)
    _arrange(rows, lines)
    _place_labels(rows)
    placed = [*boxes, *(line.label for line in lines)]
    left = min((slot.x for slot in placed), default=0.0)
    for slot in placed:
        slot.middle -= left
    width = _place_lanes(lines, max((slot.x + slot.width for slot in placed), default=0.0))
    height = _place_rows(rows)
    for line in lines:
        line.points = _corners(line, rows[line.source.row], rows[line.target.row])
    return Drawing(width, height, boxes, lines)


# --------------------------------------------------------------------------- sizes


def _slot_of(box: Box) -> Slot:
    """Return the place of a box, with its size."""
    if box.is_start:
        return Slot(_DOT, _DOT, box)
    width = max(width_of(text, SMALL if line else NAME * 1.06) for line, text in enumerate(box.texts))
    width, height = max(width + 2 * _PADDING + 8, 76.0), 14.0 + LEADING * len(box.texts)
    if box.inside is None or not box.inside.boxes:
        return Slot(width, height, box)
    inside = drawing_of(box.inside)
    return Slot(max(width, inside.width + 2 * _PADDING), height + inside.height + _PADDING, box, inside)


def _label_slot(way: Way) -> Slot:
    return Slot(width_of(way.text, SMALL) + 10.0, LEADING + 3.0) if way.text else Slot(10.0, 0.0)


# --------------------------------------------------------------------------- rows


def _rows(slots: Sequence[Slot], lines: Sequence[Line]) -> list[_Row]:
    """Put each box into a row below all boxes that lead to it; return the rows."""
    targets: dict[Slot, list[Slot]] = {slot: [] for slot in slots}
    for line in lines:
        targets[line.source].append(line.target)
    order = {slot: place for place, slot in enumerate(_walk(targets))}
    for slot, place in order.items():
        for target in targets[slot]:
            if order[target] > place:
                target.row = max(target.row, slot.row + 1)
    joined = {end for line in lines for end in (line.source, line.target)}
    for place, slot in enumerate(slot for slot in slots if slot not in joined):  # the branches of a node, for instance
        slot.row = place // _SINGLE_IN_A_ROW
    rows = [_Row() for _ in range(max((slot.row for slot in slots), default=-1) + 1)]
    for slot in slots:
        rows[slot.row].slots.append(slot)
    for line in lines:
        rows[line.source.row].lines.append(line)
    return rows


def _walk(targets: dict[Slot, list[Slot]]) -> list[Slot]:
    """Return the boxes in topological order, ignoring edges that close cycles."""
    seen: set[Slot] = set()
    left: list[Slot] = []  # reversed: depth first, each box after all boxes that it leads to
    for root, ends in targets.items():
        trail = [] if root in seen else [(root, iter(ends))]
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


def _arrange(rows: Sequence[_Row], lines: Iterable[Line]) -> None:
    """Order the boxes of each row, and place them near their neighbours in the rows above and below."""
    above: dict[Slot, list[Slot]] = {}
    below: dict[Slot, list[Slot]] = {}
    for line in lines:
        if line.is_direct:
            above.setdefault(line.target, []).append(line.source)
            below.setdefault(line.source, []).append(line.target)
    for row in rows:
        _spread(row.slots, [0.0] * len(row.slots))
    for sweep in range(_SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wishes = {
                slot: fmean(other.middle for other in near[slot]) if slot in near else slot.middle for slot in row.slots
            }
            row.slots.sort(key=wishes.__getitem__)
            _spread(row.slots, [wishes[slot] for slot in row.slots])


def _spread(slots: Sequence[Slot], wishes: Sequence[float]) -> None:
    """Place slots side by side in their order, near the wished positions.

    This is the mean of two solutions: one never moves a slot to the left of its wish, the other never to the right.
    """
    offsets = [0.0, *accumulate((left.width + right.width) / 2 + _GAP for left, right in pairwise(slots))]
    starts = [wish - offset for wish, offset in zip(wishes, offsets, strict=False)]
    rightmost = accumulate(starts, max)
    leftmost = reversed([*accumulate(reversed(starts), min)])
    for slot, offset, high, low in zip(slots, offsets, rightmost, leftmost, strict=False):
        slot.middle = offset + (high + low) / 2


def _place_labels(rows: Sequence[_Row]) -> None:
    """Place the labels below the rows: on the way to the target, or below the source of a line that goes around."""
    for row in rows:
        row.lines.sort(key=lambda line: (line.source.middle, not line.is_direct, line.target.middle))
        wishes = [
            fmean((line.source.middle, line.target.middle if line.is_direct else line.source.middle))
            for line in row.lines
        ]
        _spread([line.label for line in row.lines], wishes)


def _place_lanes(lines: Iterable[Line], right: float) -> float:
    """Place the lines that go around in lanes right of everything; return the right edge.

    Lines whose rows do not overlap share a lane.
    """
    used: list[tuple[int, int]] = []  # heaps: the last row and the number of each used lane, and lanes to use again
    free: list[int] = []
    for line in sorted((line for line in lines if not line.is_direct), key=lambda line: line.rows):
        first, last = line.rows
        while used and used[0][0] < first:
            heappush(free, heappop(used)[1])
        lane = heappop(free) if free else len(used) + 1
        heappush(used, (last, lane))
        line.lane = right + _LANE * lane
    return right + _LANE * (len(used) + len(free))


# --------------------------------------------------------------------------- from the top to the bottom


def _place_rows(rows: Sequence[_Row]) -> float:
    """Place the rows below each other; return their height."""
    y = _ROW_GAP if any(not line.target.row for row in rows for line in row.lines) else 0.0
    for row in rows:
        height = max(slot.height for slot in row.slots)
        row.top, row.bottom = y, y + height
        for slot in row.slots:
            slot.y = y + (height - slot.height) / 2
        for line in row.lines:
            line.label.y = row.bottom + _STRIP_GAP
        row.strip = max([row.bottom, *(line.label.y + line.label.height for line in row.lines)])
        y = row.strip + _ROW_GAP
    return y if rows and rows[-1].lines else max(y - _ROW_GAP, 0.0)


def _corners(line: Line, here: _Row, there: _Row) -> list[Point]:
    """Return the corners of a line, from its source to its target."""
    source, target, label = line.source, line.target, line.label
    corners = [
        (source.middle, source.y + source.height),
        (source.middle, here.bottom),
        (label.middle, label.y),
        (label.middle, here.strip),
    ]
    if not line.is_direct:
        corners += [(line.lane, here.strip + _ROW_GAP), (line.lane, there.top - _ROW_GAP)]
    return [*corners, (target.middle, there.top - _TIP), (target.middle, target.y)]
