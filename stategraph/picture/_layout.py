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

from stategraph._text.screen import span
from stategraph.picture._sketch import Box, Sketch, Way, cut, width_of

Point: TypeAlias = tuple[float, float]

NAME, SMALL, LEADING = 13.0, 11.0, 15.0
STACK = 5.0
"""How far the sheet of a stack stands out, into the gaps between boxes."""
_PADDING, _DOT = 12.0, 12.0
_GAP, _ROW_GAP, _STRIP_GAP, _LANE, _TIP = 26.0, 30.0, 14.0, 9.0, 12.0
_SWEEPS = 9
_SINGLE_IN_A_ROW = 4


@attrs.define(eq=False)
class Slot:
    """The room that a box, a label or the dot takes.

    Attributes:
        width: How wide it is.
        height: How high it is.
        box: The box, if it is that of one.
        inside: What is drawn in the box.
        row: The number of its row.
        middle: Its middle, from the left.
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
    """A line between two boxes; the one without a way leads from the dot to the entry.

    Attributes:
        way: The way that it stands for.
        source: The box that it leaves.
        target: The box that it leads to.
        label: The room of its label.
        points: The corners that it goes through.
    """

    way: Way | None
    source: Slot
    target: Slot
    label: Slot
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
    """A row: its boxes, the lines that leave it, its upper and lower edge, and the lower edge of the strip below it."""

    slots: list[Slot] = attrs.field(factory=list)
    lines: list[Line] = attrs.field(factory=list)
    top: float = 0.0
    bottom: float = 0.0
    strip: float = 0.0


@attrs.frozen
class Drawing:
    """A graph with everything in its place."""

    width: float
    height: float
    boxes: Sequence[Slot]
    lines: Sequence[Line]
    dot: Slot | None


def drawing_of(sketch: Sketch) -> Drawing:
    """Return a sketch with everything in its place. The same sketch gives the same drawing."""
    slots = {box.name: _slot_of(box) for box in sketch.boxes}
    lines = [Line(way, slots[way.source], slots[way.target], _label_slot(way)) for way in sketch.ways]
    entry = next((slots[box.name] for box in sketch.boxes if box.is_entry), None)
    boxes, dot = [*slots.values()], None
    if entry is not None:
        dot = Slot(_DOT, _DOT)
        lines.append(Line(None, dot, entry, _label_slot(None)))
    joined = boxes if dot is None else [dot, *boxes]
    rows = _rows(joined, lines)
    _arrange(rows, lines)
    leaves, enters = _place_labels(rows, lines)
    placed = [*joined, *(line.label for line in lines)]
    left = min((slot.x for slot in placed), default=0.0)
    for slot in placed:
        slot.middle -= left
    lanes = _lanes(lines, max((slot.x + slot.width for slot in placed), default=0.0))
    height = _place_rows(rows)
    for line in lines:
        line.points = _corners(line, rows, leaves[line], enters[line], lanes)
    width = max([*lanes.values(), *(slot.x + slot.width for slot in placed)], default=0.0)
    return Drawing(width, height, boxes, lines, dot)


# --------------------------------------------------------------------------- texts and sizes


def texts_of(box: Box) -> tuple[str, ...]:
    """Return the lines of text in a box; the first is its name."""
    visit = box.visit
    counts = " · ".join(
        (
            *([f"×{visit.times}"] if visit.times > 1 else []),
            *([] if visit.seconds is None else [span(visit.seconds)]),
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


def _slot_of(box: Box) -> Slot:
    """Return the room that a box takes."""
    texts = texts_of(box)
    width = max(width_of(text, SMALL if line else NAME * 1.06) for line, text in enumerate(texts)) + 2 * _PADDING + 8
    width, height = max(width, 76.0), 14.0 + LEADING * len(texts)
    if box.inside is None or not box.inside.boxes:
        return Slot(width, height, box)
    inside = drawing_of(box.inside)
    return Slot(max(width, inside.width + 2 * _PADDING), height + inside.height + _PADDING, box, inside)


def _label_slot(way: Way | None) -> Slot:
    label = "" if way is None else label_of(way)
    return Slot(width_of(label, SMALL) + 10.0, LEADING + 3.0) if label else Slot(10.0, 0.0)


# --------------------------------------------------------------------------- rows


def _rows(slots: Sequence[Slot], lines: Sequence[Line]) -> list[_Row]:
    """Give each box a row below those of all boxes that lead to it, and return the rows. The dot comes first."""
    targets: dict[Slot, list[Slot]] = {slot: [] for slot in slots}
    for line in lines:
        targets[line.source].append(line.target)
    order = {slot: place for place, slot in enumerate(_walk(targets))}
    for slot, place in order.items():
        for target in targets[slot]:
            if order[target] > place:
                target.row = max(target.row, slot.row + 1)
    joined = {end for line in lines for end in (line.source, line.target)}
    for place, slot in enumerate(slot for slot in slots if slot not in joined):  # such as the branches of a node
        slot.row = place // _SINGLE_IN_A_ROW
    rows = [_Row() for _ in range(max((slot.row for slot in slots), default=-1) + 1)]
    for slot in slots:
        rows[slot.row].slots.append(slot)
    for line in lines:
        rows[line.source.row].lines.append(line)
    return rows


def _walk(targets: dict[Slot, list[Slot]]) -> list[Slot]:
    """Return the boxes in an order in which edges lead from earlier to later ones, but for those that close cycles."""
    seen: set[Slot] = set()
    left: list[Slot] = []  # in the reverse of that order: depth first, each box after all that it leads to
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
    """Order the boxes of each row, and place them near those in the rows above and below that they are joined to."""
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
    """Place slots side by side in their order, near to where they are wished.

    The mean of two ways to do it: one never moves a slot to the left of its wish, and the other never to the right.
    """
    offsets = [0.0, *accumulate((one.width + other.width) / 2 + _GAP for one, other in pairwise(slots))]
    starts = [wish - offset for wish, offset in zip(wishes, offsets, strict=False)]
    right = accumulate(starts, max)
    left = reversed([*accumulate(reversed(starts), min)])
    for slot, offset, one, other in zip(slots, offsets, right, left, strict=False):
        slot.middle = offset + (one + other) / 2


def _place_labels(rows: Sequence[_Row], lines: Iterable[Line]) -> tuple[dict[Line, float], dict[Line, float]]:
    """Place the labels in the strips below the rows; return where lines leave and enter boxes, from their middles."""
    order = {line: (line.source.middle, not line.is_direct, line.target.middle) for line in lines}
    leaves: dict[Line, float] = {}
    for row in rows:
        row.lines.sort(key=order.__getitem__)
        leaves |= _side_by_side(row.lines, [line.source for line in row.lines])
        starts = [line.source.middle + leaves[line] for line in row.lines]
        wishes = [
            (start + line.target.middle) / 2 if line.is_direct else start
            for start, line in zip(starts, row.lines, strict=True)
        ]
        _spread([line.label for line in row.lines], wishes)
    arriving = sorted(lines, key=lambda line: (not line.is_direct, line.label.middle))
    return leaves, _side_by_side(arriving, [line.target for line in arriving])


def _side_by_side(lines: Sequence[Line], slots: Sequence[Slot]) -> dict[Line, float]:
    """Return how far from the middle of its box each line meets it; those of one box are in their order."""
    by_slot: dict[Slot, list[Line]] = {}
    for line, slot in zip(lines, slots, strict=True):
        by_slot.setdefault(slot, []).append(line)
    return {
        line: min(slot.width * 0.8, 46.0 * len(met)) * (number / (len(met) + 1) - 0.5)
        for slot, met in by_slot.items()
        for number, line in enumerate(met, 1)
    }


def _lanes(lines: Iterable[Line], right: float) -> dict[Line, float]:
    """Return the lanes of lines that go around, right of everything; lines share a lane if they need it elsewhere."""
    ends: list[int] = []  # the last row that each lane is used at
    lanes: dict[Line, float] = {}
    for line in sorted((line for line in lines if not line.is_direct), key=lambda line: line.rows):
        first, last = line.rows
        lane = next((lane for lane, end in enumerate(ends) if end < first), len(ends))
        ends[lane : lane + 1] = [last]
        lanes[line] = right + _LANE * (lane + 1)
    return lanes


# --------------------------------------------------------------------------- from the top to the bottom


def _place_rows(rows: Sequence[_Row]) -> float:
    """Place the rows below each other; return how high they are."""
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


def _corners(line: Line, rows: Sequence[_Row], leaves: float, enters: float, lanes: dict[Line, float]) -> list[Point]:
    """Return the corners that a line goes through, from its source to its target."""
    source, target, label = line.source, line.target, line.label
    here, there = rows[source.row], rows[target.row]
    leaves, enters = source.middle + leaves, target.middle + enters
    corners = [
        (leaves, source.y + source.height),
        (leaves, here.bottom),
        (label.middle, label.y),
        (label.middle, here.strip),
    ]
    if line in lanes:
        corners += [(lanes[line], here.strip + _ROW_GAP), (lanes[line], there.top - _ROW_GAP)]
    return [*corners, (enters, there.top - _TIP), (enters, target.y)]
