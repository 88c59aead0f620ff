"""Read-only lists, dicts and sets, to which a State converts the containers in its values.

They are instances of ``list``, ``dict`` and ``set`` and equal to the originals. ``copy.copy`` and ``copy.deepcopy``
return ordinary containers, which is the way to edit a nested value::

    orders = copy.deepcopy(state["orders"])
    orders[3]["total"] = 12
    state = state.set("orders", orders)

A frozen container is *settled* if all its parts are immutable. The same settled object always has the same value, so
States may share it and a store need not read it twice. The type of a container shows whether it is settled, because
types can be checked for a whole list at once (``SETTLED.issuperset(map(type, items))`` takes 20 ns per item).
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import cache, wraps
from itertools import chain, repeat
from operator import is_, length_hint
from typing import Any, NoReturn, TypeAlias, TypeVar

from stategraph._text.shown import shorten
from stategraph.errors import NotSerializableError

MAX_DEPTH = 100
"""The most levels of containers in a value. Deeper values would exceed the recursion limit of Python elsewhere."""

_Class = TypeVar("_Class", bound=type)


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    kind = next(base.__name__ for base in (list, dict, set) if isinstance(self, base))
    raise TypeError(
        f"this {kind} belongs to a State and is read-only: change a copy (copy.deepcopy gives an ordinary {kind}) "
        "and make a new State with State.set(key, value)"
    )


def _read_only(base: type, names: str) -> Callable[[_Class], _Class]:
    """Decorate a subclass of a container: the named methods raise TypeError, and copies are ordinary containers.

    So is what a call of the class returns: libraries such as attrs and Pydantic make ``type(value)(items)``.
    """

    def decorate(cls: Any) -> Any:
        for name in names.split():
            setattr(cls, name, _refuse)
        cls.__new__ = lambda _, *items, **named: base(*items, **named)
        cls.__copy__ = lambda self: base(self)  # noqa: PLW0108 - a method, which a class is not
        cls.__deepcopy__ = lambda self, memo: copy.deepcopy(base(self), memo)
        cls.__reduce__ = lambda self: (freeze, (base(self),))
        return cls

    return decorate


@_read_only(
    list, "__init__ __setitem__ __delitem__ __iadd__ __imul__ append clear extend insert pop remove reverse sort"
)
class FrozenList(list[Any]):
    """A read-only list. Slices, ``+`` and ``copy()`` return ordinary lists."""

    __slots__ = ()


@_read_only(dict, "__init__ __setitem__ __delitem__ __ior__ clear pop popitem setdefault update")
class FrozenDict(dict[Any, Any]):
    """A read-only dict. ``|`` and ``copy()`` return ordinary dicts."""

    __slots__ = ()


@_read_only(
    set,
    "__init__ __iand__ __ior__ __isub__ __ixor__ add clear difference_update discard intersection_update pop remove "
    "symmetric_difference_update update",
)
class FrozenSet(set[Any]):
    """A read-only set. ``|``, ``&``, ``-``, ``^`` and ``copy()`` return ordinary sets."""

    __slots__ = ()


def _on_a_copy(name: str) -> Callable[..., Any]:
    """Return a method of set that works on an ordinary copy: set would build a FrozenSet by changing it."""
    method = getattr(set, name)

    @wraps(method)
    def operate(self: set[Any], *others: Any) -> Any:
        return method(set(self), *others)

    return operate


for _name in (
    "__or__ __and__ __sub__ __xor__ __ror__ __rand__ __rsub__ __rxor__ "
    "copy union difference intersection symmetric_difference"
).split():
    setattr(FrozenSet, _name, _on_a_copy(_name))


class UnsettledList(FrozenList):
    """A read-only list with a part that is not settled."""

    __slots__ = ()


class UnsettledDict(FrozenDict):
    """A read-only dict with a part that is not settled."""

    __slots__ = ()


class UnsettledSet(FrozenSet):
    """A read-only set with an item that is not settled."""

    __slots__ = ()


class Carried:
    """A value of a State with a part whose class this process lacks: it is saved again as it was, and not read.

    Attributes:
        value: The value, with stand-ins for such parts.
        problem: Why it cannot be read, and the way out.
    """

    __slots__ = ("problem", "value")

    def __init__(self, value: Any, problem: str) -> None:
        self.value, self.problem = value, problem

    def __reduce__(self) -> tuple[Any, ...]:
        return Carried, (self.value, self.problem)

    def __eq__(self, other: object) -> bool:
        return type(other) is Carried and bool(self.value == other.value)

    def __repr__(self) -> str:
        return repr(self.value)

    __hash__ = None  # type: ignore[assignment]


_DICT: frozenset[type] = frozenset({dict})

SETTLED: set[type] = {
    *(type(None), bool, int, float, complex, str, bytes, range, date, timedelta),
    *(FrozenList, FrozenDict, FrozenSet),
}
"""Types whose instances are settled. Times are not among them: their time zone may be an object of the user.

