"""Serializers: formats of the payload of a row. "msgpack" and "json" are built in."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from typing import Any, NoReturn

from stategraph._text.shown import Hidden
from stategraph._util.callables import answered
from stategraph._util.registry import Registry
from stategraph.errors import ConfigError
from stategraph.stores._codec import msgpack
from stategraph.stores._codec.nesting import check_json
from stategraph.stores._codec.tagged_json import DEEPEST, from_plain, to_plain
from stategraph.stores._codec.type_codecs import DecodeError


class PayloadFormat(ABC):
    """Turns values into bytes and back, exactly."""

    @abstractmethod
    def encode(self, parts: list[Any]) -> bytes:
        """Return the bytes of a list of values; equal ones in the same order have equal bytes.

        Raises:
            NotSerializableError: A value cannot be kept exactly; the error has the path to it.
        """

    @abstractmethod
    def decode(self, payload: bytes) -> Any:
        """Return the values of bytes that `encode` made.

        Raises:
            DecodeError: It did not make these.
        """


class Serializer(PayloadFormat):
    """Base class of serializers. A subclass has two methods; all share which types are kept, and how.

    They turn values of the plain form into bytes and back: None, True and False, 64-bit ints, finite floats, str,
    lists, and dicts with str as keys. `register_serializer` makes one known by name.

    A serializer is given the data of States and of finished parts. One that encrypts them leaves in clear what a store
    keeps in other columns, so that runs can be listed without loading them: run ids, names of graphs, nodes and
    branches, times, the types and messages of errors, and what a pause shows to whom it asks. Results in the cache of a
    node are written without it.
    """

    @abstractmethod
    def dumps(self, plain: Any) -> bytes:
        """Return the bytes of a plain value. They may differ each time, as those of a cipher with a random nonce."""

    @abstractmethod
    def loads(self, payload: bytes) -> Any:
        """Return the plain value of bytes, with the same types in the same order. It may raise any Exception."""

    def encode(self, parts: list[Any]) -> bytes:
        return self.dumps(to_plain(parts))

    def decode(self, payload: bytes) -> Any:
        try:
            return from_plain(self.loads(payload))
        except (DecodeError, MemoryError):
            raise
        except Exception as error:  # any may be raised while values are made of garbage
            raise DecodeError(f"its bytes cannot be decoded: {error}") from error


class _Msgpack(PayloadFormat):
    """The fastest: msgpack has most types itself, and takes settled values as they are."""

    encode = staticmethod(msgpack.encode)

    def decode(self, payload: bytes) -> Any:
        return msgpack.decode(payload)


class _Json(Serializer):
    """Readable with other tools: RFC 8259, in UTF-8."""

    def dumps(self, plain: Any) -> bytes:
        return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()

    def loads(self, payload: bytes) -> Any:
        check_json(payload, DEEPEST)
        return json.loads(payload.decode(), parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> NoReturn:
    raise DecodeError(f"it holds {name}, which is not JSON")


BUILT_IN = ("msgpack", "json")
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
    """Make a serializer known by name, for ``CheckpointConfig(serializer=name)``.

    What it wrote can be loaded wherever it is registered under this name. An installed package can instead name its
    serializers in the entry-point group ``stategraph.serializers``.

    Raises:
        ConfigError: The name is not allowed or built in; or this is no Serializer, or one that changes values.
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
        UnknownNameError: There is none.
    """
    return _formats.get(name, {})


def registered_format(name: str) -> PayloadFormat:
    """Return the serializer with a name that is read from a store.

    Installed packages are not searched: stored bytes must never have one imported. A serializer that a store was opened
    with is known, as `find_format` has found it.

    Raises:
        UnknownNameError: It is neither built in nor registered.
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
            f"bytes, and of these the same again; {_PROBE} came back changed",
        )
