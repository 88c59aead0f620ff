"""Opaque: a value that this process cannot construct. It can be inspected, and saved again exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs

from stategraph._text.shown import shorten
from stategraph._values.frozen import freeze

_OBJECT, _ENUM = "object", "enum"
_is_shown: ContextVar[bool] = ContextVar("stategraph_unknown_is_shown", default=False)
SHOWN_LENGTH = 1_000  # characters of its repr


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
        found: Mapping[str, Any] = self.parts[2] if self.tag == _OBJECT else {}
        return found

    def __hash__(self) -> int:
        return hash((self.tag, repr(self.parts)))

    def __repr__(self) -> str:
        if self.tag == _OBJECT:
            fields = ", ".join(f"{name}={shorten(value, SHOWN_LENGTH)}" for name, value in self.fields.items())
            return f"{self.type}({fields})"
        if self.tag == _ENUM:
            _, member, value = self.parts
            return f"{self.type}.{member}" if member is not None else f"{self.type}({value!r})"
        return f"{self.type}({shorten(self.parts, SHOWN_LENGTH)})"


def is_unknown_shown() -> bool:
    """Return whether values that cannot be constructed here become `Opaque` instead of an error."""
    return _is_shown.get()


@contextmanager
def unknown_shown(shown: bool = True) -> Iterator[None]:
    """In the block and in this thread, decode values that cannot be constructed here as `Opaque`."""
    token = _is_shown.set(shown)
    try:
        yield
    finally:
        _is_shown.reset(token)


def check_unknown(unknown: object) -> bool:
    """Return whether ``unknown=`` selects `Opaque` values. Raise ValueError unless it is "opaque" or None."""
    if unknown not in (None, "opaque"):
        raise ValueError(f'unknown: {shorten(unknown)} is not allowed; "opaque" is, or None to be refused')
    return unknown is not None
