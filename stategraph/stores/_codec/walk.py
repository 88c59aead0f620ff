"""Walking through a value before it is saved: each part is looked at, and an error knows where it stands."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._values.frozen import MAX_DEPTH, FrozenList, UnsettledList
from stategraph._values.registered_types import RegisteredType, can_be_registered, find_by_class
from stategraph.errors import NotSerializableError
from stategraph.stores._codec.collisions import TOO_ALIKE, are_too_alike
from stategraph.stores._codec.sharing import CONTAINER, MOST_REPEATED, TOO_OFTEN
from stategraph.stores._codec.type_codecs import (
    BY_TYPE,
    DICT,
    ENUM,
    FROZENSET,
    OBJECT,
    SET,
    TUPLE,
    TypeCodec,
    enum_parts,
)


@attrs.frozen
class Encoded:
    """Stands for a value that was encoded already: its bytes, from `stategraph.stores._codec.values.encode_value`."""

    data: bytes


@attrs.frozen(eq=False)
class _Made:
    """A container that was walked through.

    Attributes:
        value: The container.
        prepared: What was made of it.
        size: How many values it is written as.
        levels: How many levels of containers are in it.
    """

    value: Any
    prepared: Any
    size: int
    levels: int


class Walk(ABC):
    """Turns values into what a format has. How it tags the rest is for each format to say.

    One walk is for what is written together. A container that it meets again, at whatever depth, is not walked through
    again; that it is written again is counted.
    """

    def __init__(self) -> None:
        # The containers are kept with what was made of them, lest others get their ids.
        self._made: dict[int, _Made] = {}
        self._written = self._repeated = 0
        self._deepest = 0  # depth of a container, of those in the one that is being walked through

    @abstractmethod
    def tagged(self, kind: TypeCodec, parts: Any) -> Any:
        """-> what the format has for a value of this kind with these parts, which are prepared."""

    @abstractmethod
    def in_order(self, items: list[Any]) -> list[Any]:
        """-> prepared items of a set in an order that does not depend on hashes."""

    @abstractmethod
    def mapping(self, items: dict[str, Any]) -> Any:
        """-> a dict with text keys; its values are prepared."""

    @abstractmethod
    def encoded(self, value: Encoded) -> Any:
        """-> what stands in the place of a value that was encoded already."""

    def is_native(self, kind: TypeCodec, value: Any) -> bool:
        """Whether the format has the value without a tag."""
        return kind.is_plain(value)

    def prepare(self, value: Any, path: str, depth: int) -> Any:
        """-> the value as the format takes it.

        Raises:
            NotSerializableError: with the path to the part that cannot be kept exactly.
        """
        try:
            return self.prepared(value, depth)
        except NotSerializableError as error:
            error.path = path + error.path if path else error.path.removeprefix(".")
            raise

    def prepared(self, value: Any, depth: int) -> Any:
        """-> the same for a part of a value; the path in an error begins there."""
        leaf = _LEAVES.get(type(value))
        if leaf is not None:
            return leaf(self, value)
        if depth >= MAX_DEPTH:
            raise NotSerializableError("", f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
        made = self._made.get(id(value))
        if made is not None and depth + made.levels < MAX_DEPTH:
            return self._again(made, depth)
        written, deepest, self._deepest = self._written, self._deepest, depth
        prepared = self._container(value, depth + 1)
        self._made[id(value)] = _Made(value, prepared, self._written - written, self._deepest - depth)
        self._deepest = max(self._deepest, deepest)
        return prepared

    def _again(self, made: _Made, depth: int) -> Any:
        self._deepest = max(self._deepest, depth + made.levels)
        self._written += made.size
        self._repeated += made.size
        if self._repeated > MOST_REPEATED:
            raise NotSerializableError("", TOO_OFTEN)
        return made.prepared

    def _container(self, value: Any, depth: int) -> Any:
        step = _STEPS.get(type(value))
        if step is not None:
            return step(self, value, depth)
        registered = find_by_class(type(value))
        if registered is not None:
            return self._registered(registered, value, depth)
        raise NotSerializableError("", _why_not(value))

    def _as_it_is(self, value: Any) -> Any:
        return value

    def _encoded(self, value: Encoded) -> Any:
        return self.encoded(value)

    def _leaf(self, value: Any) -> Any:
        kind = BY_TYPE[type(value)]
        if self.is_native(kind, value):
            return value
        try:
            parts = kind.to_parts(value)
        except TypeError as error:
            raise NotSerializableError("", str(error)) from None
        return self.tagged(kind, self.prepared(parts, 0) if kind.is_deep else parts)

    def _items(self, values: Iterable[Any], depth: int, place_of: Callable[[int], str]) -> list[Any]:
        """-> prepared items of a container; `place_of` says how a path goes on to the item of a number."""
        items: list[Any] = []
        try:
            for value in values:
                items.append(self.prepared(value, depth))
        except NotSerializableError as error:
            error.path = place_of(len(items)) + error.path
            raise
        self._written += len(items) + CONTAINER
        return items

    def _list(self, value: Any, depth: int) -> list[Any]:
        return self._items(value, depth, "[{}]".format)

    def _tuple(self, value: Any, depth: int) -> Any:
        return self.tagged(TUPLE, self._list(value, depth))

    def _set(self, value: Any, depth: int) -> Any:
        items = self._items(value, depth, lambda _: "{...}")
        _check_hashes(value)
        return self.tagged(FROZENSET if type(value) is frozenset else SET, self.in_order(items))

    def _dict(self, value: Any, depth: int) -> Any:
        items = self._items(value.values(), depth, lambda number: _path_to(_nth(value, number)))
        if DICT.is_plain(value):
            return self.mapping(dict(zip(value, items, strict=True)))
        keys = self._items(value, depth, lambda number: f" (key {shorten(_nth(value, number), 40)})")
        _check_hashes(value)
        return self.tagged(DICT, [[key, item] for key, item in zip(keys, items, strict=True)])

    def _registered(self, registered: RegisteredType, value: Any, depth: int) -> Any:
        if registered.is_enum:
            return self.tagged(ENUM, self.prepared(enum_parts(registered.name, value), 0))
        try:
            values = registered.values_of(value)
        except ValueError as error:
            raise NotSerializableError("", str(error)) from None
        return self.tagged(OBJECT, [registered.name, registered.version, self._dict(values, depth)])


_STEPS: dict[type, Callable[[Walk, Any, int], Any]] = {
    **dict.fromkeys((list, FrozenList, UnsettledList), Walk._list),
    **dict.fromkeys(DICT.types, Walk._dict),
    **dict.fromkeys((*SET.types, frozenset), Walk._set),
    tuple: Walk._tuple,
}
_LEAVES: dict[type, Callable[[Walk, Any], Any]] = {
    **dict.fromkeys(BY_TYPE.keys() - _STEPS.keys(), Walk._leaf),
    **dict.fromkeys((type(None), bool), Walk._as_it_is),
    Encoded: Walk._encoded,
}


def _check_hashes(items: Collection[Any]) -> None:
    if are_too_alike(items):
        raise NotSerializableError("", TOO_ALIKE)


def _nth(container: Iterable[Any], number: int) -> Any:
    return next(islice(container, number, None))


def _path_to(key: object) -> str:
    if isinstance(key, str) and re.fullmatch(r"\w+", key):
        return f".{key}"
    return f"[{shorten(key, 40)}]"


def _why_not(value: Any) -> str:
    cls = type(value)
    name = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
    if can_be_registered(cls):
        return f"class {name} is not registered: stategraph.register_type({cls.__name__})"
    if isinstance(value, bytearray | memoryview):
        return f"{name} is not kept exactly; make it bytes"
    for base in (dict, list, tuple, set, frozenset, str, bytes, bool, int, float):
        if isinstance(value, base):
            return f"{name} is a kind of {base.__name__} that is not kept exactly; make it a {base.__name__}"
    return f"values of type {name} are not kept, and this is {shorten(value)}; keep what is needed to make it again"
