"""The records of a "postgres" store: its statements, and what becomes of those that are not answered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, TypeVar

from stategraph._owners.holds import lost
from stategraph._owners.leases import LeaseHolds
from stategraph._values.ids import given_id, nested_range
from stategraph.errors import CheckpointCorruptError, CheckpointError, CheckpointSaveError
from stategraph.stores._checks import RunFilter
from stategraph.stores._postgres import statements as sql
from stategraph.stores._postgres.batches import asked
from stategraph.stores._postgres.connections import (
    Connection,
    Server,
    SilentServerError,
    connected,
    of_transaction,
    set_here,
)
from stategraph.stores._postgres.failures import (
    FAILURES,
    cause_of,
    explained,
    is_passing,
    is_refused_connection,
    is_stalled,
)
from stategraph.stores._postgres.leasing import Leasing
from stategraph.stores._postgres.prepared import Asked
from stategraph.stores._postgres.schema import LABELS, prepare, quoted
from stategraph.stores._rows.records import MAX_STEP, CheckpointRecord, RunRecord, Unreadable, WriteBatch
from stategraph.stores._rows.sql_columns import COLUMNS, run_of, run_or_unreadable
from stategraph.stores._rows.sql_filters import Condition, Dialect, conditions, count_runs, shown, simple
from stategraph.stores._rows.table import Identify, Table, closed_error
from stategraph.stores._servers.asking import until_answered, while_sure
from stategraph.stores._servers.connections import Connections
from stategraph.stores._servers.guards import Guard, fence_of, hold_to_remove, is_kept_from, tell

_Result = TypeVar("_Result")

_PAGE = 1000  # runs that are asked for at a time, however many there are


class PostgresTable(Leasing, Table):
    """Records in a schema of a PostgreSQL database.

    A statement whose answer is lost is sent once more: what it writes tells whether it was done before.

    Args:
        store: The store, as errors name it.
        dsn: Where the database is.
        schema: The schema.
        pool: How many threads use a connection at the same time.
        patience: How many seconds anything may take.
        prepares: Whether the server knows a session from one transaction to the next.
        lease: How many seconds a run stays with a process that is not heard of.
    """

    is_server = True

    def __init__(
        self, store: object, dsn: str, schema: str, *, pool: int, patience: float, prepares: bool, lease: float
    ) -> None:
        self.store, self._dsn, self._schema = store, dsn, quoted(schema)
        self._patience, self._prepares = patience, prepares
        self.closed = False
        self._pid = os.getpid()
        self._connections = Connections(self._connect, pool, _all_in_use)
        self.owners: LeaseHolds | None = LeaseHolds(self, lease, self)

    def open(self, schema: str, identify: Identify, *, migrates: bool) -> None:
        """Connect to the server, make the tables if they are not there, and find the id of the store.

        Raises:
            FormatError: the tables are of another version.
            CheckpointError: the server cannot be asked.
        """
        identify(self._ask("", lambda server: prepare(server, schema, self.store, migrates=migrates)))

    def _connect(self, give_up: float) -> Connection:
        return connected(self._dsn, self._patience, give_up, prepares=self._prepares)

    def close(self) -> None:
        if self.owners is not None:
            self.owners.leave()
        self.closed = True
        self.owners = None
        self._connections.close()

    # ------------------------------------------------------------------ asking

    def _ask(
        self,
        run_id: str,
        work: Callable[[Server], _Result],
        kind: type[CheckpointError] = CheckpointError,
        patience: float | None = None,
        waits: bool = True,
    ) -> _Result:
        """Return the result of some work with a connection, which is done again where it may go well then.

        Raises:
            LockNotAvailable: somebody else has locked a row, and that is not to be waited for.
            CheckpointError: `kind`, unless the tables are damaged.
        """
        if self.closed:
            raise closed_error(self.store, run_id)

        def once(give_up: float) -> _Result:
            with self._connections.use(give_up) as server:
                return work(server)

        def may_pass(error: Exception) -> bool:
            if self.closed:
                raise closed_error(self.store, run_id)
            return is_passing(error) and not is_refused_connection(error) and (waits or not is_stalled(error))

        try:
            return until_answered(once, self._patience if patience is None else patience, may_pass)
        except FAILURES as error:
            if not waits and is_stalled(error):
                raise
            raise explained(error, run_id, self.store, kind) from cause_of(error)

    def query(self, run_id: str, statement: str, values: Sequence[Any], *, prepares: bool = True) -> list[Any]:
        """Return all that a statement finds; unless it may be prepared, it is planned for these values."""

        def found(server: Server) -> list[Any]:
            if prepares:
                return server.prepared.found([(statement, values)])[0]
            return server.execute(statement, values, binary=True).fetchall()

        with while_sure(self.owners, self._patience, (run_id,)) as patience:
            return self._ask(run_id, found, patience=patience)

    def change(self, run_id: str, statement: str, values: Sequence[Any], patience: float | None = None) -> list[Any]:
        """Return what a statement finds that writes, and may be made twice."""
        return self._ask(run_id, lambda server: self._written(server, [(statement, values)])[0], patience=patience)

    def _written(self, server: Server, several: Sequence[Asked]) -> list[list[Any]]:
        """Return what each of several statements finds, which are made in one transaction and one round trip."""
        settings: list[Asked] = []
        if not self._prepares:  # behind a pooler, the next transaction may be in another session
            settings += (set_here(*one) for one in of_transaction(self._patience))
        return server.prepared.found([*settings, *several])[len(settings) :]

    # ------------------------------------------------------------------ threads and processes

    def is_in_use(self) -> bool:
        return self._connections.is_in_use_here()

    def at_rest(self) -> AbstractContextManager[object]:
        return nullcontext()  # a child has no use for the connections of its parent

    def undisturbed(self, run_id: str) -> AbstractContextManager[object]:
        return self._connections.alone(self._patience)

    def renew(self) -> None:
        self._connections.renew()

    # ------------------------------------------------------------------ writing

    def apply(self, batches: Sequence[WriteBatch]) -> Sequence[bool]:
        """Write batches in one transaction, as `Table.apply`, in the order of their runs: others do so, too."""
        order = sorted(range(len(batches)), key=lambda place: batches[place].run.run_id)
        inside = [place for place in order if not is_kept_from(batches[place])]
        written = [False] * len(batches)
        if inside:
            # If others have locked a row of one of several runs, each is written alone, and waits alone.
            found = self._applied([batches[place] for place in inside], waits=len(inside) == 1)
            for place, is_written in zip(inside, found, strict=True):
                hold = batches[place].hold
                written[place] = is_written and not (hold is not None and hold.is_lost)
        return written

    def _applied(self, batches: Sequence[WriteBatch], *, waits: bool) -> list[bool]:
        several = [asked(self._schema, batch) for batch in batches]
        is_again = False

        def write(server: Server) -> list[bool]:
            nonlocal is_again
            was_again, is_again = is_again, True
            found = self._written(server, several)
            tell(batches, [bool(rows) and rows[0][1] for rows in found])
            # What was not written now may have been before, when the answer was lost.
            return [
                bool(rows) or (was_again and self._is_there(server, batch))
                for batch, rows in zip(batches, found, strict=True)
            ]

        run_ids = [batch.run.run_id for batch in batches]
        with while_sure(self.owners, self._patience, run_ids) as patience:
            return self._ask(run_ids[0] if len(run_ids) == 1 else "", write, CheckpointSaveError, patience, waits)

    def _is_there(self, server: Server, batch: WriteBatch) -> bool:
        """Return whether a run is as a batch makes it: its seal covers all that it is, its version too."""
        select = f"SELECT seal FROM {self._schema}.run WHERE run_id = $1::text"
        return server.prepared.found([(select, (batch.run.run_id,))])[0] == [(batch.run.seal,)]

    # ------------------------------------------------------------------ removing

    def remove(self, run_id: str, version: int | None = None) -> bool:
        guard, fence = fence_of(hold_to_remove(self, run_id))
        values = run_id, version, *nested_range(run_id), given_id(run_id), fence
        is_again = False

        def removed(server: Server) -> tuple[bool, bool]:
            nonlocal is_again
            was_again, is_again = is_again, True
            ((is_removed, is_held),) = self._written(server, [(sql.remove(self._schema, guard), values)])[0]
            return is_removed or (was_again and is_held), is_held

        is_removed, is_held = self._ask(run_id, removed)
        if guard is Guard.OWNED and not is_held:
            raise lost(given_id(run_id))
        return is_removed

    def remove_damaged(self, run_id: str) -> bool:
        if not _is_kept(run_id):
            return False
        values = run_id, None, *nested_range(run_id), run_id, 0
        return bool(self.change(run_id, sql.remove(self._schema, Guard.NONE), values)[0][0])

    def erase(self) -> None:
        """Leave what was removed to the server, whose vacuum overwrites it."""

    # ------------------------------------------------------------------ reading

    def run(self, run_id: str) -> RunRecord | None:
        found = self.query(run_id, f"SELECT {sql.RUN} FROM {self._schema}.run WHERE run_id = $1::text", (run_id,))
        return run_of(found[0], self) if found else None

    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        found: list[RunRecord | Unreadable] = []
        while True:
            most = _PAGE if limit < 0 else min(limit - len(found), _PAGE)
            page = self._page(which, most, before)
            found += (run_or_unreadable(row, self) for row in page)
            if len(page) < most or len(found) == limit:
                return found
            before = page[-1][1]

    def _page(self, which: RunFilter, limit: int, before: int | None) -> list[Any]:
        found = list(conditions(which, self._dialect))
        if before is not None:
            found.append(simple("number < ?", before))
        where = " AND ".join([*(one.text for one in found), shown(which)])
        values = [*(value for one in found for value in one.values), limit]
        return self._found(
            f"SELECT {sql.RUN} FROM {self._schema}.run WHERE {where} ORDER BY number DESC LIMIT ?", values
        )

    def count(self, which: RunFilter) -> int:
        ((count,),) = self._found(*count_runs(which, self._dialect)) or [(0,)]
        return int(count)

    def _found(self, statement: str, values: Sequence[Any]) -> list[Any]:
        """Return what a statement finds that has a ``?`` for each value: nothing, if one of them cannot be kept."""
        if not all(map(_is_kept, values)):
            return []
        values = [str(value) if isinstance(value, str) else value for value in values]  # a RunStatus is one, too
        first, *others = statement.split("?")
        numbered = [f"${place}::{_TYPES[type(value)]}" for place, value in enumerate(values, 1)]
        text = "".join([first, *chain.from_iterable(zip(numbered, others, strict=True))])
        # Prepared, a label that few runs have would be looked for as one that many have.
        return self.query("", text, values, prepares=False)

    @property
    def _dialect(self) -> Dialect:
        return Dialect(f"{self._schema}.run", "run_id = ANY(?)", list, _labelled)

    def change_token(self) -> str:
        # It is the same as long as nobody, in any database of the server, has committed anything.
        return str(self.query("", "SELECT pg_current_snapshot()::text", ())[0][0])

    def nested_ids(self, run_id: str) -> list[str]:
        select = f"SELECT run_id FROM {self._schema}.run WHERE run_id > $1::text AND run_id < $2::text ORDER BY run_id"
        return [str(nested_id) for (nested_id,) in self.query(run_id, select, nested_range(run_id))]

    def chain(self, run_id: str, sequence: int | None) -> list[CheckpointRecord]:
        last = MAX_STEP if sequence is None else sequence
        if last > MAX_STEP or last < 0:
            return []
        found = self.query(run_id, sql.chain(self._schema), (run_id, last))
        rows = [COLUMNS.row(run_id, columns) for _, _, *columns in found]
        if sequence is None and rows and found[0][0] != rows[-1].sequence:
            raise CheckpointCorruptError(run_id, f"its newest step {found[0][1]} is missing")
        return rows if rows and sequence in (None, rows[-1].sequence) else []

    def find(self, run_id: str, step: int, last: int, revision: int | None) -> int | None:
        if step > MAX_STEP or (revision or 0) > MAX_STEP:
            return None
        found = self.query(run_id, sql.find(self._schema), (run_id, step, min(last, MAX_STEP), revision))
        return int(found[0][0]) if found else None

    def index(self, run_id: str, first: int = 0, last: int = MAX_STEP) -> list[CheckpointRecord]:
        found = self.query(run_id, sql.index(self._schema), (run_id, first, last))
        return [COLUMNS.row(run_id, columns) for columns in found]


_TYPES = {str: "text", int: "bigint", list: "text[]"}


def _labelled(name: str, value: str) -> Condition:
    return simple(f"labels <> '[]' AND {LABELS} @> ARRAY[?]", json.dumps([name, value])[1:-1])


def _all_in_use(reason: str) -> SilentServerError:
    return SilentServerError(f"{reason}; more of them take the option pool")


def _is_kept(value: object) -> bool:
    """Return whether a text can stand in a column: all but those that no text of PostgreSQL has in it."""
    if not isinstance(value, str):
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value
