"""Text for a screen that others have had a hand in: it neither breaks what is shown nor forges it."""

from __future__ import annotations

import re

SHORT = 300
"""Characters of a value that are shown by default."""

_PARTS = re.compile(
    r"(\d+) of its parts failed: (.*?)(?: \(\d+ sub-exceptions?\))?", re.DOTALL
)  # as `do_parts` says it
_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def clean(text: str) -> str:
    """Return a text with escapes in place of what a terminal would act on: control characters, marks that turn the
    direction of writing around, lone surrogates."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def cut(text: str, limit: int = SHORT) -> str:
    """Return a text, clean and without the end of a long one."""
    return clean(text if len(text) <= limit else f"{text[:limit]}...")


def failure_text(kind: str, message: str) -> str:
    """Return an error of this type and message on one line: of parts that failed, which they are comes first."""
    if kind == "ExceptionGroup" and (parts := _PARTS.fullmatch(message)):
        count, told = parts.groups()
        return " ".join(f"part {told}".split() if count == "1" else f"{count} parts: {told}".split())
    return " ".join(f"{kind}: {message}".split())


def span(seconds: float) -> str:
    """Return how long something takes, to two or three digits."""
    if seconds < 0.001:
        return "<1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    unit, size = next(one for one in _UNITS if seconds >= one[1])
    return f"{seconds / size:.0f} {unit}"
