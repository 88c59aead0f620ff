"""The codec: values to bytes and back, exactly, or a refusal."""

import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from io import BytesIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import ormsgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from stategraph import NotSerializableError
from stategraph._values.frozen import MAX_DEPTH, freeze_items
from stategraph.stores._codec import msgpack as codec
from stategraph.stores._codec.type_codecs import TYPE_CODECS, DecodeError
from stategraph.testing import is_same
from stategraph.testing.corpus import Colour, Order, Point, Priority, Weekdays
from stategraph.testing.values import check_refused

NUMBER = {kind.name: kind.number or 0 for kind in TYPE_CODECS}


def encoded(value: Any) -> bytes:
    """Return the bytes of a value, as they are when a State holds it."""
    return codec.encode([freeze_items({"value": value})])


def decoded(data: bytes) -> Any:
    """Return the data that `encoded` was given."""
    (data_again,) = codec.decode(data)
    return data_again


def round_trip(value: Any) -> Any:
    return freeze_items(decoded(encoded(value)))["value"]


def nested(make: Callable[[Any], Any], levels: int, value: Any = 0) -> Any:
    for _ in range(levels):
        value = make(value)
    return value


# --------------------------------------------------------------------------- exactness

_ZONES = st.none() | st.sampled_from([UTC, ZoneInfo("UTC"), timezone(timedelta(hours=-3), "here")])
_ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**80), 2**80),
    st.sampled_from([2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.text(st.characters(categories=["Cs", "L"])),  # lone surrogates
    st.binary(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.datetimes(timezones=_ZONES),
    st.builds(range, st.integers(-9, 9), st.integers(-99, 99), st.integers(1, 5)),
    st.sampled_from([*Colour, *Priority, *Weekdays, Weekdays(0), Weekdays.MONDAY | Weekdays.FRIDAY]),
    st.builds(Path, st.text("ab/.ä", max_size=8)),
    st.builds(PurePosixPath, st.text("ab/. ", max_size=8)),
    st.builds(PureWindowsPath, st.text("ab.", max_size=8)),
)
_HASHABLE = st.recursive(
    _ATOMS.filter(lambda value: "nan" not in repr(value)),  # which a set finds by its identity only
    lambda parts: st.tuples(parts, parts) | st.frozensets(parts, max_size=3) | st.builds(Point, parts, parts),
    max_leaves=4,
)
_VALUES = st.recursive(
    _ATOMS,
    lambda parts: st.one_of(
        st.lists(parts, max_size=4),
        st.lists(parts, max_size=4).map(tuple),
        st.dictionaries(_HASHABLE, parts, max_size=4),
        st.dictionaries(st.text(), parts, max_size=4),
        st.sets(_HASHABLE, max_size=4),
        st.frozensets(_HASHABLE, max_size=4),
        st.builds(Order, parts, st.lists(parts, max_size=2), parts),
    ),
    max_leaves=12,
)


@settings(max_examples=25, print_blob=True)
@given(_VALUES)
def test_every_value_comes_back_exactly(value: Any) -> None:
    """A loaded value is the same in values and types, and encodes to the same bytes."""
    loaded = round_trip(value)

    assert is_same(loaded, value)
    assert encoded(loaded) == encoded(value)


def _is_spelled_out(path: PureWindowsPath) -> bool:
    """Tell whether the text of a path leads back to it, which depends on the version of Python."""
    return PureWindowsPath(str(path)) == path


ZONE = struct.pack(">4s16x6l6x4s", b"TZif", 0, 0, 0, 0, 1, 4, b"UTC\0")  # a file of one zone, UTC
_DRIVE_OR_FOLDER = PureWindowsPath("./c:a")


@pytest.mark.parametrize(
    ("value", "is_kept"),
    [
        *((Path(os.fsdecode(b"not utf-8 \xff")), True), (PurePosixPath("\udc80/a"), True)),
        (datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=1), "\ud800")), False),
        (_DRIVE_OR_FOLDER, _is_spelled_out(_DRIVE_OR_FOLDER)),
        (PureWindowsPath("//server/share/a"), True),
        (PureWindowsPath("// //"), True),
        *((Decimal(text), True) for text in ("NaN123", "-sNaN", "0E-5000", "1E+999999")),
        (ZoneInfo("UTC"), False),
        (TypeAdapter(datetime).validate_python("2024-05-29T12:00:00+02:00"), True),
        (datetime(2024, 5, 29, tzinfo=ZoneInfo.from_file(BytesIO(ZONE), key="UTC")), False),
    ],
    ids=ascii,
)
def test_a_value_is_kept_exactly_or_refused(value: Any, is_kept: bool) -> None:
    """Never saved as something else, and never refused in words of other libraries."""
    if is_kept:
        assert is_same(decoded(encoded([{"here": value}]))["value"][0]["here"], value)
    else:
        with pytest.raises(NotSerializableError, match=r"^value\[0\]\.here "):
            encoded([{"here": value}])


