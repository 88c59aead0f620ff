"""Limits for the nesting of stored bytes, checked before a parser recurses into them.

ormsgpack and json recurse on the stack of the calling thread, up to limits of their own: a thousand levels take
ormsgpack half a megabyte. The main thread has eight, but other threads may have little (`threading.stack_size`), and a
stack overflow kills the process. So where the stack may be small, the bytes are scanned first, without recursion.
"""

from __future__ import annotations

import re
import resource
import threading
from itertools import accumulate

from stategraph._values.frozen import MAX_DEPTH
from stategraph.stores._codec.type_codecs import DecodeError

FEW = 2 * MAX_DEPTH
"""Levels that fit on the stack of every thread that can load a State at all: to make values of `MAX_DEPTH` levels takes
as much."""

_ROOM = 2 << 20
"""Bytes of stack that are enough for ormsgpack and json, however deep the bytes are nested."""


def check_msgpack(data: bytes, levels: int, few: int = FEW) -> None:
    """Refuse msgpack whose lists and maps are nested too deep for the stack of this thread.

    Extensions are skipped: their bytes are unpacked, and checked, later. Data shorter than `few` needs no check.

    Args:
        data: The bytes.
        levels: Levels that saved data may have.
        few: Levels that fit on every stack.

    Raises:
        DecodeError: There are more than `levels`.
    """
    if threading.get_ident() == _ROOMY:
        return
    # Every level takes a byte that begins a list or a map. Few payloads have so many that it takes a closer look.
    if len(data.translate(None, _NO_CONTAINER)) > few and _is_deeper(data, levels):
        raise DecodeError(f"its bytes are nested deeper than {levels} levels, and those of no State are")


def check_json(data: bytes, levels: int) -> None:
    """Refuse JSON whose arrays and objects are nested too deep for the stack of this thread.

    Raises:
        DecodeError: There are more than `levels`.
    """
    if threading.get_ident() == _ROOMY or data.count(b"[") + data.count(b"{") <= levels:
        return
    marks = data.translate(None, _NO_MARK)
    if b"\\" in marks:
        marks = _ESCAPED.sub(b"", data).translate(None, _NO_MARK)
    # Two quotes side by side end one string and begin the next, or are an empty one: what is outside stays the same.
    outside = b"".join(marks.replace(b'""', b"").split(b'"')[::2])
    if max(accumulate(map(_STEPS.__getitem__, outside)), default=0) > levels:
        raise DecodeError(f"it is nested deeper than {levels} levels, and what is saved of no State is")


def _roomy_thread() -> int | None:
    """Return the id of the main thread if its stack is large, as usual. The stacks of others cannot be known."""
    limit, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return threading.main_thread().ident if limit == resource.RLIM_INFINITY or limit >= _ROOM else None


_ROOMY = _roomy_thread()

_NO_MARK = bytes(set(range(256)) - set(b'[]{}"\\'))
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STEPS = {**dict.fromkeys(b"[{", 1), **dict.fromkeys(b"]}", -1)}


# --------------------------------------------------------------------------- msgpack

_FIXED = (
    *([1] * 0x80 + [0] * 0x20 + [*range(1, 33)]),  # small ints, small maps and lists, short strings
    *([1] * 4 + [0] * 6 + [5, 9] + [2, 3, 5, 9] * 2),  # nil and bools, bytes and long extensions, floats, ints
    *([3, 4, 6, 10, 18] + [0] * 7 + [1] * 0x20),  # short extensions, long strings, large lists and maps, small ints
)
"""How many bytes a value takes, by its first byte; 0 where that depends on others."""

_OF_SIZE = tuple(bytes(first for first in range(256) if _FIXED[first] == size) for size in range(33))
"""The first bytes of values that take this many bytes."""

_LONG = {
    **dict(zip((0xC4, 0xC5, 0xC6), ((1, 2), (2, 3), (4, 5)), strict=True)),
    **dict(zip((0xC7, 0xC8, 0xC9), ((1, 3), (2, 4), (4, 6)), strict=True)),
    **dict(zip((0xD9, 0xDA, 0xDB), ((1, 2), (2, 3), (4, 5)), strict=True)),
}
"""Bytes, extensions and strings, by their first byte: the width of their length, and the size of all that precedes
their content."""

_MANY = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Lists and maps, by their first byte: the width of their length, and how many values each item takes."""

_NO_CONTAINER = bytes(first for first in range(256) if not (0x80 <= first < 0xA0 or first in _MANY))


def _is_deeper(data: bytes, levels: int) -> bool:
    """Return whether lists and maps have more levels; of truncated bytes, whether those that are there have."""
    fixed, position = _FIXED, 0
    left = 1  # values that are left of the innermost container
    outer: list[int] = []  # and of those around it
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
            count = each * (int.from_bytes(data[position + 1 : position + 1 + width]) if width else first & 0x0F)
            position += 1 + width
            if count:
                if len(outer) >= levels:
                    return True
                outer.append(left)
                left, position = _past_numbers(data, position, count) if width else (count, position)
    except IndexError:
        return False


def _past_numbers(data: bytes, position: int, left: int) -> tuple[int, int]:
    """Skip the values at the start of a long list that have the same size, as numbers have, many at once.

    Returns:
        How many values are left of the list, and the position of the first of them.
    """
    alike = _ALIKE
    while alike >= _ALIKE and left and position < len(data) and _FIXED[data[position]]:
        size = _FIXED[data[position]]
        firsts = data[position : position + size * min(left, 64 * _ALIKE) : size]
        alike = len(firsts) - len(firsts.lstrip(_OF_SIZE[size]))
        left -= alike
        position += alike * size
    return left, position


_ALIKE = 64  # values: where fewer have the same size, they are skipped one by one
