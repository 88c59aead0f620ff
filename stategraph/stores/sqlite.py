"""The "sqlite" store: one database file, with nothing but the standard library.

A file that others understand: the tables ``run`` and ``checkpoint`` say what they are, and the view ``checkpoints`` puts them
together for the sqlite3 shell.
"""

from __future__ import annotations

import builtins
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stategraph.errors import CheckpointError, ConfigError, FormatError
from stategraph.state import ErrorInfo, ParentStep, RunStatus
from stategraph.stores.row_store import RowStore
from stategraph.stores.policy import Policy
from stategraph.stores.rows import Head, Row, Write

APPLICATION_ID = 0x53475248
"""What marks a database as one of stategraph, to the ``file`` command too."""

SCHEMA_VERSION = 1
_STEP_BITS = 32
_LOG_SIZE = 4 << 20  # bytes: as far as SQLite lets the log grow before it starts again
_FILLING = 1 << 16
_BUSY = 60  # seconds to wait for other processes that write

_SCHEMA = f"""
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
    policy TEXT NOT NULL
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
    format INTEGER NOT NULL,
    encoding TEXT NOT NULL,
    body BLOB NOT NULL,
    seal BLOB NOT NULL
);
CREATE VIEW checkpoints AS
SELECT run.run_id, checkpoint.id & {(1 << _STEP_BITS) - 1} AS step, checkpoint.checkpoint_node, checkpoint.status,
    datetime(checkpoint.timestamp_ns / 1000000000, 'unixepoch') AS timestamp, checkpoint.error, checkpoint.base,
    length(checkpoint.body) AS bytes, checkpoint.encoding
FROM checkpoint JOIN run ON run.number = checkpoint.id >> {_STEP_BITS};
"""


