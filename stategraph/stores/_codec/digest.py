"""Digests of values: equal if a store would keep the same bytes of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from stategraph.errors import NotSerializableError
from stategraph.stores._codec.msgpack import encode


def digest_of(*parts: Mapping[str, Any]) -> str:
    """Return a digest of mappings, whatever the order of their keys; empty if a value in them cannot be kept.

    Below that, all tells values apart that does so in a store: types, the order of keys, the sign of a zero.
    """
    try:
        written = encode([dict(sorted(part.items())) for part in parts])
    except NotSerializableError:
        return ""
    return hashlib.blake2b(written, digest_size=20).hexdigest()