_SETS_IN_A_PROCESS = """
import sys
from stategraph.stores._codec import msgpack as codec
from stategraph._values.frozen import freeze_items
words = {"draft", "review", "publish", None, 5, 2.5, ("a", 1), frozenset({"x", "y", "z"})}
sys.stdout.write(codec.encode([freeze_items({"words": words, "deep": [{frozenset(words)}]})]).hex())
"""


def test_sets_give_the_same_bytes_in_every_process() -> None:
    """The bytes of a set do not depend on hashes: they decide whether a step was changed."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _SETS_IN_A_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "2")
    }

    assert len(outputs) == 1


def test_equal_values_of_different_types_give_different_bytes() -> None:
    """1, 1.0 and True are three values."""
    assert len({encoded(value) for value in (1, 1.0, True, Decimal(1), 1 + 0j, Priority.HIGH)}) == 6
    assert encoded(0.0) != encoded(-0.0)
    assert encoded({1}) != encoded(frozenset({1}))
    assert encoded([1]) != encoded((1,))


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda value: value, "value"),
        (lambda value: [1, {"total": value}], "value[1].total"),
        (lambda value: {"a b": (value,)}, "value['a b'][0]"),
        (lambda value: {5: value}, "value[5]"),
        (lambda value: Order(0, [value]), "value.items[0]"),
    ],
    ids=["at the top", "in a dict in a list", "in a tuple", "under an int", "in an object"],
)
def test_a_value_that_cannot_be_kept_is_refused_with_its_path(wrap: Callable[[Any], Any], path: str) -> None:
    """The path leads to it as one would write it."""

    sizes = []

    def save(value: Any) -> None:
        try:
            encoded(wrap(value))
        except NotSerializableError as error:
            sizes.append(len(str(error)))
            raise

    check_refused(save, f"^{re.escape(path)}")
    assert max(sizes) < 1500


_WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "list": lambda x: [x],
    "tuple": lambda x: (x,),
    "dict": lambda x: {"a": x},
    "dict with int keys": lambda x: {1: x},
    "object": lambda x: Point(x, 0),
    "frozenset": lambda x: frozenset({x}),
}


_LEAVES = [0, date.min, 2**80, Path("a"), "\ud800", datetime(2024, 1, 1, tzinfo=UTC)]


@pytest.mark.parametrize("leaf", _LEAVES, ids=ascii)
@pytest.mark.parametrize("name", _WRAPPERS)
def test_a_value_may_be_so_deep_and_no_deeper(name: str, leaf: Any) -> None:
    """A value at the limit of depth can be saved and loaded; a deeper one is refused."""
    for levels in (MAX_DEPTH - 1, MAX_DEPTH):
        value = nested(_WRAPPERS[name], levels, leaf)
        assert is_same(round_trip(value), value)
    for levels in (MAX_DEPTH + 1, 3 * MAX_DEPTH):
        with pytest.raises(NotSerializableError):
            encoded(nested(_WRAPPERS[name], levels, leaf))


# --------------------------------------------------------------------------- registered classes


def test_a_name_in_the_bytes_that_is_not_registered_names_the_way_out() -> None:
    """Nothing is imported to look for it."""
    data = codec.pack(ormsgpack.Ext(NUMBER["object"], codec.pack(["antigravity.Apple", 1, {}])))

    with pytest.raises(DecodeError, match="register_type") as caught:
        codec.decode(data)

    assert "antigravity.Apple" in str(caught.value)
    assert "antigravity" not in sys.modules


# --------------------------------------------------------------------------- hostile bytes


def _ext(tag: int, payload: bytes) -> bytes:
    return b"\xc9" + struct.pack(">IB", len(payload), tag) + payload


@pytest.mark.parametrize(
    "data",
    [
        *(bytes([head]) + b"\xff\xff\xff\xff" for head in (0xC6, 0xC9, 0xDB, 0xDD, 0xDF)),
        b"\xdd\xff\xff\xff\xff" + b"\xc0" * 1000,
        _ext(NUMBER["set"], b"\xdd\x7f\xff\xff\xff"),
        b"\x91" * 1_000_000 + b"\xc0",
        b"\x81\xa1a" * 1_000_000 + b"\xc0",
        nested(lambda payload: _ext(NUMBER["tuple"], b"\x91" + payload), 1000, b"\xc0"),
        nested(lambda payload: _ext(NUMBER["dict"], b"\x92\xc0" + payload), 1000, b"\xc0"),
    ],
    ids=lambda data: f"{data[:8].hex()} {len(data)}",
)
@pytest.mark.timeout(600)
def test_bombs_are_refused(data: bytes) -> None:
    """Lengths that are not there and nests without end take no memory and no time."""
    with pytest.raises(DecodeError):
        codec.decode(data)
