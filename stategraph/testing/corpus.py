"""Values and run ids that every store must keep exactly, or must refuse."""

from __future__ import annotations

import dataclasses
import enum
import math
import socket
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs

from stategraph._values.registered_types import register_type


@register_type
class Colour(enum.Enum):
    """A registered enum."""

    RED = "red"


@register_type
class Weekdays(enum.Flag):
    """A registered flag. Its combinations have no names."""

    MONDAY = 1
    FRIDAY = 16


@register_type
class Priority(enum.IntEnum):
    """A registered enum whose members are ints as well."""

    HIGH = 1


@register_type
@attrs.frozen
class Point:
    """A registered attrs class."""

    x: float
    y: float


@register_type
@dataclasses.dataclass
class Order:
    """A registered dataclass that is mutable and holds other objects."""

    number: int
    items: list[Any]
    colour: Colour = Colour.RED


@register_type
class Pair(NamedTuple):
    """A registered named tuple."""

    x: Any
    y: Any


class Unregistered(enum.Enum):
    """An enum that is not registered."""

    MEMBER = 1


@attrs.define
class UnregisteredPoint:
    """An attrs class that is not registered."""

    x: int = 0


_NAMED = namedtuple("_NAMED", "x y")  # noqa: PYI024 - stores must refuse the plain kind
_FIXED_OFFSET = timezone(timedelta(hours=-3, minutes=-30, seconds=-5))


def _nested(depth: int) -> Any:
    return [_nested(depth - 1)] if depth else None


KEPT_VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "0": 0,
    "2**63": 2**63,
    "2**64": 2**64,
    "-2**63 - 1": -(2**63) - 1,
    "10**5000": 10**5000,
    "1 and 1.0 and True": [1, 1.0, True],
    "nan": math.nan,
    "inf": [math.inf, -math.inf],
    "-0.0": -0.0,
    "smallest float": 5e-324,
    "complex": [1j, complex(-0.0, math.nan)],
    "str": ["", "a", "ä", "\U0001f600", "a\0b", "\r\n", "a" * 70_000],
    "lone surrogate": ["\ud800", {"\udfff": 1}],
    "bytes": [b"", b"\0\xff", b"x" * 70_000],
    "list": [1, [2, [3, []]]],
    "tuple": [(), (1,), (1, (2, [3, {"a": (4,)}]))],
    "dict": {"a": {"b": {}}, "": 1, "a.b": 2},
    "dict with int keys": {1: "a", "1": "b", -5: "c"},
    "dict with bool, None and tuple keys": {True: 1, None: 2, (1, ("a", None)): 3, 2.5: 4, b"x": 5},
    "dict in another order": {"z": 1, "a": 2},
    "set": [set(), {1, "a", None, (1, 2)}, {frozenset({1})}],
    "frozenset": [frozenset(), frozenset({1, frozenset({2})})],
    "date": [date.min, date(2024, 2, 29), date.max],
    "time": [time(1, 2, 3, 4), time(1, 2, tzinfo=UTC), time(2, 30, fold=1)],
    "naive datetime": [datetime(2024, 2, 29, 1, 2, 3, 4), datetime.min, datetime.max],
    "aware datetime": [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=_FIXED_OFFSET)],
    "named offset": datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
    "zone and fold": datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("UTC"), fold=1),
    "timedelta": [timedelta.min, timedelta(microseconds=-1), timedelta.max],
    "Decimal": [Decimal("1.10"), Decimal("-0"), Decimal("1E+50"), Decimal("Infinity"), Decimal("sNaN5")],
    "UUID": UUID("12345678-1234-5678-1234-567812345678"),
    "Path": [Path("/a/b"), Path(), PurePosixPath("../c"), PureWindowsPath("C:\\d")],
    "range": [range(0), range(5, 50, 3), range(0, -5, -1)],
    "enum": [Colour.RED, Priority.HIGH, Weekdays.MONDAY, Weekdays.MONDAY | Weekdays.FRIDAY, Weekdays(0)],
    "registered objects": [Point(1.5, -0.0), Order(7, [Point(0, 1), {"a": (Colour.RED,)}]), {Point(1, 2): 3}],
    "bytearray": bytearray(b"\0\xff"),
    "deque": [deque(), deque([1, [2]], maxlen=3)],
    "Counter": Counter({"b": 2, "a": -1, (1,): 0}),
    "OrderedDict": OrderedDict(z=1, a=[2]),
    "defaultdict": [defaultdict(list, a=[1]), defaultdict(None, {1: 2})],
    "Fraction": Fraction(-(10**30), 7),
    "named tuple": Pair(1, [Pair(None, ())]),
    "empty containers": [[], {}, set(), (), frozenset()],
    "nested 90 deep": _nested(90),
    "10,000 numbers": list(range(10_000)),
}
"""Values that a store must return exactly, by description."""


class _DictOfMine(dict[str, int]):
    pass


class _IntOfMine(int):
    pass


class _StrOfMine(str):
    __slots__ = ()


class _Zone(timezone.__base__):  # type: ignore[name-defined, misc]
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(hours=1)


def _cyclic_objects() -> Order:
    order = Order(1, [])
    order.items.append(order)
    return order


def _with_extra_attribute() -> Order:
    order = Order(1, [])
    order.note = "is no field"  # type: ignore[attr-defined]
    return order


def _generator() -> Any:
    yield


UNKEPT_VALUES: dict[str, Callable[[], Any]] = {
    "lambda": lambda: lambda: None,
    "class": lambda: Point,
    "module": lambda: math,
    "generator": _generator,
    "object": object,
    "lock": threading.Lock,
    "open file": lambda: Path(__file__).open(),
    "socket": socket.socket,
    "exception": lambda: ValueError("x"),
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "memoryview": lambda: memoryview(b"x"),
    "defaultdict with a function": lambda: defaultdict(lambda: 1, a=1),
    "namedtuple": lambda: _NAMED(1, 2),
    "subclass of dict": lambda: _DictOfMine(a=1),
    "subclass of int": lambda: _IntOfMine(5),
    "subclass of str": lambda: _StrOfMine("a"),
    "enum that is not registered": lambda: Unregistered.MEMBER,
    "attrs class that is not registered": UnregisteredPoint,
    "custom time zone": lambda: Order(1, [datetime(2024, 1, 1, tzinfo=_Zone())]),
    "object that contains itself": _cyclic_objects,
    "object with an attribute that is no field": _with_extra_attribute,
}
"""Functions that make values that `save` must refuse, by description."""

RUN_IDS: list[str] = [
    *("a", "A-1_b.c:d", "parent/child", "a/b/c", "x" * 200, "-", "0", "a..b", "con", "a:b/c-d"),
    *("ann@example.com", "a+b=c", "@", "=1+1", "a@1", "a/@2"),
]
"""Allowed run ids."""

HOSTILE_RUN_IDS: list[Any] = [
    *("", ".", "..", "../x", "../../etc/passwd", "a/../b", "a/./b", "a/", "/a", "/etc/passwd", "a//b", ".a", "a/.b"),
    *("a b", "a\0b", "a\nb", "a\\b", "C:\\x", "a%2e", "a*", "a'; DROP TABLE Cache; --", "%", "$HOME", "~", "a\n"),
    *("ä", "\ud800", "\u202e", "x" * 201, "x" * 10_000_000, None, 5, b"a", ["a"], True),
]
"""Refused run ids: paths out of a folder, parts of queries, and others outside the grammar."""
