"""The statements of the stores on SQL databases, written once: SQLite and PostgreSQL differ in the words of a Dialect.

Each value is a ``?``. The first statement of a save writes the run, if it is as expected; each that follows applies
only to a run with the seal that the first one has written. So a save can be sent as a whole, before it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import attrs

from stategraph.stores._rows.records import MAX_STEP

Statement: TypeAlias = tuple[str, Sequence[Any]]
"""A statement and its values."""

RUN = (
    "run_id, number, version, sequence, step, revision, kind, checkpoint_node, timestamp_ns, status, error, by_whom, "
    "graph, parent, policy, created_ns, labels, pause, incarnation, tip, seal"
)
"""The columns of a run, in the order of a `RunRecord`."""

STEP_FIELDS = ("version", "sequence", "step", "checkpoint_node", "timestamp_ns", "tip", "seal")
"""The columns of a run that change at every step."""

# SQLite writes an index whenever a column of it is set, to the same value too: twice the bytes of most steps.
RUN_FIELDS = (
    *STEP_FIELDS,
    *("revision", "kind", "status", "error", "by_whom", "graph", "parent", "policy", "labels", "pause"),
    *("created_ns", "incarnation"),
)
"""The columns that a save gives to a run."""

ROW_FIELDS = (
    *("base", "step", "revision", "kind", "checkpoint_node", "timestamp_ns", "status", "error", "by_whom"),
    *("took_ns", "attempts", "owner", "format", "encoding", "payload", "seal", "pause"),
)
"""The columns of a row, after its sequence number."""


@attrs.frozen(eq=False)
class Dialect:
    """The words in which SQL databases differ.

    Attributes:
        key: The columns that identify a row.
        key_of: Their values, of the row of a run with a sequence number.
        sequence: The sequence number of a row.
        order: The column that sorts the rows of a run.
        within: The condition that a row belongs to a run, between the sequence numbers {first} and {last}.
        payload: The payload, as bytes.
        no_payload: What is read in its place where nobody needs it.
        together: How many rows a statement writes.
        new: The column that only a new run is given, and its value.
        among: The condition that a run is one of several; its value is a list of ids as JSON.
        labelled: Returns the condition that a run has a label.
        removes_rows: Whether the database itself removes the rows of a run with the run.
        json_as_text: Whether payloads in JSON are kept as text.
        schema: Stands before the name of each table.
    """

    key: tuple[str, ...]
    key_of: str
    sequence: str
    order: str
    within: str
    payload: str
    no_payload: str
    together: Sequence[int]
    new: tuple[str, str]
    among: str
    labelled: Callable[[str, str], Condition]
    removes_rows: bool
    json_as_text: bool
    schema: str = ""

    def rows_of_run(self, first: str = "?", last: str = "?", run: str = "") -> str:
        """Return the tables of a run and its rows, and the condition for those between two sequence numbers."""
        within = self.within.format(first=first, last=last)
        return f"{run or self.schema + 'run'} AS run CROSS JOIN {self.schema}checkpoint AS checkpoint WHERE {within}"


@attrs.frozen
class Condition:
    """A condition on a run, with a ``?`` for each of its values.

    Attributes:
        text: The condition, as an index answers it.
        values: Its values.
        entries: Where an index has an entry for each run that it is true of.
        plain: The condition, as SQLite checks it for each run.
    """

    text: str
    values: Sequence[Any]
    entries: str
    plain: str


# --------------------------------------------------------------------------- reading


@attrs.frozen
class Reading:
    """The statements that read runs in a dialect. Each begins with the id of the run.

    Attributes:
        run: Finds the record of a run.
        nested: Finds the ids between two others.
        index: Finds the rows of a run without their payloads, between two sequence numbers.
        chain: Finds the newest row between two sequence numbers and those that it builds on, in no order.
    """

    run: str
    nested: str
    index: str
    chain: str

    @classmethod
    def of(cls, words: Dialect) -> Reading:
        """Return the statements in a dialect."""
        schema = words.schema
        row = ", ".join([words.sequence, *(f"checkpoint.{field}" for field in ROW_FIELDS)])
        rows = f"{words.rows_of_run()} AND run.run_id = ?"
        newest = f"SELECT run.number, checkpoint.base, {words.sequence} FROM {rows}"
        base = "CASE WHEN run.base < run.last THEN run.base ELSE run.last END"  # damaged, it may be above
        return cls(
            run=f"SELECT {RUN} FROM {schema}run WHERE run_id = ?",
            nested=f"SELECT run_id FROM {schema}run WHERE run_id > ? AND run_id < ? ORDER BY run_id",
            index=f"SELECT {row.replace('checkpoint.payload', words.no_payload)} FROM {rows} ORDER BY {words.order}",
            chain="WITH newest (number, base, last) AS "
            f"({newest} ORDER BY {words.order} DESC LIMIT 1) "
            f"SELECT {row.replace('checkpoint.payload', words.payload)} "
            f"FROM {words.rows_of_run(base, 'run.last', 'newest')}",  # SQLite would sort payloads in a file of its own
        )


# --------------------------------------------------------------------------- writing


def outer_is(words: Dialect) -> str:
    """Return the condition that a run has an incarnation."""
    return f" AND EXISTS (SELECT 1 FROM {words.schema}run AS o WHERE o.run_id = ? AND o.incarnation = ?)"


def _written(words: Dialect) -> str:
    """Return the condition that a run has the seal of this save."""
    return f"EXISTS (SELECT 1 FROM {words.schema}run AS o WHERE o.run_id = ? AND o.seal = ?)"


@cache
def new_run(words: Dialect, guard: str) -> str:
    """Return the statement that begins a run.

    Its values: the columns of the run and its id, that of the new column, and those of the guard.
    """
    column, value = words.new
    return (
        f"INSERT INTO {words.schema}run ({', '.join(RUN_FIELDS)}, run_id, {column}) "
        f"SELECT {', '.join('?' * len(RUN_FIELDS))}, ?, {value} WHERE true{guard} ON CONFLICT (run_id) DO NOTHING"
    )


@cache
def next_run(words: Dialect, fields: tuple[str, ...], guard: str) -> str:
    """Return the statement that changes a run. Its values: the fields, the run, its version, and those of the guard."""
    changes = ", ".join(f"{field} = ?" for field in fields)
    return f"UPDATE {words.schema}run AS run SET {changes} WHERE run.run_id = ? AND run.version = ?{guard}"


@cache
def put_rows(words: Dialect, many: int) -> str:
    """Return the statement that writes so many rows. Its values: those of each row with the run and its seal."""
    key, fields, values = ", ".join(words.key), ", ".join(ROW_FIELDS), ", ".join("?" * len(ROW_FIELDS))
    row = f"SELECT {words.key_of}, {values} FROM {words.schema}run WHERE run_id = ? AND seal = ?"
    # Not INSERT OR REPLACE: by a unique index that others have added, it would delete rows of other runs.
    instead = ", ".join(f"{field} = excluded.{field}" for field in ROW_FIELDS)
    return (
        f"INSERT INTO {words.schema}checkpoint ({key}, {fields}) {' UNION ALL '.join([row] * many)} "
        f"ON CONFLICT ({key}) DO UPDATE SET {instead}"
    )


@cache
def cut_rows(words: Dialect) -> str:
    """Return the statement that removes rows between two sequence numbers. Its values: these, the run and its seal."""
    return _remove_rows(words, f"{words.rows_of_run()} AND run.run_id = ? AND run.seal = ?")


def _remove_rows(words: Dialect, these: str) -> str:
    key, found = ", ".join(words.key), ", ".join(f"checkpoint.{column}" for column in words.key)
    return f"DELETE FROM {words.schema}checkpoint WHERE ({key}) IN (SELECT {found} FROM {these})"


@cache
def cut_nested(words: Dialect, *, only_parts: bool) -> Sequence[str]:
    """Return the statements that remove nested runs. Their values: the bounds of their ids, the run and its seal."""
    parts = " AND replace(run.run_id, '/#', '') LIKE '%#%'" if only_parts else ""
    return _remove_runs(words, f"run.run_id > ? AND run.run_id < ? AND {_written(words)}{parts}")


@cache
def remove(words: Dialect, guard: str) -> Sequence[str]:
    """Return the statements that remove a run. Their values: the run, its version or None, and those of the guard."""
    return _remove_runs(words, f"run.run_id = ? AND run.version = coalesce(?, run.version){guard}")


@cache
def remove_number(words: Dialect) -> Sequence[str]:
    """Return the statements that remove a run by its number."""
    return _remove_runs(words, "run.number = ?")


@cache
def remove_nested(words: Dialect, guard: str) -> Sequence[str]:
    """Return the statements that remove the nested runs of one that is not there any more.

    Their values: the bounds of their ids, the run, and those of the guard.
    """
    is_gone = f"NOT EXISTS (SELECT 1 FROM {words.schema}run AS o WHERE o.run_id = ?)"
    return _remove_runs(words, f"run.run_id > ? AND run.run_id < ? AND {is_gone}{guard}")


def _remove_runs(words: Dialect, which: str) -> Sequence[str]:
    run = f"DELETE FROM {words.schema}run AS run WHERE {which}"
    if words.removes_rows:
        return (run,)
    return _remove_rows(words, f"{words.rows_of_run('0', str(MAX_STEP))} AND {which}"), run
