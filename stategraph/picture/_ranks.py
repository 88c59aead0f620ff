"""Which boxes stand in which row, and what else takes room there: lines that pass by, and their labels.

The first steps of a layered layout: edges that close cycles are turned around, boxes are ranked by their longest way
from the entry, and edges over several rows become chains of items with one in each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import attrs

MOST_BENDS = 1_500
"""How many items lines may pass through in all; the longest lines beyond that go around the picture."""


@attrs.define(eq=False, slots=True)
class Item:
    """What takes room in a row: a box, a line that passes, or the label of one.

    Attributes:
        width: How wide it is.
        height: How high.
        row: The row that it stands in.
        place: Its place in the row, from the left.
        middle: Where lines meet it, from the left.
        y: Its upper edge.
        wish: Where it is drawn to while the rows are put in order.
        above: The items in rows above that a line comes from.
        below: The items in rows below that a line goes to.
        is_box: Whether it is a box.
        lean: How far that is from the middle of the room that it takes.
    """

    width: float
    height: float
    row: int = 0
    place: int = 0
    middle: float = 0.0
    y: float = 0.0
    wish: float = 0.0
    above: list[Item] = attrs.field(factory=list)
    below: list[Item] = attrs.field(factory=list)
    is_box: bool = False
    lean: float = 0.0

    @property
    def left(self) -> float:
        """How much of it is left of its middle."""
        return self.width / 2 - self.lean

    @property
    def x(self) -> float:
        """Its left edge."""
        return self.middle - self.width / 2 + self.lean


@attrs.define(eq=False, slots=True)
class Line:
    """An edge between two boxes.

    Attributes:
        source: The number of the box that it leaves.
        target: The number of the box that it leads to.
        label: How much room its label takes: width and height; None without one.
        is_back: Whether it leads up.
        chain: The items that it goes through, from the upper box to the lower one; only these two if it goes around.
        sign: The item of its label.
        goes_around: Whether it passes no rows, but goes around them.
    """

    source: int
    target: int
    label: tuple[float, float] | None
    is_back: bool = False
    chain: list[Item] = attrs.field(factory=list)
    sign: Item | None = None
    goes_around: bool = False


def rows_of(boxes: Sequence[Item], lines: Sequence[Line], start: int | None) -> list[list[Item]]:
    """Return the rows of a picture from the top, and give each line its chain.

    Args:
        boxes: The boxes.
        lines: What is between them; none of it leads from a box to itself.
        start: The number of the box that comes first, if one does.
    """
    turned = _turn_cycles(len(boxes), lines, start)
    ranks = _ranks(len(boxes), lines)
    _spread_single(boxes, lines, ranks)
    signs = {ranks[line.source] * 2 + (-1 if line.is_back else 1) for line in lines if line.label}
    used = sorted({rank * 2 for rank in ranks} | signs)
    row_of = {level: row for row, level in enumerate(used)}
    rows: list[list[Item]] = [[] for _ in used]
    for number in turned:
        boxes[number].row = row_of[ranks[number] * 2]
        rows[boxes[number].row].append(boxes[number])
    _leave_out_longest(boxes, lines)
    for line in lines:
        ends = boxes[line.source], boxes[line.target]
        upper, lower = reversed(ends) if line.is_back else ends
        line.chain = [upper, lower]
        if not line.goes_around:
            sign = row_of[ranks[line.source] * 2 + (-1 if line.is_back else 1)] if line.label else -1
            _fill(line, sign, rows)
    return rows


def _turn_cycles(count: int, lines: Sequence[Line], start: int | None) -> list[int]:
    """Mark the lines that lead back to where a walk comes from; return the boxes in the order of the walk."""
    out: list[list[Line]] = [[] for _ in range(count)]
    for line in lines:
        out[line.source].append(line)
    is_open, order = [False] * count, dict.fromkeys(() if start is None else (start,))
    for root in [*order, *range(count)]:
        if root in order and root != start:
            continue
        order[root] = None
        is_open[root] = True
        trail = [(root, iter(out[root]))]
        while trail:
            box, left = trail[-1]
            for line in left:
                if is_open[line.target]:
                    line.is_back = True
                elif line.target not in order:
                    order[line.target] = None
                    is_open[line.target] = True
                    trail.append((line.target, iter(out[line.target])))
                    break
            else:
                is_open[box] = False
                trail.pop()
    return list(order)


def _ranks(count: int, lines: Sequence[Line]) -> list[int]:
    """Return how far each box is from the top: further than all that lead down to it."""
    below: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for line in lines:
        upper, lower = (line.target, line.source) if line.is_back else (line.source, line.target)
        below[upper].append(lower)
        missing[lower] += 1
    ranks = [0] * count
    ready = deque(box for box in range(count) if not missing[box])
    while ready:
        box = ready.popleft()
        for lower in below[box]:
            ranks[lower] = max(ranks[lower], ranks[box] + 1)
            missing[lower] -= 1
            if not missing[lower]:
                ready.append(lower)
    return ranks


_SINGLE_IN_A_ROW = 4


def _spread_single(boxes: Sequence[Item], lines: Sequence[Line], ranks: list[int]) -> None:
    """Let boxes without lines, such as the branches of a node, stand in rows of a few."""
    joined = {end for line in lines for end in (line.source, line.target)}
    single = [number for number in range(len(boxes)) if number not in joined]
    for place, number in enumerate(single):
        ranks[number] = place // _SINGLE_IN_A_ROW


def _leave_out_longest(boxes: Sequence[Item], lines: Sequence[Line]) -> None:
    left = MOST_BENDS
    for line in sorted(lines, key=lambda line: abs(boxes[line.source].row - boxes[line.target].row)):
        left -= abs(boxes[line.source].row - boxes[line.target].row) - 1
        line.goes_around = left < 0


def _fill(line: Line, sign: int, rows: Sequence[list[Item]]) -> None:
    """Put an item for the line into each row that it passes."""
    upper, lower = line.chain
    for row in range(upper.row + 1, lower.row):
        width, height = line.label if row == sign and line.label else (10.0, 0.0)
        item = Item(width, height, row)
        if row == sign:
            line.sign = item
        rows[row].append(item)
        line.chain.insert(-1, item)
    for one, other in zip(line.chain, line.chain[1:], strict=False):
        one.below.append(other)
        other.above.append(one)
