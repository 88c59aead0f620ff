"""SqlTable: runs in the tables of a SQL database. What SQLite and PostgreSQL do alike is here."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain as chained
from operator import attrgetter
from typing import Any

from stategraph._owners.base import Ownership
from stategraph._values.ids import given_id, nested_range
from stategraph.stores._checks import RunFilter
from stategraph.stores._rows import sql_statements as sql
from stategraph.stores._rows.records import MAX_STEP, CheckpointRecord, Removal, RunRecord, Write, WriteBatch
from stategraph.stores._rows.sql_columns import COLUMNS, lasting_values, row_values, run_of, run_values, step_values
from stategraph.stores._rows.sql_filters import count_runs
from stategraph.stores._rows.sql_statements import Dialect, Reading, Statement
from stategraph.stores._rows.table import Table


class SqlTable(Table):
    """Runs in the tables of a SQL database.

    Args:
        words: The dialect of the database.
    """

    def __init__(self, words: Dialect) -> None:
        self._words, self._reading = words, Reading.of(words)

    @abstractmethod
    def query(self, run_id: str, statement: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows that a statement finds. Raises CheckpointError if the database cannot say."""

    def _listed(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Return the rows that a statement finds which lists or counts runs."""
        return self.query("", statement, values)

    @abstractmethod
    def _write(self, writes: Sequence[Write], statements: Sequence[Sequence[Statement]]) -> Sequence[bool]:
        """Execute the statements of several writes in one transaction; return of which any has changed a row.

        Raises:
            CheckpointSaveError, CheckpointError: as `Table.apply`.
        """

    @abstractmethod
    def _guard(self, run_id: str, ownership: Ownership | None, *, is_new: bool) -> tuple[str, Sequence[Any]]:
        """Return the condition that an owner still has a run, which may be new, and its values."""

    def _new_values(self, ownership: Ownership | None) -> Sequence[Any]:
        """Return the values of the column that only a new run is given."""
        return ()

    # ------------------------------------------------------------------ writing

    def apply(self, writes: Sequence[Write]) -> Sequence[bool]:
        made = self._made(writes)
        return (
            made
            if all(made)
            else [
                is_made or (self._is_still_owned(write) and self._made([write])[0])
                for write, is_made in zip(writes, made, strict=True)
            ]
        )

    def _made(self, writes: Sequence[Write]) -> Sequence[bool]:
        made = self._write(writes, [() if write.is_lost else self._statements(write) for write in writes])
        return [is_made and not write.is_lost for write, is_made in zip(writes, made, strict=True)]

    def _is_still_owned(self, write: Write) -> bool:
        """Return whether a write was refused to an owner who still has the run; tell it if the run is cancelled."""
        if write.ownership is None or write.is_lost:
            return False
        fence, is_cancelled = self.fence(write.ownership.run_id)
        write.ownership.is_cancelled |= is_cancelled
        return fence == write.ownership.fence

    def _statements(self, write: Write) -> Sequence[Statement]:
        """Return the statements of a write. None of them changes a row unless it may be made."""
        return self._saving(write) if isinstance(write, WriteBatch) else self._removing(write)

    def _saving(self, batch: WriteBatch) -> list[Statement]:
        run, words, this = batch.run, self._words, (batch.run_id, batch.run.seal)
        statements = [self._put_run(batch)]
        # First: SQLite puts rows into the pages that these leave, which it would write once more to erase them.
        if batch.cut_below:
            statements.append((sql.cut_rows(words), (0, batch.cut_below - 1, *this)))
        if batch.cut_above is not None:
            statements.append((sql.cut_rows(words), (batch.cut_above + 1, MAX_STEP, *this)))
        if batch.cut_nested or batch.cut_parts:
            cut = sql.cut_nested(words, only_parts=not batch.cut_nested)
            statements += ((statement, (*nested_range(run.run_id), *this)) for statement in cut)
        put = [row for row in batch.put if row.sequence >= batch.cut_below]
        rows = [(*row_values(row, json_as_text=words.json_as_text), *this) for row in put]
        for many in words.together:
            while len(rows) >= many:
                statements.append((sql.put_rows(words, many), [*chained.from_iterable(rows[:many])]))
                del rows[:many]
        return statements

    def _put_run(self, batch: WriteBatch) -> Statement:
        """Return the statement that writes the record of a run, if it is as expected."""
        run, old, words, owned = batch.run, batch.old, self._words, given_id(batch.run_id)
        guard, guarding = self._guard(owned, batch.ownership, is_new=old is None)
        if batch.outer is not None:
            guard, guarding = f"{guard}{sql.outer_is(words)}", (*guarding, owned, batch.outer)
        if old is None:
            values = *run_values(run), run.run_id, *self._new_values(batch.ownership), *guarding
            return sql.new_run(words, guard), values
        is_step = lasting_values(old) == lasting_values(run)
        fields, changed = (sql.STEP_FIELDS, step_values(run)) if is_step else (sql.RUN_FIELDS, run_values(run))
        return sql.next_run(words, fields, guard), (*changed, run.run_id, old.version, *guarding)

    def _removing(self, removal: Removal) -> list[Statement]:
        run_id, words = removal.run_id, self._words
        guard, guarding = self._guard(given_id(run_id), removal.ownership, is_new=False)
        run = run_id, removal.version, *guarding
        nested = *nested_range(run_id), run_id, *guarding
        statements = [(statement, run) for statement in sql.remove(words, guard)]
        return [*statements, *((statement, nested) for statement in sql.remove_nested(words, guard))]

    def remove_damaged(self, run_id: str) -> bool:
        found = self._listed(f"SELECT run_id, number FROM {self._words.schema}run", ())
        numbers = [number for kept_id, number in found if str(kept_id) == run_id]
        removal = [(statement, (number,)) for number in numbers for statement in sql.remove_number(self._words)]
        return self._write([Removal(run_id)], [removal])[0]

    # ------------------------------------------------------------------ reading

    def run(self, run_id: str) -> RunRecord | None:
        found = self.query(run_id, self._reading.run, (run_id,))
        return run_of(found[0], self) if found else None

    def count(self, which: RunFilter) -> int:
        ((count,),) = self._listed(*count_runs(which, self._words)) or [(0,)]
        return int(count)

    def nested_ids(self, run_id: str) -> list[str]:
        return [str(nested_id) for (nested_id,) in self.query(run_id, self._reading.nested, nested_range(run_id))]

    def chain(self, run_id: str, sequence: int) -> list[CheckpointRecord]:
        found = self.query(run_id, self._reading.chain, (0, sequence, run_id))
        rows = sorted((COLUMNS.row(run_id, columns) for columns in found), key=attrgetter("sequence"))
        return rows if rows and rows[-1].sequence == sequence else []

    def index(self, run_id: str, first: int = 0, last: int = MAX_STEP) -> list[CheckpointRecord]:
        return [COLUMNS.row(run_id, found) for found in self.query(run_id, self._reading.index, (first, last, run_id))]
