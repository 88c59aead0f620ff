"""ValueEncoder: prepare values for a format. An error has the path to the value that cannot be saved."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._values.frozen import MAX_DEPTH, Carried, FrozenList, UnsettledList
from stategraph._values.registered_types import RegisteredType, call_for, can_be_registered, find_by_class
from stategraph._values.sameness import check_kept
from stategraph.errors import NotSerializableError
from stategraph.stores._codec.type_codecs import (
    ATOMS,
    CODEC_OF,
    DICT,
    ENUM,
    FROZENSET,
    OBJECT,
    SET,
    TUPLE,
    Opaque,
    TypeCodec,
    enum_parts,
    find_codec,
)

_MOST_REPEATED = 10_000_000
"""The most items of repeated containers, where a container itself counts as 10.

Memory holds a shared container once. Bytes have no references, and repeat it: a few dozen lists that each hold the next
one twice would fill any memory. Items that are not repeated may be of any number.
"""

_TOO_OFTEN = (
    f"it refers to the same containers so often that more than {_MOST_REPEATED:,} values would be written again; keep "
    "each of them once, and refer to it by a name or a number"
)

_SIZED = (list, tuple, dict, set, frozenset)
_MANY = 300_000  # containers of a level: fewer are visited faster than compared
_SOME = 16  # items: a test for atoms is not faster for fewer


@attrs.frozen
class EncodedValue:
    """The bytes of a value (see `stategraph.stores._codec.msgpack.encode_value`)."""

    data: bytes


class ValueEncoder(ABC):
    """Convert values to types that a format supports. Subclasses define how a format tags other types.

    Use one encoder for values that are written together: it counts what is repeated.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}  # containers by their ids; none of them ends, so no other gets its id
        self._repeated = 0

    @abstractmethod
    def tagged(self, codec: TypeCodec, parts: Any) -> Any:
        """Return the form of a value whose type the format lacks, from its prepared parts."""

    @abstractmethod
    def in_order(self, items: list[Any]) -> list[Any]:
        """Return prepared items of a set in an order that does not depend on hashes."""

    @abstractmethod
    def mapping(self, items: dict[str, Any]) -> Any:
        """Return the form of a dict with str keys and prepared values."""

    @abstractmethod
    def encoded(self, value: EncodedValue) -> Any:
        """Return the form of an encoded value."""

    def is_native(self, codec: TypeCodec, value: Any) -> bool:
        """Return whether the format supports the value without a tag."""
        return codec.is_plain(value)

    def prepare(self, value: Any, path: str, depth: int) -> Any:
        """Return the prepared form of a value.

        Args:
            value: The value.
            path: Its path in the State, for errors.
            depth: The number of containers around it in the State; -1 for the State itself.

        Raises:
            NotSerializableError: A part cannot be saved exactly; the error has the path to it.
        """
        try:
            return self.prepared(value, depth)
        except NotSerializableError as error:
            error.path = path + error.path if path else error.path.removeprefix(".")
            raise

    def prepared(self, value: Any, depth: int) -> Any:
        """Return the prepared form of a part of a value; the path in an error begins at the part."""
        leaf = _LEAVES.get(type(value))
        if leaf is not None:
            return leaf(self, value)
        if depth >= MAX_DEPTH:
            raise NotSerializableError("", f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
        method = _CONTAINERS.get(type(value))
        if method is not None:
            self.count(value)
            return method(self, value, depth + 1)
        registered = find_by_class(type(value))
        if registered is not None:
            return self._registered(registered, value, depth + 1)
        raise NotSerializableError("", _why_not(value))

    def count(self, value: Any) -> None:
        """Count a container and its items if it is repeated; raise NotSerializableError if that happens too often."""
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            return
        self._repeated += 10 + (len(value) if isinstance(value, _SIZED) else 0)
        if self._repeated > _MOST_REPEATED:
            raise NotSerializableError("", _TOO_OFTEN)

    def _leaf(self, value: Any) -> Any:
        codec = CODEC_OF[type(value)]
        if self.is_native(codec, value):
            return value
        try:
            parts = codec.to_parts(value)
        except TypeError as error:
            raise NotSerializableError("", str(error)) from None
        return self.tagged(codec, self.prepared(parts, 0) if codec.is_deep else parts)

    def _items(self, values: Iterable[Any], depth: int, place_of: Callable[[int], str]) -> list[Any]:
        """Return the prepared items of a container; `place_of` returns the path from it to an item, from its number."""
        items: list[Any] = []
        try:
            for value in values:
                items.append(self.prepared(value, depth))
        except NotSerializableError as error:
            error.path = place_of(len(items)) + error.path
            raise
        return items

    def _list(self, value: Any, depth: int) -> list[Any]:
        return self._items(value, depth, "[{}]".format)

    def _tuple(self, value: Any, depth: int) -> Any:
        return self.tagged(TUPLE, self._list(value, depth))

    def _set(self, value: Any, depth: int) -> Any:
        items = self._items(value, depth, lambda _: "{...}")
        return self.tagged(FROZENSET if type(value) is frozenset else SET, self.in_order(items))

    def _dict(self, value: Any, depth: int) -> Any:
        items = self._items(value.values(), depth, lambda number: _path_to(_nth(value, number)))
        if DICT.is_plain(value):
            return self.mapping(dict(zip(value, items, strict=True)))
        keys = self._items(value, depth, lambda number: f" (key {shorten(_nth(value, number), 40)})")
        return self.tagged(DICT, [[key, item] for key, item in zip(keys, items, strict=True)])

    def _registered(self, registered: RegisteredType, value: Any, depth: int) -> Any:
        if registered.is_enum:
            return self.tagged(ENUM, self.prepared(enum_parts(registered.name, value), 0))
        self.count(value)
        try:
            version, values = registered.stored_form(value)
            if registered.encode is not None and type(value) not in registered.proven:
                check_kept(registered, value, values)
        except ValueError as error:
            raise NotSerializableError("", str(error)) from None
        return self.tagged(OBJECT, [registered.name, version, self._data(values, depth)])

    def _data(self, values: Any, depth: int) -> Any:
        """Return the prepared fields of an object, or what its `encode` has returned."""
        return self._dict(values, depth) if type(values) is dict else self.prepared(values, depth)

    def _opaque(self, value: Opaque, depth: int) -> Any:
        codec, parts = find_codec(value.tag), value.parts
        if codec is OBJECT:
            name, version, values = parts
            return self.tagged(OBJECT, [name, version, self._data(values, depth)])
        return self.tagged(codec, self.prepared(parts, 0) if codec.is_deep else list(parts))


_CONTAINERS: dict[type, Callable[[ValueEncoder, Any, int], Any]] = {
    **dict.fromkeys((list, FrozenList, UnsettledList), ValueEncoder._list),
    **dict.fromkeys(DICT.types, ValueEncoder._dict),
    **dict.fromkeys((*SET.types, frozenset), ValueEncoder._set),
    tuple: ValueEncoder._tuple,
    Opaque: ValueEncoder._opaque,
    Carried: lambda encoder, carried, depth: encoder.prepared(carried.value, depth - 1),
}
_LEAVES: dict[type, Callable[[ValueEncoder, Any], Any]] = {
    **dict.fromkeys(CODEC_OF.keys() - _CONTAINERS.keys(), ValueEncoder._leaf),
    **dict.fromkeys((type(None), bool), lambda _, value: value),
    EncodedValue: lambda encoder, value: encoder.encoded(value),
}


def _nth(container: Iterable[Any], number: int) -> Any:
    return next(islice(container, number, None))


def _path_to(key: object) -> str:
    if isinstance(key, str) and re.fullmatch(r"\w+", key):
        return f".{key}"
    return f"[{shorten(key, 40)}]"


def _why_not(value: Any) -> str:
    cls = type(value)
    name = f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
    if cls.__module__ in ("pydantic_ai.run", "pydantic_ai.result"):
        return f"{name} is not kept: save result.output and result.all_messages() in place of the result"
    if call_for(cls):
        return f"class {name} is not registered: {call_for(cls)} does that for all classes of its library"
    if can_be_registered(cls):
        return f"class {name} is not registered: stategraph.register_type({cls.__name__})"
    if isinstance(value, Awaitable):
        return f"it is an awaitable ({name}): await it, and save its result"
    if isinstance(value, memoryview):
        return f"{name} is not kept exactly; make it bytes"
    for base in (dict, list, tuple, set, frozenset, str, bytes, bool, int, float):
        if isinstance(value, base):
            return f"{name} is a kind of {base.__name__} that is not kept exactly; make it a {base.__name__}"
    if hasattr(cls, "tolist"):  # arrays and their items
        plain = "a plain value: value.item()" if getattr(value, "ndim", 1) == 0 else "plain values: value.tolist()"
        return f"{name} is not kept exactly; make it {plain}"
    if hasattr(cls, "__index__"):
        return f"{name} is not kept exactly; make it an int: int(value)"
    return (
        f"it is of type {name}, which is not kept{_size_of(value)}; save a value from which it can be made again, "
        "such as str(value) if that is exact, or an object of a registered class (stategraph.register_type)"
    )


def _size_of(value: Any) -> str:
    """Describe the size of a value, such as a data frame, without a look at its content, which may be personal."""
    try:
        shape = getattr(value, "shape", None)
        return f" (its shape is {shape})" if type(shape) is tuple else f" (it has {len(value):,} items)"
    except Exception:  # noqa: BLE001 - it has no size, or its methods raise
        return ""


# --------------------------------------------------------------------------- limits


def is_writable(containers: list[Any]) -> bool:
    """Return whether settled containers are nested at most `MAX_DEPTH` levels deep, and none of a large level is
    repeated there. The encoder checks all others."""
    level = containers
    for _ in range(MAX_DEPTH):
        is_large = len(level) > _MANY or sum(map(len, level)) > _MOST_REPEATED
        if is_large and len(set(map(id, level))) < len(level):
            return False
        level = _next_level(level)
        if not level:
            return True
    return False


def _next_level(level: list[Any]) -> list[Any]:
    """Return the containers among the items of containers."""
    nested = []
    for container in level:
        items = container.values() if isinstance(container, dict) else container
        if len(items) > _SOME and ATOMS.issuperset(map(type, items)):
            continue
        nested += [item for item in items if type(item) not in _LEAVES]
    return nested
