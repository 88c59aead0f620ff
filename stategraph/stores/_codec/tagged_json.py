"""The plain form of values: the types that every text format has, and tagged dicts for all others.

It consists of None, True, False, 64-bit ints, finite floats, str without lone surrogates, lists, and dicts with such
str as keys. Everything else is ``{"$type": name, "value": parts}``. A key of a user that begins with ``$`` is escaped
by another ``$``, so that none of their dicts is taken for a tag.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

from stategraph._text.shown import shorten
from stategraph._values.frozen import MAX_DEPTH
from stategraph.stores._codec.msgpack import decode
from stategraph.stores._codec.type_codecs import DecodeError, TypeCodec, find_codec
from stategraph.stores._codec.value_encoder import EncodedValue, ValueEncoder

_TYPE, _VALUE, _MARK = "$type", "value", "$"
_ATOMS = frozenset({type(None), bool, int, float, str})
DEEPEST = 3 * MAX_DEPTH + 10
"""Levels of the plain form: one level of a State becomes up to three, a tag, its parts, and a pair of them."""


class _PlainEncoder(ValueEncoder):
    """Makes the plain form of values."""

    def tagged(self, codec: TypeCodec, parts: Any) -> Any:
        return {_TYPE: codec.name, _VALUE: parts}

    def in_order(self, items: list[Any]) -> list[Any]:
        return sorted(items, key=repr)

    def mapping(self, items: dict[str, Any]) -> Any:
        return {_MARK + key if key.startswith(_MARK) else key: item for key, item in items.items()}

    def encoded(self, value: EncodedValue) -> Any:
        return self.prepared(decode(value.data), 0)


def to_plain(parts: list[Any]) -> list[Any]:
    """Return the plain form of each part; equal parts in the same order have equal ones.

    Raises:
        NotSerializableError: A part cannot be kept exactly; the error has the path to it.
    """
    encoder = _PlainEncoder()
    return [encoder.prepare(part, "", -1) for part in parts]


def from_plain(plain: Any, depth: int = 0) -> Any:
    """Return the value that has this plain form.

    Raises:
        DecodeError: It is no plain form.
        Exception: The parts of a tagged value are not those of its type.
    """
    if depth > DEEPEST:
        raise DecodeError(f"it is nested deeper than {MAX_DEPTH} levels")
    cls = type(plain)
    if cls in _ATOMS:
        return plain
    if cls is list:
        return plain if _ATOMS.issuperset(map(type, plain)) else [*map(from_plain, plain, repeat(depth + 1))]
    if cls is not dict:
        raise DecodeError(f"it holds a {cls.__name__}, which is not plain")
    if _TYPE in plain:
        return _untagged(plain, depth)
    return dict(zip(map(_key, plain), map(from_plain, plain.values(), repeat(depth + 1)), strict=True))


def _untagged(plain: dict[str, Any], depth: int) -> Any:
    if plain.keys() != {_TYPE, _VALUE}:
        raise DecodeError(f"it holds {shorten(plain)}, which is no tag")
    name = plain[_TYPE]
    if type(name) is not str:  # a number is a tag in msgpack only
        raise DecodeError(f"it holds an unknown type {shorten(name)}")
    return find_codec(name).from_parts(from_plain(plain[_VALUE], depth + 1))


def _key(key: Any) -> str:
    if type(key) is not str:
        raise DecodeError(f"it holds a dict with the key {shorten(key)}, which is not plain")
    if not key.startswith(_MARK):
        return key
    if not key.startswith(_MARK * 2):
        raise DecodeError(f"it holds a dict with the key {shorten(key)}, which is no tag")
    return key[1:]
