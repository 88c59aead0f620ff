"""Results of nodes in a folder, kept by diskcache (https://grantjenks.com/docs/diskcache/)."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
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
from stategraph.stores._codec.type_codecs import expect_dict, expect_list
from stategraph.stores._files.fork_safety import ForkSafe
from stategraph.stores._files.paths import absolute_path, secure_file, secure_folder
from stategraph.stores._files.sqlite_files import OpenFiles, check_version, connect, erase_log
from stategraph.stores._rows.seals import signing_key
from stategraph.stores.base import SigningKey

_OLDEST = (3, 31)  # has trusted_schema
_FORMAT, _SIGNED = b"stategraph result 1\n", b"stategraph result 1, signed\n"
_NEEDS_KEY = "it is signed and this cache has no sign_with"
_PARTS = (
    *("Cache", "Cache_key_raw", "Cache_expire_time", "Settings", "sqlite_autoindex_Settings_1"),
    *("Settings_count_insert", "Settings_count_delete"),
    *("Settings_size_insert", "Settings_size_update", "Settings_size_delete"),
)
_SETTINGS = {
    **DEFAULT_SETTINGS,  # all of them: diskcache runs settings in the database as PRAGMA statements
    "eviction_policy": "none",
    "cull_limit": 0,
    "sqlite_mmap_size": 0,
    "sqlite_secure_delete": 1,
    "sqlite_trusted_schema": 0,
    "disk_min_file_size": 2**62,  # no entry has a file of its own
}


class _BytesOnly(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Reads entries of bytes. It unpickles nothing, and opens and removes no file that an entry names."""

    def fetch(self, mode: Any, filename: Any, value: Any, read: bool) -> bytes:
        if mode != MODE_RAW or filename is not None or type(value) is not bytes:
            raise ValueError("stategraph does not write such entries")
        return value

    def remove(self, file_path: Any) -> None:
        """Do nothing."""


class ResultCache(ForkSafe):
    """Results of nodes in a folder. It never raises an error, and creates the folder at the first search.

    Every entry has a checksum or a signature, and contains its own key. Damaged and foreign entries count as missing.
    Expired entries are removed.

    Args:
        path: The folder.
        sign_with: Returns the key that signs entries (HMAC-SHA-256). Other entries count as missing.
        cipher: A `stategraph.stores._rows.cipher.Cipher`, which encrypts entries. The key of an entry, a digest of its
            inputs, needs the key of the cipher too: inputs cannot be guessed.
    """

    _cache: diskcache.Cache | None = None

    def __init__(self, path: Any, sign_with: SigningKey | str | None = None, cipher: Any = None) -> None:
        # Absolute, because the working directory may change before the folder is opened.
        self._path = absolute_path(path, "cache.path", "a folder")
        self._signing_key, self._cipher = signing_key(sign_with, "cache.sign_with"), cipher
        self._files: OpenFiles
        super().__init__()

    def find(self, parts: Sequence[Any], ttl: float | None, run_id: str = "") -> CachedResult:
        """Return the result for these inputs, if there is one that is not older than `ttl` seconds."""
        key = None
        try:
            inputs = encode(parts)
            if self._cipher is not None:
                inputs = self._cipher.digest(run_id, inputs)
            key = hashlib.sha256(inputs).hexdigest()
            with self.lock:
                return self._found(key, ttl, run_id)
        except NotSerializableError as error:
            reason = f"an input has no exact value to look for: {error}"
        except Exception as error:  # noqa: BLE001 - a cache never fails
            reason = f"it cannot be read: {describe_exception(error)}"
        return CachedResult(key, reason=reason, is_broken=True)

    def _found(self, key: str, ttl: float | None, run_id: str) -> CachedResult:
        results, signing_key = self._opened(), self._key()
        entry = results.get(key)
        if entry is None:
            if results.expire():
                _erase(results)
            return CachedResult(key, reason="new")
        seal_size = len(_seal(key, b"", signing_key))
        payload = entry[seal_size:]
        if not hmac.compare_digest(entry[:seal_size], _seal(key, payload, signing_key)):
            if signing_key is None and not entry.startswith(_SIGNED):
                return CachedResult(key, reason="damaged: its checksum is wrong, or another version wrote it")
            reason = "it is not signed with the key of sign_with, or is forged" if signing_key else _NEEDS_KEY
            return CachedResult(key, reason=reason, is_broken=True)
        try:
            if self._cipher is not None:
                payload = self._cipher.decrypted(run_id, _bound_to(key), payload, "a cached result")
            written, changes = _unpack(key, payload)
        except Exception as error:  # noqa: BLE001 - foreign bytes may raise any error
            return CachedResult(key, reason=f"damaged: {describe_exception(error)}")
        if ttl is not None and not 0 <= clock.now_ns() - written < ttl * 1_000_000_000:
            results.delete(key)
            _erase(results)
            return CachedResult(key, reason="expired")
        return CachedResult(key, changes)

    def keep(self, key: str, changes: Changes, ttl: float | None = None, run_id: str = "") -> str:
        """Keep a result for `ttl` seconds. Return why that failed; empty if it succeeded."""
        try:
            changed, removed = changes
            payload = encode([key, clock.now_ns(), dict(changed), list(removed)])
            if self._cipher is not None:
                payload = self._cipher.encrypted(run_id, _bound_to(key), payload)
            seal = _seal(key, payload, self._key())
            with self.lock:
                self._opened().set(key, seal + payload, expire=ttl)
        except Exception as error:  # noqa: BLE001 - a cache never fails
            return describe_exception(error)
        return ""

    def _key(self) -> bytes | None:
        return None if self._signing_key is None else self._signing_key()

    def _opened(self) -> diskcache.Cache:
        if self._cache is None or not self._files.are_there:  # the folder may be deleted at any time
            check_version("cache.path", self._path, _OLDEST)
            self._close()
            file = _file_in(self._path)
            _check(file)
            self._cache = _shared(diskcache.Cache(self._path, disk=_BytesOnly, **_SETTINGS), file)
            self._files = OpenFiles(file)
        return self._cache

    def _close(self) -> None:
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()

    __del__ = _close

    def renew(self) -> None:
        super().renew()
        self._close()  # a forked child opens its own connection

    def __str__(self) -> str:
        return f"cache at {self._path}"


