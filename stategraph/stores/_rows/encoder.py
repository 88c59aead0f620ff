"""States to rows and back: the shared layer between what a run saves and what a store keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import attrs

from stategraph.errors import CheckpointCorruptError, CheckpointSaveError, ConfigError, FormatError, StateGraphError
from stategraph.state import State, time_ns_of
from stategraph.stores._codec.delta import Delta, combine, encode_unsettled
from stategraph.stores._codec.pauses import pause_from_json, pause_to_json
from stategraph.stores._codec.payload import PayloadCodec, excess_of
from stategraph.stores._codec.type_codecs import DecodeError, UnavailableValueError
from stategraph.stores._rows.integrity import Sealer
from stategraph.stores._rows.records import FORMAT, MAX_STEP, Row

_ROW_WEIGHT = 512  # bytes that a row costs besides its body, when changes are weighed against a snapshot
_LIGHT = 16_384  # bytes of changes that are always allowed: below, a snapshot saves nothing


class Source(Protocol):
    """What is to be known of a run whose rows are copied."""

    @property
    def run_id(self) -> str:
        """Its id."""

    @property
    def incarnation(self) -> bytes:
        """Its incarnation."""


@attrs.frozen
class Tail:
    """The newest checkpoint of a run as it was saved or loaded here: what the next one is compared with.

    Attributes:
        state: The State.
        base: The step of the snapshot that it builds on.
        seal: The seal of its row.
        before: The seal of the row that it builds on; empty for a snapshot.
        encoded: The bytes of its values that are not settled, by key.
        snapshot: Bytes of the snapshot that it builds on.
        since: Bytes of the rows since that snapshot.
        incarnation: That of its run.
        excess: What these rows take of the bytes that may be decompressed beyond what their sizes allow.
    """

    state: State
    base: int
    seal: bytes
    before: bytes
    encoded: dict[str, bytes]
    snapshot: int
    since: int
    incarnation: bytes = b""
    excess: int = 0


class Rows:
    """Makes rows of States, and States of rows.

    Storage and the time to read any step stay linear in what changed: a row holds what changed since the one before,
    and a snapshot is written whenever the changes since the last one weigh as much as it does.
    """

    def __init__(self, sealer: Sealer, bodies: PayloadCodec | None = None) -> None:
        self._sealer, self._bodies = sealer, bodies or PayloadCodec()

    def snapshot(self, state: State, incarnation: bytes = b"") -> tuple[Row, Tail]:
        """-> a row with all data of a State, for this incarnation of its run, and the tail that it makes.

        Raises:
            NotSerializableError: a value cannot be kept exactly.
        """
        whole = Delta.between(None, state, {})
        encoding, body, excess = self._bodies.encode(whole.parts())
        row = self._sealed(state, state.step, encoding, body, b"", incarnation)
        return row, Tail(state, row.base, row.seal, b"", whole.encoded, len(body), 0, incarnation, excess)

    def following(self, tail: Tail, state: State) -> tuple[Row, Tail]:
        """-> the row of a later step: what changed, or a snapshot where that has become the lighter way; and the tail.

        Raises:
            NotSerializableError: a value cannot be kept exactly.
        """
        change = Delta.between(tail.state, state, tail.encoded)
        encoding, body, excess = self._bodies.encode(change.parts(), tail.excess)
        since = tail.since + len(body) + _ROW_WEIGHT
        if since > tail.snapshot + _LIGHT:
            return self.snapshot(state, tail.incarnation)
        row = self._sealed(state, tail.base, encoding, body, tail.seal, tail.incarnation)
        weights = (tail.snapshot, since, tail.incarnation, excess)
        return row, Tail(state, row.base, row.seal, tail.seal, change.encoded, *weights)

    def again(self, tail: Tail, saved: Row, state: State) -> tuple[Row, Tail]:
        """-> the row of the tail with another node, time, status or error, and the tail with it.

        `saved` is that row as the store has it now. It is sealed anew only if it is still what was sealed before.

        Raises:
            CheckpointCorruptError: it is not.
        """
        self._sealer.check(state.run_id, [saved], tail.incarnation, tail.before)
        row = self._sealed(state, saved.base, saved.encoding, saved.body, tail.before, tail.incarnation)
        return row, attrs.evolve(tail, state=state, base=row.base, seal=row.seal)

    def copied(self, source: Source, run_id: str, incarnation: bytes, rows: Sequence[Row]) -> list[Row]:
        """-> a snapshot and the rows that build on it, for another run.

        Raises:
            CheckpointCorruptError: they are damaged, which would not be found any more in the copy.
        """
        self.check(source.run_id, rows, source.incarnation)
        copies: list[Row] = []
        before = b""
        for row in rows:
            copies.append(self._sealer.seal(run_id, row, before, incarnation))
            before = copies[-1].seal
        return copies

    def state(self, run_id: str, rows: Sequence[Row], incarnation: bytes = b"") -> State:
        """-> the State that a snapshot and its changes make.

        Raises:
            CheckpointCorruptError: they make none.
            FormatError: a newer version of stategraph wrote them, or they take a serializer or a type that is not
                registered here.
            ConfigError: they are compressed, and what that takes is not installed.
        """
        self.check(run_id, rows, incarnation)
        newest = rows[-1]
        try:
            data, about = self._assembled(run_id, rows)
            return State(
                data,
                run_id=run_id,
                step=newest.step,
                checkpoint_node=newest.node,
                timestamp=newest.time_ns,
                status=newest.status,
                error=newest.error,
                pause=pause_from_json(newest.pause),
                **about,
            )
        except (FormatError, ConfigError):
            raise
        except UnavailableValueError as error:
            raise FormatError(run_id, f"its step {newest.step} cannot be restored here: {error}") from error
        except (DecodeError, StateGraphError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise CheckpointCorruptError(run_id, f"its step {newest.step} cannot be restored: {error}") from error

    def data(self, run_id: str, rows: Sequence[Row], incarnation: bytes = b"") -> tuple[dict[str, Any], dict[str, Any]]:
        """-> the data of the State that these rows make, and what else was kept with it; raises as `state`."""
        self.check(run_id, rows, incarnation)
        try:
            return self._assembled(run_id, rows)
        except UnavailableValueError as error:
            raise FormatError(run_id, f"its step {rows[-1].step} cannot be restored here: {error}") from error
        except DecodeError as error:
            raise CheckpointCorruptError(run_id, f"its step {rows[-1].step} cannot be restored: {error}") from error

    def _assembled(self, run_id: str, rows: Sequence[Row]) -> tuple[dict[str, Any], dict[str, Any]]:
        return combine(self._bodies.decode(run_id, [(row.step, row.encoding, row.body) for row in rows]))

    def tail(self, state: State, rows: Sequence[Row], incarnation: bytes = b"") -> Tail:
        """-> the tail of a State that these rows made."""
        *earlier, newest = rows
        before = earlier[-1].seal if earlier else b""
        since = sum(len(row.body) + _ROW_WEIGHT for row in rows[1:])
        excess = excess_of((row.encoding, row.body) for row in rows)
        weights = (len(rows[0].body), since, incarnation, excess)
        return Tail(state, newest.base, newest.seal, before, encode_unsettled(state), *weights)

    def check(self, run_id: str, rows: Sequence[Row], incarnation: bytes = b"") -> None:
        """Raise unless these are a snapshot and all rows up to the last of them, as they were written."""
        for row in rows:
            if row.format > FORMAT:
                raise FormatError(
                    run_id, f"its step {row.step} has format {row.format}; this version reads up to {FORMAT}; update it"
                )
            if row.base != rows[0].step:
                raise CheckpointCorruptError(run_id, f"its step {row.step} builds on step {row.base}, which is missing")
        self._sealer.check(run_id, rows, incarnation)

    def _sealed(self, state: State, base: int, encoding: str, body: bytes, before: bytes, incarnation: bytes) -> Row:
        if state.step > MAX_STEP:
            raise CheckpointSaveError(state.run_id, f"step {state.step} is above {MAX_STEP}, the last that can be kept")
        pause = None if state.pause is None else pause_to_json(state.pause)
        about = (
            *(state.step, base, state.checkpoint_node, time_ns_of(state), state.status, state.error),
            *(FORMAT, encoding),
        )
        seal = self._sealer.seal_of(state.run_id, about, body, before, pause, incarnation)
        return tuple.__new__(Row, (*about, body, seal, pause))  # as Row(...) does, at every save


def ascending_groups(states: Sequence[State]) -> Iterator[list[State]]:
    """-> the States in groups whose steps go up: a run completes at the step that it saved last."""
    group: list[State] = []
    for state in states:
        if group and state.step <= group[-1].step:
            yield group
            group = []
        group.append(state)
    yield group
