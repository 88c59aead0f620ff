"""What must not be shown: values that may be secrets, in errors, logs and reprs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

_LOOKED_AT = 2_000  # characters of a text: more are never shown
_PASSWORD = re.compile(r"(://[^/@:\s]*:)\S*(?=@)")  # of a user, in a URL


def without_passwords(text: str) -> str:
    """Return a text, or its beginning, with dots in place of passwords in URLs."""
    return _PASSWORD.sub(r"\1...", text[:_LOOKED_AT]) if "://" in text[:_LOOKED_AT] else text


_SECRET = re.compile(r"sign_with|verify_with|.key|pwd|secret|token|passw|credential|dsn|url", re.IGNORECASE)


def may_be_secret(name: str) -> bool:
    """Return whether the value of an option of this name may be one that must not be shown."""
    return _SECRET.search(name) is not None


@attrs.frozen(repr=False)
class Hidden:
    """Stands for a value that is not shown, as it may be a secret."""

    type: str

    @classmethod
    def of(cls, value: object) -> Hidden:
        """Return what stands for a value."""
        return value if isinstance(value, Hidden) else cls(type(value).__name__)

    def __repr__(self) -> str:
        return f"<a {self.type} that is not shown>"


def shown_items(items: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield the items of a mapping, with what stands for a value in the place of each that may be a secret by its key:
    a configuration that is given where something else is expected is shown by the error."""
    for key, value in items.items():
        yield key, Hidden.of(value) if isinstance(key, str) and may_be_secret(f".{key}") else value