def _shared(cache: diskcache.Cache, file: Path) -> diskcache.Cache:
    """Return the cache with one connection for all threads, which take turns.

    diskcache opens one for each thread and leaves it open, for which Python 3.13 warns when the thread ends.
    """
    cache.close()
    cache._local = SimpleNamespace(pid=os.getpid(), con=connect(file, "rw"))
    for name, value in _SETTINGS.items():
        cache.reset(name, value, update=False)
    return cache


def _erase(cache: diskcache.Cache) -> None:
    """Truncate the log, which still contains removed entries."""
    erase_log(cache._local.con)


def _file_in(path: str) -> Path:
    """Return the database in a folder. If missing, both are created with access for their owner only.

    Raises:
        ConfigError: they are unusable, or others can write to them.
    """
    if os.path.expandvars(path) != path:  # diskcache would replace variables
        raise ConfigError("cache.path", path, "a path without $ variables")
    try:
        return secure_file(secure_folder(Path(path)) / DBNAME)
    except OSError as error:
        raise ConfigError("cache.path", path, f"a folder that can be made and written to ({error.strerror})") from error


def _check(file: Path) -> None:
    """Raise ValueError if a database has tables, triggers or settings that are not diskcache's: it would run them."""
    with closing(connect(file, "rw")) as database:
        found = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        if "Settings" in found:
            found.update(key for (key,) in database.execute("SELECT key FROM Settings"))
    foreign = found - {*_SETTINGS, *METADATA, *_PARTS}
    if foreign:
        raise ValueError(f"{file} was not made by stategraph: it has {', '.join(map(str, foreign))}")


def result_cache_of(policy: CachePolicy, store_key: SigningKey | None, cipher: Any) -> ResultCache:
    """Return the cache of a policy, signed with its key or, if it has none, with that of the store, which encrypts it.

    Raises:
        ConfigError: the path is not allowed, or the environment variable of the key is not set.
    """
    return ResultCache(policy.path, store_key if policy.sign_with is None else policy.sign_with, cipher)


# --------------------------------------------------------------------------- entries


def _seal(key: str, payload: bytes, signing_key: bytes | None) -> bytes:
    """Return the beginning of an entry: its format, and a checksum or a signature of the payload after it."""
    if signing_key is None:
        return _FORMAT + hashlib.sha256(payload).digest()
    return _SIGNED + hmac.digest(signing_key, _SIGNED + key.encode() + payload, "sha256")


def _bound_to(key: str) -> bytes:
    return f"cache {key}".encode()


def _unpack(key: str, payload: bytes) -> tuple[int, Changes]:
    """Return the time of an entry, in nanoseconds since 1970, and its changes. Raises any error if it is damaged."""
    own, written, changed, removed = expect_list(decode(payload), 4)
    if type(own) is not str or own != key:
        raise ValueError("it is the result for other inputs")
    return written, (
        freeze_items(expect_dict(changed)),
        expect_list(removed),
    )  # frozen here: values that a State refuses are damage
