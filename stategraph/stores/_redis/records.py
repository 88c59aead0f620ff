"""Batches, rows and runs in the form in which scripts take and return them."""

from __future__ import annotations

from typing import Any

from stategraph._values.ids import given_id
from stategraph.errors import CheckpointCorruptError, CheckpointSaveError
from stategraph.stores._redis.connections import Command, Nodes
from stategraph.stores._redis.scripts import REMOVE, SAVE
from stategraph.stores._rows.columns import no_checkpoint, no_run, pack_row, pack_run, unpack_row, unpack_run
from stategraph.stores._rows.records import CheckpointRecord, Removal, RunRecord, Unreadable, Write, WriteBatch

_MAX_VALUE = 512 * 1024 * 1024  # bytes that a server accepts by default


def script_of(write: Write, nodes: Nodes, store: object) -> Command:
    """Return the script that makes a write.

    Raises:
        CheckpointSaveError: Redis cannot hold it.
    """
    run_id, ownership = write.run_id, write.ownership
    # 0 compares nothing, 1 compares the fence, and 2 requires that the run has no owner.
    guard = (0, 0) if ownership is None else (1, ownership.fence) if ownership.fence else (2, 0)
    if isinstance(write, Removal):
        version = "" if write.version is None else write.version
        return nodes.script(run_id, REMOVE, version, given_id(run_id), *guard)
    try:
        return nodes.script(run_id, SAVE, given_id(run_id), *guard, *_values(write, nodes))
    except (TypeError, ValueError, CheckpointCorruptError) as error:
        cause = ValueError(str(error))
        cause.__cause__ = error
        raise CheckpointSaveError(run_id, f"the {store} cannot hold it: {error}") from cause


def _values(batch: WriteBatch, nodes: Nodes) -> list[Any]:
    run, old = batch.run, batch.old
    values: list[Any] = [
        *(batch.outer or b"", b"" if old is None else _version_of(old), _version_of(run)),
        *(pack_run(run), run.incarnation, run.status._value_, run.graph or "", run.parent.run_id if run.parent else ""),
        *(nodes.count, nodes.partition_of(run.run_id), batch.cut_below),
        "" if batch.cut_above is None else batch.cut_above,
        "all" if batch.cut_nested else "parts" if batch.cut_parts else "",
    ]
    for row in batch.put:
        if len(row.payload) > _MAX_VALUE:
            raise ValueError(f"its data are {len(row.payload)} bytes; the limit of Redis is {_MAX_VALUE}")
        about = pack_row(row._replace(payload=b""))
        values += row.sequence, b"%d %d %d %d %b" % (row.sequence, row.base, row.step, row.revision, about), row.payload
    return values


def _version_of(run: RunRecord) -> bytes:
    """Return the version and the seal of a run: after a failover, another run may have the same version."""
    return b"%d %b" % (run.version, run.seal)


def row_of(run_id: str, member: bytes, payload: bytes | None) -> CheckpointRecord:
    """Return a row of a run. Raises CheckpointCorruptError if it is damaged, or its payload is missing."""
    *numbers, about = member.split(b" ", 4)
    row = unpack_row(run_id, about)
    if numbers != [b"%d" % number for number in (row.sequence, row.base, row.step, row.revision)]:
        raise no_checkpoint(run_id, ValueError(f"it is kept as {numbers}"))
    if payload is None:
        raise CheckpointCorruptError(run_id, f"the data of its checkpoint number {row.sequence} are missing")
    return row._replace(payload=payload)


def run_or_unreadable(store: object, run_id: str, number: bytes | None, record: bytes | None) -> RunRecord | Unreadable:
    """Return the run with these values, or the reason why it cannot be read."""
    try:
        return run_of(store, run_id, number, record)
    except CheckpointCorruptError as error:
        return Unreadable(run_id, _number_of(number), error)


def run_of(store: object, run_id: str, number: bytes | None, record: bytes | None) -> RunRecord:
    """Return the run with these values. Raises CheckpointCorruptError, which names the store, if they are damaged."""
    if record is None:
        raise no_run(run_id, "its record is missing", store)
    position = _number_of(number)
    if position is None:
        raise no_run(run_id, f"its number is {number!r}", store)
    return unpack_run(run_id, record, store)._replace(number=position)


def _number_of(text: bytes | None) -> int | None:
    try:
        number = int(float(text or b""))
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < 2**53 else None
