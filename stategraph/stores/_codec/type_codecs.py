"""The types of values that are kept exactly, each one once: what stands for a value of it, and the value again.

Every format uses this table: msgpack with the numbers as extension types, JSON and the serializers of others with the
names as tags. Nothing is imported or called because stored bytes name it: only what stands here is made, and registered
classes.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from functools import lru_cache
from importlib.util import find_spec
from math import isfinite
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from pickle import PicklingError
from typing import Any
from uuid import UUID
from zoneinfo import TZPATH, ZoneInfo

import attrs

from stategraph._text.shown import shorten
from stategraph._values.frozen import FrozenDict, FrozenSet, UnsettledDict, UnsettledSet
from stategraph._values.registered_types import RegisteredType, find_by_name
from stategraph.stores._codec.collisions import TOO_ALIKE, are_too_alike


class DecodeError(ValueError):
    """Bytes that stategraph did not write, or that it cannot turn back into values here."""


class NotHereError(DecodeError):
    """Bytes of a value that cannot be made in this process, or on this system. They may be as they were written."""


NotRegisteredError = NotHereError


def _never(value: Any) -> bool:
    return False


@attrs.frozen
class TypeCodec:
    """A type that is kept.

    Attributes:
        name: Its tag where tags are text. It is saved, and so is the number: never give it to another type.
        number: Its tag in msgpack; None where msgpack has the type itself.
        types: The classes it keeps; none where they are registered ones.
        to_parts: -> what stands for a value: text, or a list. Raises TypeError for a value that is not kept.
        from_parts: -> the value again. Whatever it raises, the parts were none.
        is_deep: Whether parts may be of any kind themselves. If not, they are text without surrogates and 64-bit ints.
        is_plain: Whether a value needs no tag, because every format has it.
    """

    name: str
    number: int | None
    types: tuple[type, ...]
    to_parts: Callable[[Any], Any]
    from_parts: Callable[[Any], Any]
    is_deep: bool = False
    is_plain: Callable[[Any], bool] = _never


def is_utf8(text: str) -> bool:
    """Whether a text has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_64_bit(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 64


def _has_text_keys(value: dict[Any, Any]) -> bool:
    return all(type(key) is str and is_utf8(key) for key in value)


def checked_list(parts: Any, count: int | None = None) -> list[Any]:
    """-> the parts, if they are a list, and of so many; a range of any length takes no more bytes than a short one."""
    if type(parts) is not list or count not in (None, len(parts)):
        raise DecodeError(f"it holds {shorten(parts)} where a list {f'of {count} ' if count else ''}should be")
    return parts


# --------------------------------------------------------------------------- times


def _zone_parts(zone: tzinfo | None) -> Any:
    """-> None, the key of a ZoneInfo, or what makes a fixed offset: microseconds and the name, if it has one."""
    if zone is None:
        return None
    if type(zone) is ZoneInfo and _is_from_database(zone):
        return zone.key
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        if all(map(is_utf8, name)):
            return [offset // timedelta(microseconds=1), *name]
    raise TypeError(f"the time zone {shorten(zone)} is not kept; use zoneinfo.ZoneInfo(key) or datetime.timezone")


def _is_from_database(zone: ZoneInfo) -> bool:
    """Whether its key brings it back: it does not if the zone was made from a file."""
    try:
        zone.__reduce__()
    except PicklingError:
        return False
    return _is_known(zone.key)


@lru_cache(1000)
def _is_known(key: str) -> bool:
    """Whether the zone database has a zone of this name. ZoneInfo would look for others in packages of that name."""
    if not _ZONE_KEY.fullmatch(key):  # a key is a path below the zone database
        return False
    installed = find_spec("tzdata")
    packages = (installed.submodule_search_locations if installed else None) or ()
    folders = [*map(Path, TZPATH), *(Path(package, "zoneinfo") for package in packages)]
    return any((folder / key).is_file() for folder in folders)


_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]{1,50}(/[A-Za-z0-9_+-]{1,50}){0,3}")


def _zone_of(parts: Any) -> tzinfo | None:
    if parts is None:
        return None
    if type(parts) is not str:
        microseconds, *name = checked_list(parts)
        return timezone(timedelta(microseconds=microseconds), *name)
    if _is_known(parts):
        return ZoneInfo(parts)
    if not _ZONE_KEY.fullmatch(parts):
        raise DecodeError(f"it holds a time zone that there cannot be, {shorten(parts)}")
    way_out = "'pip install tzdata' brings the zones that a system lacks, and its newest version new ones"
    raise NotHereError(f"it holds a time in the zone {parts!r}, which is not known here; {way_out}")


def _clock_parts(value: time | datetime) -> Any:
    """-> the text of ISO 8601 or, where that does not say all, a list: without a zone, the zone, and the fold."""
    zone = _zone_parts(value.tzinfo)
    if not value.fold and (zone is None or (type(zone) is list and len(zone) == 1)):
        return value.isoformat()
    return [value.replace(tzinfo=None).isoformat(), zone, value.fold]


def _clock_of(cls: Any) -> Callable[[Any], Any]:
    def restore(parts: Any) -> Any:
        if type(parts) is str:
            return cls.fromisoformat(parts)
        text, zone, fold = checked_list(parts, 3)
        return cls.fromisoformat(text).replace(tzinfo=_zone_of(zone), fold=fold)

    return restore


# --------------------------------------------------------------------------- registered classes


def _registered(name: Any) -> RegisteredType:
    registered = find_by_name(_text(name))
    if registered is None:
        raise NotHereError(f"this process does not know the type {name!r}; register_type it, then load again")
    return registered


def _enum_of(parts: Any) -> Enum:
    name, member, value = checked_list(parts, 3)
    registered = _registered(name)
    if not registered.is_enum:
        raise DecodeError(f"{name} was saved as an enum and is none now")
    if member is None and issubclass(registered.cls, Flag):
        return registered.cls(value)
    members: dict[str, Enum] = registered.cls.__members__  # type: ignore[attr-defined]
    if member not in members:
        raise DecodeError(f"enum {name} has no member {member!r} now; add it again, or as an alias of another")
    return members[member]


def enum_parts(name: str, member: Enum) -> list[Any]:
    """-> the name of the class and of a member; for a combination of flags, which has no name, its value."""
    if type(member).__members__.get(member.name or "") is member:
        return [name, member.name, None]
    return [name, None, member.value]


def _object_of(parts: Any) -> object:
    name, version, values = checked_list(parts, 3)
    registered = _registered(name)
    if registered.is_enum or type(values) is not dict or type(version) is not int:
        raise DecodeError(f"{name} was saved as an object with fields and is none now")
    return registered.restore(values, version)


def _not_here(value: Any) -> Any:
    raise TypeError("only who walks through a value knows where its parts are")


ENUM = TypeCodec("enum", 30, (), _not_here, _enum_of, is_deep=True)
OBJECT = TypeCodec("object", 31, (), _not_here, _object_of, is_deep=True)


# --------------------------------------------------------------------------- the table


def _surrogates_of(parts: Any) -> str:
    return bytes.fromhex(parts).decode("utf-8", "surrogatepass")


def _path_kind(number: int, cls: type[PurePath]) -> TypeCodec:
    def restore(parts: Any) -> PurePath:
        text = _text(parts)
        try:
            return cls(text)
        except NotImplementedError:  # a path of another system's files
            reason = f"it holds the {cls.__name__} {shorten(text)}, and on this system there are none"
            way_out = f"load it where there are, or save Pure{cls.__name__} or texts to move between systems"
            raise NotHereError(f"{reason}; {way_out}") from None

    return TypeCodec(cls.__name__, number, (cls,), _path_parts, restore, is_deep=True)


def _path_parts(path: PurePath) -> str:
    text = str(path)
    if type(path)(text) != path:
        raise TypeError(f"{path!r} is not kept: its text is that of another path")
    return text


def _text(parts: Any) -> str:
    if type(parts) is not str:
        raise DecodeError(f"it holds {shorten(parts)} where a text should be")
    return parts


def _unlike(items: list[Any]) -> list[Any]:
    if are_too_alike(items):
        raise TypeError(TOO_ALIKE)
    return items


def _dict_of(parts: Any) -> dict[Any, Any]:
    pairs = [checked_list(pair, 2) for pair in checked_list(parts)]
    _unlike([key for key, _ in pairs])
    return dict(pairs)


DICT = TypeCodec(
    *("dict", 6, (dict, FrozenDict, UnsettledDict), lambda value: [[*pair] for pair in value.items()]),
    *(_dict_of, True, _has_text_keys),
)
SET = TypeCodec(
    *("set", 4, (set, FrozenSet, UnsettledSet), lambda value: _unlike([*value])),
    *(lambda parts: set(_unlike(checked_list(parts))), True),
)
FROZENSET = TypeCodec(
    *("frozenset", 5, (frozenset,), lambda value: _unlike([*value])),
    *(lambda parts: frozenset(_unlike(checked_list(parts))), True),
)
TUPLE = TypeCodec("tuple", 3, (tuple,), list, lambda parts: tuple(checked_list(parts)), is_deep=True)

KINDS = (
    TypeCodec("int", 1, (int,), lambda value: f"{value:x}", lambda parts: int(parts, 16), False, _is_64_bit),
    TypeCodec(
        "str", 2, (str,), lambda value: value.encode("utf-8", "surrogatepass").hex(), _surrogates_of, False, is_utf8
    ),
    TypeCodec("float", None, (float,), repr, lambda parts: float(_text(parts)), False, isfinite),
    TypeCodec(
        "bytes", None, (bytes,), lambda value: b64encode(value).decode(), lambda text: b64decode(text, validate=True)
    ),
    *(TUPLE, SET, FROZENSET, DICT, ENUM, OBJECT),
    TypeCodec("date", 7, (date,), date.isoformat, date.fromisoformat),
    TypeCodec("time", 8, (time,), _clock_parts, _clock_of(time)),
    TypeCodec("datetime", 9, (datetime,), _clock_parts, _clock_of(datetime)),
    TypeCodec(
        *("timedelta", 10, (timedelta,), lambda value: [value.days, value.seconds, value.microseconds]),
        lambda parts: timedelta(*checked_list(parts, 3)),
    ),
    TypeCodec("Decimal", 11, (Decimal,), str, lambda parts: Decimal(_text(parts))),
    TypeCodec("UUID", 12, (UUID,), str, UUID),
    TypeCodec(
        *("range", 13, (range,), lambda value: [value.start, value.stop, value.step]),
        *(lambda parts: range(*checked_list(parts, 3)), True),
    ),
    TypeCodec(
        *("complex", 14, (complex,), lambda value: [repr(value.real), repr(value.imag)]),
        lambda parts: complex(*(float(_text(part)) for part in checked_list(parts, 2))),
    ),
    _path_kind(20, PosixPath),
    _path_kind(21, PurePosixPath),
    _path_kind(22, WindowsPath),
    _path_kind(23, PureWindowsPath),
)

BY_TYPE: dict[type, TypeCodec] = {cls: kind for kind in KINDS for cls in kind.types}
_BY_NAME: dict[Any, TypeCodec] = {kind.name: kind for kind in KINDS}
_BY_NUMBER: dict[int | None, TypeCodec] = {kind.number: kind for kind in KINDS if kind.number is not None}


def kind_named(name: object) -> TypeCodec:
    """-> the kind with this name. Raises DecodeError if there is none."""
    if type(name) is not str or name not in _BY_NAME:
        raise DecodeError(f"it holds an unknown type {shorten(name)}; perhaps a newer version of stategraph wrote it")
    return _BY_NAME[name]


def kind_numbered(number: int) -> TypeCodec:
    """-> the kind with this number. Raises DecodeError if there is none."""
    if number not in _BY_NUMBER:
        raise DecodeError(f"it holds an unknown type {number}; perhaps a newer version of stategraph wrote it")
    return _BY_NUMBER[number]
