"""Values made to fit types, as cattrs does it."""

from __future__ import annotations

from typing import Any

from stategraph.errors import shorten


def structured(path: str, value: Any, expected: Any) -> Any:
    """-> the value as one of this type. Raises ValueError if it does not fit."""
    import cattrs  # imported when used: 60 ms

    try:
        return cattrs.structure(value, expected)
    except Exception as error:
        name = getattr(expected, "__name__", expected)
        raise ValueError(f"{path!r}: {shorten(value)} is no {name}: {error}") from error
