"""Serializers: formats of the payload of a row. "msgpack" and "json" are built in.

All but msgpack write the plain form of values: the types that every text format has, and tagged dicts for all others.
It consists of None, True, False, 64-bit ints, finite floats, str without lone surrogates, lists, and dicts with such
str as keys. Everything else is ``{"$type": name, "value": parts}``. A key of a user that begins with ``$`` is escaped
by another ``$``, so that none of their dicts is taken for a tag.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from itertools import repeat
from typing import Any, NoReturn

from stategraph._text.shown import Hidden, shorten
from stategraph._util.callables import answered
from stategraph._values.frozen import MAX_DEPTH
from stategraph._values.registry import Registry
from stategraph.errors import ConfigError
from stategraph.stores._codec import msgpack
from stategraph.stores._codec.type_codecs import (
    DecodeError,
    TypeCodec,
    UnusableValueError,
    find_codec,
    shown_as_opaque,
    unknown_shown,
)
from stategraph.stores._codec.value_encoder import EncodedValue, ValueEncoder

_TYPE, _VALUE, _MARK = "$type", "value", "$"
_ATOMS = frozenset({type(None), bool, int, float, str})


class _PlainEncoder(ValueEncoder):
    """Converts values to the plain form."""

    def tagged(self, codec: TypeCodec, parts: Any) -> Any:
        return {_TYPE: codec.name, _VALUE: parts}

    def in_order(self, items: list[Any]) -> list[Any]:
        return sorted(items, key=repr)

    def mapping(self, items: dict[str, Any]) -> Any:
        return {_MARK + key if key.startswith(_MARK) else key: item for key, item in items.items()}

    def encoded(self, value: EncodedValue) -> Any:
        with unknown_shown():  # a State that was loaded for inspection is written as it was
            return self.prepared(msgpack.decode(value.data), 0)


def plain(value: Any) -> Any:
    """Return the plain form of a value, as the serializer "json" writes it.

    Raises:
        NotSerializableError: a part of it cannot be kept exactly; the error has the path to it.
    """
    return _PlainEncoder().prepare(value, "", -1)


def _from_plain(plain: Any, depth: int = 0) -> Any:
    """Return the value that has this plain form.

    Raises:
        DecodeError: it is not in plain form.
        Exception: the parts of a tagged value are not those of its type.
    """
    if depth > msgpack.DEEPEST:
        raise DecodeError(f"it is nested deeper than {MAX_DEPTH} levels")
    cls = type(plain)
    if cls in _ATOMS:
        return plain
    if cls is list:
        return plain if _ATOMS.issuperset(map(type, plain)) else [*map(_from_plain, plain, repeat(depth + 1))]
    if cls is not dict:
        raise DecodeError(f"it holds a {cls.__name__}, which is not plain")
    if _TYPE in plain:
        return _untagged(plain, depth)
    return dict(zip(map(_key, plain), map(_from_plain, plain.values(), repeat(depth + 1)), strict=True))


def _untagged(plain: dict[str, Any], depth: int) -> Any:
    if plain.keys() != {_TYPE, _VALUE}:
        raise DecodeError(f"it holds {shorten(plain)}, which is no tag")
    name = plain[_TYPE]
    if type(name) is not str:  # a number is a tag in msgpack only
        raise DecodeError(f"it holds an unknown type {shorten(name)}")
    codec, parts = find_codec(name), _from_plain(plain[_VALUE], depth + 1)
    try:
        return codec.from_parts(parts)
    except UnusableValueError as error:
        return shown_as_opaque(codec, parts, error)


def _key(key: Any) -> str:
    if type(key) is not str:
        raise DecodeError(f"it holds a dict with the key {shorten(key)}, which is not plain")
    if not key.startswith(_MARK):
        return key
    if not key.startswith(_MARK * 2):
        raise DecodeError(f"it holds a dict with the key {shorten(key)}, which is no tag")
    return key[1:]


def json_of(value: Any) -> str:
    """Return a value as JSON, as the serializer "json" writes it. Raises NotSerializableError as `plain` does."""
    return _text_of(plain(value))


def _text_of(form: Any) -> str:
    return json.dumps(form, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def from_plain(form: Any) -> Any:
    """Return the value that has this plain form. Its containers are ordinary ones.

    Raises:
        DecodeError: it is not in plain form.
    """
    try:
        return _from_plain(form)
    except (DecodeError, MemoryError):
        raise
    except Exception as error:  # decoding garbage may raise anything
        raise DecodeError(f"it is not in plain form: {error}") from error


# --------------------------------------------------------------------------- formats


class PayloadFormat(ABC):
    """Converts values to bytes and back, exactly."""

    @abstractmethod
    def encode(self, parts: list[Any]) -> bytes:
        """Return the bytes of a list of values; equal ones in the same order have equal bytes.

        Raises:
            NotSerializableError: a value cannot be kept exactly; the error has the path to it.
        """

    @abstractmethod
    def decode(self, payload: bytes) -> Any:
        """Return the values of bytes that `encode` made.

        Raises:
            DecodeError: it did not make these.
        """

    def count(self, payload: bytes, most: int) -> int:
        """Return about how many values bytes hold, without decoding them; 0 if that is unknown. It may stop at
        `most`."""
        return 0


class Serializer(PayloadFormat):
    """Base class of serializers. A subclass has two methods; all share which types are kept, and how.

    They convert values of the plain form to bytes and back: None, True and False, 64-bit ints, finite floats, str,
    lists, and dicts with str as keys. `register_serializer` makes one known by name.

    A serializer gets the data of States and of finished parts. A serializer that encrypts them does not protect other
    columns, which make it possible to list runs without loading them: run ids, labels, authors, names of graphs, nodes
    and branches, times, owners, the types and messages of errors, and the values that a pause shows. Without
    ``sign_with``, others can put one ciphertext in the place of another. The cache of a node does not use it.
    """

    @abstractmethod
    def dumps(self, plain: Any) -> bytes:
        """Return the bytes of a plain value. They may differ each time, as those of a cipher with a random nonce."""

    @abstractmethod
    def loads(self, payload: bytes) -> Any:
        """Return the plain value of bytes, with the same types in the same order. It may raise any Exception."""

    def encode(self, parts: list[Any]) -> bytes:
        return self.dumps([*map(plain, parts)])

    def decode(self, payload: bytes) -> Any:
        try:
            return from_plain(self.loads(payload))
        except (DecodeError, MemoryError):
            raise
        except Exception as error:  # decoding garbage may raise anything
            raise DecodeError(f"its bytes cannot be decoded: {error}") from error


class _Msgpack(PayloadFormat):
    """The fastest: msgpack has most types itself, and takes settled values as they are."""

    encode, decode = staticmethod(msgpack.encode), staticmethod(msgpack.decode)
    count = staticmethod(msgpack.count_values)


class _Json(Serializer):
    """Readable with other tools: RFC 8259, in UTF-8."""

    def dumps(self, plain: Any) -> bytes:
        return _text_of(plain).encode()

    def loads(self, payload: bytes) -> Any:
        return json.loads(payload.decode(), parse_constant=_refuse_constant)

    def count(self, payload: bytes, most: int) -> int:
        marks = _STRING.sub(b"", payload)
        return sum(map(marks.count, (b",", b"[", b"{")))


def _refuse_constant(name: str) -> NoReturn:
    raise DecodeError(f"it holds {name}, which is not JSON")


BUILT_IN = ("msgpack", "json")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,49}")
_PROBE: list[Any] = [
    *(None, True, False, 0, -(1 << 63), (1 << 64) - 1, 1.0, -0.0, 5e-324, 1e300, "", "a\0\r\n\u2028\U0001f600"),
    {"z": [], "a": {"": [1, 1.0, True]}, "$type": {}},
]

_formats: Registry[PayloadFormat] = Registry(
    "serializer", "stategraph.serializers", is_instance=lambda entry: isinstance(entry, PayloadFormat)
)
_formats.register("msgpack", _Msgpack())
_formats.register("json", _Json())


def register_serializer(name: str, serializer: Serializer) -> None:
    """Register a serializer by name, for ``CheckpointConfig(serializer=name)``.

    Its rows can be loaded wherever it is registered under this name. An installed package can instead name its
    serializers in the entry-point group ``stategraph.serializers``.

    Raises:
        ConfigError: the name is not allowed or built in; or this is no Serializer, or one that changes values.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in BUILT_IN:
        raise ConfigError(
            "name of the serializer", name, "a-z, then up to 49 of a-z 0-9 _ . -, and not msgpack or json"
        )
    if not isinstance(serializer, Serializer):
        raise ConfigError(
            f"serializer {name!r}", Hidden.of(serializer), "an instance of a class that derives from Serializer"
        )
    _check(name, serializer)
    _formats.register(name, serializer)


def find_format(name: str) -> PayloadFormat:
    """Return the built-in, registered or installed serializer with a name that the user has chosen.

    Raises:
        UnknownNameError: there is none.
    """
    return _formats.get(name, {})


def registered_format(name: str) -> PayloadFormat:
    """Return the serializer with a name that is read from a store.

    Installed packages are not searched: stored bytes must not cause an import. The serializer of an open store is
    registered, because `find_format` found it.

    Raises:
        UnknownNameError: it is neither built in nor registered.
    """
    return _formats.registered(name)


def _check(name: str, serializer: Serializer) -> None:
    try:
        payload = answered(serializer.dumps(_PROBE), "dumps")
        again = answered(serializer.loads(payload), "loads")
    except Exception as error:
        raise ConfigError(
            f"serializer {name!r}", Hidden.of(serializer), f"it raised {error!r} for a plain value"
        ) from error
    if type(payload) is not bytes or repr(again) != repr(_PROBE):
        raise ConfigError(
            f"serializer {name!r}",
            Hidden.of(serializer),
            f"bytes that it can read back; {_PROBE} came back changed",
        )
