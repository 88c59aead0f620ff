"""The msgpack format of values. A value is loaded exactly as it was saved, or refused when it is saved.

Types that msgpack lacks become extension types; see `stategraph.stores._codec.type_codecs`. Settled values (see
`stategraph._values.frozen`) consist of known types only and are passed to ormsgpack directly. Other values, and settled
values that ormsgpack refuses, are prepared by a `ValueEncoder`, whose errors have the path to the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import attrs
import ormsgpack

from stategraph._values.frozen import MAX_DEPTH, SETTLED, UnsettledDict, UnsettledList, is_settled
from stategraph.errors import NotSerializableError
from stategraph.stores._codec.type_codecs import (
    ATOMS,
    CODEC_OF,
    FROZENSET,
    SET,
    DecodeError,
    TypeCodec,
    UnusableValueError,
    find_codec,
    shown_as_opaque,
)
from stategraph.stores._codec.value_encoder import EncodedValue, ValueEncoder, is_writable

KEYS = frozenset({str, int})
"""Types of keys that are the same if they are equal: dicts with others are not looked into."""

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


def encode(parts: Sequence[Any]) -> bytes:
    """Return the bytes of a list. Equal parts in the same order have equal bytes.

    Args:
        parts: The data of States as dicts, and other values.

    Raises:
        NotSerializableError: A part cannot be saved exactly; the error has the path to it.
    """
    containers = _containers_in(parts)
    if containers is not None and (not containers or is_writable(containers)):
        try:
            return pack(parts)
        except (TypeError, ValueError):
            pass  # the encoder finds the part, and may find another way to save it
    encoder = _MsgpackEncoder()
    return pack([encoder.prepare(part, "", -1) for part in parts])


def settled_form(value: Any, path: str) -> Any:
    """Return a value with the bytes of those of its parts that are not settled.

    Args:
        value: The value.
        path: Its path in the State, for errors.

    Raises:
        NotSerializableError: One of these parts cannot be saved exactly.
    """
    try:
        return _MsgpackEncoder().settled(value, 0)
    except NotSerializableError:
        encode_value(value, path)  # raises the error with the path to the part
        raise


def encode_value(value: Any, path: str) -> bytes:
    """Return the bytes of a value.

    Args:
        value: The value.
        path: Its path in the State, for errors.

    Raises:
        NotSerializableError: A part of it cannot be saved exactly.
    """
    return pack(_MsgpackEncoder().prepare(value, path, 0))


def digest_of(*parts: Mapping[str, Any]) -> str:
    """Return a digest of mappings; empty if a value cannot be saved.

    The order of the keys of the mappings does not matter. Values differ if they differ in a store: for example in type,
    in the order of their own keys, or in the sign of a zero.
    """
    from hashlib import blake2b  # imported when used: OpenSSL takes 4 ms

    try:
        written = encode([dict(sorted(part.items()) if len(part) > 1 else part) for part in parts])
    except NotSerializableError:
        return ""
    return blake2b(written, digest_size=20).hexdigest()


def _containers_in(parts: Sequence[Any]) -> list[Any] | None:
    """Return the containers among the values of dicts in the parts; None if such a value is not settled."""
    containers: list[Any] = []
    for part in parts:
        if type(part) is dict:
            for value in part.values():
                if type(value) not in ATOMS:
                    if type(value) not in SETTLED and not is_settled(value):
                        return None
                    containers.append(value)
    return containers


def _extend(value: Any) -> ormsgpack.Ext | ormsgpack.Fragment:
    """Return the extension type of a settled value. ormsgpack calls this for types that it does not support."""
    if type(value) is EncodedValue:
        return ormsgpack.Fragment(value.data)
    codec = CODEC_OF[type(value)]
    parts = codec.to_parts(value)
    if codec is SET or codec is FROZENSET:
        parts = _in_order(parts)
    return _extension(codec, parts)


def _extension(codec: TypeCodec, parts: Any) -> ormsgpack.Ext:
    if codec.number is None:
        raise TypeError(f"msgpack has {codec.name} itself")
    return ormsgpack.Ext(codec.number, pack(parts))


pack: Callable[[Any], bytes] = partial(ormsgpack.packb, default=_extend, option=_OPTIONS)


def _in_order(items: Iterable[Any]) -> list[Any]:
    return [ormsgpack.Fragment(item) for item in sorted(map(pack, items))]


class _MsgpackEncoder(ValueEncoder):
    """Prepare values for ormsgpack."""

    def settled(self, value: Any, depth: int) -> Any:
        """Return a value with the bytes of its parts that are not settled; see `settled_form`."""
        kind = type(value)
        if kind in SETTLED or is_settled(value):
            return value
        if kind is UnsettledList:
            self.count(value)
            return [self.settled(item, depth + 1) for item in value]
        if kind is UnsettledDict and KEYS.issuperset(map(type, value)):
            self.count(value)
            return {key: self.settled(item, depth + 1) for key, item in value.items()}
        return EncodedValue(pack(self.prepared(value, depth)))

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


def _heads() -> Iterator[tuple[int, int, int]]:
    """Yield for each first byte of a value: the bytes that follow, those that say how many more do, and whether these
    are an extension type."""
    lengths = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
    fixed = {0xCA: 4, 0xCB: 8, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4} | {0xCC + n: 1 << n % 4 for n in range(8)}
    for first in range(256):
        if 0xD4 <= first <= 0xD8:
            yield 1 << first - 0xD4, 0, 1
        else:
            size = first & 31 if 0xA0 <= first < 0xC0 else fixed.get(first, 0)
            yield size, lengths.get(first, 0), int(0xC7 <= first <= 0xC9)


_HEADS = tuple(_heads())


def count_values(payload: bytes, most: int) -> int:
    """Return how many values bytes hold, also in extension types, without decoding them; stop above `most`."""
    found, spans = 0, [(0, len(payload))]
    while spans:
        at, end = spans.pop()
        while at < end and found <= most:
            size, digits, is_extension = _HEADS[payload[at]]
            at += 1 + digits
            if digits:
                size = int.from_bytes(payload[at - digits : at])
            if is_extension:
                spans.append((at + 1, min(at + 1 + size, end)))
            at += size + is_extension
            found += 1
    return found


@attrs.frozen
class _Tagged:
    """A value whose parts are still bytes.

    They are decoded after ormsgpack has returned. Decoding in its hook would nest its recursion, a thousand levels for
    each of ours, until the stack overflows and the process dies.
    """

    codec: TypeCodec
    packed: bytes


@attrs.frozen
class _Failed:
    """An error raised in the hook of ormsgpack, which would discard it."""

    error: BaseException


_UNFINISHED = frozenset({_Tagged, _Failed})


def decode(payload: bytes) -> Any:
    """Return the value of bytes, with ordinary containers.

    Raises:
        UnavailableValueError: The value cannot be constructed in this process.
        DecodeError: The bytes are not valid.
    """
    is_finished = True

    def restore(number: int, packed: bytes) -> Any:
        nonlocal is_finished
        value = _restore(number, packed)
        if type(value) in _UNFINISHED:
            is_finished = False
        return value

    try:
        value = ormsgpack.unpackb(payload, ext_hook=restore)
        return value if is_finished else _finish(value, 0)
    except (DecodeError, MemoryError):
        raise
    except Exception as error:  # damaged bytes may raise anything
        raise DecodeError(f"its bytes cannot be decoded: {error}") from error


DEEPEST = 3 * MAX_DEPTH + 10
"""The most levels of a value in any format: one level of a State becomes up to three, a tag, its parts, and a pair of
them."""


def _restore(number: int, packed: bytes) -> Any:
    """Return the value of an extension type, or a placeholder for `_finish`. ormsgpack calls this."""
    try:
        codec = find_codec(number)
        if codec.is_deep:
            return _Tagged(codec, packed)
        return codec.from_parts(ormsgpack.unpackb(packed))
    except UnusableValueError:
        return _Tagged(codec, packed)
    except BaseException as error:  # noqa: BLE001 - raised after ormsgpack has returned
        return _Failed(error)


def _finish(value: Any, depth: int) -> Any:
    """Return the value with its tagged parts decoded. `map` takes one Python frame per level, not two."""
    if depth > DEEPEST:
        raise DecodeError(f"its bytes are nested deeper than {MAX_DEPTH} levels")
    cls = type(value)
    if cls is list and not ATOMS.issuperset(map(type, value)):
        return [*map(_finish, value, repeat(depth + 1))]
    if cls is dict and not ATOMS.issuperset(map(type, value.values())):
        return dict(zip(value, map(_finish, value.values(), repeat(depth + 1)), strict=True))
    if cls is _Tagged:
        parts = _finish(ormsgpack.unpackb(value.packed, ext_hook=_restore), depth + 1)
        try:
            return value.codec.from_parts(parts)
        except UnusableValueError as error:
            return shown_as_opaque(value.codec, parts, error)
    if cls is _Failed:
        raise value.error
    return value
