"""Results of nodes in a folder: a cache that is as safe as the disk store, and never fails."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
from diskcache.core import DBNAME

from stategraph import clock
from stategraph.errors import NotSerializableError, describe_exception
from stategraph.frozen import freeze_items
from stategraph.stores.cache import SafeCache, cache_folder, check_database
from stategraph.stores.codec import decode, encode
from stategraph.stores.files import absolute

_FORMAT = b"stategraph result 1\n"
_DIGEST = 32  # bytes of a SHA-256


@attrs.frozen
class FoundResult:
    """What came of looking for a result.

    Attributes:
        key: What it is kept under; None where it cannot be.
        changes: What was set, by keys, and the keys that were removed; None if there is nothing to be used.
        reason: Why there is nothing.
        is_broken: Whether it is the cache that failed.
    """

    key: str | None
    changes: tuple[Mapping[str, Any], Sequence[str]] | None = None
    reason: str = ""
    is_broken: bool = False


class KeptResults:
    """Results in a folder, which is opened, and made for its owner only, when the first one is looked for.

    Every entry has a checksum and holds its own key, and nothing in it is ever unpickled: what is damaged, or does not
    belong there, is as good as missing.
    """

    def __init__(self, path: Any) -> None:
        self._path = absolute(path, "cache.path", "a folder")  # the working directory may change until it is opened
        self._cache: SafeCache | None = None

    def find(self, parts: Sequence[Any], ttl: float | None) -> FoundResult:
        """-> the result that is kept for these values, not older than `ttl` seconds."""
        try:
            key = hashlib.sha256(encode(parts)).hexdigest()
        except NotSerializableError as error:
            return FoundResult(None, reason=f"an input has no exact value to look for: {error}", is_broken=True)
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return FoundResult(None, reason=describe_exception(error), is_broken=True)
        try:
            entry = self._opened().get(key)
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return FoundResult(key, reason=f"it cannot be read: {describe_exception(error)}", is_broken=True)
        if entry is None:
            return FoundResult(key, reason="new")
        try:
            written, changed, removed = _unpacked(key, entry)
        except Exception as error:  # noqa: BLE001 - whatever comes of bytes that are not ours
            return FoundResult(key, reason=f"damaged: {describe_exception(error)}")
        if ttl is not None and not 0 <= clock.now_ns() - written < ttl * 1_000_000_000:
            return FoundResult(key, reason="expired")
        return FoundResult(key, (changed, removed))

    def keep(self, key: str, changes: tuple[Mapping[str, Any], Sequence[str]]) -> str:
        """Keep a result -> why that failed; empty if it did not."""
        try:
            self._opened().set(key, _packed(key, changes))
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return describe_exception(error)
        return ""

    def _opened(self) -> SafeCache:
        cache = self._cache
        if cache is None:  # two threads may open it at once: one of the handles is used from then on
            database = Path(self._path) / DBNAME
            cache_folder(self._path)
            check_database(database)
            cache = self._cache = SafeCache(self._path)
        cache.between_transactions()
        return cache


def _packed(key: str, changes: tuple[Mapping[str, Any], Sequence[str]]) -> bytes:
    changed, removed = changes
    body = encode([key, clock.now_ns(), dict(changed), list(removed)])
    return _FORMAT + hashlib.sha256(body).digest() + body


def _unpacked(key: str, entry: bytes) -> tuple[int, dict[str, Any], list[str]]:
    """-> when an entry was written, what was set, and what was removed. ValueError: it is none for this key."""
    start = len(_FORMAT) + _DIGEST
    body = entry[start:]
    if entry[:start] != _FORMAT + hashlib.sha256(body).digest():
        raise ValueError("its checksum is wrong, or another version wrote it")
    own, written, changed, removed = decode(body)
    is_ours = own == key and type(written) is int and type(changed) is dict and type(removed) is list
    if not is_ours or not all(type(name) is str for name in (*changed, *removed)):
        raise ValueError("it is no result for these inputs")
    return written, freeze_items(changed), removed  # what a State would not take is no result either
