"""Edits: what has changed inside a value, by paths into its dicts and lists.

An edit is a list. It begins with the path from the value to one of its containers: keys of dicts, places in lists. Then
it says what changes there:

- in a dict: the keys to remove, and the items to set after that
- in a list: the first place and the end of the items to replace, and the new items

Edits are made in their order. They hold new values only, so a row never restores to more than it holds. Values of other
types, and containers of which nothing stays, are written as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, compress, count, islice, repeat
from operator import eq, is_, is_not, ne
from typing import Any

from stategraph._text.shown import shorten
from stategraph._values.frozen import FrozenDict, FrozenList, UnsettledDict, UnsettledList
from stategraph._values.sameness import is_same
from stategraph.stores._codec.msgpack import KEYS, pack
from stategraph.stores._codec.type_codecs import ATOMS, DecodeError, expect_dict, expect_list

_MOST = 64  # edits of a value after which no further container is entered
_MOST_IN_VAIN = 16  # containers that are entered in vain: comparing new values takes no longer than writing them
_MOST_MOVES = 8  # runs of items of a list that are found at another place
_SAMPLE = 16  # items
_LIGHT = 100  # bytes that are written sooner than compared


class _Edits(list[Any]):
    """The edits of a value so far.

    Attributes:
        in_vain: The containers that were entered, and are to be written as a whole.
    """

    in_vain = 0

    def has(self, old: Any, new: Any, path: list[Any]) -> bool:
        """Add the edits of the value at a path; return False, and add none, if it is to be written as a whole."""
        compare, known = COMPARED.get(type(new)), len(self)
        if compare is None or compare is not COMPARED.get(type(old)):
            return False
        if known >= _MOST or self.in_vain >= _MOST_IN_VAIN:
            return False
        if compare(old, new, path, self):
            return True
        del self[known:]
        self.in_vain += 1
        return False


def edits_between(old: Any, new: Any) -> list[Any] | None:
    """Return the edits that turn one value into another; none if they are the same.

    Both are settled, or in the form of `settled_form`. None stands for a value that is to be written as a whole.
    """
    edits = _Edits()
    try:
        if _is_light([new]) or not edits.has(old, new, []):
            return None
    except ArithmeticError:  # of a Decimal that cannot be compared
        return None
    frozen = list.__new__(FrozenList)  # settled, so that msgpack takes it unchanged
    list.extend(frozen, edits)
    return frozen


def _is_light(values: list[Any]) -> bool:
    """Return whether a few small values are all that there is."""
    weight, parts = 0, [*values]
    for part in parts:
        if type(part) in COMPARED:
            if len(part) > _SAMPLE:
                return False
            parts += part.values() if isinstance(part, dict) else part
        elif type(part) not in ATOMS:
            return False
        weight += len(part) if type(part) in (str, bytes) else 8
        if weight > _LIGHT:
            return False
    return True


def _compare_dicts(old: dict[Any, Any], new: dict[Any, Any], path: list[Any], edits: _Edits) -> bool:
    if not KEYS.issuperset(map(type, chain(old, new))):
        return False
    kept = old
    if len(old) > len(new) or not all(map(eq, old, new)):
        kept = {key: value for key, value in old.items() if key in new}
        if not all(map(eq, kept, new)):  # keys that stay have moved
            return False
    before, after = [*kept.values()], [*new.values()]
    differing = _differing(before, after)
    if differing is None:
        return False
    keys, known = [*kept] if differing else [], len(edits)
    changed = [at for at in differing if not edits.has(before[at], after[at], [*path, keys[at]])]
    items = {keys[at]: after[at] for at in changed} | dict(islice(new.items(), len(kept), None))
    removed = [] if len(kept) == len(old) else [key for key in old if key not in kept]
    if not (removed or items):
        return True
    is_new = len(edits) == known and len(kept) - len(changed) <= _SAMPLE
    if is_new and _is_light([value for key, value in kept.items() if key not in items]):
        return False
    edits.append([path, removed, items])
    return True


def _compare_lists(old: list[Any], new: list[Any], path: list[Any], edits: _Edits) -> bool:
    replaced: list[list[Any]] = []  # two places in the old list, and new items

    def replace(start: int, end: int, items: list[Any]) -> None:
        if replaced and replaced[-1][1] == start:
            replaced[-1][1] = end
            replaced[-1][2] += items
        else:
            replaced.append([start, end, items])

    at = place = 0  # in the old list, and in the new one
    for moves in count():
        rest, newer = old[at:], new[place:]
        differing, size = _differing(rest, newer), min(len(rest), len(newer))
        if differing is not None and 2 * len(differing) <= size:
            break
        first = differing[0] if differing else 0
        met = None if moves == _MOST_MOVES else _next_met(rest, newer, first)
        if met is None:
            break
        replace(at + first, at + met[0], newer[first : met[1]])
        at, place = at + met[0], place + met[1]
    if differing is None:
        replace(at, at + size, newer[:size])
    for each in differing or ():
        if not edits.has(rest[each], newer[each], [*path, at + each]):
            replace(at + each, at + each + 1, [newer[each]])
    if len(rest) != len(newer):
        replace(at + size, len(old), newer[size:])
    edits += [[path, *each] for each in reversed(replaced)]  # from the end, where no place has moved yet
    return not replaced or sum(len(items) for _, _, items in replaced) < len(new)


def _next_met(old: list[Any], new: list[Any], first: int) -> tuple[int, int] | None:
    """Return the places of an item that both lists have, the next one after their first difference."""
    if type(new[first]) in COMPARED:
        known = set(map(id, islice(old, first, None)))
        for place in compress(count(first), map(known.__contains__, map(id, islice(new, first, None)))):
            return next(compress(count(first), map(is_, islice(old, first, None), repeat(new[place])))), place
    try:
        return old.index(new[first], first + 1), first
    except ValueError:
        pass
    try:
        return first, new.index(old[first], first + 1)
    except ValueError:
        return None


def _differing(old: Sequence[Any], new: Sequence[Any]) -> Sequence[int] | None:
    """Return the places at which two lists have other values, up to the end of the shorter one; None for all places of
    long lists of which samples have nothing in common. A place with two containers may be among them by mistake."""
    size = min(len(old), len(new))
    if size > 4 * _SAMPLE and all(_is_new(old, new, start) for start in (0, size // 2, size - _SAMPLE)):
        return None
    places = [*compress(range(size), map(is_not, old, new))]
    if len(places) == 1 and type(new[places[0]]) in COMPARED:
        return places
    equal = [at for at in places if old[at] == new[at]]
    if not equal:
        return places
    if not _are_same([old[at] for at in equal], [new[at] for at in equal]):
        equal = [at for at in equal if _are_same(old[at], new[at])]
    same = set(equal)
    return [at for at in places if at not in same]


def _is_new(old: Sequence[Any], new: Sequence[Any], start: int) -> bool:
    before, after = old[start : start + _SAMPLE], new[start : start + _SAMPLE]
    return all(map(is_not, before, after)) and all(map(ne, before, after))


def _are_same(one: Any, other: Any) -> bool:
    """Return whether equal values are also the same in type and order, at all levels."""
    try:
        return pack(one) == pack(other)
    except (TypeError, ValueError):
        return is_same(one, other)


COMPARED: dict[type, Callable[..., bool]] = {
    **dict.fromkeys((dict, FrozenDict, UnsettledDict), _compare_dicts),
    **dict.fromkeys((list, FrozenList, UnsettledList), _compare_lists),
}
"""The types of values with edits, and how they are compared."""


def make_edits(value: Any, edits: Any) -> None:
    """Make edits in a value that was decoded. Raises an error that `combine` translates if they do not fit."""
    for parts in expect_list(edits):
        path, *change = expect_list(parts)
        target = value
        for place in expect_list(path):
            target = _at(target, place)
        if len(change) == 2:
            removed, items = change
            for key in expect_list(removed):
                del expect_dict(target)[key]
            expect_dict(target).update(expect_dict(items))
        else:
            start, end, items = change
            if not (type(start) is type(end) is int and 0 <= start <= end <= len(expect_list(target))):
                raise DecodeError(f"it replaces items {shorten(start)} to {shorten(end)} of a list that lacks them")
            target[start:end] = expect_list(items)


def _at(container: Any, place: Any) -> Any:
    if type(container) is not list:
        return expect_dict(container)[place]
    if type(place) is not int or place < 0:
        raise DecodeError(f"it holds {shorten(place)} where a place in a list should be")
    return container[place]