`is_settled` adds types of `atoms` whose modules take long to import when it meets an instance.
"""


@cache
def atoms() -> frozenset[type]:
    """Return the immutable types without parts. The types themselves: a subclass may carry more."""
    from decimal import Decimal  # imported when used, as the others: 5 ms
    from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
    from uuid import UUID

    return frozenset(
        {type(None), bool, int, float, complex, str, bytes, range, Decimal, UUID}
        | {date, time, datetime, timedelta, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath}
    )


def is_settled(value: object) -> bool:
    """Return whether the value and all its parts are immutable."""
    kind = type(value)
    if kind is datetime or kind is time:
        return _is_settled_zone(value.tzinfo)  # type: ignore[attr-defined]
    if kind is tuple or kind is frozenset:
        return SETTLED.issuperset(map(type, value)) or _are_parts_settled(value)  # type: ignore[call-overload, arg-type]
    if kind in SETTLED:
        return True
    if kind in atoms():
        SETTLED.add(kind)
    return kind in atoms()


def _are_parts_settled(nest: Iterable[object]) -> bool:
    """Visit nested tuples and frozensets level by level, each one once: they may be shared, and deeply nested."""
    seen: set[int] = set()
    level = [nest]
    while level:
        deeper: list[Iterable[object]] = []
        for part in chain.from_iterable(level):
            kind = type(part)
            if kind is tuple or kind is frozenset:
                if id(part) not in seen:
                    seen.add(id(part))
                    deeper.append(part)  # type: ignore[arg-type]
            elif kind not in SETTLED and not is_settled(part):
                return False
        level = deeper
    return True


def _is_settled_zone(zone: tzinfo | None) -> bool:
    # If the module was never imported, or another thread is just importing it, the zone is no ZoneInfo.
    return zone is None or type(zone) in (timezone, getattr(sys.modules.get("zoneinfo"), "ZoneInfo", timezone))


def are_settled(values: Collection[object]) -> bool:
    """Return whether all values are settled."""
    return SETTLED.issuperset(map(type, values)) or all(map(is_settled, values))


_Known: TypeAlias = dict[int, tuple[Any, Any]]
"""Containers frozen in the same call, with their frozen forms, by id.

