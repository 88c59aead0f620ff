"""Batches as statements: what a save writes and compares, as values."""

from __future__ import annotations

from typing import Any

from stategraph._values.ids import given_id, nested_range
from stategraph.stores._postgres.prepared import Asked
from stategraph.stores._postgres.statements import Cut, Put, save
from stategraph.stores._rows.records import MAX_STEP, WriteBatch
from stategraph.stores._rows.sql_columns import lasting_values, row_values, run_values, step_values
from stategraph.stores._servers.guards import fence_of


def asked(schema: str, batch: WriteBatch) -> Asked:
    """Return the statement that writes a batch."""
    run, old = batch.run, batch.old
    guard, fence = fence_of(batch.hold)
    if old is None:
        put, columns = Put.NEW, run_values(run)
    elif lasting_values(old) == lasting_values(run):
        put, columns = Put.STEP, step_values(run)
    else:
        put, columns = Put.RUN, run_values(run)
    # A statement sees no rows that it puts.
    put_rows = (row for row in batch.put if row.sequence >= batch.cut_below)
    rows = [row_values(row.sequence, row, json_as_text=False) for row in put_rows]
    values: list[Any] = [run.run_id, old and old.version, fence, given_id(run.run_id), batch.outer, *columns]
    if len(rows) == 1:
        values += rows[0]
    elif rows:
        values += map(list, zip(*rows, strict=True))
    cut = _cut_of(batch)
    if cut is not Cut.NOTHING:
        values += batch.cut_below, MAX_STEP if batch.cut_above is None else batch.cut_above
    if cut in (Cut.NESTED, Cut.PARTS):
        values += nested_range(run.run_id)
    return save(schema, put, min(len(rows), 2), cut, guard, batch.outer is not None), values


def _cut_of(batch: WriteBatch) -> Cut:
    if batch.cut_nested:
        return Cut.NESTED
    if batch.cut_parts:
        return Cut.PARTS
    return Cut.ROWS if batch.cut_below or batch.cut_above is not None else Cut.NOTHING
