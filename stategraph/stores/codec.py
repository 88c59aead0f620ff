"""Values to bytes and back, exactly: what is loaded has the values and the types of what was saved, or saving is refused.

The bytes are msgpack, with extension types for what msgpack does not have. Decoding builds values of the types listed here
and of registered classes, and nothing else; nothing is imported or called because the bytes name it.

Settled values (see `stategraph.frozen`) consist of known types only and are handed to ormsgpack as they are. For all others,
and for the few settled ones that ormsgpack does not take, `_prepare` walks through the value first, and knows where it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack

from stategraph.errors import NotSerializableError, shorten
from stategraph.frozen import (
    ATOMS,
    MAX_DEPTH,
    FrozenDict,
    FrozenList,
    FrozenSet,
    UnsettledDict,
    UnsettledList,
    UnsettledSet,
    are_settled,
)
from stategraph.stores.types import RegisteredType, can_be_registered, find_by_class, find_by_name

_OPTIONS = (
    ormsgpack.OPT_PASSTHROUGH_BIG_INT
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_TUPLE
    | ormsgpack.OPT_PASSTHROUGH_UUID
)


class DecodeError(ValueError):
    """Bytes that this codec did not write, or that it cannot turn back into values here."""


def encode(parts: Sequence[Any]) -> bytes:
    """-> the bytes of a list; equal values with their parts in the same order give equal bytes.

    Args:
        parts: Data of States as dicts from keys to values, and other values that belong to them.

    Raises:
        NotSerializableError: a part of it cannot be kept exactly; the error names its place.
    """
    if all(map(_is_settled_part, parts)):
        try:
            return _pack(parts)
        except (TypeError, ValueError):
            pass  # which part it was, and whether it can be kept in another way, is for _prepare to find out
    return _pack([_prepare(part, "", -1) for part in parts])


def encode_value(value: Any, path: str) -> bytes:
    """-> the bytes of a value that stands at a path in the State; otherwise as `encode`."""
    return _pack(_prepare(value, path, 0))


def encoded(data: bytes) -> Any:
    """-> a stand-in for a value whose bytes are known already, for `encode`."""
    return ormsgpack.Fragment(data)


def _is_settled_part(part: Any) -> bool:
    return type(part) is not dict or are_settled(part.values())


def decode(data: bytes) -> Any:
    """-> the value. Containers are ordinary ones; `freeze` them.

    Raises:
        DecodeError: these are not bytes of a value, or a class in them is not registered.
    """
    try:
        return _unpack(data, 0)
    except DecodeError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, NotImplementedError, RecursionError) as error:
        raise DecodeError(f"its bytes cannot be decoded: {error}") from error


def decode_parts(data: bytes, count: int) -> list[Any]:
    """-> the parts of a list of `count`; otherwise as `decode`."""
    parts = decode(data)
    if type(parts) is not list or len(parts) != count:
        raise DecodeError(f"its bytes are no list of {count}")
    return parts


def _pack(value: Any) -> bytes:
    return ormsgpack.packb(value, _extend, _OPTIONS)


def _unpack(data: bytes, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise DecodeError(f"its bytes are nested deeper than {MAX_DEPTH} levels")
    return ormsgpack.unpackb(data, ext_hook=lambda tag, body: _restore(tag, body, depth + 1))


# --------------------------------------------------------------------------- extension types

_BIG_INT, _SURROGATES, _TUPLE, _SET, _FROZENSET, _DICT = 1, 2, 3, 4, 5, 6
_DATE, _TIME, _DATETIME, _TIMEDELTA, _DECIMAL, _UUID, _PATH, _RANGE, _COMPLEX = 7, 8, 9, 10, 11, 12, 13, 14, 15
_ENUM, _OBJECT = 16, 17
_PATHS: tuple[type, ...] = (PosixPath, PurePosixPath, WindowsPath, PureWindowsPath)  # saved by place: only append


def _extend(value: Any) -> ormsgpack.Ext:
    """-> the extension of a value that ormsgpack does not know; it calls this."""
    tag, body = _ENCODERS[type(value)]
    return ormsgpack.Ext(tag, body(value))


def _encode_set(items: Any) -> bytes:
    return _pack(sorted(map(_pack, items)))  # in an order that does not depend on hashes


def _encode_date(value: date) -> bytes:
    return _pack([value.year, value.month, value.day])


def _encode_time(value: time) -> bytes:
    return _pack([*_clock_parts(value), _encode_zone(value.tzinfo)])


def _encode_datetime(value: datetime) -> bytes:
    return _pack([value.year, value.month, value.day, *_clock_parts(value), _encode_zone(value.tzinfo)])


def _clock_parts(value: time | datetime) -> list[int]:
    return [value.hour, value.minute, value.second, value.microsecond, value.fold]


def _encode_zone(zone: tzinfo | None) -> Any:
    """-> None, the key of a ZoneInfo, or what makes a fixed offset: microseconds and the name, if it has one."""
    if zone is None:
        return None
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return [offset // timedelta(microseconds=1), *name]
    raise TypeError(f"time zones of {type(zone).__qualname__} are not kept; use zoneinfo.ZoneInfo or datetime.timezone")


_ENCODERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    int: (_BIG_INT, lambda value: value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)),
    tuple: (_TUPLE, lambda value: _pack(list(value))),
    FrozenSet: (_SET, _encode_set),
    frozenset: (_FROZENSET, _encode_set),
    date: (_DATE, _encode_date),
    time: (_TIME, _encode_time),
    datetime: (_DATETIME, _encode_datetime),
    timedelta: (_TIMEDELTA, lambda value: _pack([value.days, value.seconds, value.microseconds])),
    Decimal: (_DECIMAL, lambda value: str(value).encode()),
    UUID: (_UUID, lambda value: value.bytes),
    range: (_RANGE, lambda value: _pack([value.start, value.stop, value.step])),
    complex: (_COMPLEX, lambda value: _pack([value.real, value.imag])),
    **{cls: (_PATH, lambda value: _pack([_PATHS.index(type(value)), str(value)])) for cls in _PATHS},
}


# --------------------------------------------------------------------------- walking through a value

_Prepare: TypeAlias = Callable[[Any, str, int], Any]


def _prepare(value: Any, path: str, depth: int) -> Any:
    """-> the value as `_pack` takes it, each part looked at.

    Raises:
        NotSerializableError: with the path to the part that cannot be kept.
    """
    if depth > MAX_DEPTH:
        raise NotSerializableError(path, f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
    kind = type(value)
    prepare = _PREPARERS.get(kind)
    if prepare is not None:
        return prepare(value, path, depth + 1)
    registered = find_by_class(kind)
    if registered is not None:
        return _prepare_registered(registered, value, path, depth + 1)
    if kind not in ATOMS:
        raise NotSerializableError(path, _why_not(value))
    return value


def _prepare_list(value: Any, path: str, depth: int) -> list[Any]:
    return [_prepare(item, f"{path}[{place}]", depth) for place, item in enumerate(value)]


def _prepare_tuple(value: Any, path: str, depth: int) -> ormsgpack.Ext:
    return ormsgpack.Ext(_TUPLE, _pack(_prepare_list(value, path, depth)))


def _prepare_dict(value: Any, path: str, depth: int) -> Any:
    pairs = [(key, _prepare(item, _path_to(path, key), depth)) for key, item in value.items()]
    if all(type(key) is str and _is_utf8(key) for key in value):
        return dict(pairs)
    keys = [_prepare(key, f"{path} (key {shorten(key, 40)})", depth) for key in value]
    return ormsgpack.Ext(_DICT, _pack([part for key, (_, item) in zip(keys, pairs, strict=True) for part in (key, item)]))


def _prepare_set(tag: int) -> _Prepare:
    def prepare(value: Any, path: str, depth: int) -> ormsgpack.Ext:
        return ormsgpack.Ext(tag, _encode_set([_prepare(item, f"{path}{{...}}", depth) for item in value]))

    return prepare


def _prepare_str(value: str, path: str, depth: int) -> Any:
    return value if _is_utf8(value) else ormsgpack.Ext(_SURROGATES, value.encode("utf-8", "surrogatepass"))


def _prepare_clock(value: time | datetime, path: str, depth: int) -> time | datetime:
    try:
        _encode_zone(value.tzinfo)
    except TypeError as error:
        raise NotSerializableError(path, str(error)) from None
    return value


def _prepare_nothing(value: Any, path: str, depth: int) -> Any:
    return value


_PREPARERS: dict[type, _Prepare] = {
    ormsgpack.Fragment: _prepare_nothing,
    str: _prepare_str,
    time: _prepare_clock,
    datetime: _prepare_clock,
    tuple: _prepare_tuple,
    frozenset: _prepare_set(_FROZENSET),
    **dict.fromkeys((list, FrozenList, UnsettledList), _prepare_list),
    **dict.fromkeys((dict, FrozenDict, UnsettledDict), _prepare_dict),
    **dict.fromkeys((set, FrozenSet, UnsettledSet), _prepare_set(_SET)),
}


def _prepare_registered(registered: RegisteredType, value: Any, path: str, depth: int) -> ormsgpack.Ext:
    if registered.is_enum:
        return ormsgpack.Ext(_ENUM, _pack([registered.name, *_enum_parts(value)]))
    try:
        values = registered.values_of(value)
    except ValueError as error:
        raise NotSerializableError(path, str(error)) from None
    return ormsgpack.Ext(_OBJECT, _pack([registered.name, _prepare_dict(values, path, depth)]))


def _enum_parts(member: Enum) -> tuple[str | None, Any]:
    """-> the name of a member; for a combination of flags, which has none, its value."""
    if type(member).__members__.get(member.name or "") is member:
        return member.name, None
    return None, member.value


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


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


# --------------------------------------------------------------------------- decoding


def _restore(tag: int, body: bytes, depth: int) -> Any:
    try:
        decoder = _DECODERS[tag]
    except KeyError:
        raise DecodeError(f"its bytes hold an unknown type {tag}") from None
    return decoder(body, depth)


def _parts(count: int, body: bytes, depth: int) -> list[Any]:
    parts = _unpack(body, depth)
    if type(parts) is not list or len(parts) != count:
        raise DecodeError(f"its bytes hold a list of {count} that is none")
    return parts


def _all_parts(body: bytes, depth: int) -> list[Any]:
    parts = _unpack(body, depth)
    if type(parts) is not list:
        raise DecodeError("its bytes hold a list that is none")
    return parts


def _decode_set(body: bytes, depth: int) -> set[Any]:
    return {_unpack(item, depth) for item in _all_parts(body, depth)}


def _decode_dict(body: bytes, depth: int) -> dict[Any, Any]:
    parts = iter(_all_parts(body, depth))
    return dict(zip(parts, parts, strict=True))


def _decode_zone(zone: Any) -> tzinfo | None:
    match zone:
        case None:
            return None
        case [int(microseconds), *name]:
            return timezone(timedelta(microseconds=microseconds), *name)
        case str(key) if _ZONE_KEY.fullmatch(key):  # a key is a path below the zone database
            return ZoneInfo(key)
    raise DecodeError(f"its bytes hold an unknown time zone {shorten(zone)}")


_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")


def _decode_time(body: bytes, depth: int) -> time:
    *parts, fold, zone = _parts(6, body, depth)
    hour, minute, second, microsecond = parts
    return time(hour, minute, second, microsecond, _decode_zone(zone), fold=fold)


def _decode_datetime(body: bytes, depth: int) -> datetime:
    *parts, fold, zone = _parts(9, body, depth)
    year, month, day, hour, minute, second, microsecond = parts
    return datetime(year, month, day, hour, minute, second, microsecond, _decode_zone(zone), fold=fold)


def _decode_path(body: bytes, depth: int) -> Any:
    kind, text = _parts(2, body, depth)
    return _PATHS[kind](text)


def _decode_enum(body: bytes, depth: int) -> Enum:
    name, member, value = _parts(3, body, depth)
    registered = find_by_name(name)
    if not registered.is_enum:
        raise DecodeError(f"{name} was saved as an enum and is none now")
    if member is None and issubclass(registered.cls, Flag):
        return registered.cls(value)
    return registered.cls.__members__[member]  # type: ignore[attr-defined, no-any-return]


def _decode_object(body: bytes, depth: int) -> object:
    name, values = _parts(2, body, depth)
    registered = find_by_name(name)
    if registered.is_enum or type(values) is not dict:
        raise DecodeError(f"{name} was saved as an object with fields and is none now")
    return registered.restore(values)


_DECODERS: dict[int, Callable[[bytes, int], Any]] = {
    _BIG_INT: lambda body, depth: int.from_bytes(body, "big", signed=True),
    _SURROGATES: lambda body, depth: body.decode("utf-8", "surrogatepass"),
    _TUPLE: lambda body, depth: tuple(_all_parts(body, depth)),
    _SET: _decode_set,
    _FROZENSET: lambda body, depth: frozenset(_decode_set(body, depth)),
    _DICT: _decode_dict,
    _DATE: lambda body, depth: date(*_parts(3, body, depth)),
    _TIME: _decode_time,
    _DATETIME: _decode_datetime,
    _TIMEDELTA: lambda body, depth: timedelta(*_parts(3, body, depth)),
    _DECIMAL: lambda body, depth: Decimal(body.decode("ascii")),
    _UUID: lambda body, depth: UUID(bytes=body),
    _PATH: _decode_path,
    _RANGE: lambda body, depth: range(*_parts(3, body, depth)),
    _COMPLEX: lambda body, depth: complex(*_parts(2, body, depth)),
    _ENUM: _decode_enum,
    _OBJECT: _decode_object,
}
