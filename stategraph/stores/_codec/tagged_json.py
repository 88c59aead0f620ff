"""The plain form of values: what every text format has, and tags for the rest.

It consists of None, True, False, ints of 64 bits, finite floats, text without lone surrogates, lists, and dicts with
such text as keys. Everything else is ``{"$type": name, "value": parts}``. So that no dict of a user is taken for a tag,
a key that begins with ``$`` gets another one in front.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

from stategraph._text.shown import shorten
from stategraph._values.frozen import MAX_DEPTH
from stategraph.stores._codec import values as codec
from stategraph.stores._codec.type_codecs import DecodeError, TypeCodec, kind_named
from stategraph.stores._codec.walk import Encoded, Walk

_TYPE, _VALUE, _MARK = "$type", "value", "$"
_ATOMS = frozenset({type(None), bool, int, float, str})
DEEPEST = 3 * MAX_DEPTH + 10
"""Levels of the plain form: a level of a State is up to three of these, a tag, its parts, and a pair of them."""


class _PlainWalk(Walk):
    def tagged(self, kind: TypeCodec, parts: Any) -> Any:
        return {_TYPE: kind.name, _VALUE: parts}

    def in_order(self, items: list[Any]) -> list[Any]:
        return sorted(items, key=repr)

    def mapping(self, items: dict[str, Any]) -> Any:
        return {_MARK + key if key.startswith(_MARK) else key: item for key, item in items.items()}

    def encoded(self, value: Encoded) -> Any:
        return self.prepared(codec.decode(value.data), 0)


def to_plain(parts: list[Any]) -> list[Any]:
    """-> the plain form of parts; equal values with their parts in the same order give equal ones.

    Raises:
        NotSerializableError: a part cannot be kept exactly; the error names its place.
    """
    walk = _PlainWalk()
    return [walk.prepare(part, "", -1) for part in parts]


def from_plain(plain: Any, depth: int = 0) -> Any:
    """-> the value that has this plain form. What it raises besides DecodeError comes of parts that are none."""
    if depth > DEEPEST:
        raise DecodeError(f"it is nested deeper than {MAX_DEPTH} levels")
    kind = type(plain)
    if kind in _ATOMS:
        return plain
    if kind is list:
        return plain if _ATOMS.issuperset(map(type, plain)) else [*map(from_plain, plain, repeat(depth + 1))]
    if kind is not dict:
        raise DecodeError(f"it holds a {kind.__name__}, which is not plain")
    if _TYPE in plain:
        return _untagged(plain, depth)
    return dict(zip(map(_key, plain), map(from_plain, plain.values(), repeat(depth + 1)), strict=True))


def _untagged(plain: dict[str, Any], depth: int) -> Any:
    if plain.keys() != {_TYPE, _VALUE}:
        raise DecodeError(f"it holds {shorten(plain)}, which is no tag")
    return kind_named(plain[_TYPE]).from_parts(from_plain(plain[_VALUE], depth + 1))


def _key(key: Any) -> str:
    if type(key) is not str:
        raise DecodeError(f"it holds a dict with the key {shorten(key)}, which is not plain")
    if not key.startswith(_MARK):
        return key
    if not key.startswith(_MARK * 2):
        raise DecodeError(f"it holds a dict with the key {shorten(key)}, which is no tag")
    return key[1:]
