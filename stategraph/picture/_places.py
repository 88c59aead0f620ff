"""Where items stand in their rows: in an order in which few lines cross, and near what they are joined to."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from operator import attrgetter

from stategraph.picture._ranks import Item, Line

GAP = 26.0
_SWEEPS = 12
_PULLS, _FROM_BOTH = 16, 4
_MANY = 1_000

_FAR = 1e9

_place, _wish = attrgetter("place"), attrgetter("wish")


def arrange(rows: Sequence[list[Item]], lines: Sequence[Line]) -> None:
    """Order the items of all rows, and place each from left to right."""
    _order(rows)
    _place_apart(rows)
    pulled = [[_Pulled(item) for item in row] for row in rows]
    for turn in range(_PULLS if sum(map(len, rows)) < _MANY else _PULLS // 2):
        for one in pulled if turn % 2 == 0 else reversed(pulled):
            _pull(one, turn % 2 if turn < _FROM_BOTH else 2)
    _straighten(rows, lines)
    left = min((item.x for row in rows for item in row), default=0.0)
    for row in rows:
        for item in row:
            item.middle -= left


# --------------------------------------------------------------------------- the order


def _order(rows: Sequence[list[Item]]) -> None:
    """Sort the rows again and again, each by what its items are joined to; keep the order with the fewest crossings."""
    _number(rows)
    best, fewest, failed = [list(row) for row in rows], _crossings(rows), 0
    for sweep in range(_SWEEPS):
        if not fewest or failed > 1:
            break
        for row in rows[1:] if sweep % 2 == 0 else rows[-2::-1]:
            for item in row:
                near = item.above if sweep % 2 == 0 else item.below
                item.wish = sum(map(_place, near)) / len(near) if near else item.place
            row.sort(key=_wish)
            _number([row])
        crossings = _crossings(rows)
        failed += 1
        if crossings < fewest:
            best, fewest, failed = [list(row) for row in rows], crossings, 0
    for row, kept in zip(rows, best, strict=True):
        row[:] = kept
    _number(rows)


def _number(rows: Iterable[list[Item]]) -> None:
    for row in rows:
        for place, item in enumerate(row):
            item.place = place


def _crossings(rows: Sequence[list[Item]]) -> int:
    """Return how often lines cross."""
    total = 0
    for row in rows:
        ends: list[int] = []
        for item in row:
            below = item.below
            places = [below[0].place] if len(below) == 1 else sorted(map(_place, below))
            for place in places:
                total += len(ends) - bisect_right(ends, place)
            for place in places:
                insort(ends, place)
    return total


# --------------------------------------------------------------------------- coordinates


def _place_apart(rows: Sequence[list[Item]]) -> None:
    for row in rows:
        x = 0.0
        for item in row:
            item.middle = x + item.left
            x += item.width + GAP


class _Pulled:
    """An item, and what it is drawn to: from above, from below, and from both; bends of a line most of all.

    Each of the three is the sum of the weights, and the weight of each item that draws.
    """

    __slots__ = ("item", "left", "near", "step")

    def __init__(self, item: Item) -> None:
        self.item, self.left, self.step = item, item.left, item.width + GAP
        above, below = _weighted(item, item.above), _weighted(item, item.below)
        sides = (above or below, below or above, above + below)
        self.near = [(sum(weight for _, weight in side) or 0.1, side) for side in sides]


def _weighted(item: Item, others: Sequence[Item]) -> list[tuple[Item, float]]:
    return [(other, 1.0 if item.is_box or other.is_box else 8.0) for other in others]


def _pull(row: Sequence[_Pulled], side: int) -> None:
    """Move the items of a row as near as they come to what draws them: in their order, and none over another."""
    groups: list[list[float]] = []  # of items that touch: the sum of their wishes, of their weights, and their number
    offset = 0.0
    for pulled in row:
        weight, near = pulled.near[side]
        wished = sum([other.middle * one for other, one in near]) if near else pulled.item.middle * weight
        groups.append([wished - (pulled.left + offset) * weight, weight, 1])
        offset += pulled.step
        while len(groups) > 1 and groups[-2][0] * groups[-1][1] > groups[-1][0] * groups[-2][1]:
            last, group = groups.pop(), groups[-1]
            group[0] += last[0]
            group[1] += last[1]
            group[2] += last[2]
    offset, place = 0.0, 0
    for wished, weight, number in groups:
        start = wished / weight
        for pulled in row[place : place + int(number)]:
            pulled.item.middle = start + offset + pulled.left
            offset += pulled.step
        place += int(number)


def _straighten(rows: Sequence[list[Item]], lines: Sequence[Line]) -> None:
    """Let lines pass as many rows upright as there is room for, one after the other."""
    for line in lines:
        run: list[Item] = []
        low, high = -_FAR, _FAR
        for item in line.chain[1:-1]:
            left, right = _limits(rows, item)
            if run and max(low, left) > min(high, right):
                _set_upright(run, low, high)
                run, low, high = [], -_FAR, _FAR
            run.append(item)
            low, high = max(low, left), min(high, right)
        if run:
            ends = (end.middle for end in (line.chain[0], line.chain[-1]))
            near = [end for end in ends if low <= end <= high and len(run) == len(line.chain) - 2]
            _set_upright(run, *((near[0], near[0]) if near else (low, high)))


def _set_upright(run: Sequence[Item], low: float, high: float) -> None:
    middle = min(max(sum(item.middle for item in run) / len(run), low), high)
    for item in run:
        item.middle = middle


def _limits(rows: Sequence[list[Item]], item: Item) -> tuple[float, float]:
    """Return from where to where the middle of an item can be moved before it meets another."""
    row, place, half = rows[item.row], item.place, item.width / 2
    left = row[place - 1].x + row[place - 1].width + GAP + half if place else -_FAR
    return left, row[place + 1].x - GAP - half if place + 1 < len(row) else _FAR
