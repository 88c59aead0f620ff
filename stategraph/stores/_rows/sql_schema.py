"""Records in SQLite: the schema, the statements, and what stands in the columns."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from stategraph._values.ids import check_stored_id
from stategraph._values.provenance import ErrorInfo, ParentStep
from stategraph.errors import CheckpointCorruptError, FormatError, InvalidRunIdError
from stategraph.stores._codec.nesting import check_json
from stategraph.stores._rows.columns import Columns, no_run
from stategraph.stores._rows.records import CheckpointRecord, RunRecord, Unreadable
from stategraph.stores.base import RetentionPolicy

STEP_BITS = 32
LAST_STEP = (1 << STEP_BITS) - 1
LAST_RUN = (1 << (63 - STEP_BITS)) - 1

_FIRST = f"""
CREATE TABLE store (id BLOB NOT NULL);
INSERT INTO store VALUES (randomblob(16));
CREATE TABLE run (
    number INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    version INTEGER NOT NULL,
    step INTEGER NOT NULL,
    checkpoint_node TEXT NOT NULL,
    timestamp_ns INTEGER NOT NULL,
    status TEXT NOT NULL,
    graph TEXT,
    error TEXT,
    parent TEXT,
    policy TEXT NOT NULL,
    pause TEXT,
    incarnation BLOB NOT NULL,
    tip BLOB NOT NULL,
    seal BLOB NOT NULL
);
CREATE INDEX run_by_status ON run (status, number);
CREATE INDEX run_by_graph ON run (graph, number);
CREATE TABLE checkpoint (
    id INTEGER PRIMARY KEY,
    base INTEGER NOT NULL,
    checkpoint_node TEXT NOT NULL,
    timestamp_ns INTEGER NOT NULL,
    status TEXT NOT NULL,
    error TEXT,
    pause TEXT,
    format INTEGER NOT NULL,
    encoding TEXT NOT NULL,
    payload BLOB NOT NULL,
    seal BLOB NOT NULL
);
CREATE VIEW checkpoints AS
SELECT run.run_id, checkpoint.id & {(1 << STEP_BITS) - 1} AS step, checkpoint.checkpoint_node, checkpoint.status,
    datetime(checkpoint.timestamp_ns / 1000000000, 'unixepoch') AS timestamp, checkpoint.error, checkpoint.pause,
    checkpoint.base, length(CAST(checkpoint.payload AS BLOB)) AS bytes, checkpoint.encoding,
    CASE checkpoint.encoding WHEN 'json' THEN checkpoint.payload END AS json
FROM checkpoint JOIN run ON run.number = checkpoint.id >> {STEP_BITS};
"""
MIGRATIONS = tuple(tuple(part for part in script.strip().split(";\n") if part) for script in (_FIRST,))
"""What makes each version of the schema of the one before, as statements."""
SCHEMA_VERSION = len(MIGRATIONS)

SUPPLEMENTS: dict[int, tuple[str, ...]] = {}
"""For each older version, statements that make temporary views in which it looks like the newest."""


def supplement(database: sqlite3.Connection, path: Path) -> None:
    """Let this connection, and nobody else, see an older version of the schema as if it were the newest.

    A view goes before the table of its name. Once another process has migrated the database, the column of the table
    comes before the one that the view adds.

    Raises:
        FormatError: there are no tables yet.
    """
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version == 0:
        raise FormatError("", f"{path} is empty: no store was made in it yet; one that is not read-only makes it")
    database.execute("PRAGMA temp_store = MEMORY")
    for statement in SUPPLEMENTS.get(version, ()):
        database.execute(statement)


_CHANGING = "version, step, checkpoint_node, timestamp_ns, tip, seal"
_RUN_FIELDS = f"{_CHANGING}, status, error, graph, parent, policy, pause, incarnation"
RUN = (
    "run_id, number, version, step, checkpoint_node, timestamp_ns, "
    "status, error, graph, parent, policy, pause, incarnation, tip, seal"
)
# No seal covers a number, and one that somebody has made larger than all must not be the one to go on from.
_NEXT_NUMBER = f"(SELECT coalesce(max(number), 0) + 1 FROM run WHERE number BETWEEN 0 AND {LAST_RUN - 1})"
NEW_RUN = (
    f"INSERT INTO run ({_RUN_FIELDS}, run_id, number) VALUES ({', '.join('?' * 14)}, {_NEXT_NUMBER}) "
    "ON CONFLICT (run_id) DO NOTHING RETURNING number"
)
_IF_UNCHANGED = "WHERE run_id = ? AND version = ? RETURNING number"
NEXT_RUN = f"UPDATE run SET ({_RUN_FIELDS}) = ({', '.join('?' * 13)}) {_IF_UNCHANGED}"
# SQLite writes an index whenever a column of it is set, to the same value too: twice the bytes of most steps.
NEXT_STEP = f"UPDATE run SET ({_CHANGING}) = (?, ?, ?, ?, ?, ?) {_IF_UNCHANGED}"
_ROW_FIELDS = "base, checkpoint_node, timestamp_ns, status, error, format, encoding, payload, seal, pause"
_ROW_COLUMNS = _ROW_FIELDS.replace("payload", "CAST(payload AS BLOB)")  # JSON is kept as text, for other tools to read
TOGETHER = (512, 64, 8, 1)
# Not INSERT OR REPLACE: by a unique index that others have added, it would delete rows of other runs.
_INSTEAD = ", ".join(f"{field} = excluded.{field}" for field in _ROW_FIELDS.split(", "))
PUT_ROWS = {
    together: f"INSERT INTO checkpoint (id, {_ROW_FIELDS}) VALUES "
    + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * together)
    + f" ON CONFLICT (id) DO UPDATE SET {_INSTEAD}"
    for together in TOGETHER
}


_STEP = f"id & {LAST_STEP}"
CHAIN = f"""
WITH newest (id, base) AS (
    SELECT id, base FROM checkpoint
    WHERE id BETWEEN (SELECT number << {STEP_BITS} FROM run WHERE run_id = :run_id)
        AND (SELECT number << {STEP_BITS} | :last FROM run WHERE run_id = :run_id)
    ORDER BY id DESC LIMIT 1
)
SELECT (SELECT step FROM run WHERE run_id = :run_id), {_STEP}, {_ROW_COLUMNS} FROM checkpoint
WHERE id BETWEEN (SELECT id - max(0, ({_STEP}) - base) FROM newest) AND (SELECT id FROM newest)
ORDER BY id
"""
INDEX = f"""
SELECT checkpoint.id & {LAST_STEP}, base, checkpoint.checkpoint_node, checkpoint.timestamp_ns, checkpoint.status,
    checkpoint.error, format, encoding, x'', checkpoint.seal, checkpoint.pause
