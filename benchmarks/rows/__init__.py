"""The rows, in the order they are shown."""

from benchmarks.measure import Row
from benchmarks.rows import (
    awaited,
    calls,
    crowds,
    growing_list,
    growth,
    imports,
    large_state,
    mapped_items,
    memory_store,
    one_step,
    owned_runs,
    saved_behind,
    saved_on_postgres,
    saved_steps,
)

ROWS: tuple[Row, ...] = (
    one_step.ROW,
    memory_store.ROW,
    *awaited.ROWS,
    saved_steps.SYNC,
    saved_behind.ASYNC,
    *crowds.ROWS,
    *owned_runs.ROWS,
    *large_state.ROWS,
    *growing_list.ROWS,
    saved_steps.THREADS,
    *saved_on_postgres.ROWS,
    mapped_items.ROW,
    imports.ROW,
    *calls.ROWS,
    saved_steps.PYTHON_CALLS,
    saved_steps.SYNCS,
    saved_behind.OLDEST,
    saved_behind.DRAIN,
    *growth.ROWS,
)