class SqliteStore(RowStore):
    """Keeps runs in a SQLite database: write-ahead log, a sync for every commit, threads that save at the same time share
    one. Processes may share the file.

    Args:
        path: The file. It is made if it is not there, for its owner only.
        read_only: Look into a database that others write to, and change nothing.
        sign_with: As for RowStore.

    Raises:
        ConfigError: the path cannot be a database.
        FormatError: what is there is not a database of stategraph, or one of a newer version.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        read_only: bool = False,
        sign_with: Callable[[], bytes] | None = None,
    ) -> None:
        super().__init__(sign_with=sign_with)
        self.path = _file(path, must_exist=read_only)
        self._read_only = read_only
        self._closed = False
        self._guard = threading.RLock()  # the connection is one, its callers are many
        with self._explained(""):
            self._open()

    def _open(self) -> None:
        mode = "ro" if self._read_only else "rw"
        self._pid = os.getpid()
        self._database = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=_BUSY, isolation_level=None, check_same_thread=False
        )
        _check(self._database, self.path)
        if self._read_only:
            self._database.execute("PRAGMA query_only = 1")
        else:
            self._prepare()

    def _prepare(self) -> None:
        execute = self._database.execute
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        if execute("PRAGMA user_version").fetchone() == (0,):
            with self._transaction():
                if execute("PRAGMA user_version").fetchone() == (0,):  # nobody was faster
                    for statement in _SCHEMA.split(";\n"):
                        execute(statement)
                    execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

        self._grow_log()

    def _grow_log(self) -> None:
        """Grow the write-ahead log once, by writing the same pages again and again.

        Commits then overwrite blocks that the file has, and a sync has no metadata to write: it takes two thirds of the
        time. The log stays that long, until the last connection closes.
        """
        log = self.path.with_name(self.path.name + "-wal")
        if log.exists() and log.stat().st_size >= _LOG_SIZE:
            return
        execute = self._database.execute
        try:
            execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return  # another process is at work, and has seen to the log
        execute("COMMIT")
        execute("PRAGMA synchronous = OFF")  # nothing of this is worth a sync
        execute("CREATE TABLE IF NOT EXISTS filling (bytes BLOB)")
        execute("INSERT INTO filling VALUES (zeroblob(?))", (_FILLING,))
        for count in range(_LOG_SIZE // _FILLING):
            execute("UPDATE filling SET bytes = zeroblob(?)", (_FILLING - count % 2,))
        execute("DROP TABLE filling")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._database.close()

    @property
    def closed(self) -> bool:
        return self._closed

    def __str__(self) -> str:
        return f"sqlite store at {self.path}"

    # ------------------------------------------------------------------ rows

    def _apply(self, writes: Sequence[Write]) -> Sequence[bool]:
        with self._explained(writes[0].head.run_id), self._transaction():
            return [self._make(write) for write in writes]

    def _make(self, write: Write) -> bool:
        """Make one write within a transaction -> whether its run had the version for it."""
        number = self._put_head(write.head)
        if number is None:
            return False
        first = number << _STEP_BITS
        execute = self._database.execute
        self._put_rows(first, write.put)
        if write.cut_below:
            execute("DELETE FROM checkpoint WHERE id >= ? AND id < ?", (first, first | write.cut_below))
        if write.cut_above is not None:
            execute("DELETE FROM checkpoint WHERE id > ? AND id <= ?", (first | write.cut_above, first | _LAST_STEP))
        return True

    def _put_rows(self, first: int, rows: Sequence[Row]) -> None:
        """Many rows a statement: sqlite3 lets go of the GIL at every statement, and a busy run gives it back 5 ms later."""
        start = 0
        for together in _TOGETHER:
            while len(rows) - start >= together:
                values = [value for row in rows[start : start + together] for value in _row_values(first, row)]
                self._database.execute(_PUT_ROWS[together], values)
                start += together

    def _put_head(self, head: Head) -> int | None:
        """-> the number of the run; None if its version is another."""
        values = _head_values(head)
        if head.version == 1:
            found = self._database.execute(_NEW_RUN, (*values, head.run_id)).fetchone()
        else:
            found = self._database.execute(_NEXT_RUN, (*values, head.run_id, head.version - 1)).fetchone()
        return None if found is None else int(found[0])

    def _remove(self, run_id: str) -> None:
        with self._explained(run_id), self._transaction():
            found = self._database.execute("DELETE FROM run WHERE run_id = ? RETURNING number", (run_id,)).fetchone()
            if found is not None:
                first = found[0] << _STEP_BITS
                self._database.execute("DELETE FROM checkpoint WHERE id BETWEEN ? AND ?", (first, first | _LAST_STEP))

    def _head(self, run_id: str) -> Head | None:
        found = self._query(run_id, f"SELECT {_HEAD} FROM run WHERE run_id = ?", (run_id,))
        return _head_of(found[0]) if found else None

    def _heads(self, status: str | None, graph: str | None, limit: int, before: int | None) -> builtins.list[Head]:
        conditions = [("status = ?", status), ("graph = ?", graph), ("number < ?", before)]
        asked = [(condition, value) for condition, value in conditions if value is not None]
        where = f"WHERE {' AND '.join(condition for condition, _ in asked)}" if asked else ""
        values = [*(value for _, value in asked), limit]
        found = self._query("", f"SELECT {_HEAD} FROM run {where} ORDER BY number DESC LIMIT ?", values)
        return [_head_of(row) for row in found]

    def _chain(self, run_id: str, step: int | None) -> builtins.list[Row]:
        last = _LAST_STEP if step is None else step
        if last > _LAST_STEP or last < 0:
            return []
        rows = [_row_of(found) for found in self._query(run_id, _CHAIN, {"run_id": run_id, "last": last})]
        return rows if rows and step in (None, rows[-1].step) else []

    def _index(self, run_id: str) -> builtins.list[Row]:
        return [_row_of(found) for found in self._query(run_id, _INDEX, (run_id,))]

    # ------------------------------------------------------------------ the connection

    def _query(self, run_id: str, statement: str, values: Any) -> builtins.list[Any]:
        with self._explained(run_id), self._guard:
            self._check_process()
            return self._database.execute(statement, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing."""
        with self._guard:
            self._check_process()
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _check_process(self) -> None:
        """A connection must not be used on both sides of a fork."""
        if self._closed:
            raise CheckpointError("", f"the {self} is closed; get_checkpoint_store opens a fresh one")
        if self._pid != os.getpid():
            self._open()

    @contextmanager
    def _explained(self, run_id: str) -> Iterator[None]:
        """Errors of SQLite, as errors of stategraph."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise CheckpointError(run_id, f"the {self} failed: {error}") from error
        except (sqlite3.Error, OverflowError) as error:
            raise CheckpointError(run_id, f"the {self} is damaged: {error}") from error


# --------------------------------------------------------------------------- rows as SQLite has them

_LAST_STEP = (1 << _STEP_BITS) - 1
_HEAD_FIELDS = "version, step, checkpoint_node, timestamp_ns, status, graph, error, parent, policy"
_HEAD = f"run_id, number, {_HEAD_FIELDS}"
_NEW_RUN = (
    f"INSERT INTO run ({_HEAD_FIELDS}, run_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING RETURNING number"
)
_NEXT_RUN = (
    f"UPDATE run SET ({_HEAD_FIELDS}) = (?, ?, ?, ?, ?, ?, ?, ?, ?) WHERE run_id = ? AND version = ? RETURNING number"
)
_ROW_FIELDS = "base, checkpoint_node, timestamp_ns, status, error, format, encoding, body, seal"
_TOGETHER = (512, 64, 8, 1)
_PUT_ROWS = {
    together: f"INSERT OR REPLACE INTO checkpoint (id, {_ROW_FIELDS}) VALUES "
    + ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * together)
    for together in _TOGETHER
}
_STEP = f"id & {_LAST_STEP}"
_CHAIN = f"""
WITH newest (id, base) AS (
    SELECT id, base FROM checkpoint
    WHERE id BETWEEN (SELECT number << {_STEP_BITS} FROM run WHERE run_id = :run_id)
        AND (SELECT number << {_STEP_BITS} | :last FROM run WHERE run_id = :run_id)
    ORDER BY id DESC LIMIT 1
)
SELECT {_STEP}, {_ROW_FIELDS} FROM checkpoint
WHERE id BETWEEN (SELECT id - ({_STEP}) + base FROM newest) AND (SELECT id FROM newest)
ORDER BY id
"""
_INDEX = f"""
SELECT checkpoint.id & {_LAST_STEP}, base, checkpoint.checkpoint_node, checkpoint.timestamp_ns, checkpoint.status,
    checkpoint.error, format, encoding, x'', seal
