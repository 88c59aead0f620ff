"""SqlTable: runs in the tables of a SQL database. SQLite and PostgreSQL differ in their Dialect.

Each value in a statement is a ``?``. The first statement of a save writes the run, if it is as expected; each later one
applies only to a run with the seal that the first one wrote. So all statements of a save can be sent at once.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain as chained
from itertools import starmap
from operator import attrgetter
from typing import Any, TypeAlias

import attrs

from stategraph._owners.base import NewEntriesError, Ownership
from stategraph._values.entries import STEPS_OF_CHUNKS
from stategraph._values.ids import given_id, nested_range
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows.records import (
    COLUMNS,
    ENTRY_COLUMNS,
    MAX_STEP,
    ROW_COLUMNS,
    RUN_COLUMNS,
    STEP_COLUMNS,
    Appended,
    CheckpointRecord,
    EntryRecord,
    Removal,
    RunRecord,
    Write,
    WriteBatch,
    entries_of,
    known_inbox,
    lasting_values,
    required_inbox,
    step_values,
)
from stategraph.stores._rows.table import Outcome, Table

Statement: TypeAlias = tuple[str, Sequence[Any]]
"""A statement and its values."""


@attrs.frozen
class Condition:
    """A condition on a run, with a ``?`` for each of its values.

    Attributes:
        text: The condition, as an index answers it.
        values: Its values.
        entries: The part of an index with an entry for each matching run.
        plain: The condition, as SQLite checks it for each run.
    """

    text: str
    values: Sequence[Any]
    entries: str
    plain: str


@attrs.frozen(eq=False)
class Dialect:
    """The words and abilities in which SQL databases differ.

    Attributes:
        key: The columns that identify a row.
        key_of: Their values, for the row of a run with a sequence number.
        sequence: The sequence number of a row.
        within: The condition that a row belongs to a run, between the sequence numbers {first} and {last}.
        bytes: The type of a payload.
        row_counts: The numbers of rows that a statement may write, largest first.
        new: The column that only a new run sets, and its value.
        among: The condition that a run is one of some runs; its value is a list of their ids as JSON.
        labelled: Returns the condition that a run has a label.
        removes_rows: Whether the database removes the rows of a run with the run.
        json_as_text: Whether payloads in JSON are kept as text.
        combines: Whether a statement can write both the run and a row.
        schema: The prefix of the name of each table.
        locks: What locks the row of a run while entries of it are written, against a takeover and other writers.
    """

    key: tuple[str, ...]
    key_of: str
    sequence: str
    within: str
    bytes: str
    row_counts: Sequence[int]
    new: tuple[str, str]
    among: str
    labelled: Callable[[str, str], Condition]
    removes_rows: bool
    json_as_text: bool
    combines: bool = False
    schema: str = ""
    locks: str = ""

    def rows_of_run(self, first: str = "?", last: str = "?", run: str = "") -> str:
        """Return the tables of a run and its rows, and the condition for those between two sequence numbers."""
        within = self.within.format(first=first, last=last)
        return f"{run or self.schema + 'run'} AS run CROSS JOIN {self.schema}checkpoint AS checkpoint WHERE {within}"


# A step sets only its own columns: SQLite writes an index whenever a column of it is set, to the same value too.
_RUN_FIELDS, _ROW_FIELDS = RUN_COLUMNS[2:], ROW_COLUMNS[1:]
_RUN = ", ".join(RUN_COLUMNS)


class SqlTable(Table):
    """Runs in the tables of a SQL database.

    Args:
        dialect: The dialect of the database.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._run = f"SELECT {_RUN} FROM {dialect.schema}run WHERE run_id = ?"
        row = ", ".join([dialect.sequence, *(f"checkpoint.{field}" for field in _ROW_FIELDS)])
        rows = f"{dialect.rows_of_run()} AND run.run_id = ?"
        payload, order = "checkpoint.payload", f"checkpoint.{dialect.key[-1]}"
        without_payload = row.replace(payload, f"CAST('' AS {dialect.bytes})")
        self._index = f"SELECT {without_payload} FROM {rows} ORDER BY {order}"
        with_payload = row.replace(payload, f"CAST({payload} AS {dialect.bytes})")
        has_entries = f"EXISTS (SELECT 1 FROM {dialect.schema}entry AS entry WHERE entry.number = run.number)"
        these = f"{dialect.rows_of_run()} AND run.{dialect.among} AND NOT {has_entries}"
        self._short = f"SELECT run.run_id, {with_payload} FROM {these} ORDER BY run.run_id, {order}"
        newest = f"SELECT run.number, checkpoint.base, {dialect.sequence} FROM {rows} ORDER BY {order} DESC LIMIT 1"
        base = "CASE WHEN run.base < run.last THEN run.base ELSE run.last END"  # damaged, it may be above
        self._chain = (  # in no order: SQLite would sort payloads in a file of its own
            f"WITH newest (number, base, last) AS ({newest}) "
            f"SELECT {with_payload} FROM {dialect.rows_of_run(base, 'run.last', 'newest')}"
        )

    @abstractmethod
    def query(self, run_id: str, statement: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows that a statement finds; raise CheckpointError if the database fails."""

    def _query_many(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows that a statement finds which lists or counts runs."""
        return self.query("", statement, values)

    @abstractmethod
    def _write(self, writes: Sequence[Write], statements: Sequence[Sequence[Statement]]) -> Sequence[bool]:
        """Execute the statements of several writes in one transaction; return which of the writes changed a row.

        Raises:
            CheckpointSaveError, CheckpointError: as `Table.apply`.
        """

    @abstractmethod
    def _guard(self, run_id: str, ownership: Ownership | None, *, is_new: bool) -> tuple[str, Sequence[Any]]:
        """Return the condition that an owner still has a run, which may be new, and its values."""

    def _new_values(self, ownership: Ownership | None) -> Sequence[Any]:
        """Return the values of the column that only a new run sets."""
        return ()

    # ------------------------------------------------------------------ writing

    def apply(self, writes: Sequence[Write]) -> Sequence[Outcome]:
        written: list[Outcome] = [*self._write(writes, [*map(self._statements, writes)])]
        if not all(written):  # a cancellation refuses a write as well: once its owner knows of it, the write is made
            for place, write in enumerate(writes):
                required = required_inbox(write)
                if written[place] or not self._is_still_owned(write) or write.ownership is None:
                    continue
                if required not in (None, write.ownership.inbox):
                    written[place] = NewEntriesError(write.run_id)
                else:
                    (written[place],) = self._write([write], [self._statements(write)])
        return written

    def _is_still_owned(self, write: Write) -> bool:
        """Return whether the owner of a refused write still has the run.

        Note in it whether the run is cancelled, and the newest entry of its inbox.
        """
        ownership = write.ownership
        if ownership is None or write.is_lost:
            return False
        fence, is_cancelled = self.fence(ownership.run_id)
        ownership.is_cancelled |= is_cancelled
        if ownership.inbox is not None:
            ownership.inbox = max(ownership.inbox, self.inbox(ownership.run_id))
        return fence == ownership.fence

    def _statements(self, write: Write) -> Sequence[Statement]:
        """Return the statements of a write. None of them changes a row unless the write may be made."""
        if write.is_lost:
            return ()
        if isinstance(write, Removal):
            return self._removing(write)
        return self._saving(write) if isinstance(write, WriteBatch) else self._appending(write)

    def _saving(self, batch: WriteBatch) -> list[Statement]:
        dialect, run_id = self._dialect, batch.run.run_id
        this = run_id, batch.run.seal
        statements = [self._put_run(batch)]
        # First: SQLite puts rows into the pages that these leave, which it would write once more to erase them.
        if batch.cut_below:
            statements.append((_cut_rows(dialect), (0, batch.cut_below - 1, *this)))
        if batch.cut_above is not None:
            statements.append((_cut_rows(dialect), (batch.cut_above + 1, MAX_STEP, *this)))
        if batch.cut_nested is not None:
            statements += ((cut, (*batch.cut_nested, *this)) for cut in _cut_nested(dialect))
        if batch.cut_parts:
            cuts = _cut_nested(dialect, " AND replace(run.run_id, '/#', '') LIKE '%#%'")
            statements += ((cut, (*nested_range(run_id), *this)) for cut in cuts)
        if batch.cut_journal or batch.taken:
            statements.append((_cut_entries(dialect, "seal"), (*this, batch.cut_journal, batch.taken)))
        statements += _putting(dialect, " AND run.seal = ?", batch.entries, this)
        rows = [row_values(row, dialect) for row in batch.put if row.sequence >= batch.cut_below]
        if dialect.combines and len(rows) == len(statements) == 1:
            ((put_run, values),) = statements
            return [(_put_step(dialect, put_run), (*values, *rows[0]))]
        for many in dialect.row_counts:
            while len(rows) >= many:
                statements.append((_put_rows(dialect, many), [*chained.from_iterable(rows[:many]), *this]))
                del rows[:many]
        return statements

    def _put_run(self, batch: WriteBatch) -> Statement:
        """Return the statement that writes the record of a run, if it is as expected."""
        run, old, dialect, owned = batch.run, batch.old, self._dialect, given_id(batch.run.run_id)
        guard, guarding = self._guard(owned, batch.ownership, is_new=old is None)
        if old is not None:
            guard, guarding = _with_inbox(batch, guard, guarding)
        if batch.outer is not None:
            outer = f" AND EXISTS (SELECT 1 FROM {dialect.schema}run AS o WHERE o.run_id = ? AND o.incarnation = ?)"
            guard, guarding = guard + outer, (*guarding, owned, batch.outer)
        if old is None:
            about = run.run_id, batch.taken, *self._new_values(batch.ownership)
            values = *COLUMNS.of_run(run)[2:], *about, *guarding
            return _new_run(dialect, guard), values
        # An error is written each time: two that are equal may have different tracebacks. An entry that is taken in may
        # have made the run due.
        is_step = run.error is None and not batch.taken and lasting_values(old) == lasting_values(run)
        fields, changed = (STEP_COLUMNS, step_values(run)) if is_step else (_RUN_FIELDS, COLUMNS.of_run(run)[2:])
        return _next_run(dialect, fields, guard), (*changed, run.run_id, old.version, *guarding)

    def _appending(self, change: Appended) -> list[Statement]:
        dialect, this = self._dialect, (change.run_id, change.incarnation)
        if change.inbox is not None:  # anyone may append: the number of the newest entry is compared, not the fence
            is_newest = f" AND run.incarnation = ? AND run.inbox = ?{'' if change.may_be_complete else _IS_OPEN}"
            which: tuple[Any, ...] = (*this, change.inbox)
            if change.version is not None:
                is_newest, which = f"{is_newest} AND run.version = ?", (*which, change.version)
            put = _putting(dialect, is_newest, change.put, which)
            newest = change.inbox + len(change.put)
            return [*put, (_count_entries(dialect, is_newest), (newest, change.due_ns, *which))]
        guard, guarding = self._guard(given_id(change.run_id), change.ownership, is_new=False)
        statements: list[Statement] = []
        if change.cut_journal:
            cut = _cut_entries(dialect, "incarnation", guard)
            statements.append((cut, (*this, *guarding, change.cut_journal, 0)))
        owned = f" AND run.incarnation = ?{guard}"
        return [*statements, *_putting(dialect, owned, change.put, (*this, *guarding))]

    def _removing(self, removal: Removal) -> list[Statement]:
        run_id, dialect = removal.run_id, self._dialect
        guard, guarding = self._guard(given_id(run_id), removal.ownership, is_new=False)
        own_guard, own_guarding = _with_inbox(removal, guard, guarding)
        run = run_id, removal.version, *own_guarding
        nested = *nested_range(run_id), run_id, *guarding
        is_removed = f"NOT EXISTS (SELECT 1 FROM {dialect.schema}run AS o WHERE o.run_id = ?)"
        is_this = f"run.run_id = ? AND run.version = coalesce(?, run.version){own_guard}"
        return [
            *((statement, run) for statement in _remove(dialect, is_this)),
            *((statement, nested) for statement in _remove(dialect, f"{_IS_NESTED} AND {is_removed}{guard}")),
        ]

    def remove_damaged(self, run_id: str) -> bool:
        found = self._query_many(f"SELECT run_id, number FROM {self._dialect.schema}run", ())
        numbers = [number for kept_id, number in found if str(kept_id) == run_id]
        removal = [
            (statement, (number,)) for number in numbers for statement in _remove(self._dialect, "run.number = ?")
        ]
        return self._write([Removal(run_id)], [removal])[0]

    # ------------------------------------------------------------------ reading

    def run(self, run_id: str) -> RunRecord | None:
        found = self.query(run_id, self._run, (run_id,))
        return COLUMNS.run(found[0]) if found else None

    def count(self, which: RunFilter) -> int:
        ((count,),) = self._query_many(*count_runs(which, self._dialect)) or [(0,)]
        return int(count)

    def due(self, graph: str, limit: int) -> list[tuple[int, str]]:
        runs = f"SELECT CAST(due_ns AS BIGINT), run_id FROM {self._dialect.schema}run AS run"
        which = "due_ns IS NOT NULL AND graph = ? AND run_id NOT LIKE '%/#%'"
        found = self._query_many(f"{runs} WHERE {which} ORDER BY due_ns LIMIT ?", (graph, limit))
        return [(int(due_ns), str(run_id)) for due_ns, run_id in found]

    def nested_ids(self, *run_ids: str) -> list[str]:
        nested = f"SELECT run_id FROM {self._dialect.schema}run AS run WHERE {_IS_NESTED}"
        values = [*chained.from_iterable(map(nested_range, run_ids))]
        found = self.query(run_ids[0], " UNION ALL ".join([nested] * len(run_ids)), values)
        return sorted(str(nested_id) for (nested_id,) in found)

    def short(self, run_ids: Sequence[str]) -> dict[str, list[CheckpointRecord]]:
        found: dict[str, list[CheckpointRecord]] = {}
        for run_id, *columns in self._query_many(self._short, (0, MAX_STEP, json.dumps(run_ids))):
            found.setdefault(run_id, []).append(COLUMNS.row(run_id, columns))
        return found

    def chain(self, run_id: str, sequence: int | None) -> list[CheckpointRecord]:
        found = self.query(run_id, self._chain, (0, MAX_STEP if sequence is None else sequence, run_id))
        rows = sorted((COLUMNS.row(run_id, columns) for columns in found), key=attrgetter("sequence"))
        return rows if rows and sequence in (None, rows[-1].sequence) else []

    def inbox(self, run_id: str) -> int:
        found = self.query(
            run_id, f"SELECT CAST(inbox AS BIGINT) FROM {self._dialect.schema}run WHERE run_id = ?", (run_id,)
        )
        return int(found[0][0]) if found else 0

    def entries(self, run_id: str, first: int, last: int, after: int = 0) -> list[EntryRecord]:
        found = self.query(run_id, _entries(self._dialect, _OF_STEPS), (run_id, first, last, after))
        return entries_of(run_id, found)

    def entry_named(self, run_id: str, kind: str, name: str) -> EntryRecord | None:
        found = self.query(run_id, _entries(self._dialect, _NAMED), (run_id, kind, name))
        return next(iter(entries_of(run_id, found)), None)

    def index(self, run_id: str, first: int = 0, last: int = MAX_STEP) -> list[CheckpointRecord]:
        return [COLUMNS.row(run_id, found) for found in self.query(run_id, self._index, (first, last, run_id))]


def row_values(row: CheckpointRecord, dialect: Dialect) -> list[Any]:
    """Return the columns of a row, from its sequence number on."""
    columns = COLUMNS.of_row(row)
    if dialect.json_as_text and row.encoding == "json":
        columns[_AT_PAYLOAD] = row.payload.decode()
    return columns


# --------------------------------------------------------------------------- statements that list runs

# Runs are listed by number. An index on another column finds few runs fast, which are then sorted; but with many
# matches, reading all runs in order finds the newest sooner. PostgreSQL chooses by its statistics; `select_runs` does
# for SQLite.

_SOME = 500  # runs whose labels are parsed in a few milliseconds
_FEW = 20_000  # entries of an index, which are read in a few milliseconds
_LAST = "\U0010ffff"  # sorts after all characters of an id

Query: TypeAlias = Callable[[str, Sequence[Any]], list[Any]]
"""Returns the rows that a statement finds with these values."""


def simple(text: str, *values: Any) -> Condition:
    """Return a condition on columns of the run."""
    return Condition(text, values, f"run WHERE {text}", f"+{text}")


def _conditions(which: RunFilter, dialect: Dialect) -> Iterator[Condition]:
    """Yield the conditions of a filter that an index can answer."""
    if which.status is not None:
        yield simple("status = ?", str(which.status))
    if which.graph is not None:
        yield simple("graph = ?", which.graph)
    if which.prefix:
        yield simple("run_id BETWEEN ? AND ?", which.prefix, which.prefix + _LAST)
    if which.parent is not None:
        yield simple("parent BETWEEN ? AND ?", f"{which.parent}!", f"{which.parent}!{_LAST}")
    if which.only_ids is not None:
        yield simple(dialect.among, json.dumps(sorted(which.only_ids)))
    if which.since is not None:
        yield simple("created_ns >= ?", which.since_ns)
    if which.overdue:
        yield simple("due_ns <= ?", which.now_ns)
    if which.overdue is False:
        yield simple("(due_ns IS NULL OR due_ns > ?)", which.now_ns)
    for pair in (which.labels or {}).items():
        yield dialect.labelled(*pair)


def _found(which: RunFilter, conditions: Sequence[tuple[str, Sequence[Any]]]) -> Statement:
    """Return the conjunction of conditions, and its values. Without a parent, nested runs are left out."""
    shown = "run_id NOT LIKE '%/#%'" if which.parent is None else "replace(run_id, '/#', '') NOT LIKE '%#%'"
    where = " AND ".join([*(text for text, _ in conditions), shown])
    return where, [value for _, values in conditions for value in values]


def count_runs(which: RunFilter, dialect: Dialect) -> Statement:
    """Return the statement that counts the runs of a filter by their columns."""
    found = [(condition.text, condition.values) for condition in _conditions(which, dialect)]
    if which.owned is False:
        found.append((f"NOT {dialect.among}", [json.dumps(sorted(which.owned_ids or ()))]))
    for pair in (which.labels or {}).items():  # SQLite decodes text up to a NUL, so the index may have more
        found.append(("replace(labels, ?, '') <> labels", [json.dumps(pair)[1:-1]]))
    if which.parent is not None:  # not the remains of a deleted run
        incarnation = f"(SELECT o.incarnation FROM {dialect.schema}run AS o WHERE o.run_id = ?)"
        found.append((f"(run_id NOT LIKE '%/#%' OR incarnation = {incarnation})", [given_id(which.parent)]))
    where, values = _found(which, found)
    return f"SELECT count(*) FROM {dialect.schema}run AS run WHERE {where}", values


def select_page(which: RunFilter, limit: int, before: int | None, dialect: Dialect) -> Statement:
    """Return the statement that lists a page of runs, for a database that chooses an index itself."""
    found = [(condition.text, condition.values) for condition in _conditions(which, dialect)]
    if before is not None:
        found.append(("number < ?", [before]))
    where, values = _found(which, found)
    newest = "ORDER BY number DESC LIMIT ?"
    runs, page = f"SELECT {_RUN} FROM {dialect.schema}run AS run WHERE", [*values, limit]
    if not which.labels:
        return f"{runs} {where} {newest}", page
    # Before the first ANALYZE, PostgreSQL may parse the labels of all runs. So it first looks whether few have them.
    label, labels = _found(
        which, [(each.text, each.values) for each in starmap(dialect.labelled, which.labels.items())]
    )
    few = f"WITH few AS MATERIALIZED (SELECT number FROM {dialect.schema}run AS run WHERE {label} LIMIT {_SOME})"
    among = f"{runs} number = ANY(ARRAY(SELECT number FROM few)) AND (SELECT count(*) FROM few) < {_SOME} AND {where}"
    ordered = f"{runs} (SELECT count(*) FROM few) = {_SOME} AND {where} {newest}"
    return f"{few} SELECT * FROM (({among} {newest}) UNION ALL ({ordered})) AS found {newest}", [
        *labels,
        *page,
        *page,
        limit,
    ]


def select_runs(which: RunFilter, limit: int, before: int | None, dialect: Dialect, query: Query) -> Statement:
    """Return the statement that lists runs in SQLite; raise as `query`.

    Args:
        which: The filter. The result may include runs that do not match by owner or labels.
        limit: The most runs; all if negative.
        before: Only runs with a number below this one, if given.
        dialect: The dialect of SQLite.
        query: Counts the entries of an index.
    """
    indexed = list(_conditions(which, dialect))
    is_ordered = not indexed or (len(indexed) == 1 and indexed[0].text.startswith(_ORDERED))
    counts = {} if is_ordered else {_count(condition, query): condition for condition in indexed}
    few = min(counts, default=_FEW + 1) <= _FEW
    by = [counts[min(counts)]] if few else [each for each in indexed if each.text.startswith(_ORDERED)]
    found = [(each.text if each in by else each.plain, each.values) for each in indexed]
    order = "+number" if few else "number"
    if before is not None:
        found.append((f"{order} < ?", [before]))
    where, values = _found(which, found)
    page = f"SELECT number FROM run WHERE {where} ORDER BY {order} DESC LIMIT ?"
    return f"SELECT {_RUN} FROM run WHERE number IN ({page}) ORDER BY number DESC", [*values, limit]


_ORDERED = ("status", "graph")  # columns of indexes whose entries are ordered by number


def _count(condition: Condition, query: Query) -> int:
    """Return the number of entries in an index, at most `_FEW` + 1."""
    ((count,),) = query(f"SELECT count(*) FROM (SELECT 1 FROM {condition.entries} LIMIT {_FEW + 1})", condition.values)
    return int(count)


# --------------------------------------------------------------------------- statements that write

_AT_PAYLOAD = ROW_COLUMNS.index("payload")
_IS_OPEN = " AND run.status <> 'completed'"
_IS_NESTED = "run.run_id > ? AND run.run_id < ?"


def _with_inbox(write: Write, guard: str, guarding: Sequence[Any]) -> tuple[str, Sequence[Any]]:
    """Return a guard that a newer entry of the inbox refuses as well, so that the owner learns of it."""
    known = known_inbox(write)
    return (guard, guarding) if known is None else (f"{guard} AND run.inbox = ?", (*guarding, known))


@cache
def _new_run(dialect: Dialect, guard: str) -> str:
    """Return the statement that begins a run.

    Its values: the columns of the run, its id and inbox, that of the new column, and those of the guard.
    """
    column, value = dialect.new
    return (
        f"INSERT INTO {dialect.schema}run ({', '.join(_RUN_FIELDS)}, run_id, inbox, {column}) "
        f"SELECT {', '.join('?' * len(_RUN_FIELDS))}, ?, ?, {value} WHERE true{guard} ON CONFLICT (run_id) DO NOTHING"
    )


@cache
def _next_run(dialect: Dialect, fields: tuple[str, ...], guard: str) -> str:
    """Return the statement that changes a run. Its values: the fields, the run, its version, and those of the guard."""
    changes = ", ".join(f"{field} = ?" for field in fields)
    return f"UPDATE {dialect.schema}run AS run SET {changes} WHERE run.run_id = ? AND run.version = ?{guard}"


@cache
def _put_rows(dialect: Dialect, many: int) -> str:
    """Return the statement that writes rows. Its values: those of each row, the run and its seal."""
    if many == 1:
        rows = _one_row(dialect, f"{dialect.schema}run AS run")
    else:  # one search for the run, which takes as long as the insertion of a row
        row = f"({', '.join('?' * len(ROW_COLUMNS))})"
        columns = ", ".join(f"row.column{place}" for place in range(2, len(ROW_COLUMNS) + 1))
        made = ", ".join([row] * many)
        rows = (
            f"SELECT {dialect.key_of.replace('?', 'row.column1')}, {columns} FROM run CROSS JOIN (VALUES {made}) AS row"
        )
    return _insertion(dialect, f"{rows} WHERE run.run_id = ? AND run.seal = ?")


@cache
def _put_step(dialect: Dialect, put_run: str) -> str:
    """Return one statement that writes a run and a row of it. Its values: those for the run, and those of the row."""
    return f"WITH run AS ({put_run} RETURNING number) {_insertion(dialect, _one_row(dialect, 'run'))}"


def _one_row(dialect: Dialect, run: str) -> str:
    return f"SELECT {dialect.key_of}, {', '.join('?' * len(_ROW_FIELDS))} FROM {run}"


def _insertion(dialect: Dialect, rows: str) -> str:
    key, fields = ", ".join(dialect.key), ", ".join(_ROW_FIELDS)
    # Not INSERT OR REPLACE: by a unique index that others have added, it would delete rows of other runs.
    instead = ", ".join(f"{field} = excluded.{field}" for field in _ROW_FIELDS)
    return (
        f"INSERT INTO {dialect.schema}checkpoint ({key}, {fields}) {rows} ON CONFLICT ({key}) DO UPDATE SET {instead}"
    )


def _putting(
    dialect: Dialect, condition: str, entries: Sequence[EntryRecord], values: Sequence[Any]
) -> list[Statement]:
    """Return the statements that write entries, if a condition is true of their run; its values follow the run."""
    statements, done = list[Statement](), 0
    for many in dialect.row_counts:
        while len(entries) - done >= many:
            some = chained.from_iterable(entries[done : done + many])
            statements.append((_put_entries(dialect, condition, many), (*some, *values)))
            done += many
    return statements


@cache
def _put_entries(dialect: Dialect, condition: str, many: int) -> str:
    """Return the statement that writes entries. Its values: their columns, the run, and those of the condition."""
    columns = ", ".join(ENTRY_COLUMNS)
    instead = ", ".join(f"{field} = excluded.{field}" for field in ENTRY_COLUMNS)
    new, made = f"{', '.join('?' * len(ENTRY_COLUMNS))} ", ""
    if many > 1:  # as in `_put_rows`
        made = f" CROSS JOIN (VALUES {', '.join([f'({new})'] * many)}) AS entry"
        new = ", ".join(f"entry.column{place}" for place in range(1, len(ENTRY_COLUMNS) + 1))
    runs = f"{dialect.schema}run AS run{made} WHERE run.run_id = ?{condition}{dialect.locks}"
    return (
        f"INSERT INTO {dialect.schema}entry (number, {columns}) SELECT run.number, {new} FROM {runs} "
        f"ON CONFLICT (number, step, seq) DO UPDATE SET {instead}"
    )


@cache
def _cut_entries(dialect: Dialect, proof: str, guard: str = "") -> str:
    """Return the statement that removes entries.

    Its values: the run, its proof, those of the guard, the last step of the journal, and the last number of the inbox.
    """
    run = f"SELECT run.number FROM {dialect.schema}run AS run WHERE run.run_id = ? AND run.{proof} = ?{guard}"
    return (
        f"DELETE FROM {dialect.schema}entry WHERE number = ({run}) "
        f"AND ((step > 0 AND step + CASE kind WHEN 'chunk' THEN {STEPS_OF_CHUNKS} ELSE 0 END <= ?) "
        "OR (step = 0 AND seq <= ? AND name = ''))"
    )


@cache
def _count_entries(dialect: Dialect, condition: str) -> str:
    """Return the statement that counts new entries of an inbox, and makes their run due."""
    return (
        f"UPDATE {dialect.schema}run AS run SET inbox = ?, due_ns = coalesce(?, run.due_ns) "
        f"WHERE run.run_id = ?{condition}"
    )


_OF_STEPS = "entry.step BETWEEN ? AND ? AND entry.seq > ?"
_NAMED = "entry.step = 0 AND entry.kind = ? AND entry.name = ? AND entry.name <> ''"


@cache
def _entries(dialect: Dialect, which: str) -> str:
    """Return the statement that finds entries. Its values: the run, and those of the condition."""
    columns = ", ".join(f"entry.{column}" for column in ENTRY_COLUMNS)
    return (
        f"SELECT {columns} FROM {dialect.schema}entry AS entry JOIN {dialect.schema}run AS run USING (number) "
        f"WHERE run.run_id = ? AND {which} ORDER BY entry.step, entry.seq"
    )


@cache
def _cut_rows(dialect: Dialect) -> str:
    """Return the statement that removes rows between two sequence numbers. Its values: these, the run and its seal."""
    return _remove_rows(dialect, f"{dialect.rows_of_run()} AND run.run_id = ? AND run.seal = ?")


def _remove_rows(dialect: Dialect, these: str) -> str:
    key, found = ", ".join(dialect.key), ", ".join(f"checkpoint.{column}" for column in dialect.key)
    return f"DELETE FROM {dialect.schema}checkpoint WHERE ({key}) IN (SELECT {found} FROM {these})"


def _cut_nested(dialect: Dialect, which: str = "") -> Sequence[str]:
    """Return the statements that remove nested runs. Their values: the bounds of their ids, the run and its seal."""
    is_written = f"EXISTS (SELECT 1 FROM {dialect.schema}run AS o WHERE o.run_id = ? AND o.seal = ?)"
    return _remove(dialect, f"{_IS_NESTED} AND {is_written}{which}")


@cache
def _remove(dialect: Dialect, which: str) -> Sequence[str]:
    """Return the statements that remove the runs that a condition is true of, with their rows."""
    run = f"DELETE FROM {dialect.schema}run AS run WHERE {which}"
    if dialect.removes_rows:
        return (run,)
    entries = f"DELETE FROM {dialect.schema}entry WHERE number IN (SELECT run.number FROM run AS run WHERE {which})"
    return _remove_rows(dialect, f"{dialect.rows_of_run('0', str(MAX_STEP))} AND {which}"), entries, run
