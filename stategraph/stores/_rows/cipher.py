"""Encryption of records (AES-256-GCM): some fields of a record become a ciphertext in one of them."""

from __future__ import annotations

import hmac
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import ormsgpack

from stategraph._text.shown import shorten
from stategraph._util.callables import answered, problem_of
from stategraph._values.ids import given_id
from stategraph._values.provenance import ErrorInfo
from stategraph.errors import CheckpointCorruptError, CheckpointError, ConfigError
from stategraph.stores.base import RetentionPolicy

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

EncryptionKeys: TypeAlias = bytes | str | Mapping[str, bytes | str]
"""A key of 32 bytes, or keys by their names. A str is the name of an environment variable that holds a key in hex."""


MARK = "+aes"
"""Ends the encoding of an encrypted payload, and begins an encrypted text."""

_OPTION = "checkpoint.options.encrypt_with"
_NONCE = 12  # bytes
_UNBOUND = {"payload", "number", "due_ns", "seal"}  # the database gives a number, and an answer makes a run due
_BLANK = {"error": None, "pause": None, "by": None, "labels": (), "payload": b"", "made_of": ""}
_plain_runs: ContextVar[set[str] | None] = ContextVar("plain_runs", default=None)


@contextmanager
def plain_accepted() -> Iterator[set[str]]:
    """In the block and in this thread, read records that are not encrypted as well. Yield the ids of their runs."""
    token = _plain_runs.set(plain_runs := set[str]())
    try:
        yield plain_runs
    finally:
        _plain_runs.reset(token)


def is_encrypted(text: str | None) -> bool:
    """Return whether a text, or the encoding of a payload, is that of an encrypted record."""
    return text is not None and (text.startswith(MARK) or text.endswith(MARK))


def needs_key(run_id: str, what: str) -> CheckpointCorruptError:
    """Return the error for an encrypted record in a store without keys."""
    way_out = "open it with encrypt_with, as it was when this was saved"
    return CheckpointCorruptError(run_id, f"{what} is encrypted, and this store has no key: {way_out}")


class Cipher:
    """Encrypts with the first key of a run, and decrypts with each.

    Each record has a key of its own, derived from that key and from what the record is bound to: a ciphertext in
    another place cannot be decrypted, and a nonce never meets the same key twice.

    Args:
        encrypt_with: The keys, as `RowStore` takes them.
        hides_labels: Whether labels and authors are encrypted as well.

    Raises:
        ConfigError: these are no keys, or the package cryptography is missing.
    """

    def __init__(self, encrypt_with: Any, hides_labels: bool = False) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # imported when used: an extra
        except ImportError as error:
            way_out = "it takes the package cryptography: pip install 'durable-stategraph[crypto]'"
            raise ConfigError(_OPTION, encrypt_with, way_out) from error
        self.hides_labels: bool = hides_labels
        self._aead, self._given = AESGCM, encrypt_with
        self._keys: Mapping[str, bytes] = {} if callable(encrypt_with) else _checked_keys(encrypt_with)
        if not self._keys and (problem := problem_of(encrypt_with, 1)):
            raise ConfigError(_OPTION, encrypt_with, f"a sync function of the run id that returns keys: {problem}")

    def keys(self, run_id: str) -> Mapping[str, bytes]:
        """Return the keys of a run by their names; one without a name has the name "".

        Raises:
            CheckpointError: the function of the user returned none. The text does not show its error, which may show a
                key.
        """
        if self._keys:
            return self._keys
        try:
            given = answered(self._given(given_id(run_id)), _OPTION)
        except Exception as error:
            raise CheckpointError(run_id, f"encrypt_with returned no key for it: {type(error).__name__}") from error
        try:
            return _checked_keys(given)
        except ConfigError as error:
            raise CheckpointError(run_id, f"encrypt_with returned no key for it: {error}") from error

    def digest(self, run_id: str, data: bytes) -> bytes:
        """Return a digest of data that takes the first key of a run."""
        return hmac.digest(next(iter(self.keys(run_id).values())), data, "sha256")

    def encrypted(self, run_id: str, bound_to: bytes, data: bytes) -> bytes:
        """Return the ciphertext of data of a run, after the name of its key."""
        name, key = next(iter(self.keys(run_id).items()))
        begin, nonce = bytes([len(name)]) + name.encode(), os.urandom(_NONCE)
        return begin + nonce + self._aead_of(key, begin + bound_to).encrypt(nonce, data, begin + bound_to)

    def _aead_of(self, key: bytes, bound_to: bytes) -> AESGCM:
        return self._aead(hmac.digest(key, bound_to, "sha256"))

    def text(self, run_id: str, bound_to: bytes, data: bytes) -> str:
        """Return that as a text."""
        return MARK + b64encode(self.encrypted(run_id, bound_to, data)).decode()

    def decrypted(self, run_id: str, bound_to: bytes, ciphertext: bytes | str, what: str) -> bytes:
        """Return the data of a ciphertext; `what` describes the record for errors.

        Raises:
            CheckpointCorruptError: it was encrypted with another key, in another place, or is damaged.
        """
        data = ciphertext if isinstance(ciphertext, bytes) else _bytes_of(ciphertext)
        at = 1 + (data[0] if data else 0)
        name, keys, bound_to = data[1:at].decode("latin-1"), self.keys(run_id), data[:at] + bound_to
        for key in [keys[name]] if name in keys else keys.values():
            with suppress(Exception):  # InvalidTag, or ValueError for a nonce that is cut off
                nonce, rest = data[at : at + _NONCE], data[at + _NONCE :]
                return self._aead_of(key, bound_to).decrypt(nonce, rest, bound_to)
        why = f"encrypt_with has other bytes as the key {shorten(name)}, or it is damaged, forged or from another place"
        if name not in keys:
            why = f"encrypt_with has no key {shorten(name)}, but {', '.join(map(shorten, keys))}"
        raise CheckpointCorruptError(run_id, f"{what} cannot be decrypted: {why}")

    # ------------------------------------------------------------------ records

    def hidden(self, record: Any, fields: Sequence[str], run_id: str, *place: bytes) -> Any:
        """Return a record with some fields encrypted in the first of them, bound to all others and to a place."""
        secret = ormsgpack.packb([getattr(record, field) for field in fields], default=attrs.astuple)
        record = record._replace(**{field: _BLANK[field] for field in fields})
        encrypted: Any = self.encrypted if fields[0] == "payload" else self.text
        return record._replace(**{fields[0]: encrypted(run_id, _bound(record, fields[0], run_id, place), secret)})

    def shown(self, record: Any, fields: Sequence[str], run_id: str, *place: bytes) -> Any:
        """Return a record as it was before the first of these fields were encrypted.

        Raises:
            CheckpointCorruptError: as `decrypted`; or it is not encrypted, and that is not accepted.
        """
        what = f"its {type(record).__name__.removesuffix('Record').lower()} record of step {record.step}"
        if not is_encrypted(record.encoding if "encoding" in record._fields else record.pause):
            plain_runs = _plain_runs.get()
            if plain_runs is None:
                way_out = "it was saved without encrypt_with, or planted; store.rekey() encrypts what is there"
                raise CheckpointCorruptError(run_id, f"{what} is not encrypted: {way_out}")
            plain_runs.add(given_id(run_id))
            return record
        ciphertext = getattr(record, fields[0])
        if ciphertext is None:
            return record
        values = ormsgpack.unpackb(self.decrypted(run_id, _bound(record, fields[0], run_id, place), ciphertext, what))
        secret = dict(zip(fields, values, strict=False))
        if secret.get("error"):
            secret["error"] = ErrorInfo(*secret["error"])
        if "labels" in secret:
            secret["labels"] = tuple(map(tuple, secret["labels"]))
        return record._replace(**secret)


