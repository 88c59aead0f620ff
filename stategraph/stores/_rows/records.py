"""Records: what a durable store keeps of a checkpoint, and of a run as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import attrs

from stategraph._owners.holds import Hold, acting
from stategraph._values import clock
from stategraph._values.progress import Pause
from stategraph._values.provenance import ErrorInfo, Facts, Kind, ParentStep, RunStatus, checked_labels, kind_of
from stategraph.errors import CheckpointCorruptError
from stategraph.stores._codec.opaque import unknown_shown
from stategraph.stores._codec.pauses import pause_from_json
from stategraph.stores._codec.type_codecs import DecodeError
from stategraph.stores.base import RetentionPolicy
from stategraph.stores.summaries import Summary

MAX_STEP = 2**32 - 1
"""The last step, and the last sequence number, that a row can have: that shares a 64-bit key with the number of its
run."""

FORMAT = 1
"""The version of the format of rows. A newer one is refused, older ones are read."""


class CheckpointRecord(NamedTuple):
    """One checkpoint as it is kept: a row. A tuple, because one load makes hundreds of them.

    Attributes:
        sequence: Its number among the rows of its run, in the order in which they came. The first has that of its step,
            and from row to row it goes up by as much as the step does, and by 1 at least. So it is never below the
            step, and the rows of a step are no further above it than the newest row is above its own.
        base: The sequence number of the snapshot that it builds on; its own, if it is one.
        step: The step.
        revision: Counts the rows of a step, from 0.
        kind: Why it was saved.
        node: The node that was completed.
        time_ns: When; nanoseconds since 1970, UTC.
        status: How the run stood.
        error: Why it had failed, if it had.
        by: Who made it so, if the caller said it.
        took_ns: How long its step took, in nanoseconds; None where that is not known.
        attempts: In how many attempts the step was completed.
        owner: The process that wrote it, as "host:pid", if that is known.
        format: The version of the format of what follows.
        encoding: How the payload is to be read, such as "msgpack" or "msgpack+zstd".
        payload: The data: all of them in a snapshot, else what changed since the row before.
        seal: A checksum or a signature over all of this (see `stategraph.stores._rows.encoder.Sealer`).
        pause: What the run waited for, if it did, as a str (see `stategraph.stores._codec.pauses`).
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
        """How its State came to be, where the rest of it does not say so."""
        is_told = self.kind is kind_of(self.status, self.node)
        if is_told and self.by is None and self.attempts == 1:
            return None
        return Facts(self.kind, self.by, self.attempts)


class RunRecord(NamedTuple):
    """A run as a whole. A tuple, because every save makes two of them.

    Attributes:
        run_id: The run.
        number: Counts the runs of a store, in the order in which they began.
        version: Goes up with every write to the run. It begins with a random number, so that a run that was deleted and
            begun again is not taken for what it was.
        sequence, step, revision, kind, node, time_ns, status, error, by: As in the newest row.
        graph: The graph that runs it.
        parent: The step that it was forked from.
        policy: What is kept of it.
        created_ns: When it began; nanoseconds since 1970, UTC.
        labels: What it was labelled with: pairs, sorted.
        pause: As in the newest row.
        incarnation: Random bytes, drawn when the run begins: no other run of this id has them, here or in another
            store; nested runs have those of their outer run.
        tip: The seal of the newest row: it shows that this row, and each that it builds on, is there and unchanged.
        seal: A checksum or a signature over all of this but the number, which only says in which order runs began.
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
        """Return a checkpoint without its data; `origin` is how long it took, in how many attempts, and by whom."""
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
            with unknown_shown():  # to look at runs, their values need not be known
                return pause_from_json(kept)
        except DecodeError as error:
            raise CheckpointCorruptError(self.run_id, f"what it waits for cannot be restored: {error}") from error


of_newest: Callable[[CheckpointRecord], tuple[Any, ...]] = attrgetter(
    "sequence", "step", "revision", "kind", "node", "time_ns", "status", "error", "by"
)
"""Returns what the record of a run has of its newest row, in the order of its fields."""


@attrs.frozen
class _Owned:
    """A change of one run, which is made as a whole or not at all.

    Attributes:
        hold: The hold of the owner for whom it is made: once it is lost, nothing is written.
    """

    hold: Hold | None = attrs.field(factory=partial(getattr, acting, "hold"), init=False, kw_only=True)

    @property
    def is_lost(self) -> bool:
        """Whether the owner is known to have lost the run."""
        return self.hold is not None and self.hold.is_lost


@attrs.frozen
class WriteBatch(_Owned):
    """A change of the record of a run and of its rows.

    Attributes:
        run: The run as it is to be.
        old: The run as it must be now, compared by its version; None if it must not be there.
        put: Rows to add, or to put in the place of those with the same sequence number.
        cut_below: Rows with lower sequence numbers go.
        cut_above: Rows with higher ones go.
        cut_nested: All that is nested in the run goes.
        outer: The incarnation that the outer run must have now; None if there need not be one.
        cut_parts: All parts of its steps go, and of those of its nested runs.
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
    """The removal of a run and of all that is nested in it.

    Attributes:
        run_id: The id of the run.
        version: The version that it must have. None removes any, and what is nested in it even if it is not there.
    """

    run_id: str
    version: int | None = None


Write: TypeAlias = WriteBatch | Removal


@attrs.frozen
class Unreadable:
    """What a table holds in the place of a run, where that cannot be read.

    Attributes:
        run_id: The run, as far as it is known.
        number: Its number; None where it is not known.
        error: Why it cannot be read.
    """

    run_id: str
    number: int | None
    error: CheckpointCorruptError


ABOUT = list(CheckpointRecord.__annotations__).index("payload")
"""How many fields of a row come before its payload."""

About: TypeAlias = tuple[Any, ...]
"""The fields of a row before its payload, in their order."""
