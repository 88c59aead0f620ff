"""Records: how a durable store keeps a checkpoint, and a run as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import attrs

from stategraph._owners.base import Ownership, current
from stategraph._values import clock
from stategraph._values.progress import Pause
from stategraph._values.provenance import ErrorInfo, Facts, Kind, ParentStep, RunStatus, checked_labels, kind_of
from stategraph.errors import CheckpointCorruptError
from stategraph.stores._codec.opaque import unknown_shown
from stategraph.stores._codec.provenance import pause_from_json
from stategraph.stores._codec.type_codecs import DecodeError
from stategraph.stores.base import RetentionPolicy
from stategraph.stores.summaries import Summary

MAX_STEP = 2**32 - 1
"""The last step, and the last sequence number, that a row can have: it shares a 64-bit key with the number of the
run."""

FORMAT = 1
"""The version of the row format. Newer formats are refused, older ones can be read."""


class CheckpointRecord(NamedTuple):
    """One stored checkpoint: a row. A tuple, because one load makes hundreds of them.

    Attributes:
        sequence: Its number among the rows of its run, in order of time. The first row has the number of its step.
            From row to row it grows by max(1, growth of the step), so sequence >= step, and the difference never
            shrinks.
        base: The sequence number of the snapshot that it builds on; its own, if it is a snapshot.
        step: The step.
        revision: Counts the rows of a step, from 0.
        kind: Why it was saved.
        node: The completed node.
        time_ns: When it was saved; nanoseconds since 1970, UTC.
        status: The status of the run.
        error: The error of a failed run.
        by: The name that the caller gave for this change, if any.
        took_ns: How long its step took, in nanoseconds; None if unknown.
        attempts: The number of attempts at the step.
        owner: The process that wrote it, as "host:pid", if known.
        format: The version of the format of the following fields.
        encoding: The encoding of the payload, such as "msgpack" or "msgpack+zstd".
        payload: The data: all of them in a snapshot, otherwise the changes since the row before.
        seal: A checksum or a signature of all this (see `stategraph.stores._rows.seals.Sealer`).
        pause: The pause of the run, if any, as a str (see `stategraph.stores._codec.provenance`).
    """

    sequence: int
    base: int
    step: int
    revision: int
    kind: Kind
    node: str
    time_ns: int
    status: RunStatus
    error: ErrorInfo | None
    by: str | None
    took_ns: int | None
    attempts: int
    owner: str | None
    format: int
    encoding: str
    payload: bytes
    seal: bytes = b""
    pause: str | None = None

    @property
    def is_snapshot(self) -> bool:
        """Whether it holds all data."""
        return self.base == self.sequence

    @property
    def facts(self) -> Facts | None:
        """The provenance of its State, unless the other fields imply it."""
        is_told = self.kind is kind_of(self.status, self.node)
        if is_told and self.by is None and self.attempts == 1:
            return None
        return Facts(self.kind, self.by, self.attempts)


class RunRecord(NamedTuple):
    """A run as a whole. A tuple, because every save makes two of them.

    Attributes:
        run_id: The run.
        number: Counts the runs of a store, in the order in which they began.
        version: Grows with every write to the run. It begins with a random number, so that a deleted run is not
            mistaken for a later run with its id.
        sequence, step, revision, kind, node, time_ns, status, error, by: As in the newest row.
        graph: The graph that runs it.
        parent: The step that it was forked from.
        policy: Its retention policy.
        created_ns: When it began; nanoseconds since 1970, UTC.
        labels: Its labels: pairs, sorted.
        pause: As in the newest row.
        incarnation: Random bytes from the start of the run: no other run with this id has them, here or in another
            store; nested runs share the bytes of their outer run.
        tip: The seal of the newest row: it proves that this row and all rows that it builds on are present and
            unchanged.
        seal: A checksum or a signature of all this but the number, which only gives the order in which runs began.
    """

    run_id: str
    number: int
    version: int
    sequence: int
    step: int
    revision: int
    kind: Kind
    node: str
    time_ns: int
    status: RunStatus
    error: ErrorInfo | None
    by: str | None
    graph: str | None
    parent: ParentStep | None
    policy: RetentionPolicy
    created_ns: int
    labels: tuple[tuple[str, str], ...]
    pause: str | None = None
    incarnation: bytes = b""
    tip: bytes = b""
    seal: bytes = b""

    def summary(self) -> Summary:
        """Return the newest checkpoint of the run without its data."""
        created = clock.to_datetime(self.created_ns)
        return self._summary_of(self, created, dict(self.labels), str(self.number), (None, 1, None))

    def summaries_of(self, rows: Iterable[CheckpointRecord]) -> Iterator[Summary]:
        """Yield checkpoints of the run without their data."""
        created, labels = clock.to_datetime(self.created_ns), checked_labels(dict(self.labels))
        for row in rows:
            took = None if row.took_ns is None else row.took_ns / 1e9
            yield self._summary_of(row, created, labels, None, (took, row.attempts, row.owner))

    def _summary_of(
        self,
        at: RunRecord | CheckpointRecord,
        created: datetime,
        labels: Mapping[str, str],
        cursor: str | None,
        origin: tuple[float | None, int, str | None],
    ) -> Summary:
        """Return a checkpoint without its data; `origin` is its duration, its attempts, and its owner."""
        took, attempts, owner = origin
        return Summary(
            self.run_id,
            self.graph,
            at.step,
            at.node,
            clock.to_datetime(at.time_ns),
            at.status,
            at.error,
            self.parent,
            cursor,
            None if at.pause is None else self._pause_of(at.pause),
            at.kind,
            at.revision,
            at.by,
            took,
            attempts,
            owner,
            created,
            labels,
        )

    def _pause_of(self, kept: str) -> Pause | None:
        try:
            with unknown_shown():  # a list of runs does not need the types of their values
                return pause_from_json(kept)
        except DecodeError as error:
            raise CheckpointCorruptError(self.run_id, f"its pause cannot be restored: {error}") from error


of_newest: Callable[[CheckpointRecord], tuple[Any, ...]] = attrgetter(
    "sequence", "step", "revision", "kind", "node", "time_ns", "status", "error", "by"
)
"""Returns the fields that the record of a run copies from its newest row, in the order of the record."""


@attrs.frozen
class _Owned:
    """An atomic change of one run.

    Attributes:
        ownership: The owner that makes it, by default the owner for whom this thread writes. Once it has lost the run,
            nothing is written.
    """

    ownership: Ownership | None = attrs.field(factory=partial(getattr, current, "ownership"), kw_only=True)

    @property
    def is_lost(self) -> bool:
        """Whether the owner is known to have lost the run."""
        return self.ownership is not None and self.ownership.is_lost


@attrs.frozen
class WriteBatch(_Owned):
    """A change of the record of a run and of its rows.

    Attributes:
        run: The new record of the run.
        old: The record that the run must have now, compared by version; None if the run must not exist.
        put: Rows to add, or to replace rows with the same sequence number.
        cut_below: Remove rows with lower sequence numbers.
        cut_above: Remove rows with higher sequence numbers.
        cut_nested: Remove all nested runs and parts.
        outer: The incarnation that the outer run must have now; None if there need not be one.
        cut_parts: Remove all parts of its steps, and those of its nested runs.
    """

    run: RunRecord
    old: RunRecord | None
    put: tuple[CheckpointRecord, ...] = ()
    cut_below: int = 0
    cut_above: int | None = None
    cut_nested: bool = False
    outer: bytes | None = None
    cut_parts: bool = False

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.run.run_id


@attrs.frozen
class Removal(_Owned):
    """The removal of a run and of all its nested runs.

    Attributes:
        run_id: The id of the run.
        version: The version that it must have. None removes any version, and nested runs even if the run is missing.
    """

    run_id: str
    version: int | None = None


Write: TypeAlias = WriteBatch | Removal


@attrs.frozen
class Unreadable:
    """Takes the place of a run that a table cannot read.

    Attributes:
        run_id: The run, as far as it is known.
        number: Its number; None if it is unknown.
        error: Why it cannot be read.
    """

    run_id: str
    number: int | None
    error: CheckpointCorruptError
