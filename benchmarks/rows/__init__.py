"""The rows, in the order they are shown."""

from benchmarks.measure import Row
from benchmarks.rows import calls, growth, imports, memory_store, one_step

ROWS: tuple[Row, ...] = (one_step.ROW, memory_store.ROW, imports.ROW, *calls.ROWS, *growth.ROWS)
