"""Rows: what a durable store keeps of a checkpoint, and of a run as a whole."""

from __future__ import annotations

from types import NoneType
from typing import NamedTuple, TypeAlias

import attrs

from stategraph._values import clock
from stategraph._values.provenance import ErrorInfo, ParentStep, RunStatus
from stategraph.errors import CheckpointCorruptError
from stategraph.stores._codec.pauses import pause_from_json
from stategraph.stores._codec.type_codecs import DecodeError
from stategraph.stores.retention import RETENTIONS, Policy
from stategraph.stores.summaries import Summary

MAX_STEP = 2**32 - 1
"""The last step that a row can have: it shares a 64-bit key with the number of its run."""

FORMAT = 1
"""The version of the format of rows. A newer one is refused, older ones are read."""


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
        seal: A checksum or a signature over all of this (see `stategraph.stores._rows.integrity`).
        pause: What the run waited for, if it did, as a text (see `stategraph.stores._codec.pauses`).
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


class Head(NamedTuple):
    """A run as a whole, as its newest row has it. A tuple, because every save makes two of them.

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
        incarnation: Told from those of all runs that had this id before, or have it in other stores.
        tip: The seal of the newest row.
        seal: A checksum or a signature over all of this but the number, which only says in which order runs began.
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
    incarnation: bytes = b""
    tip: bytes = b""
    seal: bytes = b""

    def summary(self) -> Summary:
        """-> the run in short."""
        return attrs.evolve(_summary(self, self), cursor=str(self.number))

    def summary_of(self, row: Row) -> Summary:
        """-> one of its checkpoints in short."""
        return _summary(self, row)


def _summary(head: Head, at: Head | Row) -> Summary:
    try:
        pause = pause_from_json(at.pause)
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
        cut_within: All that is within the run goes.
        outer: The incarnation that the run around must have now; None if there need not be one.
    """

    head: Head
    old: Head | None
    put: tuple[Row, ...] = ()
    cut_below: int = 0
    cut_above: int | None = None
    cut_within: bool = False
    outer: bytes | None = None


@attrs.frozen
class Unreadable:
    """What a store holds in the place of a head, where that is none.

    Attributes:
        run_id: The run, as far as it can be told.
        number: Its number; None where it cannot be told.
        error: Why it is none.
    """

    run_id: str
    number: int | None
    error: CheckpointCorruptError


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


def wrong_field_of(head: Head) -> str | None:
    """-> the name of a field of a head that a store holds whose value is of another type; None if there is none."""
    wrong = (name for name, kinds in _KINDS.items() if type(getattr(head, name)) not in kinds)
    return next(wrong, None if _is_policy(head.policy) else "policy")


_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("number", "version", "step", "time_ns"), (int,)),
    **dict.fromkeys(("incarnation", "tip", "seal"), (bytes,)),
    **dict.fromkeys(("run_id", "node"), (str,)),
    **dict.fromkeys(("graph", "pause"), (str, NoneType)),
}


def _is_policy(policy: Policy) -> bool:
    is_ttl = policy.ttl is None or type(policy.ttl) in (int, float)
    return policy.retention in RETENTIONS and is_ttl and type(policy.window) in (int, NoneType)


About: TypeAlias = tuple[int, int, str, int, RunStatus, ErrorInfo | None, int, str]
"""The fields of a row before its body, in their order."""
