"""The records of a "postgres" store: what is asked of the server, and what becomes of answers that are lost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg.errors import DataError, LockNotAvailable

from stategraph._owners.base import Ownership
from stategraph._owners.leases import LeaseOwners
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.stores._checks import RunFilter
from stategraph.stores._postgres.connections import Connection, connected
from stategraph.stores._postgres.failures import explained, is_passing, is_refused_connection
from stategraph.stores._postgres.leasing import LeasingTable
from stategraph.stores._postgres.schema import prepare, words_of
from stategraph.stores._rows.records import RunRecord, Unreadable, Write, WriteBatch
from stategraph.stores._rows.sql_columns import run_or_unreadable
from stategraph.stores._rows.sql_filters import select_page
from stategraph.stores._rows.sql_statements import Statement
from stategraph.stores._rows.table import Identify
from stategraph.stores._servers.connections import Connections
from stategraph.stores._servers.table import ServerTable

_PAGE = 1000  # runs that are asked for at a time, however many there are


class PostgresTable(LeasingTable, ServerTable[Connection]):
    """Records in a schema of a PostgreSQL database.

    Args:
        store: The store, as errors name it.
        dsn: Where the database is.
        schema: The schema.
        pool: How many threads use a connection at the same time.
        patience: How many seconds anything may take.
        prepares: Whether the server knows a session from one transaction to the next.
        lease: How many seconds a run stays with a process that is not heard of.
    """

    failures = (psycopg.Error, UnicodeError, OverflowError)
    more_connections = "; more of them take the option pool"

    def __init__(
        self, store: object, dsn: str, schema: str, *, pool: int, patience: float, prepares: bool, lease: float
    ) -> None:
        super().__init__(words_of(schema))
        self.store, self._patience = store, patience
        connect = partial(connected, dsn, patience, prepares=prepares)
        self._connections = Connections[Connection](connect, pool)
        self.owners = LeaseOwners(self, lease, self)

    def open(self, schema: str, identify: Identify, *, migrates: bool) -> None:
        """Connect to the server, make the tables if they are not there, and find the id of the store.

        Raises:
            FormatError: the tables are of another version.
            CheckpointError: the server cannot be asked.
        """
        identify(self._ask("", lambda server: prepare(server, schema, self.store, migrates=migrates)))

    # ------------------------------------------------------------------ asking

    def _may_pass(self, error: Exception) -> bool:
        return is_passing(error) and not is_refused_connection(error)

    def _explained(self, error: Exception, run_id: str, kind: type[CheckpointError]) -> CheckpointError:
        return explained(error, run_id, self.store, kind)

    def query(self, run_id: str, statement: str, values: Sequence[Any]) -> list[Any]:
        return self._ask_surely([run_id], lambda server: server.found([(self._here(statement), values)])[0])

    def _listed(self, statement: str, values: Sequence[Any]) -> list[Any]:
        try:  # prepared, a label that few runs have would be looked for as one that many have
            return self._ask_surely([""], lambda server: server.found([(statement, values)], prepares=False)[0])
        except CheckpointError as error:
            if isinstance(error.__cause__, ValueError | DataError):  # no text of PostgreSQL has such characters
                return []
            raise

    def change(self, run_id: str, statement: str, values: Sequence[Any], patience: float | None = None) -> list[Any]:
        asked = self._here(statement), values
        return self._ask(run_id, lambda server: server.found([asked])[0], patience=patience)

    def _here(self, statement: str) -> str:
        return statement.replace("{s}.", self._words.schema)

    # ------------------------------------------------------------------ writing

    def _write(self, writes: Sequence[Write], statements: Sequence[Sequence[Statement]]) -> Sequence[bool]:
        is_again = False
        run_ids = [one.run_id for one in writes]
        # In the order of all others, or two could wait for each other.
        order = sorted(range(len(writes)), key=run_ids.__getitem__)

        def write(server: Connection) -> list[bool]:
            nonlocal is_again
            was_again, is_again = is_again, True
            try:
                changed = iter(server.found([statement for place in order for statement in statements[place]]))
            except LockNotAvailable as error:
                if len(writes) == 1:
                    raise
                raise CheckpointError("", "a run is locked: each is written alone, and waits alone") from error
            made = {place: sum(len(next(changed)) for _ in statements[place]) > 0 for place in order}
            # What was not written now may have been before, when the answer was lost.
            return [made[place] or (was_again and self._is_done(server, one)) for place, one in enumerate(writes)]

        return self._ask_surely(run_ids, write, CheckpointSaveError)

    def _is_done(self, server: Connection, write: Write) -> bool:
        """Return whether a run is as a write makes it: its seal covers all that it is, its version too."""
        (found,) = server.found([(f"SELECT seal FROM {self._words.schema}run WHERE run_id = ?", (write.run_id,))])
        return found == ([(write.run.seal,)] if isinstance(write, WriteBatch) else [])

    def _guard(self, run_id: str, ownership: Ownership | None, *, is_new: bool) -> Statement:
        if ownership is None:
            return "", ()
        lease = f"(SELECT 1 FROM {self._words.schema}lease AS l WHERE l.run_id = ? AND"
        if not ownership.fence:
            nobody = f" AND NOT EXISTS {lease} l.worker IS NOT NULL)"
            kept = f" AND run.fence = (SELECT o.fence FROM {self._words.schema}run AS o WHERE o.number = run.number)"
            return nobody if is_new else kept + nobody, (run_id,)
        # A write that waits for the row of a run is compared with the fence in it by then.
        owned = f" AND EXISTS {lease} l.fence = ? FOR SHARE)" if is_new else " AND run.fence = ?"
        told = "" if ownership.is_cancelled else f" AND NOT EXISTS {lease} l.cancelled)"
        return owned + told, (
            *([run_id] if is_new else []),
            ownership.fence,
            *([] if ownership.is_cancelled else [run_id]),
        )

    def _new_values(self, ownership: Ownership | None) -> Sequence[Any]:
        return (ownership.fence if ownership else 0,)

    # ------------------------------------------------------------------ reading

    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        found: list[RunRecord | Unreadable] = []
        while True:
            most = _PAGE if limit < 0 else min(limit - len(found), _PAGE)
            page = self._listed(*select_page(which, most, before, self._words))
            found += (run_or_unreadable(row, self) for row in page)
            if len(page) < most or len(found) == limit:
                return found
            before = page[-1][1]

    def change_token(self) -> str:
        # It is the same as long as nobody, in any database of the server, has committed anything.
        return str(self.query("", "SELECT pg_current_snapshot()::text", ())[0][0])
