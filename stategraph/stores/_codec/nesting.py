"""How deep bytes are nested is found out before anything recurses into them.

ormsgpack and json recurse on the stack of the thread that calls them, up to limits of their own: a thousand levels take
ormsgpack half a megabyte. The main thread has eight, but other threads may have little (`threading.stack_size`), and a
process whose stack is full dies. So in these bytes are looked through first, without recursion, as far as it takes.
"""

from __future__ import annotations

import re
import resource
import threading
from itertools import accumulate

from stategraph._values.frozen import MAX_DEPTH
from stategraph.stores._codec.type_codecs import DecodeError

FEW = 2 * MAX_DEPTH
"""Levels for which there is room in every thread that can load a State at all: the values of `MAX_DEPTH` levels that
are made of what was unpacked take as much."""

_ROOM = 2 << 20
"""Bytes of stack that are enough for ormsgpack and json however deep bytes are nested."""


def check_msgpack(data: bytes, levels: int, few: int = FEW) -> None:
    """Raise DecodeError if lists and maps are nested deeper than `levels`, where there may be no room for it.

    Extensions are not looked into: their bytes are unpacked later. Fewer bytes than `few` need not be checked.

    Args:
        data: The bytes.
        levels: How deep what is saved may be.
        few: Levels for which there is room.
    """
    if threading.get_ident() == _ROOMY:
        return
    # Every level takes a byte that begins a list or a map. Few bodies have so many that it takes a closer look.
    if len(data.translate(None, _NO_CONTAINER)) > few and _is_deeper(data, levels):
        raise DecodeError(f"its bytes are nested deeper than {levels} levels, and those of no State are")


def check_json(data: bytes, levels: int) -> None:
    """Raise DecodeError if arrays and objects are nested deeper than `levels`, where there may be no room for it."""
    if threading.get_ident() == _ROOMY or data.count(b"[") + data.count(b"{") <= levels:
        return
    marks = data.translate(None, _NO_MARK)
    if b"\\" in marks:
        marks = _ESCAPED.sub(b"", data).translate(None, _NO_MARK)
    # Two quotes side by side end one text and begin the next, or are an empty one: without them, the same is outside.
    outside = b"".join(marks.replace(b'""', b"").split(b'"')[::2])
    if max(accumulate(map(_STEPS.__getitem__, outside)), default=0) > levels:
        raise DecodeError(f"it is nested deeper than {levels} levels, and what is saved of no State is")


def _roomy_thread() -> int | None:
    """-> the main thread, if its stack is large as it usually is. Of others there is no telling."""
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return threading.main_thread().ident if limit == resource.RLIM_INFINITY or limit >= _ROOM else None


_ROOMY = _roomy_thread()

_NO_MARK = bytes(set(range(256)) - set(b'[]{}"\\'))
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STEPS = {**dict.fromkeys(b"[{", 1), **dict.fromkeys(b"]}", -1)}


# --------------------------------------------------------------------------- msgpack

_FIXED = (
    *([1] * 0x80 + [0] * 0x20 + [*range(1, 33)]),  # small ints, small maps and lists, short texts
    *([1] * 4 + [0] * 6 + [5, 9] + [2, 3, 5, 9] * 2),  # nil and bools, bytes and long extensions, floats, ints
    *([3, 4, 6, 10, 18] + [0] * 7 + [1] * 0x20),  # short extensions, long texts, large lists and maps, small ints
)
"""By its first byte, how many bytes a value takes; 0 if that takes another look."""

_OF_SIZE = tuple(bytes(first for first in range(256) if _FIXED[first] == size) for size in range(33))
"""First bytes of values that take so many bytes."""

_LONG = {
    **dict(zip((0xC4, 0xC5, 0xC6), ((1, 2), (2, 3), (4, 5)), strict=True)),
    **dict(zip((0xC7, 0xC8, 0xC9), ((1, 3), (2, 4), (4, 6)), strict=True)),
    **dict(zip((0xD9, 0xDA, 0xDB), ((1, 2), (2, 3), (4, 5)), strict=True)),
}
"""By their first byte, for bytes, extensions and texts: how many bytes their length stands in, and how many come before
what they hold."""

_MANY = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""By their first byte, for lists and maps: how many bytes their length stands in, and how many values it counts."""

_NO_CONTAINER = bytes(first for first in range(256) if not (0x80 <= first < 0xA0 or first in _MANY))


def _is_deeper(data: bytes, levels: int) -> bool:
    """Whether lists and maps are nested deeper; if the bytes are cut, up to there."""
    fixed, position = _FIXED, 0
    left = 1  # values that are left of the innermost container
    outer: list[int] = []  # and of those it is in
    try:
        while True:
            while left:
                left -= 1
                first = data[position]
                if not fixed[first]:
                    break
                position += fixed[first]
            else:
                if not outer:
                    return False
                left = outer.pop()
                continue
            if first in _LONG:
                width, more = _LONG[first]
                position += more + int.from_bytes(data[position + 1 : position + 1 + width])
                continue
            width, each = _MANY.get(first, (0, 2 if first < 0x90 else 1))
            inner = each * (int.from_bytes(data[position + 1 : position + 1 + width]) if width else first & 0x0F)
            position += 1 + width
            if inner:
                if len(outer) >= levels:
                    return True
                outer.append(left)
                left, position = _past_numbers(data, position, inner) if width else (inner, position)
    except IndexError:
        return False


def _past_numbers(data: bytes, position: int, left: int) -> tuple[int, int]:
    """-> how many values are left of a long list, and where, after those at its start that are of the same size, as
    numbers are: their first bytes are looked at all at once."""
    alike = _ALIKE
    while alike >= _ALIKE and left and position < len(data) and _FIXED[data[position]]:
        size = _FIXED[data[position]]
        firsts = data[position : position + size * min(left, 64 * _ALIKE) : size]
        alike = len(firsts) - len(firsts.lstrip(_OF_SIZE[size]))
        left -= alike
        position += alike * size
    return left, position


_ALIKE = 64  # values: where fewer are alike, they are looked at one by one
