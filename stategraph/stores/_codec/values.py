"""Values to msgpack and back, exactly: what is loaded has the values and types of what was saved, or saving is refused.

What msgpack does not have becomes an extension type, as `stategraph.stores._codec.type_codecs` says. Settled values
(see `stategraph._values.frozen`) consist of known types only and are handed to ormsgpack as they are. For all others,
and for the few settled ones that ormsgpack does not take, a walk goes through the value first, and knows where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import attrs
import ormsgpack

from stategraph._util.atoms import ATOMS
from stategraph._values.frozen import MAX_DEPTH, SETTLED, is_settled
from stategraph.stores._codec.nesting import FEW, check_msgpack
from stategraph.stores._codec.sharing import is_writable
from stategraph.stores._codec.type_codecs import BY_TYPE, FROZENSET, SET, DecodeError, TypeCodec, kind_numbered
from stategraph.stores._codec.walk import Encoded, Walk

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


def encode(parts: Sequence[Any]) -> bytes:
    """-> the bytes of a list; equal values with their parts in the same order give equal bytes.

    Args:
        parts: Data of States as dicts from keys to values, and other values that belong to them.

    Raises:
        NotSerializableError: a part of it cannot be kept exactly; the error names its place.
    """
    containers = _containers_in(parts)
    if containers is not None and (not containers or is_writable(containers)):
        try:
            return _pack(parts)
        except (TypeError, ValueError):
            pass  # which part it was, and whether it can be kept in another way, is for the walk to find out
    walk = _MsgpackWalk()
    return _pack([walk.prepare(part, "", -1) for part in parts])


def encode_value(value: Any, path: str) -> bytes:
    """-> the bytes of a value that stands at a path in the State; otherwise as `encode`."""
    return _pack(_MsgpackWalk().prepare(value, path, 0))


def _containers_in(parts: Sequence[Any]) -> list[Any] | None:
    """-> the containers that are values of dicts among the parts; None if one of the values is not settled."""
    containers: list[Any] = []
    for part in parts:
        if part and type(part) is dict:
            for value in part.values():
                if type(value) not in ATOMS:
                    if type(value) not in SETTLED and not is_settled(value):
                        return None
                    containers.append(value)
    return containers


def _pack(value: Any) -> bytes:
    return ormsgpack.packb(value, _extend, _OPTIONS)


def _extend(value: Any) -> ormsgpack.Ext:
    """-> the extension of a settled value that ormsgpack does not know; it calls this."""
    kind = BY_TYPE[type(value)]
    parts = kind.to_parts(value)
    if kind is SET or kind is FROZENSET:
        parts = _in_order(parts)
    return _extension(kind, parts)


def _extension(kind: TypeCodec, parts: Any) -> ormsgpack.Ext:
    if kind.number is None:
        raise TypeError(f"msgpack has {kind.name} itself")
    return ormsgpack.Ext(kind.number, _pack(parts))


def _in_order(items: Iterable[Any]) -> list[Any]:
    return [ormsgpack.Fragment(item) for item in sorted(map(_pack, items))]


class _MsgpackWalk(Walk):
    """Makes what ormsgpack takes."""

    def tagged(self, kind: TypeCodec, parts: Any) -> Any:
        return _extension(kind, parts)

    def in_order(self, items: list[Any]) -> list[Any]:
        return _in_order(items)

    def mapping(self, items: dict[str, Any]) -> Any:
        return items

    def encoded(self, value: Encoded) -> Any:
        return ormsgpack.Fragment(value.data)

    def is_native(self, kind: TypeCodec, value: Any) -> bool:
        return kind.number is None or kind.is_plain(value)


# --------------------------------------------------------------------------- decoding


@attrs.frozen
class _Tagged:
    """A value whose parts are still bytes.

    They are decoded once ormsgpack has returned: decoded within its hook they would pile its recursion upon itself,
    a thousand levels for every level of ours, until the stack is full and the process dies.
    """

    kind: TypeCodec
    body: bytes


@attrs.frozen
class _Failed:
    """What was raised in the hook of ormsgpack, which would forget it."""

    error: BaseException


_UNFINISHED = frozenset({_Tagged, _Failed})


def decode(data: bytes) -> Any:
    """-> the value. Containers are ordinary ones; `freeze` them.

    Raises:
        DecodeError: these are not bytes of a value; NotHereError: they are, but it cannot be made here.
    """
    try:
        return _decoded(data)
    except (DecodeError, MemoryError):
        raise
    except Exception as error:  # whatever comes of making values of garbage
        raise DecodeError(f"its bytes cannot be decoded: {error}") from error


_NEST = MAX_DEPTH + 10
"""Levels of lists and maps in bytes that are unpacked at once: those of a value, and of what is written around it."""

_DEEPEST = 3 * MAX_DEPTH + 10
"""Levels in all: a level of a State is up to three of these, a tagged value, its parts, and a pair of them."""

_SHALLOW, _TINY = 3, 32  # levels of parts that are not deep; as many as there is room for in a hook of ormsgpack


def _decoded(data: bytes) -> Any:
    is_finished = True

    def restore(number: int, body: bytes) -> Any:
        nonlocal is_finished
        value = _restore(number, body)
        if type(value) in _UNFINISHED:
            is_finished = False
        return value

    if len(data) > FEW:
        check_msgpack(data, _NEST)
    value = ormsgpack.unpackb(data, ext_hook=restore)
    return value if is_finished else _revived(value, 0)


def _restore(number: int, body: bytes) -> Any:
    """-> the value of an extension type; ormsgpack calls this."""
    try:
        kind = kind_numbered(number)
        if kind.is_deep:
            return _Tagged(kind, body)
        if len(body) > _TINY:
            check_msgpack(body, _SHALLOW, _TINY)
        return kind.from_parts(ormsgpack.unpackb(body))
    except BaseException as error:  # noqa: BLE001 - it is raised when ormsgpack has returned
        return _Failed(error)


def _revived(value: Any, depth: int) -> Any:
    """-> the value with all that is tagged in it made; `map` takes one frame of Python a level, not two."""
    if depth > _DEEPEST:
        raise DecodeError(f"its bytes are nested deeper than {MAX_DEPTH} levels")
    kind = type(value)
    if kind is list and not ATOMS.issuperset(map(type, value)):
        return [*map(_revived, value, repeat(depth + 1))]
    if kind is dict and not ATOMS.issuperset(map(type, value.values())):
        return dict(zip(value, map(_revived, value.values(), repeat(depth + 1)), strict=True))
    if kind is _Tagged:
        if len(value.body) > FEW:
            check_msgpack(value.body, _NEST)
        parts = _revived(ormsgpack.unpackb(value.body, ext_hook=_restore), depth + 1)
        return value.kind.from_parts(parts)
    if kind is _Failed:
        raise value.error
    return value
