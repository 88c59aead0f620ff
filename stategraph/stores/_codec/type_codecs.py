"""The table of types that are saved exactly: how their values are converted to simpler values and back.

All formats use it: msgpack uses the numbers as extension types; JSON and serializers of users use the names as tags.
Stored bytes can only construct types of this table and registered classes. A value that this process cannot construct
is an error or, for inspection, an `Opaque`.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
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
from stategraph._util.validators import is_utf8
from stategraph._values.frozen import FrozenDict, FrozenSet, UnsettledDict, UnsettledSet, atoms, freeze
from stategraph._values.registered_types import RegisteredType, find_by_name, problems_carried, register_type

ATOMS = atoms()


class DecodeError(ValueError):
    """Bytes cannot be decoded: stategraph did not write them, or they hold a value that cannot be constructed here."""


class UnusableValueError(DecodeError):
    """A value cannot be constructed here, for example because its class has changed since it was saved."""


class UnavailableValueError(UnusableValueError):
    """A value cannot be constructed here: the process or the system lacks a class, a serializer or a time zone."""


@attrs.frozen
class TypeCodec:
    """The conversion of the values of a type.

    Attributes:
        name: The tag in text formats. It is saved, like the number: never reuse either for another type.
        number: The tag in msgpack; None if msgpack supports the type.
        types: The classes of the values; empty for registered classes.
        to_parts: Returns the parts of a value: a str or a list. Raises TypeError if the value cannot be saved.
        from_parts: Returns the value of parts. Raises any error if the parts are not valid.
        is_deep: Whether parts may be of any type. If not, they are str without surrogates and 64-bit ints.
        is_plain: Returns whether a value requires no tag, because every format supports it.
    """

    name: str
    number: int | None
    types: tuple[type, ...]
    to_parts: Callable[[Any], Any]
    from_parts: Callable[[Any], Any]
    is_deep: bool = False
    is_plain: Callable[[Any], bool] = lambda _: False


def _has_str_keys(value: dict[Any, Any]) -> bool:
    return all(type(key) is str and is_utf8(key) for key in value)


def expect_list(parts: Any, count: int | None = None) -> list[Any]:
    """Return the parts if they are a list, with `count` items if given.

    Other iterables are refused: a range of a few bytes could take any time to iterate over.

    Raises:
        DecodeError: They are not such a list.
    """
    if type(parts) is not list or count not in (None, len(parts)):
        raise DecodeError(f"it holds {shorten(parts)} where a list {f'of {count} ' if count else ''}should be")
    return parts


def expect_dict(parts: Any) -> dict[Any, Any]:
    """Return the parts if they are a dict. Raises DecodeError as `expect_list` does."""
    if type(parts) is not dict:
        raise DecodeError(f"it holds {shorten(parts)} where a dict should be")
    return parts


def _expect_ints(parts: Any, count: int) -> list[int]:
    if not all(type(part) is int for part in expect_list(parts, count)):
        raise DecodeError(f"it holds {shorten(parts)} where integers should be")
    return list(parts)


# --------------------------------------------------------------------------- values that cannot be constructed here

_OBJECT, _ENUM = "object", "enum"
_is_shown: ContextVar[bool] = ContextVar("stategraph_unknown_is_shown", default=False)
_SHOWN_LENGTH = 1_000  # characters of its repr


@attrs.frozen(repr=False)
class Opaque:
    """A value of a type that is not registered here, or that this system does not support.

    A State that holds one can be saved again without loss.

    Attributes:
        tag: The stored kind of value: "object" of a class, "enum", or the name of another type.
        parts: Its stored parts, read-only.
    """

    tag: str
    parts: Any = attrs.field(converter=freeze)

    @property
    def type(self) -> str:
        """The name of its type, as registered."""
        return str(self.parts[0]) if self.tag in (_OBJECT, _ENUM) else self.tag

    @property
    def fields(self) -> Mapping[str, Any]:
        """The fields of an object, by name; empty for other values."""
        found: Any = self.parts[2] if self.tag == _OBJECT else {}
        return found if isinstance(found, dict) else {"": found}

    def __hash__(self) -> int:
        return hash((self.tag, repr(self.parts)))

    def __repr__(self) -> str:
        if self.tag == _OBJECT:
            fields = ", ".join(f"{name}={shorten(value, _SHOWN_LENGTH)}" for name, value in self.fields.items())
            return f"{self.type}({fields})"
        if self.tag == _ENUM:
            _, member, value = self.parts
            return f"{self.type}.{member}" if member is not None else f"{self.type}({value!r})"
        return f"{self.type}({shorten(self.parts, _SHOWN_LENGTH)})"


@contextmanager
def unknown_shown() -> Iterator[None]:
    """In the block and in this thread, decode values that cannot be constructed here as `Opaque`."""
    token = _is_shown.set(True)
    try:
        yield
    finally:
        _is_shown.reset(token)


def shown_as_opaque(codec: TypeCodec, parts: Any, error: Exception) -> Opaque:
    """Return an Opaque for a value that cannot be constructed here. Raise the error unless Opaque values are shown, or
    the value is carried because its class is not there."""
    if not _is_shown.get():
        problems = problems_carried() if isinstance(error, UnavailableValueError) else None
        if problems is None:
            raise error
        problems.append(str(error))
    return Opaque(codec.name, parts)


# --------------------------------------------------------------------------- times


def _zone_parts(zone: tzinfo | None) -> Any:
    """Return None, the key of a ZoneInfo, or the microseconds of a fixed offset and its name, if any."""
    if zone is None:
        return None
    if type(zone) is ZoneInfo and _is_from_database(zone):
        return zone.key
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        if all(map(is_utf8, name)):
            return [offset // timedelta(microseconds=1), *name]
    if (type(zone).__module__.partition(".")[0], type(zone).__name__) == ("pydantic_core", "TzInfo"):
        return f"{_PYDANTIC}{(zone.utcoffset(None) or timedelta()) // timedelta(seconds=1)}"
    raise TypeError(f"the time zone {shorten(zone)} is not kept; use zoneinfo.ZoneInfo(key) or datetime.timezone")


def _is_from_database(zone: ZoneInfo) -> bool:
    """Return whether a zone can be loaded by its key. A zone made from a file cannot."""
    try:
        zone.__reduce__()
    except PicklingError:
        return False
    return _is_known(zone.key)


@lru_cache(1000)
def _is_known(key: str) -> bool:
    """Return whether the zone database has a key. ZoneInfo itself would also search packages that the key names."""
    if not _ZONE_KEY.fullmatch(key):  # a key is a path in the zone database
        return False
    installed = find_spec("tzdata")
    packages = (installed.submodule_search_locations if installed else None) or ()
    folders = [*map(Path, TZPATH), *(Path(package, "zoneinfo") for package in packages)]
    return any((folder / key).is_file() for folder in folders)


_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]{1,50}(/[A-Za-z0-9_+-]{1,50}){0,3}")
_PYDANTIC = "pydantic:"  # prefix of the seconds of a fixed offset of Pydantic; no key contains a colon


def _zone_of_pydantic(seconds: str) -> tzinfo:
    if not re.fullmatch(r"-?[0-9]{1,5}", seconds):
        raise DecodeError(f"it holds a time zone that there cannot be, {shorten(seconds)}")
    try:
        from pydantic_core import TzInfo  # imported when used
    except ImportError:
        raise UnavailableValueError("it holds a time in a zone of Pydantic; 'pip install pydantic'") from None
    zone: tzinfo = TzInfo(int(seconds))
    return zone


def _zone_of(parts: Any) -> tzinfo | None:
    if parts is None:
        return None
    if type(parts) is not str:
        microseconds, *name = expect_list(parts)
        return timezone(timedelta(microseconds=microseconds), *name)
    if parts.startswith(_PYDANTIC):
        return _zone_of_pydantic(parts.removeprefix(_PYDANTIC))
    if _is_known(parts):
        return ZoneInfo(parts)
    if not _ZONE_KEY.fullmatch(parts):
        raise DecodeError(f"it holds a time zone that there cannot be, {shorten(parts)}")
    way_out = "'pip install tzdata' brings the zones that a system lacks, and its newest version new ones"
    raise UnavailableValueError(f"it holds a time in the zone {parts!r}, which is not known here; {way_out}")


def _clock_parts(value: time | datetime) -> Any:
    """Return ISO 8601 if it is exact; otherwise a list of ISO 8601 without the zone, the zone, and the fold."""
    zone = _zone_parts(value.tzinfo)
    if not value.fold and (zone is None or (type(zone) is list and len(zone) == 1)):
        return value.isoformat()
    return [value.replace(tzinfo=None).isoformat(), zone, value.fold]


def _clock_of(cls: Any) -> Callable[[Any], Any]:
    def restore(parts: Any) -> Any:
        if type(parts) is str:
            return cls.fromisoformat(parts)
        text, zone, fold = expect_list(parts, 3)
        return cls.fromisoformat(text).replace(tzinfo=_zone_of(zone), fold=_expect_ints([fold], 1)[0])

    return restore


# --------------------------------------------------------------------------- registered classes


def _registered(name: Any) -> RegisteredType:
    registered = find_by_name(_expect_str(name))
    if registered is None:
        raise UnavailableValueError(
            f"this process does not know the type {name!r}: import the module that registers it, and load again; if "
            f"the class has another module or name here, register_type(name={name!r})"
        )
    return registered


def _enum_of(parts: Any) -> Enum:
    name, member, value = expect_list(parts, 3)
    registered = _registered(name)
    if not registered.is_enum:
        raise UnusableValueError(f"{name} was saved as an enum and is none now")
    if member is None and issubclass(registered.cls, Flag):
        return _combined(registered.cls, value)
    members: dict[str, Enum] = registered.cls.__members__  # type: ignore[attr-defined]
    if _expect_str(member) not in members:
        raise UnusableValueError(f"enum {name} has no member {member!r} now; add it again, or as an alias of another")
    return members[member]


def _combined(cls: type[Flag], value: Any) -> Enum:
    """Return the member of a combination of flags. A ``_missing_`` of the class is not called."""
    (bits,) = _expect_ints([value], 1)
    known: Enum | None = cls._value2member_map_.get(bits)
    made: Any = known or Flag._missing_.__func__(cls, bits)  # type: ignore[attr-defined]
    if type(made) is not cls:  # boundary=EJECT
        raise UnusableValueError(f"the flags {cls.__qualname__} have no combination {bits} now")
    return made


def enum_parts(name: str, member: Enum) -> list[Any]:
    """Return the name of the class, the name of the member, and None; for combined flags, None and their value."""
    if type(member).__members__.get(member.name or "") is member:
        return [name, member.name, None]
    return [name, None, member.value]


def _object_of(parts: Any) -> object:
    name, version, values = expect_list(parts, 3)
    if type(version) is not int:
        raise DecodeError(f"it holds {shorten([version, values])} where a version and fields should be")
    registered = _registered(name)
    if registered.is_enum:
        raise UnusableValueError(f"{name} was saved as an object with fields and is none now")
    try:
        return registered.restore(values, version)
    except ValueError as error:
        raise UnusableValueError(str(error)) from error


def _by_encoder(value: Any) -> Any:
    raise TypeError("the parts of registered classes are made by ValueEncoder")


ENUM = TypeCodec("enum", 30, (), _by_encoder, _enum_of, is_deep=True)
OBJECT = TypeCodec("object", 31, (), _by_encoder, _object_of, is_deep=True)


# --------------------------------------------------------------------------- classes of the standard library


_FACTORIES = {cls.__name__: cls for cls in (list, dict, set, tuple, frozenset, int, float, complex, bool, str, bytes)}


def _defaultdict_parts(value: defaultdict[Any, Any]) -> list[Any]:
    factory = value.default_factory
    if factory is not None and factory not in _FACTORIES.values():
        raise ValueError(f"its factory is not kept, only {', '.join(_FACTORIES)}: make it a dict")
    return [factory and factory.__name__, dict(value)]


register_type(bytearray, encode=bytes, decode=bytearray)
register_type(deque, encode=lambda value: [[*value], value.maxlen], decode=lambda parts: deque(*parts))
register_type(Counter, encode=dict, decode=Counter)
register_type(OrderedDict, encode=dict, decode=OrderedDict)
register_type(
    defaultdict,
    encode=_defaultdict_parts,
    decode=lambda parts: defaultdict(parts[0] and _FACTORIES[parts[0]], parts[1]),
)
register_type(
    Fraction, encode=lambda value: [value.numerator, value.denominator], decode=lambda parts: Fraction(*parts)
)


# --------------------------------------------------------------------------- the table


def _path_codec(number: int, cls: type[PurePath]) -> TypeCodec:
    def restore(parts: Any) -> PurePath:
        text = _expect_str(parts)
        try:
            return cls(text)
        except NotImplementedError:  # a path of another operating system
            reason = f"it holds the {cls.__name__} {shorten(text)}, and on this system there are none"
            way_out = f"load it where there are, or save Pure{cls.__name__} or texts to move between systems"
            raise UnavailableValueError(f"{reason}; {way_out}") from None

    return TypeCodec(cls.__name__, number, (cls,), _path_parts, restore, is_deep=True)


def _path_parts(path: PurePath) -> str:
    text = str(path)
    if type(path)(text) != path:
        raise TypeError(f"{path!r} is not kept: its text means another path")
    return text


def _expect_str(parts: Any) -> str:
    if type(parts) is not str:
        raise DecodeError(f"it holds {shorten(parts)} where a text should be")
    return parts


def _set_of(parts: Any) -> set[Any]:
    return set(expect_list(parts))


DICT = TypeCodec(
    "dict",
    6,
    (dict, FrozenDict, UnsettledDict),
    lambda value: [[*pair] for pair in value.items()],
    lambda parts: dict(expect_list(pair, 2) for pair in expect_list(parts)),
    True,
    _has_str_keys,
)
SET = TypeCodec("set", 4, (set, FrozenSet, UnsettledSet), list, _set_of, True)
FROZENSET = TypeCodec("frozenset", 5, (frozenset,), list, lambda parts: frozenset(_set_of(parts)), True)
TUPLE = TypeCodec("tuple", 3, (tuple,), list, lambda parts: tuple(expect_list(parts)), True)

TYPE_CODECS = (
    TypeCodec(
        "int",
        1,
        (int,),
        "{:x}".format,
        lambda parts: int(parts, 16),
        False,
        lambda value: -(1 << 63) <= value < 1 << 64,
    ),
    TypeCodec(
        "str",
        2,
        (str,),
        lambda value: value.encode("utf-8", "surrogatepass").hex(),
        lambda parts: bytes.fromhex(parts).decode("utf-8", "surrogatepass"),
        False,
        is_utf8,
    ),
    TypeCodec("float", None, (float,), repr, lambda parts: float(_expect_str(parts)), False, isfinite),
    TypeCodec(
        "bytes", None, (bytes,), lambda value: b64encode(value).decode(), lambda parts: b64decode(parts, validate=True)
    ),
    *(TUPLE, SET, FROZENSET, DICT, ENUM, OBJECT),
    TypeCodec("date", 7, (date,), date.isoformat, date.fromisoformat),
    TypeCodec("time", 8, (time,), _clock_parts, _clock_of(time)),
    TypeCodec("datetime", 9, (datetime,), _clock_parts, _clock_of(datetime)),
    TypeCodec(
        "timedelta",
        10,
        (timedelta,),
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*_expect_ints(parts, 3)),
    ),
    TypeCodec("Decimal", 11, (Decimal,), str, lambda parts: Decimal(_expect_str(parts))),
    TypeCodec("UUID", 12, (UUID,), str, lambda parts: UUID(_expect_str(parts))),
    TypeCodec(
        "range",
        13,
        (range,),
        lambda value: [value.start, value.stop, value.step],
        lambda parts: range(*_expect_ints(parts, 3)),
        True,
    ),
    TypeCodec(
        "complex",
        14,
        (complex,),
        lambda value: [repr(value.real), repr(value.imag)],
        lambda parts: complex(*(float(_expect_str(part)) for part in expect_list(parts, 2))),
    ),
    _path_codec(20, PosixPath),
    _path_codec(21, PurePosixPath),
    _path_codec(22, WindowsPath),
    _path_codec(23, PureWindowsPath),
)

CODEC_OF: dict[type, TypeCodec] = {cls: codec for codec in TYPE_CODECS for cls in codec.types}
_BY_TAG: dict[str | int, TypeCodec] = {
    **{codec.name: codec for codec in TYPE_CODECS},
    **{codec.number: codec for codec in TYPE_CODECS if codec.number is not None},
}


def find_codec(tag: str | int) -> TypeCodec:
    """Return the codec with a name or number.

    Raises:
        DecodeError: There is no such codec.
    """
    if tag not in _BY_TAG:
        raise DecodeError(f"it holds an unknown type {shorten(tag)}; perhaps a newer version of stategraph wrote it")
    return _BY_TAG[tag]
