"""Text for errors, logs and screens: short forms of values and exceptions, without secrets.

Text of others on a screen can neither disturb the output nor imitate it.
"""

from __future__ import annotations

import re
from collections import UserDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import islice
from operator import length_hint
from types import MappingProxyType
from typing import Any

import attrs

_SHOWN = 80  # characters of a value in an error
_MANY = 10_000  # items of an object: its repr may take a second or more


def shorten(value: object, limit: int = _SHOWN) -> str:
    """Return the repr of a value, cut to `limit` characters and without passwords in URLs. Never raises."""
    try:
        text = without_passwords(_repr_up_to(limit, value))
    except Exception as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _repr_up_to(limit: int, value: object) -> str:
    """Return the repr of a value; if it is longer than `limit`, a beginning that is also longer.

    Only the beginning of a container is read: the whole repr may take megabytes, or very long if lists are shared.
    """
    if isinstance(value, str | bytes):
        shown = without_passwords(value) if isinstance(value, str) else value  # before a cut hides the URL
        return repr(shown[: limit + 1])
    opening, closing = _BRACKETS.get(type(value).__repr__, ("", ""))
    if not opening or not isinstance(value, Collection) or not value:
        if isinstance(value, dict | MappingProxyType | UserDict) and value != {}:
            return f"{type(value).__name__}({_repr_up_to(limit, dict(islice(value.items(), limit)))})"
        if not isinstance(value, range | Mapping) and (size := length_hint(value)) > _MANY:
            return f"<{type(value).__name__} of {size:,} items>"
        return repr(value)
    if isinstance(value, AbstractSet) and type(value) is not set:
        opening, closing = f"{type(value).__name__}({opening}", f"{closing})"
    text = opening
    for item in shown_items(value) if isinstance(value, dict) else ((item,) for item in value):
        if len(text) > limit:
            return text
        text += ": ".join([_repr_up_to(limit - len(text), part) for part in item]) + ", "
    if isinstance(value, tuple) and len(value) == 1:
        return f"{text[:-1]}{closing}"
    return f"{text[:-2]}{closing}"


_BRACKETS: dict[object, tuple[str, str]] = {
    **dict.fromkeys((set.__repr__, frozenset.__repr__, dict.__repr__), ("{", "}")),
    list.__repr__: ("[", "]"),
    tuple.__repr__: ("(", ")"),
}
"""The brackets of containers by their repr, which a subclass may replace."""


def brief(text: str, limit: int = 2 * _SHOWN) -> str:
    """Return a text, cut in its middle to `limit` characters."""
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 2 :]}"


def meant(name: str, known: Iterable[str]) -> str:
    """Return a question for the known name that is similar; empty if there is none."""
    import difflib  # imported when used

    near = difflib.get_close_matches(brief(name), known, 1)
    return f"did you mean {near[0]!r}?" if near else ""


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def describe_exception(error: BaseException) -> str:
    """Return an exception as ``ValueError: text``, even if its ``str`` raises."""
    try:
        text = str(error)
    except Exception as broken:
        text = f"<its str raises {type(broken).__name__}>"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --------------------------------------------------------------------------- secrets


_LOOKED_AT = 2_000  # characters of a text: more are never shown
_IN_A_URL = r"(://[^/@:\s]*:)\S*(?=@)"


def without_passwords(text: str) -> str:
    """Return the first 2,000 characters of a text, with dots in place of passwords in URLs."""
    return re.sub(_IN_A_URL, r"\1...", text[:_LOOKED_AT]) if "://" in text[:_LOOKED_AT] else text


_SUSPICIOUS = r"(sign|verify|encrypt)_with|.key|pwd|secret|token|passw|credential|dsn|url"


def may_be_secret(name: str) -> bool:
    """Return whether the name of an option suggests a secret."""
    return re.search(_SUSPICIOUS, name, re.IGNORECASE) is not None


@attrs.frozen(repr=False)
class Hidden:
    """The placeholder for a value that may be a secret."""

    type: str

    @classmethod
    def of(cls, value: object) -> Hidden:
        """Return the placeholder for a value."""
        return value if isinstance(value, Hidden) else cls(type(value).__name__)

    def __repr__(self) -> str:
        return f"<{self.type}, not shown>"


def unreadable(address: str, *schemes: str) -> str:
    """Describe an address that cannot be read by its scheme: the rest may be a secret."""
    scheme, is_url, _ = address.partition("://")
    if is_url and scheme not in schemes and len(scheme) <= 30 and scheme.replace("+", "").isalnum():
        return f"this one begins with {scheme}://"
    return "this one cannot be read"


def shown_items(items: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the items of a mapping, with placeholders for values whose keys suggest a secret.

    A mapping in an error may be a configuration that was passed by mistake.
    """
    for key, value in items.items():
        yield key, Hidden.of(value) if isinstance(key, str) and may_be_secret(f".{key}") else value


# --------------------------------------------------------------------------- text for a screen

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


def one_line(text: str) -> str:
    """Return a text on one line, with a space for each break and each other white space."""
    return " ".join(text.split())


def failure_text(kind: str, message: str) -> str:
    """Return the type and the message of an error on one line; for failed parts, begin with the parts."""
    if kind == "ExceptionGroup" and (parts := _PARTS.fullmatch(message)):
        count, failed = parts.groups()
        return one_line(f"part {failed}" if count == "1" else f"{count} parts: {failed}")
    return one_line(f"{kind}: {message}")


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