Each is frozen once, because the number of references may double at every level. Small containers with at most one
container in them are omitted: they double nothing. The containers are held so that no other objects get their ids.
"""


def freeze(value: Any, depth: int = 0, known: _Known | None = None) -> Any:
    """Return the value with read-only lists, dicts and sets. Frozen parts are shared, not copied.

    Other objects, including instances of subclasses of these containers, are returned unchanged.

    Args:
        value: Any value.
        depth: The number of containers around it.
        known: The parts frozen before in the same call.

    Raises:
        NotSerializableError: Containers are nested deeper than `MAX_DEPTH`, or contain themselves.
    """
    freezer = _FREEZERS.get(type(value))
    if freezer is None:
        return value
    if depth >= MAX_DEPTH:
        raise NotSerializableError("", f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
    if known is None:
        known = {}
    elif id(value) in known:
        return known[id(value)][1]
    return freezer(value, depth + 1, known)


def _freeze_list(value: list[Any], depth: int, known: _Known) -> FrozenList:
    frozen = list.__new__(FrozenList)
    list.extend(frozen, value)
    items = iter(frozen)
    if SETTLED.issuperset(map(type, items)):
        if len(frozen) > _MANY:
            known[id(value)] = value, frozen
        return frozen
    first = len(frozen) - length_hint(items) - 1  # items before it are settled: in a growing list, all but the last
    rest = _freeze_all(frozen[first:], depth, known)
    list.__setitem__(frozen, slice(first, None), rest)
    if not are_settled(rest):
        frozen.__class__ = UnsettledList
    if len(rest) > 1 or len(frozen) > _MANY:
        known[id(value)] = value, frozen
    return frozen


def _freeze_all(values: list[Any], depth: int, known: _Known) -> list[Any]:
    """Return frozen values. Many dicts of atoms, such as records, are frozen all at once, in half the time."""
    if len(values) > _SOME and depth < MAX_DEPTH and _are_flat_dicts(values):
        frozen = [*map(dict.__new__, repeat(FrozenDict, len(values)))]
        deque(map(dict.update, frozen, values), maxlen=0)
        return frozen
    return [value if type(value) in SETTLED else freeze(value, depth, known) for value in values]


_SOME = 8  # values: for fewer, freezing them together is not faster
_MANY = 100  # items of a container: copying more takes longer than remembering the copy


def _are_flat_dicts(values: list[Any]) -> bool:
    return (
        _DICT.issuperset(map(type, values))
        and max(map(len, values)) <= _MANY
        and SETTLED.issuperset(map(type, chain.from_iterable(map(dict.values, values))))
        and SETTLED.issuperset(map(type, chain.from_iterable(values)))
    )


def _freeze_dict(value: dict[Any, Any], depth: int, known: _Known) -> FrozenDict:
    frozen = dict.__new__(FrozenDict)
    dict.update(frozen, value)
    settled, unsettled = SETTLED.issuperset(map(type, frozen)) or are_settled(frozen), 0
    if not SETTLED.issuperset(map(type, frozen.values())):
        for key, item in frozen.items():
            if type(item) not in SETTLED:
                unsettled += 1
                new = freeze(item, depth, known)
                dict.__setitem__(frozen, key, new)
                settled = settled and (type(new) in SETTLED or is_settled(new))
    if not settled:
        frozen.__class__ = UnsettledDict
    if unsettled > 1 or len(frozen) > _MANY:
        known[id(value)] = value, frozen
    return frozen


def _freeze_set(value: set[Any], depth: int, known: _Known) -> FrozenSet:
    kind = FrozenSet if are_settled(value) else UnsettledSet
    frozen = set.__new__(kind)
    set.update(frozen, value)
    if len(frozen) > _MANY:
        known[id(value)] = value, frozen
    return frozen


def _freeze_tuple(value: tuple[Any, ...], depth: int, known: _Known) -> tuple[Any, ...]:
    if SETTLED.issuperset(map(type, value)):
        return value
    items = tuple([freeze(item, depth, known) for item in value])
    frozen = value if all(map(is_, items, value)) else items
    if len(value) > 1:
        known[id(value)] = value, frozen
    return frozen


_FREEZERS: dict[type, Callable[[Any, int, _Known], Any]] = {
    list: _freeze_list,
    dict: _freeze_dict,
    set: _freeze_set,
    tuple: _freeze_tuple,
}


def freeze_items(items: Mapping[str, Any]) -> dict[str, Any]:
    """Return an ordinary dict with frozen values, as the data of a State.

    Raises:
        TypeError: The items are not a mapping, or a key is not a str.
        NotSerializableError: As for `freeze`; the error names the key.
    """
    check_mapping(items)
    return lay_over({}, items)


def check_mapping(items: object) -> None:
    """Raise TypeError unless the items are a mapping."""
    if type(items) is not dict and not isinstance(items, Mapping):
        raise TypeError(f"the data of a State are a mapping of keys to values, not {type(items).__name__}")


def lay_over(data: dict[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new dict: frozen data with updates, which are frozen here. Raises the errors of `freeze_items`."""
    new = data.copy()
    for key, value in updates.items():
        new[key if type(key) is str else plain_key(key)] = value if type(value) in SETTLED else freeze_at(key, value)
    return new


def changed_items(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of `after` whose keys or objects are not in `before`. Unchanged frozen values are identical."""
    return {key: value for key, value in after.items() if key not in before or before[key] is not value}


def freeze_at(key: str, value: Any) -> Any:
    """Return a frozen value. An error names the key of the value."""
    try:
        return freeze(value)
    except NotSerializableError as error:
        error.path = key
        raise


def plain_key(key: object) -> str:
    """Return the key as a plain str, also if its class derives from str, such as a StrEnum."""
    if type(key) is str:
        return key
    if isinstance(key, str):
        return str.__str__(key)
    raise TypeError(f"a key of a State is a str, not {type(key).__name__}: {shorten(key)}")
