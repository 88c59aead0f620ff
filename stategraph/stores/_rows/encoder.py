"""CheckpointEncoder: makes records of States, and States of records. PayloadCodec: the bytes of what they hold.

A row names the encoding of its payload, so that a store may hold rows of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs

from stategraph._owners.holds import acting, this_process
from stategraph._values.provenance import Kind, RunStatus
from stategraph.errors import (
    CheckpointCorruptError,
    CheckpointSaveError,
    ConfigError,
    FormatError,
    StateGraphError,
    UnknownNameError,
)
from stategraph.state import State, data_of, time_ns_of, took_ns_of
from stategraph.stores._codec.compression import ZSTD, compressed, decompress, zstandard_package
from stategraph.stores._codec.delta import Delta, combine, encode_unsettled
from stategraph.stores._codec.pauses import pause_from_json, pause_to_json
from stategraph.stores._codec.type_codecs import DecodeError, UnavailableValueError
from stategraph.stores._rows.integrity import Sealer
from stategraph.stores._rows.records import FORMAT, MAX_STEP, CheckpointRecord, RunRecord
from stategraph.stores.serializers import find_format, registered_format

Place: TypeAlias = tuple[int, int]
"""Where a row stands: its sequence number, and its revision."""

_ROW_WEIGHT = 512  # bytes that a row costs besides its payload, when changes are weighed against a snapshot
_LIGHT = 16_384  # bytes of changes that are always allowed: below, a snapshot saves nothing


@attrs.frozen
class DeltaBase:
    """The newest checkpoint of a run as it was saved or loaded here: the next one is written as what changed since.

    Attributes:
        state: The State.
        base: The sequence number of the snapshot that it builds on.
        seal: The seal of its row.
        before: The seal of the row before it; empty for a snapshot.
        encoded: Its values that may still change, as bytes, by key.
        snapshot: The size of the snapshot, in bytes.
        since: The size of the rows since the snapshot, in bytes.
        incarnation: That of its run.
    """

    state: State
    base: int
    seal: bytes
    before: bytes
    encoded: dict[str, bytes]
    snapshot: int
    since: int
    incarnation: bytes = b""


class PayloadCodec:
    """Encodes and decodes payloads.

    Args:
        serializer: Name of the serializer of new payloads.
        compress: Whether new ones of more than 4 KB are compressed, where that saves a tenth or more.

    Raises:
        UnknownNameError: No serializer has this name.
        ConfigError: `compress` is no bool, or the package for it is not installed.
    """

    def __init__(self, serializer: str = "msgpack", compress: bool = False) -> None:
        if type(compress) is not bool:
            raise ConfigError("checkpoint.options.compress", compress, "true or false")
        written = find_format(serializer)
        self._readers: dict[str, Callable[[bytes], Any]] = {serializer: written.decode}
        self._encode = written.encode
        self._name = serializer
        self._zstd: Any = zstandard_package() if compress else None

    def encode(self, parts: list[Any]) -> tuple[str, bytes]:
        """Return values as an encoding and a payload.

        Raises:
            NotSerializableError: A value cannot be kept exactly.
        """
        payload = self._encode(parts)
        smaller = None if self._zstd is None else compressed(self._zstd, payload)
        return (self._name, payload) if smaller is None else (self._name + ZSTD, smaller)

    def decode(self, run_id: str, rows: Sequence[CheckpointRecord]) -> list[Any]:
        """Return the values of a snapshot, and of the rows that build on it.

        Args:
            run_id: Their run.
            rows: The rows.

        Raises:
            DecodeError: A payload cannot be decoded.
            FormatError: A serializer is not registered in this process.
            ConfigError: One is compressed, and the package for it is not installed.
        """
        for row in rows:
            if row.encoding not in self._readers:
                self._readers[row.encoding] = _make_reader(run_id, row.step, row.encoding)
        return [self._readers[row.encoding](row.payload) for row in rows]


def _make_reader(run_id: str, step: int, encoding: str) -> Callable[[bytes], Any]:
    """Return the function that decodes payloads of an encoding; run and step are for the error."""
    name = encoding.removesuffix(ZSTD)
    try:
        decode = registered_format(name).decode
    except UnknownNameError as error:
        reason = f"its step {step} was saved by a serializer that is not registered here: {error}"
        way_out = f"register_serializer makes it known, or open the store with serializer={name!r} if it is installed"
        raise FormatError(run_id, f"{reason}; {way_out}") from None
    return decode if name == encoding else lambda payload: decode(decompress(payload))


class CheckpointEncoder:
    """Makes rows of States, and States of rows.

    A row holds what changed since the row before it. A snapshot, which holds all data, is written whenever the rows
    since the last one have become as large as it is. So storage, and the time to read any step, stay linear in what
    changed.

    Args:
        sealer: Makes and checks the seals of rows.
        payloads: Encodes and decodes what rows hold.
    """

    def __init__(self, sealer: Sealer, payloads: PayloadCodec | None = None) -> None:
        self._sealer, self._codec = sealer, payloads or PayloadCodec()

    def snapshot(
        self, state: State, incarnation: bytes = b"", place: Place | None = None
    ) -> tuple[CheckpointRecord, DeltaBase]:
        """Return a row with all data of a State, and what the next row is to build on.

        Without a place it is the first row of its run.

        Raises:
            NotSerializableError: a value cannot be kept exactly.
        """
        whole = Delta.between(None, state, {})
        kept = self._codec.encode(whole.parts())
        at = place or (state.step, 0)
        row = self._sealed(state, at, at[0], kept, b"", incarnation)
        return row, DeltaBase(state, row.base, row.seal, b"", whole.encoded, len(row.payload), 0, incarnation)

    def following(self, previous: DeltaBase, state: State, place: Place) -> tuple[CheckpointRecord, DeltaBase]:
        """Return the row that comes next, at this place, and what the one after it is to build on.

        The row holds what changed, or is a snapshot where the changes have become too large.

        Raises:
            NotSerializableError: a value cannot be kept exactly.
        """
        change = Delta.between(previous.state, state, previous.encoded)
        kept = self._codec.encode(change.parts())
        since = previous.since + len(kept[1]) + _ROW_WEIGHT
        if since > previous.snapshot + _LIGHT:
            return self.snapshot(state, previous.incarnation, place)
        row = self._sealed(state, place, previous.base, kept, previous.seal, previous.incarnation)
        weights = (previous.snapshot, since, previous.incarnation)
        return row, DeltaBase(state, row.base, row.seal, previous.seal, change.encoded, *weights)

    def again(self, previous: DeltaBase, saved: CheckpointRecord, state: State) -> tuple[CheckpointRecord, DeltaBase]:
        """Return the row of the same step with another node, time, status or error, and what the next is to build on.

        Args:
            previous: The step as it was saved or loaded here.
            saved: Its row as the store holds it now.
            state: The State, with the same data.

        Raises:
            CheckpointCorruptError: the row is damaged, and must not be sealed anew.
        """
        self._sealer.check(state.run_id, [saved], previous.incarnation, previous.before)
        place, kept = (saved.sequence, saved.revision), (saved.encoding, saved.payload)
        row = self._sealed(state, place, saved.base, kept, previous.before, previous.incarnation)
        encoded = previous.encoded if data_of(state) is data_of(previous.state) else encode_unsettled(state)
        return row, attrs.evolve(previous, state=state, base=row.base, seal=row.seal, encoded=encoded)

    def copied(
        self, source: RunRecord, run_id: str, incarnation: bytes, rows: Sequence[CheckpointRecord]
    ) -> list[CheckpointRecord]:
        """Return copies of a snapshot and of the rows that build on it, for another run.

        Raises:
            CheckpointCorruptError: they are damaged; with the seals of copies, nobody would find that out any more.
        """
        self.check(source.run_id, rows, source.incarnation)
        copies: list[CheckpointRecord] = []
        before = b""
        for row in rows:
            copies.append(self._sealer.seal(run_id, row, before, incarnation))
            before = copies[-1].seal
        return copies

    def parts(self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes = b"") -> list[Any]:
        """Return what the payloads of a snapshot and of rows that build on it hold; raise as `state`."""
        self.check(run_id, rows, incarnation)
        try:
            return self._codec.decode(run_id, rows)
        except UnavailableValueError as error:
            raise FormatError(run_id, f"its step {rows[-1].step} cannot be restored here: {error}") from error
        except DecodeError as error:
            raise CheckpointCorruptError(run_id, f"its step {rows[-1].step} cannot be restored: {error}") from error

    def encoded(self, parts: list[Any]) -> tuple[str, bytes]:
        """Return the encoding and the payload of what a row is to hold."""
        return self._codec.encode(parts)

    def state(self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes = b"") -> State:
        """Return the State of a snapshot and of the rows that build on it.

        Raises:
            CheckpointCorruptError: they are damaged.
            FormatError: a newer version of stategraph wrote them, or they take a serializer or a type that is not
                registered here.
            ConfigError: they are compressed, and what that takes is not installed.
        """
        self.check(run_id, rows, incarnation)
        newest = rows[-1]
        try:
            data, about = combine(self._codec.decode(run_id, rows))
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
        except (FormatError, ConfigError):
            raise
        except UnavailableValueError as error:
            raise FormatError(run_id, f"its step {newest.step} cannot be restored here: {error}") from error
        except (DecodeError, StateGraphError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise CheckpointCorruptError(run_id, f"its step {newest.step} cannot be restored: {error}") from error

    def data(self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes = b"") -> dict[str, Any]:
        """Return the data of the State of these rows, whose run has no id of a State; raise as `state`."""
        parts = self.parts(run_id, rows, incarnation)
        try:
            return combine(parts)[0]
        except DecodeError as error:
            raise CheckpointCorruptError(run_id, f"its step {rows[-1].step} cannot be restored: {error}") from error

    def base_of(self, state: State, rows: Sequence[CheckpointRecord], incarnation: bytes = b"") -> DeltaBase:
        """Return what the next row is to build on, after the State of these rows."""
        *earlier, newest = rows
        before = earlier[-1].seal if earlier else b""
        since = sum(len(row.payload) + _ROW_WEIGHT for row in rows[1:])
        weights = (len(rows[0].payload), since, incarnation)
        return DeltaBase(state, newest.base, newest.seal, before, encode_unsettled(state), *weights)

    def check(self, run_id: str, rows: Sequence[CheckpointRecord], incarnation: bytes = b"") -> None:
        """Check that these are a snapshot and all rows up to the last of them, as they were written.

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
            if not 0 <= row.step <= row.sequence:
                raise CheckpointCorruptError(run_id, f"its checkpoint number {row.sequence} is of step {row.step}")
        self._sealer.check(run_id, rows, incarnation)

    def _sealed(
        self, state: State, place: Place, base: int, kept: tuple[str, bytes], before: bytes, incarnation: bytes
    ) -> CheckpointRecord:
        if place[0] > MAX_STEP:
            raise CheckpointSaveError(state.run_id, f"step {state.step} is above {MAX_STEP}, the last that can be kept")
        pause = None if state.pause is None else pause_to_json(state.pause)
        facts, status, node, hold = state.facts, state.status, state.checkpoint_node, acting.hold
        if facts is None and status is RunStatus.ACTIVE and node:  # the most frequent case by far
            kind, by, attempts = Kind.STEP, None, 1
        else:
            kind, by, attempts = state.kind, state.by, 1 if facts is None else facts.attempts
        encoding, payload = kept
        about = (
            *(place[0], base, state.step, place[1], kind, node, time_ns_of(state), status, state.error),
            *(by, took_ns_of(state), attempts, None if hold is None else this_process(), FORMAT, encoding),
        )
        seal = self._sealer.seal_of(state.run_id, about, payload, before, pause, incarnation)
        return tuple.__new__(CheckpointRecord, (*about, payload, seal, pause))  # as its constructor does, at every save


def ascending_groups(states: Sequence[State]) -> Iterator[list[State]]:
    """Yield the States in groups of ascending steps: a run completes at the step that it saved last."""
    group: list[State] = []
    for state in states:
        if group and state.step <= group[-1].step:
            yield group
            group = []
        group.append(state)
    yield group
