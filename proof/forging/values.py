"""Values to put in the place of others, and contents in the place of files."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from proof.forging.tables import RawText

FLIPPED = "a bit flipped"
MADE = ("NULL", "random", "boundary", "another type", FLIPPED)
"""How a value may be made up."""


def made(how: str, value: Any, randomness: random.Random) -> list[Any]:
    """Return values to put in the place of one."""
    match how:
        case "NULL":
            return [None]
        case "random":
            return _RANDOM[type(value)](value, randomness) if type(value) in _RANDOM else []
        case "boundary":
            return _BOUNDARIES.get(type(value), []) + ([value - 1, value + 1] if type(value) is int else [])
        case "another type":
            return [other for other in (7, "text", "7", b"bytes", 1.5) if type(other) is not type(value)]
        case _:
            return [_flipped(value, randomness)]


def _random_text(value: str, randomness: random.Random) -> list[str]:
    return ["".join(randomness.choices("abc/@#- 019\u00e4\u2192\0", k=randomness.randint(1, 30)))]


def _random_bytes(value: bytes, randomness: random.Random) -> list[bytes]:
    return [randomness.randbytes(len(value)), randomness.randbytes(randomness.randint(1, 80))]


def _random_number(value: int, randomness: random.Random) -> list[int]:
    return [randomness.getrandbits(randomness.randint(1, 62)) * randomness.choice([1, -1])]


def _random_something(value: None, randomness: random.Random) -> list[Any]:
    return [randomness.getrandbits(40), "text", b"bytes", '["E", "m", "n"]', "done@3"]


_RANDOM: dict[type, Callable[[Any, random.Random], list[Any]]] = {
    int: _random_number,
    str: _random_text,
    bytes: _random_bytes,
    float: lambda value, randomness: [randomness.uniform(-1e18, 1e18)],
    type(None): _random_something,
    list: lambda value, randomness: [[], list(reversed(value)), [randomness.getrandbits(9)]],
    bool: lambda value, randomness: [not value],
}
_BOUNDARIES: dict[type, list[Any]] = {
    int: [0, 1, -1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 - 1, -(2**63)],
    str: ["", " ", "\0", "a" * 201, "x" * 100_000, "0", "-1"],
    bytes: [b"", b"\0", bytes(32), bytes(100_000)],
    float: [0.0, -0.0, float("inf"), 5e-324],
}


def _flipped(value: Any, randomness: random.Random) -> Any:
    """Return a value with another bit, or with several."""
    if type(value) is bool or not isinstance(value, int | str | bytes):
        return value
    if isinstance(value, int):
        return value ^ 1 << randomness.randrange(40)
    data = bytearray(value.encode(errors="surrogateescape") if isinstance(value, str) else value)
    for _ in range(randomness.choice([1, 1, 1, 3]) if data else 0):
        data[randomness.randrange(len(data))] ^= 1 << randomness.randrange(8)
    return RawText(data) if isinstance(value, str) else bytes(data)


# --------------------------------------------------------------------------- files

_SECTOR = 512


def _truncated(content: bytes, randomness: random.Random) -> bytes:
    return content[: randomness.randrange(len(content))]


def _bits_flipped(content: bytes, randomness: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(randomness.choice([1, 1, 2, 8])):
        data[randomness.randrange(len(data))] ^= 1 << randomness.randrange(8)
    return bytes(data)


def _sector_zeroed(content: bytes, randomness: random.Random) -> bytes:
    at = randomness.randrange(len(content)) // _SECTOR * _SECTOR
    return content[:at] + bytes(min(_SECTOR, len(content) - at)) + content[at + _SECTOR :]


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "truncated": _truncated,
    "bits flipped": _bits_flipped,
    "sector zeroed": _sector_zeroed,
}
"""What becomes of a file."""
