"""Seals: proofs that a record is unchanged. A seal is a checksum or, in a store with a key, a signature."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from hmac import compare_digest
from hmac import digest as hmac_digest
from typing import Any

import ormsgpack

from stategraph._util.callables import answered, problem_of
from stategraph.errors import CheckpointCorruptError, ConfigError
from stategraph.stores._rows.cipher import MARK, Cipher
from stategraph.stores._rows.records import PLAIN, CheckpointRecord, EntryRecord, RunRecord
from stategraph.stores.base import SigningKey

_SIGNATURE, _CHECKSUM = 32, 16  # bytes of a seal; the length distinguishes the two
_SMALL = 4096  # bytes: below this a copy is faster than another call
_AT_PAYLOAD, _AT_SEAL = map(CheckpointRecord._fields.index, ("payload", "seal"))
_AT_SEAL_OF_RUN = RunRecord._fields.index("seal")
_pack, _blake2b, _new_tuple = ormsgpack.packb, hashlib.blake2b, tuple.__new__


# What is encrypted, in the first field of each; the last fields only with labels and authors.
_OF_ROW, _OF_RUN, _OF_ENTRY = ("pause", "error", "by"), ("pause", "error", "by", "labels"), ("payload", "made_of", "by")


class Sealer:
    """Makes and checks the seals of records. With a cipher, it encrypts what it seals, and decrypts what it checks.

    A seal binds a row to its store, to its run, and to the incarnation of the run: a row of a deleted run is not
    mistaken for a row of another run with the same id. The seal of a row covers the seal of the row before it, and so
    the whole chain from the snapshot on; the seal of the record of a run covers the seal of its newest row. So missing
    rows are detected as well, in the middle and at the end.

    Args:
        sign_with: Returns the key to sign with (HMAC-SHA-256). Without it a seal is a checksum (BLAKE2b), which detects
            damage, not forgery.
        verify_with: Return former keys, whose signatures are still accepted.
        cipher: Encrypts records. Seals cover the ciphertext. A payload is bound to all that the seal of its row covers.
    """

    def __init__(
        self,
        sign_with: SigningKey | None = None,
        verify_with: Sequence[SigningKey] = (),
        cipher: Cipher | None = None,
    ) -> None:
        if verify_with and sign_with is None:
            allowed = "with sign_with, the key that signs new rows; keys of verify_with only read"
            raise ConfigError("checkpoint.options.verify_with", verify_with, allowed)
        self._key, self._former, self.cipher = sign_with, tuple(verify_with), cipher
        self._secret = None if cipher and cipher.hides_labels else 2
        self._store_id = b""  # for a State outside of any store

    def identify(self, store_id: bytes) -> None:
        """Set the id of the store, once it is open."""
        self._store_id = store_id

    @property
    def signs(self) -> bool:
        """Whether seals are signatures."""
        return self._key is not None

    @property
    def is_keyed(self) -> bool:
        """Whether a row cannot be made without a key."""
        return self.signs or self.cipher is not None

    def is_signed(self, seal: bytes) -> bool:
        """Return whether a seal is a signature, with any key."""
        return isinstance(seal, bytes) and len(seal) == _SIGNATURE

    # ------------------------------------------------------------------ rows

    def seal(self, run_id: str, row: CheckpointRecord, before: bytes, incarnation: bytes = b"") -> CheckpointRecord:
        """Return the row with its seal; `before` is the seal of the row it builds on, empty for a snapshot."""
        if self.cipher is not None:
            row, fields = row._replace(encoding=row.encoding + MARK), _OF_ROW[: self._secret]
            if any(getattr(row, field) for field in fields):
                row = self.cipher.hidden(row, fields, run_id, self._store_id, incarnation)
            row = self.cipher.hidden(row, ("payload",), run_id, self._store_id, incarnation, before)
        seal = self._digest(self._packed_row(run_id, row, before, incarnation), row.payload, self._key)
        return _new_tuple(
            CheckpointRecord, (*row[:_AT_SEAL], seal, row.pause, row.effects)
        )  # skips the constructor, for speed

    def seal_chain(self, run_id: str, rows: Iterable[CheckpointRecord], incarnation: bytes) -> list[CheckpointRecord]:
        """Return a snapshot and the rows that build on it with their seals."""
        sealed: list[CheckpointRecord] = []
        before = b""
        for row in rows:
            sealed.append(self.seal(run_id, row, before, incarnation))
            before = sealed[-1].seal
        return sealed

    def check(
        self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes = b""
    ) -> Sequence[CheckpointRecord]:
        """Return a snapshot and all rows that build on it, decrypted.

        Raises:
            CheckpointCorruptError: a seal is not correct, or a row cannot be decrypted.
        """
        before, decrypted = b"", list[CheckpointRecord]()
        for row in rows:
            if not self._is_right(row.seal, row.payload, self._packed_row, run_id, row, before, incarnation):
                mismatch = self._mismatch(row.seal, f"load an earlier step if one is kept, or {_removed(run_id)}")
                raise CheckpointCorruptError(run_id, f"its checkpoint at step {row.step} {mismatch}")
            if self.cipher is not None:
                decrypted.append(self.shown(run_id, row, incarnation, before))
            before = row.seal
        return decrypted or rows

    def shown(
        self, run_id: str, row: CheckpointRecord, incarnation: bytes, before: bytes | None = None
    ) -> CheckpointRecord:
        """Return a row with its error, pause and author decrypted and, after a row with a seal, its payload."""
        if self.cipher is None:
            return row
        shown: CheckpointRecord = self.cipher.shown(row, _OF_ROW, run_id, self._store_id, incarnation)
        if before is not None:
            row = self.cipher.shown(row, ("payload",), run_id, self._store_id, incarnation, before)
        return shown._replace(payload=row.payload, encoding=row.encoding.removesuffix(MARK))

    def _packed_row(self, run_id: str, row: CheckpointRecord, before: bytes, incarnation: bytes) -> bytes:
        about = PLAIN.of_row(row)[:_AT_PAYLOAD]
        effects = () if row.effects is None else (row.effects,)  # then the seal is that of the format without them
        return _pack([self._store_id, run_id, incarnation, *about, before, row.pause, *effects])

    # ------------------------------------------------------------------ runs

    def sealed_run(self, run: RunRecord) -> RunRecord:
        """Return the record of a run with its seal."""
        if self.cipher is not None:  # its pause is never empty: it proves the rest of the record
            run = self.cipher.hidden(run, _OF_RUN[: self._secret], run.run_id, self._store_id)
        seal = self._digest(self._packed_run(run), b"", self._key)
        # Faster than run._replace(seal=seal): every save does this.
        return _new_tuple(RunRecord, (*run[:_AT_SEAL_OF_RUN], seal, run.due_ns))

    def check_run(self, run: RunRecord, run_id: str | None = None) -> RunRecord:
        """Return the record of a run, decrypted.

        Raises:
            CheckpointCorruptError: its seal is not correct, it cannot be decrypted, or it is of another run.
        """
        if run_id not in (None, run.run_id):  # a collation may treat ids that differ in case as equal
            raise CheckpointCorruptError(run_id, f"its record in the store is of run {run.run_id!r}")
        if not self._is_right(run.seal, b"", self._packed_run, run):
            mismatch = self._mismatch(run.seal, f"or {_removed(run.run_id)}")
            raise CheckpointCorruptError(run.run_id, f"its record {mismatch}")
        return run if self.cipher is None else self.cipher.shown(run, _OF_RUN, run.run_id, self._store_id)

    def _packed_run(self, run: RunRecord) -> bytes:
        error, parent, policy = run.error, run.parent, run.policy
        parts = [
            *("head", self._store_id, run.run_id, run.incarnation, run.version, run.sequence, run.step, run.revision),
            *(run.kind._value_, run.node, run.time_ns, run.status._value_),
            None if error is None else error.parts,
            *(run.by, run.graph, run.created_ns, run.labels),
            None if parent is None else [parent.run_id, parent.step],
            [policy.retention, policy.window, None if policy.ttl is None else float(policy.ttl)],
            *(run.pause, run.tip),
        ]
        return _pack(parts)

    # ------------------------------------------------------------------ authors of cancellations

    def signed_author(self, run_id: str, by: str | None) -> str | None:
        """Return the author of a cancellation, encrypted if authors are, with a signature if this store signs."""
        if by is not None and self.cipher is not None and self.cipher.hides_labels:
            by = self.cipher.text(run_id, self._packed_author(run_id, ""), by.encode())
        if by is None or self._key is None:
            return by
        return f"{by} {self._digest(self._packed_author(run_id, by), b'', self._key).hex()}"

    def author(self, run_id: str, kept: str | None) -> str | None:
        """Return the author that `signed_author` was given; None if a store with these keys did not write it."""
        if kept is None or not self.is_keyed:
            return kept
        try:
            if self._key is not None:
                kept, _, digits = kept.rpartition(" ")
                if not self._is_right(bytes.fromhex(digits), b"", self._packed_author, run_id, kept):
                    return None
            if self.cipher is None or not self.cipher.hides_labels:
                return kept
            return self.cipher.decrypted(run_id, self._packed_author(run_id, ""), kept, "an author").decode()
        except (ValueError, CheckpointCorruptError):
            return None

    def _packed_author(self, run_id: str, by: str) -> bytes:
        return _pack(["canceller", self._store_id, run_id, by])

    # ------------------------------------------------------------------ entries

    def sealed_entry(self, run_id: str, entry: Sequence[Any], incarnation: bytes) -> EntryRecord:
        """Return the record of an entry of a run with these columns, with its seal."""
        if self.cipher is not None:
            record = EntryRecord._make(entry)
            record = record._replace(encoding=record.encoding + MARK)
            entry = self.cipher.hidden(record, _OF_ENTRY, run_id, self._store_id, incarnation)
        *about, payload, _ = entry
        seal = self._digest(_pack(["entry", self._store_id, run_id, incarnation, *about]), payload, self._key)
        return _new_tuple(EntryRecord, (*about, payload, seal))

    def check_entries(self, run_id: str, entries: Sequence[EntryRecord], incarnation: bytes) -> Sequence[EntryRecord]:
        """Return entries, decrypted.

        Raises:
            CheckpointCorruptError: a seal is not correct, or an entry cannot be decrypted.
        """
        of_run, digest, key = ("entry", self._store_id, run_id, incarnation), self._digest, self._key
        for entry in entries:  # thousands of them: inlined as far as they are right
            *about, payload, seal = entry
            try:
                is_right = compare_digest(seal, digest(_pack([*of_run, *about]), payload, key))
            except (TypeError, ValueError):  # of values that no seal can have
                is_right = False
            if not is_right and not self._is_right(seal, payload, _pack, [*of_run, *about]):
                mismatch = self._mismatch(seal, f"or {_removed(run_id)}")
                raise CheckpointCorruptError(run_id, f"its entry {entry.kind} {entry.name!r} {mismatch}")
        if self.cipher is None:
            return entries
        shown = (self.cipher.shown(entry, _OF_ENTRY, run_id, self._store_id, incarnation) for entry in entries)
        return [entry._replace(encoding=entry.encoding.removesuffix(MARK)) for entry in shown]

    # ------------------------------------------------------------------ digests

    def _is_right(self, seal: bytes, payload: bytes, pack: Callable[..., bytes], *parts: Any) -> bool:
        """Return whether a seal is that of a payload and of the parts, which may be values that no seal can have."""
        try:
            packed = pack(*parts)
        except (TypeError, ValueError, OverflowError):
            return False
        # A column of SQLite may hold a value of any type, once others have changed it.
        is_readable = isinstance(seal, bytes) and isinstance(payload, bytes)
        if not is_readable or compare_digest(seal, self._digest(packed, payload, self._key)):
            return is_readable
        return any(compare_digest(seal, self._digest(packed, payload, key)) for key in self._former)

    def _digest(self, packed: bytes, payload: bytes, key: SigningKey | None) -> bytes:
        if key is not None:
            return hmac_digest(key(), packed + payload, "sha256")
        if len(payload) < _SMALL:
            return _blake2b(packed + payload, digest_size=_CHECKSUM).digest()
        digest = _blake2b(packed, digest_size=_CHECKSUM)
        digest.update(payload)
        return digest.digest()

    def _mismatch(self, seal: bytes, way_out: str) -> str:
        """Describe the defect of a seal, and the way out."""
        is_signed = self.is_signed(seal)
        if is_signed and not self.signs:
            return "is signed, and this store has no key: open it with sign_with, as it was when this was saved"
        if is_signed:
            why = "sign_with returned another key when it was saved (verify_with takes former keys)"
            return f"is not signed with this key: {why}, or it is damaged or forged"
        if self.signs:
            return "is not signed: it was saved without sign_with, or forged"
        return f"is damaged: its checksum does not match; put back a copy of the store, {way_out}"


def _removed(run_id: str) -> str:
    return f"remove the run with store.delete({run_id!r})"


# --------------------------------------------------------------------------- keys

SHORTEST_KEY = 16
"""The fewest bytes of a key: 128 bits cannot be guessed, a short password can."""


def signing_key(sign_with: Any, option: str = "checkpoint.options.sign_with") -> SigningKey | None:
    """Return the function that returns the key: the given one, or one for the environment variable of this name.

    Raises:
        ConfigError: it is neither, or the variable is not set or too short. The message does not show it: it may be
            the key.
    """
    if sign_with is None:
        return None
    if callable(sign_with):
        problem = problem_of(sign_with, 0)
        if problem:
            raise ConfigError(option, sign_with, f"a sync function that gives the key: {problem}")
        return lambda: _given(sign_with, option)
    key = os.environ.get(sign_with) if isinstance(sign_with, str) and sign_with else None
    if not key:
        allowed = "a function that gives the key, or the name of an environment variable that is set and holds it"
        raise ConfigError(option, sign_with, allowed)
    checked = _checked_key(key.encode(errors="surrogateescape"), option, f"the environment variable {sign_with} holds")
    return lambda: checked


def former_keys(verify_with: Any) -> tuple[SigningKey, ...]:
    """Return the functions that return former keys, each from an entry as for `signing_key`.

    Raises:
        ConfigError: it is not a list of such entries.
    """
    option = "checkpoint.options.verify_with"
    if not isinstance(verify_with, list | tuple) or None in verify_with:
        raise ConfigError(option, verify_with, "a list of former keys, each as sign_with takes it")
    keys = (signing_key(entry, f"{option}[{place}]") for place, entry in enumerate(verify_with))
    return tuple(key for key in keys if key is not None)


def _given(function: Callable[[], object], option: str) -> bytes:
    """Return the key that a function returns. The text of an error is not shown: it may contain the key."""
    try:
        key = function()
    except Exception as error:
        allowed = f"a function that gives the key; it raised {type(error).__name__}"
        raise ConfigError(option, function, allowed) from error
    return _checked_key(answered(key, option), option, "its function returned")


def _checked_key(key: object, option: str, origin: str) -> bytes:
    if type(key) is bytes and len(key) >= SHORTEST_KEY:
        return key
    found = f"{len(key)} bytes" if type(key) is bytes else f"a {type(key).__name__}, which is to be encoded"
    allowed = f"a key of at least {SHORTEST_KEY} bytes, such as secrets.token_bytes(32)"
    raise ConfigError(option, key, f"{allowed}, and {origin} {found}")
