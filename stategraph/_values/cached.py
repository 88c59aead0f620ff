"""Cached results of nodes: what a node changed, and what comes of looking for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import attrs

Changes: TypeAlias = tuple[Mapping[str, Any], Sequence[str]]
"""The values that a node has set, by key, and the keys that it has removed."""


@attrs.frozen
class CachedResult:
    """What was found in a cache.

    Attributes:
        key: The key of the result in the cache; None if the inputs have none.
        changes: The result; None if there is none that can be used.
        reason: Why there is none.
        is_broken: Whether the cache needs attention: it fails, or has other signatures.
    """

    key: str | None
    changes: Changes | None = None
    reason: str = ""
    is_broken: bool = False