FROM run JOIN checkpoint ON checkpoint.id BETWEEN number << {STEP_BITS} AND number << {STEP_BITS} | {LAST_STEP}
WHERE run_id = ? ORDER BY checkpoint.id
"""


NESTED = "SELECT run_id FROM run WHERE run_id > ? AND run_id < ?"
IS_SHOWN = "instr(run_id, '/#') = 0"


def row_values(first: int, row: CheckpointRecord) -> tuple[Any, ...]:
    """Return the columns of a row of the run whose rows begin at `first`."""
    error = None if row.error is None else _error_text(row.error)
    return (
        *(first | row.step, row.base, row.node, row.time_ns, row.status._value_, error),
        *(row.format, row.encoding, row.payload.decode() if row.encoding == "json" else row.payload, row.seal),
        row.pause,
    )


def row_of(run_id: str, found: Sequence[Any]) -> CheckpointRecord:
    """Return the row in these columns. Raises CheckpointCorruptError if they hold none."""
    return _COLUMNS.row(run_id, found)


lasting_values: Callable[[RunRecord], tuple[Any, ...]] = attrgetter(
    "status", "graph", "error", "parent", "policy", "pause"
)
"""Returns what seldom changes of a run."""

step_values: Callable[[RunRecord], tuple[Any, ...]] = attrgetter("version", "step", "node", "time_ns", "tip", "seal")
"""Returns the columns of a run that change at every step."""


def run_values(run: RunRecord) -> tuple[Any, ...]:
    """Return the columns of a run."""
    error = None if run.error is None else _error_text(run.error)
    parent = None if run.parent is None else f"{run.parent.run_id}@{run.parent.step}"
    about = run.status._value_, error, run.graph, parent, _policy_text(run.policy), run.pause, run.incarnation
    return *step_values(run), *about


def run_of(found: tuple[Any, ...], store: object) -> RunRecord:
    """Return the run in these columns. Raises CheckpointCorruptError, which names the store, if they hold none."""
    run_id = found[0]
    try:
        check_stored_id(run_id)
    except InvalidRunIdError as error:
        raise no_run(run_id, f"its column {error}", store) from error
    return _COLUMNS.run(run_id, found[1:], store)


def run_or_unreadable(found: tuple[Any, ...], store: object) -> RunRecord | Unreadable:
    """Return the run in these columns, or why they cannot be read."""
    try:
        return run_of(found, store)
    except CheckpointCorruptError as error:
        return Unreadable(str(found[0]), found[1], error)


def _parent_of(text: str) -> ParentStep:
    run_id, _, step = text.rpartition("@")
    return ParentStep(run_id, int(step))


def _error_text(error: ErrorInfo) -> str:
    return json.dumps([error.type, error.message, error.node])


def _error_of(text: str) -> ErrorInfo:
    check_json(text.encode(), levels=1)
    return ErrorInfo(*json.loads(text))


def _policy_text(policy: RetentionPolicy) -> str:
    parts = (policy.retention, policy.window, policy.ttl)
    return " ".join("-" if part is None else str(part) for part in parts)


def _policy_of(text: str) -> RetentionPolicy:
    retention, window, ttl = text.split(" ")
    numbers = None if window == "-" else int(window), None if ttl == "-" else float(ttl)
    return RetentionPolicy(retention, *numbers)


_COLUMNS = Columns(error=_error_of, parent=_parent_of, policy=_policy_of)