FROM run JOIN checkpoint ON checkpoint.id BETWEEN number << {_STEP_BITS} AND number << {_STEP_BITS} | {_LAST_STEP}
WHERE run_id = ? ORDER BY checkpoint.id
"""


def _row_values(first: int, row: Row) -> tuple[Any, ...]:
    return (
        *(first | row.step, row.base, row.node, row.time_ns, row.status.value, _error_text(row.error)),
        *(row.format, row.encoding, row.body, row.seal),
    )


def _row_of(found: tuple[Any, ...]) -> Row:
    step, base, node, time_ns, status, error, version, encoding, body, seal = found
    return Row(step, base, node, time_ns, RunStatus(status), _error_of(error), version, encoding, body, seal)


def _head_values(head: Head) -> tuple[Any, ...]:
    parent = None if head.parent is None else f"{head.parent.run_id}@{head.parent.step}"
    return (
        *(head.version, head.step, head.node, head.time_ns, head.status.value, head.graph),
        *(_error_text(head.error), parent, _policy_text(head.policy)),
    )


def _head_of(found: tuple[Any, ...]) -> Head:
    run_id, number, version, step, node, time_ns, status, graph, error, parent, policy = found
    parent_run, _, parent_step = (parent or "").rpartition("@")
    return Head(
        run_id=run_id,
        number=number,
        version=version,
        step=step,
        node=node,
        time_ns=time_ns,
        status=RunStatus(status),
        error=_error_of(error),
        graph=graph,
        parent=ParentStep(parent_run, int(parent_step)) if parent else None,
        policy=_policy_of(policy),
    )


def _error_text(error: ErrorInfo | None) -> str | None:
    return None if error is None else json.dumps([error.type, error.message, error.node])


def _error_of(text: str | None) -> ErrorInfo | None:
    return None if text is None else ErrorInfo(*json.loads(text))


def _policy_text(policy: Policy) -> str:
    parts = (policy.retention, policy.window, policy.ttl)
    return " ".join("-" if part is None else str(part) for part in parts)


def _policy_of(text: str) -> Policy:
    retention, window, ttl = text.split(" ")
    return Policy(retention, None if window == "-" else int(window), None if ttl == "-" else float(ttl))


def _file(path: str | os.PathLike[str], must_exist: bool) -> Path:
    """-> the file, which is there and, if it was made here, its owner's only."""
    if not isinstance(path, str | os.PathLike):
        raise ConfigError("checkpoint.options.path", path, "the path of a file")
    file = Path(os.path.abspath(path))
    try:
        if not must_exist:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))  # before SQLite makes it readable for all
        elif not file.is_file():
            raise FileNotFoundError(2, "there is no such file")
    except OSError as error:
        raise ConfigError("checkpoint.options.path", str(path), f"a file that can be used ({error.strerror})") from error
    return file


def _check(database: sqlite3.Connection, path: Path) -> None:
    """Raise FormatError unless the database is empty or one of stategraph that this version can read."""
    try:
        database.execute("PRAGMA trusted_schema = 0")
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master")]
    except sqlite3.OperationalError:
        raise
    except sqlite3.Error as error:
        raise FormatError("", f"{path} is damaged or no SQLite database: {error}") from error
    if names and application != APPLICATION_ID:
        raise FormatError("", f"{path} is not a database of stategraph (it has {', '.join(names[:5])})")
    if version > SCHEMA_VERSION:
        raise FormatError(
            "", f"{path} has schema {version} and this version of stategraph reads up to {SCHEMA_VERSION}; update it"
        )
