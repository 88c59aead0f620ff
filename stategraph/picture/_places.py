"""Where items stand in their rows: in an order in which few lines cross, and near what they are joined to."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from operator import attrgetter

from stategraph.picture._ranks import Item, Line

GAP = 26.0
_SWEEPS = 12
_PULLS = 16

_FAR = 1e9

_place = attrgetter("place")


def arrange(rows: Sequence[list[Item]], lines: Sequence[Line]) -> None:
    """Order the items of all rows, and give each its x."""
    _order(rows)
    _place_apart(rows)
    items = sum(map(len, rows))
    for turn in range(_PULLS if items < 2_000 else 6):
        _pull(rows, is_down=turn % 2 == 0, both=turn > 3)
    _straighten(rows, lines)
    left = min((item.x for row in rows for item in row), default=0.0)
    for row in rows:
        for item in row:
            item.x -= left


# --------------------------------------------------------------------------- the order


def _order(rows: Sequence[list[Item]]) -> None:
    """Sort the rows again and again, each by what its items are joined to; keep the order with the fewest crossings."""
    _number(rows)
    best, fewest, failed = [list(row) for row in rows], _crossings(rows), 0
    for sweep in range(_SWEEPS):
        if not fewest or failed > 2:
            break
        for row in rows[1:] if sweep % 2 == 0 else rows[-2::-1]:
            wishes = {id(item): _wish(item, item.above if sweep % 2 == 0 else item.below) for item in row}
            row.sort(key=lambda item, wishes=wishes: wishes[id(item)])  # type: ignore[misc]
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


def _wish(item: Item, near: Sequence[Item]) -> float:
    return sum(map(_place, near)) / len(near) if near else item.place


def _crossings(rows: Sequence[list[Item]]) -> int:
    """Return how often lines cross."""
    total = 0
    for row in rows:
        ends: list[int] = []
        for item in row:
            places = sorted(map(_place, item.below))
            total += sum(len(ends) - bisect_right(ends, place) for place in places)
            for place in places:
                insort(ends, place)
    return total


# --------------------------------------------------------------------------- coordinates


def _place_apart(rows: Sequence[list[Item]]) -> None:
    for row in rows:
        x = 0.0
        for item in row:
            item.x = x
            x += item.width + GAP


def _pull(rows: Sequence[list[Item]], *, is_down: bool, both: bool) -> None:
    """Move the items of each row as near as they come to what they are joined to, none over another."""
    for row in rows if is_down else reversed(rows):
        wishes, weights = [], []
        for item in row:
            near = item.above if is_down else item.below
            near = [*item.above, *item.below] if both or not near else near
            weight = [8.0 if not (item.is_box or other.is_box) else 1.0 for other in near]
            total = sum(weight)
            middle = sum(other.middle * one for other, one in zip(near, weight, strict=True)) / total if near else None
            wishes.append(item.x if middle is None else middle - item.width / 2 + item.lean)
            weights.append(total or 0.1)
        _settle(row, wishes, weights)


def _settle(row: Sequence[Item], wishes: Sequence[float], weights: Sequence[float]) -> None:
    """Place the items of a row: in their order, apart, and in sum as near to their wishes as can be."""
    groups: list[list[float]] = []  # of items that touch: the sum of what they wish for, of their weights, their number
    offsets, offset = [], 0.0
    for item, wish, weight in zip(row, wishes, weights, strict=True):
        offsets.append(offset)
        groups.append([(wish - offset) * weight, weight, 1])
        offset += item.width + GAP
        while len(groups) > 1 and groups[-2][0] * groups[-1][1] > groups[-1][0] * groups[-2][1]:
            wished, weighed, number = groups.pop()
            groups[-1][0] += wished
            groups[-1][1] += weighed
            groups[-1][2] += number
    place = 0
    for wished, weighed, number in groups:
        for _ in range(int(number)):
            row[place].x = wished / weighed + offsets[place]
            place += 1


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
        item.x = middle - item.width / 2


def _limits(rows: Sequence[list[Item]], item: Item) -> tuple[float, float]:
    """Return from where to where the middle of an item can be moved before it meets another."""
    row, place, half = rows[item.row], item.place, item.width / 2
    left = row[place - 1].x + row[place - 1].width + GAP + half if place else -_FAR
    return left, row[place + 1].x - GAP - half if place + 1 < len(row) else _FAR
