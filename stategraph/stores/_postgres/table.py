"""The records of a "postgres" store: what is asked of the server, and what becomes of answers that are lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

from stategraph._owners.holds import Hold
from stategraph._owners.leases import LeaseOwners
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.stores._checks import RunFilter
from stategraph.stores._postgres.connections import Connection, SilentServerError, connected
from stategraph.stores._postgres.failures import (
    FAILURES,
    cause_of,
    explained,
    is_passing,
    is_refused_connection,
    is_stalled,
)
from stategraph.stores._postgres.leasing import LeasingTable
from stategraph.stores._postgres.schema import prepare, words_of
from stategraph.stores._rows.records import RunRecord, Unreadable, Write, WriteBatch
from stategraph.stores._rows.sql_columns import run_or_unreadable
from stategraph.stores._rows.sql_filters import select_page
from stategraph.stores._rows.sql_statements import Statement
from stategraph.stores._rows.table import Identify, closed_error
from stategraph.stores._servers.asking import until_answered, while_sure
from stategraph.stores._servers.connections import Connections

_Result = TypeVar("_Result")

_PAGE = 1000  # runs that are asked for at a time, however many there are


class PostgresTable(LeasingTable):
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
        super().__init__(words_of(schema))
        self.store, self._patience = store, patience
        self.closed = False
        self._pid = os.getpid()
        connect = partial(connected, dsn, patience, prepares=prepares)
        self._connections = Connections[Connection](connect, pool, _all_in_use)
        self.owners: LeaseOwners | None = LeaseOwners(self, lease, self)

    def open(self, schema: str, identify: Identify, *, migrates: bool) -> None:
        """Connect to the server, make the tables if they are not there, and find the id of the store.

        Raises:
            FormatError: the tables are of another version.
            CheckpointError: the server cannot be asked.
        """
        identify(self._ask("", lambda server: prepare(server, schema, self.store, migrates=migrates)))

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
        work: Callable[[Connection], _Result],
        kind: type[CheckpointError] = CheckpointError,
        patience: float | None = None,
        waits: bool = True,
    ) -> _Result:
        """Return the result of some work with a connection, which is done again where it may go well then.

        Raises:
            LockNotAvailable: somebody else has locked a row, and that is not to be waited for.
            CheckpointError: `kind`, unless the tables are damaged.
        """

        def once(give_up: float) -> _Result:
            if self.closed:
                raise closed_error(self.store, run_id)
            with self._connections.use(give_up) as server:
                return work(server)

        def may_pass(error: Exception) -> bool:
            return is_passing(error) and not is_refused_connection(error) and (waits or not is_stalled(error))

        try:
            return until_answered(once, self._patience if patience is None else patience, may_pass)
        except FAILURES as error:
            if not waits and is_stalled(error):
                raise
            raise explained(error, run_id, self.store, kind) from cause_of(error)

    def query(self, run_id: str, statement: str, values: Sequence[Any]) -> list[Any]:
        return self._read(run_id, lambda server: server.found([(statement, values)])[0])

    def _listed(self, statement: str, values: Sequence[Any]) -> list[Any]:
        try:  # prepared, a label that few runs have would be looked for as one that many have
            return self._read("", lambda server: server.planned(statement, values))
        except CheckpointError as error:
            if isinstance(error.__cause__, ValueError):  # no text of PostgreSQL has such characters
                return []
            raise

    def _read(self, run_id: str, work: Callable[[Connection], list[Any]]) -> list[Any]:
        with while_sure(self.owners, self._patience, (run_id,)) as patience:
            return self._ask(run_id, work, patience=patience)

    def change(self, run_id: str, statement: str, values: Sequence[Any], patience: float | None = None) -> list[Any]:
        return self._ask(run_id, lambda server: server.found([(statement, values)])[0], patience=patience)

    # ------------------------------------------------------------------ threads and processes

    def is_in_use(self) -> bool:
        return self._connections.is_in_use_here()

    def at_rest(self) -> AbstractContextManager[object]:
        return nullcontext()  # a child has no use for the connections of its parent

    def renew(self) -> None:
        self._connections.renew()

    # ------------------------------------------------------------------ writing

    def _write(self, writes: Sequence[Write], statements: Sequence[Sequence[Statement]]) -> Sequence[bool]:
        is_again = False
        run_ids = [one.run_id for one in writes]
        # In the order of all others, or two could wait for each other.
        order = sorted(range(len(writes)), key=run_ids.__getitem__)

        def write(server: Connection) -> list[bool]:
            nonlocal is_again
            was_again, is_again = is_again, True
            changed = iter(server.found([statement for place in order for statement in statements[place]]))
            made = {place: sum(len(next(changed)) for _ in statements[place]) > 0 for place in order}
            # What was not written now may have been before, when the answer was lost.
            return [made[place] or (was_again and self._is_done(server, one)) for place, one in enumerate(writes)]

        with while_sure(self.owners, self._patience, run_ids) as patience:
            # If others have locked a row of one of several runs, each is written alone, and waits alone.
            run_id = run_ids[0] if len(run_ids) == 1 else ""
            return self._ask(run_id, write, CheckpointSaveError, patience, len(run_ids) == 1)

    def _is_done(self, server: Connection, write: Write) -> bool:
        """Return whether a run is as a write makes it: its seal covers all that it is, its version too."""
        (found,) = server.found([(f"SELECT seal FROM {self._words.schema}run WHERE run_id = ?", (write.run_id,))])
        return found == ([(write.run.seal,)] if isinstance(write, WriteBatch) else [])

    def _guard(self, run_id: str, hold: Hold | None, *, is_new: bool) -> Statement:
        if hold is None:
            return "", ()
        lease = f"(SELECT 1 FROM {self._words.schema}lease AS l WHERE l.run_id = ? AND"
        if not hold.fence:
            nobody = f" AND NOT EXISTS {lease} l.worker IS NOT NULL)"
            kept = f" AND run.fence = (SELECT o.fence FROM {self._words.schema}run AS o WHERE o.number = run.number)"
            return nobody if is_new else kept + nobody, (run_id,)
        # A write that waits for the row of a run is compared with the fence in it by then.
        owned = f" AND EXISTS {lease} l.fence = ? FOR SHARE)" if is_new else " AND run.fence = ?"
        told = "" if hold.is_cancelled else f" AND NOT EXISTS {lease} l.cancelled)"
        return owned + told, (*([run_id] if is_new else []), hold.fence, *([] if hold.is_cancelled else [run_id]))

    def _new_values(self, hold: Hold | None) -> Sequence[Any]:
        return (hold.fence if hold else 0,)

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


def _all_in_use(reason: str) -> SilentServerError:
    return SilentServerError(f"{reason}; more of them take the option pool")
