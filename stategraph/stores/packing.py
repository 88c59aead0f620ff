"""Rows and heads as bytes, for stores that keep bytes under keys and know no columns."""

from __future__ import annotations

import ormsgpack

from stategraph.errors import CheckpointCorruptError
from stategraph.provenance import ErrorInfo, ParentStep, RunStatus
from stategraph.stores.policy import Policy
from stategraph.stores.rows import Head, Row, checked_head, checked_row


def pack_row(row: Row, previous: int | None) -> bytes:
    """-> a row as bytes, with the step of the row before it in its run."""
    return ormsgpack.packb(
        [
            *(previous, row.step, row.base, row.node, row.time_ns, row.status.value, _error_parts(row.error)),
            *(row.format, row.encoding, row.body, row.seal),
        ]
    )


def unpack_row(run_id: str, kept: bytes) -> tuple[Row, int | None]:
    """-> the row, and the step of the row before it.

    Raises:
        CheckpointCorruptError: these are not the bytes of a row.
    """
    try:
        previous, step, base, node, time_ns, status, error, version, encoding, body, seal = ormsgpack.unpackb(kept)
        row = Row(step, base, node, time_ns, RunStatus(status), _error_of(error), version, encoding, body, seal)
    except (TypeError, ValueError) as error:
        raise CheckpointCorruptError(run_id, f"what the store holds for it is no checkpoint: {error}") from error
    return checked_row(run_id, row), previous


def pack_head(head: Head) -> bytes:
    """-> a head as bytes."""
    parent, policy = head.parent, head.policy
    return ormsgpack.packb(
        [
            *(head.number, head.version, head.step, head.node, head.time_ns, head.status.value),
            *(_error_parts(head.error), head.graph, None if parent is None else [parent.run_id, parent.step]),
            [policy.retention, policy.window, policy.ttl],
        ]
    )


def unpack_head(run_id: str, kept: bytes) -> Head:
    """-> the head.

    Raises:
        CheckpointCorruptError: these are not the bytes of a head.
    """
    try:
        number, version, step, node, time_ns, status, error, graph, parent, policy = ormsgpack.unpackb(kept)
        head = Head(
            run_id=run_id,
            number=number,
            version=version,
            step=step,
            node=node,
            time_ns=time_ns,
            status=RunStatus(status),
            error=_error_of(error),
            graph=graph,
            parent=None if parent is None else ParentStep(*parent),
            policy=Policy(*policy),
        )
    except (TypeError, ValueError) as error:
        raise CheckpointCorruptError(run_id, f"what the store holds for it is no run: {error}") from error
    return checked_head(head)


def _error_parts(error: ErrorInfo | None) -> list[str] | None:
    return None if error is None else [error.type, error.message, error.node]


def _error_of(parts: list[str] | None) -> ErrorInfo | None:
    return None if parts is None else ErrorInfo(*parts)