def _bound(record: Any, into: str, *place: Any) -> bytes:
    """Return what the ciphertext in a field of a record is bound to. A field that a later version adds may be None."""
    fields = zip(record._fields, record, strict=True)
    beside = {name: value for name, value in fields if value is not None and name not in _UNBOUND and name != into}
    return ormsgpack.packb([type(record).__name__, into, *place, beside], default=_as_stored)


def _as_stored(value: Any) -> tuple[Any, ...]:
    """Return the fields of an object of a record as columns return them: a number of seconds as a float."""
    is_timed = isinstance(value, RetentionPolicy) and value.ttl is not None
    return attrs.astuple(attrs.evolve(value, ttl=float(value.ttl)) if is_timed else value)


def _bytes_of(text: str) -> bytes:
    with suppress(ValueError):
        data = b64decode(text.removeprefix(MARK))
        return data if MARK + b64encode(data).decode() == text else b""  # one text for each ciphertext
    return b""


def _checked_keys(given: Any) -> Mapping[str, bytes]:
    if not isinstance(given, Mapping):
        return {"": _checked_key(given, _OPTION)}
    if not all(isinstance(name, str) and name.isascii() and len(name) <= 24 for name in given) or not given:
        raise ConfigError(_OPTION, given, "a mapping of names, of up to 24 ASCII characters, to keys")
    return {name: _checked_key(key, f"{_OPTION}[{name!r}]") for name, key in given.items()}


def _checked_key(given: Any, option: str) -> bytes:
    """Return a key. A text is shown in the error only if it names a variable: otherwise it may be the key."""
    key, problem = given, f"it has {len(given)} bytes" if type(given) is bytes else "it is neither"
    if isinstance(given, str):
        key, problem = b"", "no variable of this name is set"
        with suppress(ValueError):  # it is no name, or these are no digits
            if (digits := os.environ.get(given)) is not None:
                problem = f"{given} holds {len(digits)} characters"
                key = bytes.fromhex(digits)
    if type(key) is bytes and len(key) == 32:
        return key
    allowed = "a key of 32 bytes, or the name of an environment variable that holds one as 64 hex digits"
    raise ConfigError(option, given, f"{allowed}; {problem}")
