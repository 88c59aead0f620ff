"""The rows, in the order they are shown."""

from benchmarks.measure import Row
from benchmarks.rows import (
    calls,
    growing_list,
    growth,
    imports,
    large_state,
    long_stories,
    mapped_items,
    memory_store,
    one_step,
    owned_runs,
    pruned_runs,
    saved_behind,
    saved_on_postgres,
    saved_steps,
)

ROWS: tuple[Row, ...] = (
    one_step.ROW,
    memory_store.ROW,
    saved_steps.SYNC,
    saved_behind.ASYNC,
    *owned_runs.ROWS,
    *large_state.ROWS,
    *growing_list.ROWS,
    saved_steps.THREADS,
    *saved_on_postgres.ROWS,
    *pruned_runs.ROWS,
    *long_stories.ROWS,
    mapped_items.ROW,
    imports.ROW,
    *calls.ROWS,
    saved_steps.PYTHON_CALLS,
    saved_steps.SYNCS,
    saved_behind.OLDEST,
    saved_behind.DRAIN,
    *growth.ROWS,
)
