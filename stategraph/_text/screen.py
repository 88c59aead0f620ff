"""Text of others for a screen: it can neither disturb the output nor imitate it."""

from __future__ import annotations

import re

SHORT = 300
"""The characters of a value that are shown by default."""

_PARTS = re.compile(
    r"(\d+) of its parts failed: (.*?)(?: \(\d+ sub-exceptions?\))?", re.DOTALL
)  # as `do_parts` says it
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def clean(text: str) -> str:
    """Return a text with escapes for control characters, marks of writing direction, and lone surrogates."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def cut(text: str, limit: int = SHORT) -> str:
    """Return a clean text, cut to `limit` characters."""
    return clean(text if len(text) <= limit else f"{text[:limit]}...")


def failure_text(kind: str, message: str) -> str:
    """Return the type and the message of an error on one line; for failed parts, begin with the parts."""
    if kind == "ExceptionGroup" and (parts := _PARTS.fullmatch(message)):
        count, failed = parts.groups()
        return " ".join(f"part {failed}".split() if count == "1" else f"{count} parts: {failed}".split())
    return " ".join(f"{kind}: {message}".split())


def span(seconds: float) -> str:
    """Return a duration with two or three digits."""
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    unit, size = next((unit, size) for unit, size in _UNITS if seconds >= size)
    return f"{seconds / size:.0f} {unit}"
