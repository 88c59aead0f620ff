"""Rows: what a durable store keeps of a checkpoint, and of a run as a whole."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, NamedTuple, TypeAlias

import attrs
import ormsgpack

from stategraph import clock
from stategraph.callables import answered, problem_of
from stategraph.errors import CheckpointCorruptError, ConfigError
from stategraph.provenance import ErrorInfo, ParentStep, RunStatus
from stategraph.stores.kinds import DecodeError
from stategraph.stores.pauses import pause_of
from stategraph.stores.policy import Policy
from stategraph.stores.summaries import Summary

MAX_STEP = 2**32 - 1
"""The last step that a row can have: it shares a 64-bit key with the number of its run."""

FORMAT = 2
"""The version of the format of rows. A newer one is refused, older ones are read.

Format 2 has pauses and progress; rows without them are written as format 1."""

_SMALL = 4096  # bytes: below, a copy takes less time than another call


class Row(NamedTuple):
    """One checkpoint as it is kept. A tuple, because one load makes hundreds of them.

    Attributes:
        step: The step.
        base: The step of the snapshot that it builds on; its own step, if it is one.
        node: The node that was completed.
        time_ns: When; nanoseconds since 1970, UTC.
        status: How the run stood.
        error: Why it had failed, if it had.
        format: The version of the format of what follows.
        encoding: How the body is to be read, such as "msgpack" or "msgpack+zstd".
        body: The data: all of them in a snapshot, else what changed since the row before.
        seal: A checksum or a signature over the run id, all the above and the pause, and the seal of the row before.
        pause: What the run waited for, if it did, as a text (see `stategraph.stores.pauses`).
    """

    step: int
    base: int
    node: str
    time_ns: int
    status: RunStatus
    error: ErrorInfo | None
    format: int
    encoding: str
    body: bytes
    seal: bytes = b""
    pause: str | None = None

    @property
    def is_snapshot(self) -> bool:
        """Whether it holds all data."""
        return self.base == self.step


@attrs.frozen
class Head:
    """A run as a whole, as its newest row has it.

    Attributes:
        run_id: The run.
        number: Counts the runs of a store, in the order in which they began.
        version: Goes up with every write to the run. It begins anywhere, so that a run that was deleted and begun anew
            is told from what it was.
        step, node, time_ns, status, error: As in the newest row.
        graph: The graph that runs it.
        parent: The step that it was forked from.
        policy: What is kept of it.
        pause: As in the newest row.
    """

    run_id: str
    number: int
    version: int
    step: int
    node: str
    time_ns: int
    status: RunStatus
    error: ErrorInfo | None
    graph: str | None
    parent: ParentStep | None
    policy: Policy
    pause: str | None = None

    def summary(self) -> Summary:
        """-> the run in short."""
        return attrs.evolve(_summary(self, self), cursor=str(self.number))

    def summary_of(self, row: Row) -> Summary:
        """-> one of its checkpoints in short."""
        return _summary(self, row)


def _summary(head: Head, at: Head | Row) -> Summary:
    try:
        pause = pause_of(at.pause)
    except DecodeError as error:
        raise CheckpointCorruptError(head.run_id, f"what it waits for cannot be restored: {error}") from error
    return Summary(
        head.run_id,
        head.graph,
        at.step,
        at.node,
        clock.to_datetime(at.time_ns),
        at.status,
        at.error,
        head.parent,
        pause=pause,
    )


@attrs.frozen
class Write:
    """A change of one run, made as a whole or not at all.

    Attributes:
        head: The run as it is to be.
        old: The run as it must be now, told by its version; None if it must not be there.
        put: Rows to add, or to put in the place of those with the same step.
        cut_below: Rows of lower steps go.
        cut_above: Rows of higher steps go.
    """

    head: Head
    old: Head | None
    put: tuple[Row, ...] = ()
    cut_below: int = 0
    cut_above: int | None = None


def is_of(head: Head, row: Row) -> bool:
    """Whether the newest row of a run is the one that its head tells of."""
    return (head.step, head.node, head.time_ns, head.status) == (row.step, row.node, row.time_ns, row.status)


def checked_row(run_id: str, row: Row) -> Row:
    """-> a row that a store holds. Raises CheckpointCorruptError if there are values of other types in it."""
    if tuple(map(type, row)) not in _TYPES_OF_ROWS:
        raise CheckpointCorruptError(run_id, "what the store holds for it is no checkpoint")
    return row


_TYPES_OF_ROWS = frozenset(
    (int, int, str, int, RunStatus, error, int, str, bytes, bytes, pause)
    for error in (NoneType, ErrorInfo)
    for pause in (NoneType, str)
)


def checked_head(head: Head) -> Head:
    """-> a head that a store holds. Raises CheckpointCorruptError if there are values of other types in it."""
    if not (_are(int, head.number, head.version, head.step, head.time_ns) and _are(str, head.run_id, head.node)):
        raise CheckpointCorruptError(str(head.run_id), "what the store holds for it is no run")
    return head


def _are(kind: type, *values: Any) -> bool:
    return all(type(value) is kind for value in values)


About: TypeAlias = tuple[int, int, str, int, RunStatus, ErrorInfo | None, int, str]
"""The fields of a row before its body, in their order."""

SigningKey: TypeAlias = Callable[[], bytes]
"""Gives the key that rows are signed with."""


def signing_key(sign_with: Any) -> SigningKey | None:
    """-> what gives the key: a function, or the value of the environment variable of this name.

    Raises:
        ConfigError: it is neither, or the variable is not set or empty. The text does not show it: it may be the key.
    """
    if sign_with is None:
        return None
    if callable(sign_with):
        problem = problem_of(sign_with, 0)
        if problem:
            raise _no_key(sign_with, f"a sync function that gives the key: {problem}")
        return sign_with  # type: ignore[no-any-return]
    if not isinstance(sign_with, str):
        raise _no_key(sign_with, "a function that gives the key, or the name of an environment variable that holds it")
    key = os.environ.get(sign_with, "").encode(errors="surrogateescape") if sign_with else b""
    if not key:
        raise _no_key(
            sign_with, "the name of an environment variable that holds the key; this one is not set, or empty"
        )
    return lambda: key


def _no_key(value: object, allowed: str) -> ConfigError:
    return ConfigError("checkpoint.options.sign_with", value, allowed)


_SIGNATURE, _CHECKSUM = 32, 16  # bytes of a seal, by which the two are told apart
_pack, _blake2b = ormsgpack.packb, hashlib.blake2b


class Sealer:
    """Seals rows, so that one that was damaged, moved or made elsewhere is found out.

    A seal covers the seal of the row before, and so the whole chain from the snapshot on: a row that is missing in
    between is found out as well.

    Args:
        key: Signs with HMAC-SHA-256. Without it a seal is a checksum (BLAKE2b) that finds damage, not forgery.
    """

    def __init__(self, key: SigningKey | None = None) -> None:
        self._key = key

    def seal(self, run_id: str, row: Row, before: bytes) -> Row:
        """-> the row with its seal; `before` is the seal of the row it builds on, empty for a snapshot."""
        return Row(
            row.step,
            row.base,
            row.node,
            row.time_ns,
            row.status,
            row.error,
            row.format,
            row.encoding,
            row.body,
            self._seal(run_id, row, before),
            row.pause,
        )

    def check(self, run_id: str, rows: Sequence[Row]) -> None:
        """Raise CheckpointCorruptError unless the seals of a snapshot and of all rows that build on it are right."""
        before = b""
        for row in rows:
            if not hmac.compare_digest(row.seal, self._seal(run_id, row, before)):
                what = _mismatch(is_signed=len(row.seal) == _SIGNATURE, has_key=self._key is not None)
                raise CheckpointCorruptError(run_id, f"its checkpoint at step {row.step} {what}")
            before = row.seal

    def _seal(self, run_id: str, row: Row, before: bytes) -> bytes:
        return self.seal_of(run_id, row[:8], row.body, before, row.pause)

    def seal_of(self, run_id: str, about: About, body: bytes, before: bytes, pause: str | None = None) -> bytes:
        """-> the seal of a row that is still to be made of these; `before` as for `seal`."""
        step, base, node, time_ns, status, error, version, encoding = about
        info = None if error is None else [error.type, error.message, error.node]
        waits = () if pause is None else (pause,)
        packed = _pack([run_id, step, base, node, time_ns, status._value_, info, version, encoding, before, *waits])
        if self._key is not None:
            return hmac.digest(self._checked(self._key()), packed + body, "sha256")
        if len(body) < _SMALL:
            return _blake2b(packed + body, digest_size=_CHECKSUM).digest()
        digest = _blake2b(packed, digest_size=_CHECKSUM)
        digest.update(body)
        return digest.digest()

    def _checked(self, key: object) -> bytes:
        if type(key) is not bytes or not key:
            answered(key, "sign_with")
            raise _no_key(key, "a function that gives the key: bytes, and not none")
        return key


def _mismatch(*, is_signed: bool, has_key: bool) -> str:
    """-> what is wrong with a row whose seal is not right, and what may be done about it."""
    if is_signed and not has_key:
        return "is signed, and this store has no key: open it with sign_with, as it was when this was saved"
    if is_signed:
        why = "sign_with gives another one than when it was saved, or it is damaged or forged"
        return f"is not signed with this key: {why}"
    if has_key:
        return "is not signed: it was saved without sign_with, or forged"
    return "is damaged: its checksum does not match"
