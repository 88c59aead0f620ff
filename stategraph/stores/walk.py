"""Walking through a value before it is saved: each part is looked at, and an error knows where it stands."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from stategraph.errors import NotSerializableError, shorten
from stategraph.frozen import ATOMS, MAX_DEPTH, FrozenList, UnsettledList
from stategraph.stores.kinds import BY_TYPE, DICT, ENUM, FROZENSET, OBJECT, SET, TUPLE, Kind, enum_parts
from stategraph.stores.types import RegisteredType, can_be_registered, find_by_class


@attrs.frozen
class Encoded:
    """Stands for a value that was encoded already: its bytes, from `stategraph.stores.codec.encode_value`."""

    data: bytes


class Walk(ABC):
    """Turns values into what a format has. How it tags the rest is for each format to say."""

    @abstractmethod
    def tagged(self, kind: Kind, parts: Any) -> Any:
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

    def is_native(self, kind: Kind, value: Any) -> bool:
        """Whether the format has the value without a tag."""
        return kind.is_plain(value)

    def prepare(self, value: Any, path: str, depth: int) -> Any:
        """-> the value as the format takes it.

        Raises:
            NotSerializableError: with the path to the part that cannot be kept exactly.
        """
        if depth >= MAX_DEPTH and type(value) not in ATOMS:
            raise NotSerializableError(path, f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
        step = _STEPS.get(type(value))
        if step is not None:
            return step(self, value, path, depth + 1)
        registered = find_by_class(type(value))
        if registered is not None:
            return self._registered(registered, value, path, depth + 1)
        raise NotSerializableError(path, _why_not(value))

    def _as_it_is(self, value: Any, path: str, depth: int) -> Any:
        return value

    def _encoded(self, value: Encoded, path: str, depth: int) -> Any:
        return self.encoded(value)

    def _leaf(self, value: Any, path: str, depth: int) -> Any:
        kind = BY_TYPE[type(value)]
        if self.is_native(kind, value):
            return value
        try:
            parts = kind.to_parts(value)
        except TypeError as error:
            raise NotSerializableError(path, str(error)) from None
        return self.tagged(kind, self.prepare(parts, path, 0) if kind.is_deep else parts)

    def _list(self, value: Any, path: str, depth: int) -> list[Any]:
        return [self.prepare(item, f"{path}[{place}]", depth) for place, item in enumerate(value)]

    def _tuple(self, value: Any, path: str, depth: int) -> Any:
        return self.tagged(TUPLE, self._list(value, path, depth))

    def _set(self, value: Any, path: str, depth: int) -> Any:
        items = [self.prepare(item, f"{path}{{...}}", depth) for item in value]
        return self.tagged(FROZENSET if type(value) is frozenset else SET, self.in_order(items))

    def _dict(self, value: Any, path: str, depth: int) -> Any:
        items = [self.prepare(item, _path_to(path, key), depth) for key, item in value.items()]
        if DICT.is_plain(value):
            return self.mapping(dict(zip(value, items, strict=True)))
        keys = [self.prepare(key, f"{path} (key {shorten(key, 40)})", depth) for key in value]
        return self.tagged(DICT, [[key, item] for key, item in zip(keys, items, strict=True)])

    def _registered(self, registered: RegisteredType, value: Any, path: str, depth: int) -> Any:
        if registered.is_enum:
            return self.tagged(ENUM, self.prepare(enum_parts(registered.name, value), path, 0))
        try:
            values = registered.values_of(value)
        except ValueError as error:
            raise NotSerializableError(path, str(error)) from None
        return self.tagged(OBJECT, [registered.name, registered.version, self._dict(values, path, depth)])


_Step: TypeAlias = Callable[[Walk, Any, str, int], Any]

_STEPS: dict[type, _Step] = {
    **dict.fromkeys(BY_TYPE, Walk._leaf),
    **dict.fromkeys((type(None), bool), Walk._as_it_is),
    **dict.fromkeys((list, FrozenList, UnsettledList), Walk._list),
    **dict.fromkeys(DICT.types, Walk._dict),
    **dict.fromkeys((*SET.types, frozenset), Walk._set),
    tuple: Walk._tuple,
    Encoded: Walk._encoded,
}


def _path_to(path: str, key: object) -> str:
    if isinstance(key, str) and re.fullmatch(r"\w+", key):
        return f"{path}.{key}" if path else key
    return f"{path}[{shorten(key, 40)}]"


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
