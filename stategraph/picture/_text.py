"""Text in pictures: how much room it takes, and what of it can stand in one."""

from __future__ import annotations

from html import escape
from unicodedata import east_asian_width

LONGEST = 34  # characters of a text that is shown
_LONGEST_WHOLE = 500  # of one that is told beside the picture

_NARROW = frozenset("iljtfrI.,:;'|!()[]{}·` ")
_WIDE = frozenset("mwMW@%—…→")


def plain(text: str) -> str:
    """Return a text in one line, without what is not to be seen: controls, half surrogates, changes of direction."""
    line = " ".join(text[:_LONGEST_WHOLE].split())
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


def cut(text: str, limit: int = LONGEST) -> str:
    """Return the beginning of a text, as it is shown."""
    text = plain(text)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def width_of(text: str, size: float) -> float:
    """Return how wide a text of a size is, in whatever font, rather too wide than too narrow."""
    return size * sum(map(_width_of, text))


def _width_of(char: str) -> float:
    if char in _NARROW:
        return 0.4
    if char in _WIDE:
        return 0.98
    if char.isascii():
        return 0.72 if char.isupper() else 0.61
    return 1.05 if east_asian_width(char) in "WF" else 0.75


def marked_up(text: str) -> str:
    """Return a text as it stands in XML."""
    return escape(plain(text))
