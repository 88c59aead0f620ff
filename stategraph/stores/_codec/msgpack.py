"""The msgpack of values. A value is loaded exactly as it was saved, in values and types, or is refused when saved.

Types that msgpack does not have become extension types, as `stategraph.stores._codec.type_codecs` says. Settled values
(see `stategraph._values.frozen`) consist of known types only and are handed to ormsgpack as they are. All others, and
the few settled ones that ormsgpack refuses, go through a `ValueEncoder` first, whose errors have the path to the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import attrs
import ormsgpack

from stategraph._util.atoms import ATOMS
from stategraph._values.frozen import MAX_DEPTH, SETTLED, is_settled
from stategraph.errors import NotSerializableError
from stategraph.stores._codec.type_codecs import CODEC_OF, FROZENSET, SET, DecodeError, TypeCodec, find_codec
from stategraph.stores._codec.value_encoder import EncodedValue, ValueEncoder, is_writable

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


def encode(parts: Sequence[Any]) -> bytes:
    """Return the bytes of a list; equal parts in the same order have equal bytes.

    Args:
        parts: Data of States as dicts from keys to values, and other values that belong to them.

    Raises:
        NotSerializableError: A part cannot be kept exactly; the error has the path to it.
    """
    containers = _containers_in(parts)
    if containers is not None and (not containers or is_writable(containers)):
        try:
            return _pack(parts)
        except (TypeError, ValueError):
            pass  # the encoder finds out which part it was, and whether it can be kept in another way
    encoder = _MsgpackEncoder()
    return _pack([encoder.prepare(part, "", -1) for part in parts])


def encode_value(value: Any, path: str) -> bytes:
    """Return the bytes of a value.

    Args:
        value: The value.
        path: Where it stands in the State, for the error.

    Raises:
        NotSerializableError: A part of it cannot be kept exactly.
    """
    return _pack(_MsgpackEncoder().prepare(value, path, 0))


def digest_of(*parts: Mapping[str, Any]) -> str:
    """Return a digest of mappings, whatever the order of their keys; empty if a value in them cannot be kept.

    Below that, values differ if they differ in a store: in type, in the order of keys, in the sign of a zero.
    """
    from hashlib import blake2b  # imported when used: OpenSSL takes 4 ms

    try:
        written = encode([dict(sorted(part.items())) for part in parts])
    except NotSerializableError:
        return ""
    return blake2b(written, digest_size=20).hexdigest()


def _containers_in(parts: Sequence[Any]) -> list[Any] | None:
    """Return the containers that are values of dicts among the parts; None if such a value is not settled."""
    containers: list[Any] = []
    for part in parts:
        if part and type(part) is dict:
            for value in part.values():
                if type(value) not in ATOMS:
                    if type(value) not in SETTLED and not is_settled(value):
                        return None
                    containers.append(value)
    return containers


def _extend(value: Any) -> ormsgpack.Ext:
    """Return the extension of a settled value that ormsgpack does not know; it calls this."""
    codec = CODEC_OF[type(value)]
    parts = codec.to_parts(value)
    if codec is SET or codec is FROZENSET:
        parts = _in_order(parts)
    return _extension(codec, parts)


def _extension(codec: TypeCodec, parts: Any) -> ormsgpack.Ext:
    if codec.number is None:
        raise TypeError(f"msgpack has {codec.name} itself")
    return ormsgpack.Ext(codec.number, _pack(parts))


_pack: Callable[[Any], bytes] = partial(ormsgpack.packb, default=_extend, option=_OPTIONS)


def _in_order(items: Iterable[Any]) -> list[Any]:
    return [ormsgpack.Fragment(item) for item in sorted(map(_pack, items))]


class _MsgpackEncoder(ValueEncoder):
    """Makes values that ormsgpack takes."""

    def tagged(self, codec: TypeCodec, parts: Any) -> Any:
        return _extension(codec, parts)

    def in_order(self, items: list[Any]) -> list[Any]:
        return _in_order(items)

    def mapping(self, items: dict[str, Any]) -> Any:
        return items

    def encoded(self, value: EncodedValue) -> Any:
        return ormsgpack.Fragment(value.data)

    def is_native(self, codec: TypeCodec, value: Any) -> bool:
        return codec.number is None or codec.is_plain(value)


# --------------------------------------------------------------------------- decoding


@attrs.frozen
class _Tagged:
    """A value whose parts are still bytes.

    They are decoded once ormsgpack has returned. Decoded in its hook, they would nest its recursion in itself, a
    thousand levels for every level of ours, until the stack overflows and the process dies.
    """

    codec: TypeCodec
    packed: bytes


@attrs.frozen
class _Failed:
    """An error raised in the hook of ormsgpack, which would drop it."""

    error: BaseException


_UNFINISHED = frozenset({_Tagged, _Failed})


def decode(data: bytes) -> Any:
    """Return the value of bytes. Its containers are ordinary ones, to be frozen by the caller.

    Raises:
        UnavailableValueError: The value cannot be made in this process.
        DecodeError: These are not the bytes of a value.
    """
    try:
        return _decode(data)
    except (DecodeError, MemoryError):
        raise
    except Exception as error:  # any may be raised while values are made of garbage
        raise DecodeError(f"its bytes cannot be decoded: {error}") from error


_DEEPEST = 3 * MAX_DEPTH + 10
"""Levels in all: one level of a State becomes up to three, a tagged value, its parts, and a pair of them."""


def _decode(data: bytes) -> Any:
    is_finished = True

    def restore(number: int, packed: bytes) -> Any:
        nonlocal is_finished
        value = _restore(number, packed)
        if type(value) in _UNFINISHED:
            is_finished = False
        return value

    value = ormsgpack.unpackb(data, ext_hook=restore)
    return value if is_finished else _finish(value, 0)


def _restore(number: int, packed: bytes) -> Any:
    """Return the value of an extension type, or what stands for it until `_finish`; ormsgpack calls this."""
    try:
        codec = find_codec(number)
        if codec.is_deep:
            return _Tagged(codec, packed)
        return codec.from_parts(ormsgpack.unpackb(packed))
    except BaseException as error:  # noqa: BLE001 - it is raised when ormsgpack has returned
        return _Failed(error)


def _finish(value: Any, depth: int) -> Any:
    """Return the value with the tagged ones in it made. `map` takes one frame of Python a level, not two."""
    if depth > _DEEPEST:
        raise DecodeError(f"its bytes are nested deeper than {MAX_DEPTH} levels")
    cls = type(value)
    if cls is list and not ATOMS.issuperset(map(type, value)):
        return [*map(_finish, value, repeat(depth + 1))]
    if cls is dict and not ATOMS.issuperset(map(type, value.values())):
        return dict(zip(value, map(_finish, value.values(), repeat(depth + 1)), strict=True))
    if cls is _Tagged:
        parts = _finish(ormsgpack.unpackb(value.packed, ext_hook=_restore), depth + 1)
        return value.codec.from_parts(parts)
    if cls is _Failed:
        raise value.error
    return value
