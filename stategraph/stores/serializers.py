"""Serializers: what turns the body of a row into bytes and back. "msgpack" and "json" are built in."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any, NoReturn

from stategraph._text.secrets import Hidden
from stategraph._util.callables import answered
from stategraph._util.registry import Registry
from stategraph.errors import ConfigError
from stategraph.stores._codec import values as codec
from stategraph.stores._codec.nesting import check_json
from stategraph.stores._codec.tagged_json import DEEPEST, from_plain, to_plain
from stategraph.stores._codec.type_codecs import DecodeError


class BodyFormat(ABC):
    """Turns values into bytes and back, exactly."""

    @abstractmethod
    def encode(self, parts: list[Any]) -> bytes:
        """-> the bytes of a list of values; of the same values the same bytes.

        Raises:
            NotSerializableError: a value cannot be kept exactly; the error names its place.
        """

    @abstractmethod
    def decode(self, body: bytes) -> Any:
        """-> the values.

        Raises:
            DecodeError: these are not bytes that `encode` made.
        """


class Serializer(BodyFormat):
    """Base of serializers. Two methods make one; which types are kept, and how, is the same for all of them.

    They turn values of the plain form into bytes and back: None, True and False, ints of 64 bits, finite floats, text,
    lists, and dicts with text as keys. `register_serializer` makes one known.

    A serializer sees the data of States and of finished parts. One that encrypts them leaves in clear what a store
    keeps beside them, so that runs can be listed without loading them: run ids, names of graphs, nodes and branches,
    times, the types and texts of errors, and what a pause shows to whoever answers. Results in the cache of a node are
    written without it.
    """

    @abstractmethod
    def dumps(self, plain: Any) -> bytes:
        """-> the bytes of a plain value; other ones each time will do, as of a cipher with a random nonce."""

    @abstractmethod
    def loads(self, body: bytes) -> Any:
        """-> the plain value again, with the same types and in the same order. It may raise anything."""

    def encode(self, parts: list[Any]) -> bytes:
        return self.dumps(to_plain(parts))

    def decode(self, body: bytes) -> Any:
        try:
            return from_plain(self.loads(body))
        except (DecodeError, MemoryError):
            raise
        except Exception as error:  # whatever comes of making values of garbage
            raise DecodeError(f"its bytes cannot be decoded: {error}") from error


class _Msgpack(BodyFormat):
    """The fastest: msgpack has most types itself, and its values are not walked through."""

    encode = staticmethod(codec.encode)

    def decode(self, body: bytes) -> Any:
        return codec.decode(body)


class _Json(Serializer):
    """For reading with other tools: RFC 8259, in UTF-8."""

    def dumps(self, plain: Any) -> bytes:
        return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def loads(self, body: bytes) -> Any:
        check_json(body, DEEPEST)
        return json.loads(body.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise DecodeError(f"it holds {name}, which is not JSON")


BUILT_IN = ("msgpack", "json")
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,49}")
_PROBE: list[Any] = [
    *(None, True, False, 0, -(1 << 63), (1 << 64) - 1, 1.0, -0.0, 5e-324, 1e300, "", "a\0\r\n\u2028\U0001f600"),
    {"z": [], "a": {"": [1, 1.0, True]}, "$type": {}},
]

_formats: Registry[BodyFormat] = Registry(
    "serializer", "stategraph.serializers", is_instance=lambda entry: isinstance(entry, BodyFormat)
)
_formats.register("msgpack", _Msgpack())
_formats.register("json", _Json())


def register_serializer(name: str, serializer: Serializer) -> None:
    """Make a serializer known by name, for ``CheckpointConfig(serializer=name)``. What it wrote can be loaded
    wherever it is registered under this name. An installed package can instead name its serializers in the
    entry-point group ``stategraph.serializers``.

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


def find_format(name: str) -> BodyFormat:
    """-> the built-in, registered or installed serializer of this name, which the caller has chosen.

    Raises:
        UnknownNameError: there is none.
    """
    return _formats.get(name, {})


def registered_format(name: str) -> BodyFormat:
    """Return the serializer of a name that stands in what a store holds.

    No installed package is looked into: what is stored must never make one be imported. One that was asked for by its
    name before, as the serializer of any store, is known.

    Raises:
        UnknownNameError: it is neither built in nor registered.
    """
    return _formats.registered(name)


def _check(name: str, serializer: Serializer) -> None:
    try:
        body = answered(serializer.dumps(_PROBE), "dumps")
        again = answered(serializer.loads(body), "loads")
    except Exception as error:
        raise ConfigError(
            f"serializer {name!r}", Hidden.of(serializer), f"it raised {error!r} for a plain value"
        ) from error
    if type(body) is not bytes or repr(again) != repr(_PROBE):
        raise ConfigError(
            f"serializer {name!r}",
            Hidden.of(serializer),
            f"bytes, and of these the same again; {_PROBE} came back changed",
        )
