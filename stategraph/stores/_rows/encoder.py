"""CheckpointEncoder: converts States to records and back.

A row names the encoding of its payload, so a store may hold rows of several encodings.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from stategraph._owners.base import current, process_name
from stategraph._values.ids import is_parts_id
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointSaveError,
    ConfigError,
    FormatError,
    NotSerializableError,
    StateGraphError,
    UnknownNameError,
)
from stategraph.state import State, effects_of, time_ns_of, took_ns_of
from stategraph.stores._checks import check_flags
from stategraph.stores._codec.states import changes_between, combine, pause_from_json, pause_to_json, unsettled_forms
from stategraph.stores._codec.type_codecs import DecodeError, UnavailableValueError
from stategraph.stores._rows.cipher import is_encrypted, needs_key
from stategraph.stores._rows.records import FORMAT, MAX_STEP, CheckpointRecord, EntryRecord
from stategraph.stores._rows.seals import Sealer
from stategraph.stores.serializers import PayloadFormat, find_format, registered_format

Place: TypeAlias = tuple[int, int]
"""The place of a row: its sequence number and its revision."""

_ROW_WEIGHT = 512  # bytes that a row costs besides its payload, when changes are compared with a snapshot
_HEAVY = 1.5  # times the bytes of a snapshot that its changes may take if the State has grown by them
_LIGHT = 16_384  # bytes of changes that are always allowed: below this a snapshot saves nothing


class DeltaBase(NamedTuple):
    """The newest saved or loaded checkpoint of a run, which the next row builds on with its changes. A tuple, because
    every save makes one.

    Attributes:
        state: The State.
        base: The sequence number of the snapshot that it builds on.
        seal: The seal of its row.
        encoded: The values that may still change, by key; see `changes_between`.
        snapshot_size: The size of the snapshot, in bytes.
        limit: The size of the rows since the snapshot up to which no other one is due, in bytes.
        delta_size: Their size.
    """

    state: State
    base: int
    seal: bytes
    encoded: dict[str, Any]
    snapshot_size: int
    limit: float
    delta_size: int


def _make_reader(run_id: str, step: int, encoding: str) -> Callable[[bytes], Any]:
    """Return a function that decodes payloads of an encoding; run and step are for its error."""
    if is_encrypted(encoding):
        raise needs_key(run_id, f"its step {step}")
    name = encoding.removesuffix(_ZSTD)
    try:
        kept = registered_format(name)
    except UnknownNameError as error:
        reason = f"its step {step} was saved by a serializer that is not registered here: {error}"
        way_out = f"register_serializer makes it known, or open the store with serializer={name!r} if it is installed"
        raise FormatError(run_id, f"{reason}; {way_out}") from None
    return kept.decode if name == encoding else lambda payload: kept.decode(_decompressed(payload, kept))


class CheckpointEncoder:
    """Converts States to rows, and rows to States.

    A row holds the changes since the row before it. A snapshot, which holds all data, is written when the rows since
    the last snapshot have become 16 KB larger than that snapshot; later, if it would be larger by most of that. So
    storage, and the time to read any step, stay linear in the size of the changes.

    Args:
        sealer: Makes and checks the seals of rows.
        serializer: Name of the serializer of new payloads.
        compress: Whether to compress new payloads of more than 4 KB where that saves a tenth or more.

    Raises:
        UnknownNameError: no serializer has this name.
        ConfigError: `compress` is no bool, or the package for it is not installed.
    """

    def __init__(self, sealer: Sealer, serializer: str = "msgpack", compress: bool = False) -> None:
        check_flags(compress=compress)
        self._sealer, self._serializer = sealer, serializer
        written = find_format(serializer)
        self._readers: dict[str, Callable[[bytes], Any]] = {serializer: written.decode}
        self._written, self._encode = written, written.encode
        self._zstd: Any = _zstandard_package() if compress else None

    def encode(
        self, state: State, incarnation: bytes = b"", place: Place | None = None, previous: DeltaBase | None = None
    ) -> tuple[CheckpointRecord, DeltaBase]:
        """Return the row of a State, and the base of the next row.

        The row holds the changes since the previous one. If there is none, or if the changes have become too large, it
        is a snapshot. Without a place it is the first row of its run.

        Raises:
            NotSerializableError: a value cannot be kept exactly.
        """
        before, encoded = (None, {}) if previous is None else (previous.state, previous.encoded)
        parts, unsettled = changes_between(before, state, encoded)
        try:
            kept = self.encoded(parts)
        except NotSerializableError:  # its path must begin at a key, and an edit nests values a little deeper
            kept = self.encoded(changes_between(before, state, encoded, inside=False)[0])
        at = place or (state.step, 0)
        base, seal, size, delta_size = at[0], b"", len(kept[1]), 0
        limit: float = size + _LIGHT
        if previous is not None:
            base, seal, size, limit = previous.base, previous.seal, previous.snapshot_size, previous.limit
            delta_size = previous.delta_size + len(kept[1]) + _ROW_WEIGHT
            if delta_size > limit:
                snapshot = self.encode(state, incarnation, place)
                limit = min(_HEAVY * size, 2 * snapshot[1].snapshot_size - size) + _LIGHT
                if delta_size > limit:
                    return snapshot
        row = self._sealed(state, at, base, kept, seal, incarnation)
        return row, DeltaBase(state, base, row.seal, unsettled, size, limit, delta_size)

    def encoded(self, parts: list[Any]) -> tuple[str, bytes]:
        """Return the encoding and the payload of a row.

        Raises:
            NotSerializableError: a value cannot be kept exactly.
        """
        payload = self._encode(parts)
        smaller = None if self._zstd is None else _compressed(self._zstd, payload, self._written)
        return (self._serializer, payload) if smaller is None else (self._serializer + _ZSTD, smaller)

    def parts(
        self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes = b""
    ) -> list[tuple[CheckpointRecord, Any]]:
        """Return a snapshot and the rows that build on it, each with its decoded payload; raise as `state`."""
        with self._decoded(run_id, rows, incarnation) as (decrypted, parts):
            return [*zip(decrypted, parts, strict=True)]

    def data(self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes = b"") -> dict[str, Any]:
        """Return the data of the State of these rows, for a run whose id no State can have; raise as `state`."""
        with self._decoded(run_id, rows, incarnation) as (_, parts):
            return combine(parts)[0]

    def check_content(self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes) -> None:
        """Check that the State or the parts in these rows can be restored; raise as `state`."""
        (self.data if is_parts_id(run_id) else self.state)(run_id, rows, incarnation)

    def state(self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes = b"") -> State:
        """Return the State of a snapshot and of the rows that build on it.

        Raises:
            CheckpointCorruptError: a row is damaged.
            FormatError: a newer version of stategraph wrote a row, or a row needs a serializer or a type that is not
                registered here.
            ConfigError: the rows are compressed, and the package for that is not installed.
        """
        with self._decoded(run_id, rows, incarnation) as (decrypted, parts):
            newest, (data, about) = decrypted[-1], combine(parts)
            return State(
                data,
                run_id=run_id,
                step=newest.step,
                checkpoint_node=newest.node,
                timestamp=newest.time_ns,
                status=newest.status,
                error=newest.error,
                pause=pause_from_json(newest.pause),
                facts=newest.facts,
                took_ns=newest.took_ns,
                **about,
            )

    @contextmanager
    def _decoded(
        self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes
    ) -> Iterator[tuple[Sequence[CheckpointRecord], list[Any]]]:
        """Yield rows, decrypted, and their decoded payloads, to restore a State from them in the block."""
        decrypted = self.check(run_id, rows, incarnation)
        with self._restoring(run_id, rows[-1].step):
            yield decrypted, [self._reader(run_id, row.step, row.encoding)(row.payload) for row in decrypted]

    def values(self, run_id: str, entries: Sequence[EntryRecord]) -> list[Any]:
        """Return the values of entries of a run; raise as `state`."""
        found: list[Any] = []
        with self._restoring(run_id, entries[-1].step if entries else 0):
            for entry in entries:
                read = self._readers.get(entry.encoding) or self._reader(run_id, entry.step, entry.encoding)
                (parts,) = read(entry.payload)
                found.append(parts["value"])
        return found

    def _reader(self, run_id: str, step: int, encoding: str) -> Callable[[bytes], Any]:
        if encoding not in self._readers:
            self._readers[encoding] = _make_reader(run_id, step, encoding)
        return self._readers[encoding]

    @contextmanager
    def _restoring(self, run_id: str, step: int) -> Iterator[None]:
        """Translate the errors of damaged or unavailable values."""
        try:
            yield
        except (CheckpointCorruptError, FormatError, ConfigError):
            raise
        except UnavailableValueError as error:
            raise FormatError(run_id, f"its step {step} cannot be restored here: {error}") from error
        except (DecodeError, StateGraphError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise CheckpointCorruptError(run_id, f"its step {step} cannot be restored: {error}") from error

    def base_of(self, state: State, rows: Sequence[CheckpointRecord]) -> DeltaBase:
        """Return the base of the next row after the State of these rows."""
        newest = rows[-1]
        size, delta_size = len(rows[0].payload), sum(len(row.payload) + _ROW_WEIGHT for row in rows[1:])
        return DeltaBase(state, newest.base, newest.seal, unsettled_forms(state), size, size + _LIGHT, delta_size)

    def check(
        self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes = b""
    ) -> Sequence[CheckpointRecord]:
        """Check that these are a snapshot and all rows that follow it up to the last, unchanged; return them decrypted.

        Raises:
            CheckpointCorruptError: they are not.
            FormatError: a newer version of stategraph wrote them.
        """
        for row in rows:
            if row.format > FORMAT:
                raise FormatError(
                    run_id, f"its step {row.step} has format {row.format}; this version reads up to {FORMAT}; update it"
                )
            if row.base != rows[0].sequence:
                reason = f"its step {row.step} builds on an earlier checkpoint (number {row.base}), which is missing"
                raise CheckpointCorruptError(run_id, reason)
            if not 0 <= row.step <= row.sequence <= MAX_STEP:
                raise CheckpointCorruptError(run_id, f"its checkpoint number {row.sequence} is of step {row.step}")
        return self._sealer.check(run_id, rows, incarnation)

    def _sealed(
        self, state: State, place: Place, base: int, kept: tuple[str, bytes], before: bytes, incarnation: bytes
    ) -> CheckpointRecord:
        if place[0] > MAX_STEP:
            raise CheckpointSaveError(state.run_id, f"step {state.step} is above {MAX_STEP}, the last that can be kept")
        pause = None if state.pause is None else pause_to_json(state.pause)
        facts, status, node = state.facts, state.status, state.checkpoint_node
        owner, effects = None if current.ownership is None else process_name(), None
        if facts is None and status is RunStatus.ACTIVE and node:  # the most frequent case by far
            kind, by, attempts = Kind.STEP, None, 1
        else:
            kind, by, attempts = state.kind, state.by, 1 if facts is None else facts.attempts
            effects = json.dumps(effects_of(state)) if effects_of(state) else None
        fields = (
            *(place[0], base, state.step, place[1], kind, node, time_ns_of(state), status, state.error),
            *(by, took_ns_of(state), attempts, owner, FORMAT, *kept, b"", pause, effects),
        )
        row = tuple.__new__(CheckpointRecord, fields)  # skips the constructor, for speed
        return self._sealer.seal(state.run_id, row, before, incarnation)


# --------------------------------------------------------------------------- compression

LARGEST = 1 << 28
"""The most bytes of a payload that is compressed, and of a decompressed one: a small row must not fill the memory."""

MOST_VALUES = 10_000_000
"""The most values in a payload that is compressed: a thousand bytes can hold a million empty lists."""

_SMALLEST = 4096  # bytes: smaller payloads gain little
_WORTHWHILE = 0.9  # the largest ratio of sizes that justifies decompression at every load
_ZSTD = "+zstd"


def _holds_too_many(payload: bytes, written: PayloadFormat) -> bool:
    return len(payload) > MOST_VALUES and written.count(payload, MOST_VALUES) > MOST_VALUES


def _compressed(zstd: Any, payload: bytes, written: PayloadFormat) -> bytes | None:
    """Return a compressed payload; None if it is too small, holds too much, or hardly becomes smaller."""
    if not _SMALLEST < len(payload) <= LARGEST or _holds_too_many(payload, written):
        return None
    smaller: bytes = zstd.ZstdCompressor(level=1).compress(payload)  # several threads must not share a compressor
    return smaller if len(smaller) <= _WORTHWHILE * len(payload) else None


def _decompressed(payload: bytes, written: PayloadFormat) -> bytes:
    """Return a decompressed payload.

    Raises:
        DecodeError: It is damaged, or holds more than any payload that is compressed.
        ConfigError: The package zstandard is not installed.
    """
    zstd = _zstandard_package()
    try:
        size = zstd.frame_content_size(payload)
        if not 0 <= size <= LARGEST:
            raise DecodeError(f"its compressed bytes claim to be {size} bytes; at most {LARGEST} are written so")
        data: bytes = zstd.ZstdDecompressor().decompress(payload, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise DecodeError(f"its bytes cannot be decompressed: {error}") from error
    if _holds_too_many(data, written):
        raise DecodeError(f"its compressed bytes hold more than {MOST_VALUES:,} values; no more are written so")
    return data


def _zstandard_package() -> Any:
    """Return the package zstandard. Raises ConfigError if it is not installed."""
    try:
        import zstandard  # imported when used: an extra
    except ImportError as error:
        way_out = "it takes the package zstandard: pip install 'durable-stategraph[zstd]'"
        raise ConfigError("checkpoint.options.compress", True, way_out) from error
    return zstandard
