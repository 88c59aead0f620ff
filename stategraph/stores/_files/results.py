"""Results of nodes in a folder, kept by diskcache (https://grantjenks.com/docs/diskcache/). It never raises."""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import diskcache
from diskcache.core import DBNAME, DEFAULT_SETTINGS, METADATA, MODE_RAW

from stategraph._text.shown import describe_exception
from stategraph._values import clock
from stategraph._values.frozen import freeze_items
from stategraph._values.progress import CachedResult, Changes
from stategraph.errors import ConfigError, NotSerializableError
from stategraph.policies import CachePolicy
from stategraph.stores._codec.msgpack import decode, encode
from stategraph.stores._files.fork_safety import protect_at_fork
from stategraph.stores._files.paths import absolute_path, secure_file, secure_folder
from stategraph.stores._files.sqlite_files import OpenFiles, check_version, connect, erase_log
from stategraph.stores._rows.keys import signing_key
from stategraph.stores.base import SigningKey

_OLDEST = (3, 31)  # older ones do not know trusted_schema
_FORMAT, _SIGNED = b"stategraph result 1\n", b"stategraph result 1, signed\n"
_DIGEST = 32  # bytes of a SHA-256
_PARTS = (
    *("Cache", "Cache_key_raw", "Cache_expire_time", "Settings", "sqlite_autoindex_Settings_1"),
    *("Settings_count_insert", "Settings_count_delete"),
    *("Settings_size_insert", "Settings_size_update", "Settings_size_delete"),
)
_SETTINGS = {
    **DEFAULT_SETTINGS,  # also those that stay: what a database has as settings becomes PRAGMA statements
    "eviction_policy": "none",
    "cull_limit": 0,
    "sqlite_mmap_size": 0,
    "sqlite_secure_delete": 1,
    "sqlite_trusted_schema": 0,
    "disk_min_file_size": 2**62,  # no entry has a file of its own
}


class _BytesOnly(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Reads entries of bytes. Nothing is unpickled, and no file is opened or removed because an entry names it."""

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> bytes:
        if mode != MODE_RAW or filename is not None or type(value) is not bytes:
            raise ValueError("it holds what stategraph does not write")
        return value

    def remove(self, file_path: Any) -> None:
        """Do nothing."""


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
        self._cache: diskcache.Cache | None = None
        self._files: OpenFiles
        self._lock = threading.RLock()
        protect_at_fork(self)

    def at_rest(self) -> AbstractContextManager[object]:
        """Keep other threads out while the process is forked."""
        return self._lock

    def renew(self) -> None:
        """Take a lock of its own, in a forked child."""
        self._lock = threading.RLock()

    def find(self, parts: Sequence[Any], ttl: float | None) -> CachedResult:
        """Return the result for these inputs, if there is one that is not older than `ttl` seconds."""
        try:
            key = hashlib.sha256(encode(parts)).hexdigest()
        except NotSerializableError as error:
            return CachedResult(None, reason=f"an input has no exact value to look for: {error}", is_broken=True)
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return CachedResult(None, reason=describe_exception(error), is_broken=True)
        try:
            with self._lock:
                return self._found(key, ttl)
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return CachedResult(key, reason=f"it cannot be read: {describe_exception(error)}", is_broken=True)

    def _found(self, key: str, ttl: float | None) -> CachedResult:
        results, signing_key = self._opened(), self._key()
        entry = results.get(key)
        if entry is None:
            if results.expire():
                self._erase()
            return CachedResult(key, reason="new")
        try:
            written, changes = _unpack(key, entry, signing_key)
        except _OtherSignatureError as error:
            return CachedResult(key, reason=str(error), is_broken=True)
        except Exception as error:  # noqa: BLE001 - any may be raised by bytes that are not ours
            return CachedResult(key, reason=f"damaged: {describe_exception(error)}")
        if ttl is not None and not 0 <= clock.now_ns() - written < ttl * 1_000_000_000:
            results.delete(key)
            self._erase()
            return CachedResult(key, reason="expired")
        return CachedResult(key, changes)

    def keep(self, key: str, changes: Changes, ttl: float | None = None) -> str:
        """Keep a result, for `ttl` seconds. Returns why that failed; empty if it did not."""
        try:
            entry = _pack(key, changes, self._key())
            with self._lock:
                self._opened().set(key, entry, expire=ttl)
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return describe_exception(error)
        return ""

    def _key(self) -> bytes | None:
        return None if self._signing_key is None else self._signing_key()

    def _opened(self) -> diskcache.Cache:
        if self._cache is None or not self._files.are_there:  # the folder may be deleted at any time
            check_version("cache.path", self._path, _OLDEST)
            self._file = _file_in(self._path)
            _check(self._file)
            self._cache = diskcache.Cache(self._path, disk=_BytesOnly, **_SETTINGS)
            self._files = OpenFiles(self._file)
        return self._cache

    def _erase(self) -> None:
        """Cut off the log, in which what was removed still stands."""
        with closing(connect(self._file, "rw")) as database:
            erase_log(database)

    def __str__(self) -> str:
        return f"cache at {self._path}"


def _file_in(path: str) -> Path:
    """Return the database in a folder. Both are made, for their owner only, if they are not there.

    Raises:
        ConfigError: They cannot be used, or others can write to them.
    """
    if os.path.expandvars(path) != path:  # diskcache would put values in the place of variables
        raise ConfigError("cache.path", path, "a path without $ variables")
    try:
        return secure_file(secure_folder(Path(path)) / DBNAME)
    except OSError as error:
        raise ConfigError("cache.path", path, f"a folder that can be made and written to ({error.strerror})") from error


def _check(file: Path) -> None:
    """Raise ValueError if a database has what diskcache does not make: it would run triggers and settings."""
    with closing(connect(file, "rw")) as database:
        found = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if "Settings" in found:
            found.update(key for (key,) in database.execute("SELECT key FROM Settings"))
    foreign = found - {*_SETTINGS, *METADATA, *_PARTS}
    if foreign:
        raise ValueError(f"{file} was not made by stategraph: it has {', '.join(map(str, foreign))}")


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
