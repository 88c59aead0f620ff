"""Batches and rows as what scripts are given, and give back."""

from __future__ import annotations

from typing import Any

from stategraph._values.ids import given_id
from stategraph.errors import CheckpointCorruptError, CheckpointSaveError
from stategraph.stores._redis.connections import Asked, Nodes
from stategraph.stores._redis.scripts import SAVE
from stategraph.stores._rows.columns import no_checkpoint, pack_row, pack_run, unpack_row
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, WriteBatch
from stategraph.stores._servers.guards import fence_of

_LARGEST = 512 * 1024 * 1024  # bytes of a value that a server takes, unless it was told otherwise


def asked(batch: WriteBatch, nodes: Nodes, store: object) -> Asked:
    """Return what writes a batch.

    Raises:
        CheckpointSaveError: no Redis can hold it.
    """
    run_id = batch.run.run_id
    try:
        values = _values(batch, nodes)
    except (TypeError, ValueError, CheckpointCorruptError) as error:
        cause = ValueError(str(error))
        cause.__cause__ = error
        raise CheckpointSaveError(run_id, f"the {store} cannot hold it: {error}") from cause
    return Asked(nodes.partition_of(run_id), SAVE, values)


def _values(batch: WriteBatch, nodes: Nodes) -> list[Any]:
    run, old, run_id = batch.run, batch.old, batch.run.run_id
    guard, fence = fence_of(batch.hold)
    nested = "all" if batch.cut_nested else "parts" if batch.cut_parts else ""
    values: list[Any] = [
        *(run_id, given_id(run_id), int(guard), fence, batch.outer or b""),
        *(b"" if old is None else _version_of(old), _version_of(run), pack_run(run), run.incarnation),
        *(run.status._value_, run.graph or "", run.parent.run_id if run.parent else ""),
        *(nodes.count, nodes.partition_of(run_id), batch.cut_below),
        *("" if batch.cut_above is None else batch.cut_above, nested),
    ]
    for row in batch.put:
        if len(row.payload) > _LARGEST:
            raise ValueError(f"its data are {len(row.payload)} bytes, and a value of Redis has {_LARGEST} at most")
        about = pack_row(row._replace(payload=b""), None)
        values += row.sequence, b"%d %d %d %d %b" % (row.sequence, row.base, row.step, row.revision, about), row.payload
    return values


def _version_of(run: RunRecord) -> bytes:
    """Return what is compared of a run: its version and its seal, as others may have written as often as was lost."""
    return b"%d %b" % (run.version, run.seal)


def row_of(run_id: str, member: bytes, payload: bytes | None) -> CheckpointRecord:
    """Return a row of a run. Raises CheckpointCorruptError if it is none, or its payload is missing."""
    *numbers, about = member.split(b" ", 4)
    row, _ = unpack_row(run_id, about)
    if numbers != [b"%d" % number for number in (row.sequence, row.base, row.step, row.revision)]:
        raise no_checkpoint(run_id, ValueError(f"it is kept as {numbers}"))
    if payload is None:
        raise CheckpointCorruptError(run_id, f"the data of its checkpoint number {row.sequence} are missing")
    return row._replace(payload=payload)


def newest_of(whole: list[Any], sequence: int | None) -> list[Any] | None:
    """Return what the script CHAIN finds, of what the script RUN has found; None if another checkpoint is meant."""
    _, record, members, first, payloads = whole
    is_meant = members and (sequence is None or members[-1].startswith(b"%d " % sequence))
    return [record, members[first:], payloads] if is_meant and payloads else None
