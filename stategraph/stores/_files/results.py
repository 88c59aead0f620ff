"""Results of nodes in a folder: a cache that is as safe as the disk store, and never raises."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

from diskcache.core import DBNAME

from stategraph._text.shown import describe_exception
from stategraph._values import clock
from stategraph._values.cached import CachedResult, Changes
from stategraph._values.frozen import freeze_items
from stategraph.errors import NotSerializableError
from stategraph.policies import CachePolicy
from stategraph.stores._codec.msgpack import decode, encode
from stategraph.stores._files.config_paths import absolute_path
from stategraph.stores._files.safe_diskcache import OLDEST, SafeCache, cache_folder, check_database
from stategraph.stores._files.sqlite_files import check_version
from stategraph.stores._rows.integrity import signing_key
from stategraph.stores.base import SigningKey

_FORMAT, _SIGNED = b"stategraph result 1\n", b"stategraph result 1, signed\n"
_DIGEST = 32  # bytes of a SHA-256
_SWEEP = 100  # results that are kept between two looks for those whose time is over
_SWEPT = 1_000  # results that one look removes at most: a node waits for it


class ResultCache:
    """Results of nodes in a folder. It is opened, and made for its owner only, when the first result is looked for.

    Every entry has a checksum or a signature and holds its own key, and nothing in it is ever unpickled: what is
    damaged, or does not belong there, counts as missing. Expired entries are removed.

    Args:
        path: The folder.
        sign_with: Gives the key that entries are signed with (HMAC-SHA-256): all others count as missing.
    """

    def __init__(self, path: Any, sign_with: SigningKey | str | None = None) -> None:
        # Made absolute at once: the working directory may change until it is opened.
        self._path = absolute_path(path, "cache.path", "a folder")
        self._signing_key = signing_key(sign_with, "cache.sign_with")
        self._cache: SafeCache | None = None
        self._kept = 0  # since it was opened

    def find(self, parts: Sequence[Any], ttl: float | None) -> CachedResult:
        """Return the result for these inputs, if there is one that is not older than `ttl` seconds."""
        try:
            key = hashlib.sha256(encode(parts)).hexdigest()
        except NotSerializableError as error:
            return CachedResult(None, reason=f"an input has no exact value to look for: {error}", is_broken=True)
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return CachedResult(None, reason=describe_exception(error), is_broken=True)
        try:
            return self._found(key, ttl)
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return CachedResult(key, reason=f"it cannot be read: {describe_exception(error)}", is_broken=True)

    def _found(self, key: str, ttl: float | None) -> CachedResult:
        cache, signing_key = self._opened(), self._key()
        entry = cache.find(self, key)
        if entry is None:
            return CachedResult(key, reason="new")
        try:
            written, changes = _unpack(key, entry, signing_key)
        except _OtherSignatureError as error:
            return CachedResult(key, reason=str(error), is_broken=True)
        except Exception as error:  # noqa: BLE001 - any may be raised by bytes that are not ours
            return CachedResult(key, reason=f"damaged: {describe_exception(error)}")
        if ttl is not None and not 0 <= clock.now_ns() - written < ttl * 1_000_000_000:
            cache.drop(self, key)
            return CachedResult(key, reason="expired")
        return CachedResult(key, changes)

    def keep(self, key: str, changes: Changes, ttl: float | None = None) -> str:
        """Keep a result, for `ttl` seconds. Returns why that failed; empty if it did not."""
        try:
            entry, cache = _pack(key, changes, self._key()), self._opened()
            with cache.transaction(self):
                cache.set(key, entry, expire=ttl)
            if self._kept % _SWEEP == 0 and cache.drop_expired(self, clock.now_ns() / 1e9, _SWEPT):
                cache.erase(self)
            self._kept += 1
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return describe_exception(error)
        return ""

    def _key(self) -> bytes | None:
        return None if self._signing_key is None else self._signing_key()

    def _opened(self) -> SafeCache:
        cache = self._cache
        if cache is None or not cache.files.are_there:  # it may be deleted at any time
            # Two threads may open it at once: one of the handles is used from then on.
            check_version("cache.path", self._path, OLDEST)
            folder = cache_folder(self._path, "cache.path")
            check_database(folder / DBNAME)
            cache = self._cache = SafeCache(self._path)
            self._kept = 0
        return cache

    def __str__(self) -> str:
        return f"cache at {self._path}"


def result_cache_of(policy: CachePolicy, store_key: SigningKey | None) -> ResultCache:
    """Return the results of nodes with a policy, signed with its key or, if it has none, with that of the store.

    Raises:
        ConfigError: The path cannot be one, or the environment variable that holds the key is not set.
    """
    return ResultCache(policy.path, store_key if policy.sign_with is None else policy.sign_with)


class _OtherSignatureError(ValueError):
    """An entry is signed with another key, or not at all."""


def _pack(key: str, changes: Changes, signing_key: bytes | None) -> bytes:
    changed, removed = changes
    payload = encode([key, clock.now_ns(), dict(changed), list(removed)])
    return _prefix(key, payload, signing_key) + payload


def _prefix(key: str, payload: bytes, signing_key: bytes | None) -> bytes:
    """Return the start of an entry: its format, and a checksum or a signature."""
    if signing_key is None:
        return _FORMAT + hashlib.sha256(payload).digest()
    return _SIGNED + hmac.digest(signing_key, _SIGNED + key.encode() + payload, "sha256")


def _unpack(key: str, entry: bytes, signing_key: bytes | None) -> tuple[int, Changes]:
    """Return when an entry was written, in nanoseconds since 1970, and the changes that it holds.

    Raises:
        ValueError: It is no entry for this key.
    """
    start = len(_FORMAT if signing_key is None else _SIGNED) + _DIGEST
    payload = entry[start:]
    if not hmac.compare_digest(entry[:start], _prefix(key, payload, signing_key)):
        raise _mismatch(entry, has_key=signing_key is not None)
    own, written, changed, removed = decode(payload)
    is_ours = own == key and type(written) is int and type(changed) is dict and type(removed) is list
    if not is_ours or not all(type(name) is str for name in (*changed, *removed)):
        raise ValueError("it is no result for these inputs")
    return written, (freeze_items(changed), removed)  # frozen here: what a State refuses is no result either


def _mismatch(entry: bytes, *, has_key: bool) -> ValueError:
    if entry.startswith(_SIGNED):
        why = "with another key than that of sign_with, or is forged" if has_key else "and this cache has no sign_with"
        return _OtherSignatureError(f"it is signed {why}")
    if has_key and entry.startswith(_FORMAT):
        return _OtherSignatureError("it is not signed: it was kept without sign_with, or is forged")
    return ValueError("its checksum is wrong, or another version wrote it")
