"""Rows and heads as bytes, for stores that keep bytes under keys and know no columns."""

from __future__ import annotations

import ormsgpack

from stategraph._values.provenance import ErrorInfo, ParentStep
from stategraph.errors import CheckpointCorruptError
from stategraph.stores._codec.nesting import check_msgpack
from stategraph.stores._rows.columns import Columns, no_checkpoint, no_run
from stategraph.stores._rows.records import Head, Row
from stategraph.stores.retention import Policy

_COLUMNS = Columns(
    error=lambda parts: ErrorInfo(*parts), parent=lambda parts: ParentStep(*parts), policy=lambda parts: Policy(*parts)
)


_LEVELS = 2  # the list of columns, and those that are lists


def pack_row(row: Row, previous: int | None) -> bytes:
    """-> a row as bytes, with the step of the row before it in its run."""
    return ormsgpack.packb(
        [
            *(previous, row.step, row.base, row.node, row.time_ns, row.status.value, _error_parts(row.error)),
            *(row.format, row.encoding, row.body, row.seal, row.pause),
        ]
    )


def unpack_row(run_id: str, kept: bytes) -> tuple[Row, int | None]:
    """-> the row, and the step of the row before it.

    Raises:
        CheckpointCorruptError: these are not the bytes of a row.
    """
    try:
        check_msgpack(kept, _LEVELS)
        previous, *columns = ormsgpack.unpackb(kept)
    except (TypeError, ValueError) as error:
        raise no_checkpoint(run_id, error) from error
    return _COLUMNS.row(run_id, columns), previous


def pack_head(head: Head) -> bytes:
    """-> a head as bytes.

    Raises:
        CheckpointCorruptError: it has a number of more than 64 bits, for the store holds none that it can follow.
    """
    parent, policy = head.parent, head.policy
    columns = [
        *(head.number, head.version, head.step, head.node, head.time_ns, head.status.value),
        *(_error_parts(head.error), head.graph, None if parent is None else [parent.run_id, parent.step]),
        *([policy.retention, policy.window, policy.ttl], head.pause),
        *(head.incarnation, head.tip, head.seal),
    ]
    try:
        return ormsgpack.packb(columns)
    except TypeError as error:
        reason = (
            f"it would have number {head.number} among the runs of its store, which no run can have: what the store "
            "holds as the number of its runs is damaged or forged; put back a copy of it"
        )
        raise CheckpointCorruptError(head.run_id, reason) from error


def unpack_head(run_id: str, kept: bytes, store: object = "store") -> Head:
    """-> the head.

    Raises:
        CheckpointCorruptError: these are not the bytes of a head; it names the store.
    """
    try:
        check_msgpack(kept, _LEVELS)
        columns = list(ormsgpack.unpackb(kept))
    except (TypeError, ValueError) as error:
        raise no_run(run_id, f"its bytes are none of a run: {error}", store) from error
    return _COLUMNS.head(run_id, columns, store)


def _error_parts(error: ErrorInfo | None) -> list[str] | None:
    return None if error is None else [error.type, error.message, error.node]
