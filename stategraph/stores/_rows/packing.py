"""Records as bytes, for tables that keep bytes under keys and know no columns."""

from __future__ import annotations

import ormsgpack

from stategraph._values.provenance import ErrorInfo, ParentStep
from stategraph.errors import CheckpointCorruptError
from stategraph.stores._codec.nesting import check_msgpack
from stategraph.stores._rows.columns import Columns, no_checkpoint, no_run
from stategraph.stores._rows.records import CheckpointRecord, RunRecord
from stategraph.stores.base import RetentionPolicy

_COLUMNS = Columns(
    error=lambda parts: ErrorInfo(*parts),
    parent=lambda parts: ParentStep(*parts),
    policy=lambda parts: RetentionPolicy(*parts),
)


_LEVELS = 2  # the list of columns, and those that are lists


def pack_row(row: CheckpointRecord, previous: int | None) -> bytes:
    """Return a row as bytes, together with the step of the row before it in its run."""
    return ormsgpack.packb(
        [
            *(previous, row.step, row.base, row.node, row.time_ns, row.status.value, _error_parts(row.error)),
            *(row.format, row.encoding, row.payload, row.seal, row.pause),
        ]
    )


def unpack_row(run_id: str, kept: bytes) -> tuple[CheckpointRecord, int | None]:
    """Return the row in these bytes, and the step of the row before it.

    Raises:
        CheckpointCorruptError: they hold none.
    """
    try:
        check_msgpack(kept, _LEVELS)
        previous, *columns = ormsgpack.unpackb(kept)
    except (TypeError, ValueError) as error:
        raise no_checkpoint(run_id, error) from error
    return _COLUMNS.row(run_id, columns), previous


def pack_run(run: RunRecord) -> bytes:
    """Return the record of a run as bytes.

    Raises:
        CheckpointCorruptError: its number has more than 64 bits, because the largest that the store holds is damaged.
    """
    parent, policy = run.parent, run.policy
    columns = [
        *(run.number, run.version, run.step, run.node, run.time_ns, run.status.value),
        *(_error_parts(run.error), run.graph, None if parent is None else [parent.run_id, parent.step]),
        *([policy.retention, policy.window, policy.ttl], run.pause),
        *(run.incarnation, run.tip, run.seal),
    ]
    try:
        return ormsgpack.packb(columns)
    except TypeError as error:
        reason = (
            f"it would have number {run.number} among the runs of its store, which no run can have: what the store "
            "holds as the number of its runs is damaged or forged; put back a copy of it"
        )
        raise CheckpointCorruptError(run.run_id, reason) from error


def unpack_run(run_id: str, kept: bytes, store: object = "store") -> RunRecord:
    """Return the record of a run in these bytes.

    Raises:
        CheckpointCorruptError: they hold none; the error names the store.
    """
    try:
        check_msgpack(kept, _LEVELS)
        columns = list(ormsgpack.unpackb(kept))
    except (TypeError, ValueError) as error:
        raise no_run(run_id, f"its bytes are none of a run: {error}", store) from error
    return _COLUMNS.run(run_id, columns, store)


def _error_parts(error: ErrorInfo | None) -> list[str] | None:
    return None if error is None else [error.type, error.message, error.node]
