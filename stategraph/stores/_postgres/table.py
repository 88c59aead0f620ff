"""The records and leases of a "postgres" store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import inf
from typing import Any

import psycopg
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus

from stategraph._owners.base import Fence, Ownership
from stategraph._owners.leases import (
    Claim,
    Known,
    Lease,
    LeaseOwners,
    Worker,
    has_ended,
    machine_name,
)
from stategraph._values import clock
from stategraph._values.ids import nested_range
from stategraph.errors import CheckpointError, CheckpointSaveError
from stategraph.stores._checks import RunFilter
from stategraph.stores._postgres.connections import Connection, explained, is_passing
from stategraph.stores._postgres.schema import dialect_of, prepare
from stategraph.stores._rows.records import (
    Appended,
    Removal,
    RunRecord,
    Unreadable,
    Write,
    WriteBatch,
    run_or_unreadable,
)
from stategraph.stores._rows.sql_table import SqlTable, Statement, select_page
from stategraph.stores._rows.table import Identify, NodeTransaction, ended_error, transaction_of
from stategraph.stores._servers import SHORT_PATIENCE, Connections, ServerTable

_PAGE = 1000  # runs per request
_NOW_NS = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"
_FENCE = "SELECT CASE WHEN worker IS NULL THEN 0 ELSE fence END, cancelled FROM {s}.lease WHERE run_id = $1::text"
_ACQUIRE = (
    "WITH got AS (INSERT INTO {s}.lease AS l (run_id, worker, fence, since_ns, cancelled) "
    f"VALUES ($1::text, $2::text, $3::bigint, {_NOW_NS}, false) ON CONFLICT (run_id) DO UPDATE "
    "SET worker = excluded.worker, fence = excluded.fence, since_ns = excluded.since_ns "
    "WHERE l.worker IS NULL OR l.fence IN ($3, $4::bigint) RETURNING l.run_id, l.fence, l.cancelled), "
    # In the rows of the run as well, so that a write to them that is in progress finds another fence.
    "own AS (UPDATE {s}.run AS r SET fence = got.fence FROM got WHERE r.run_id = $1), "
    "nested AS (UPDATE {s}.run AS r SET fence = got.fence FROM got WHERE r.run_id > $5::text AND r.run_id < $6::text) "
    "SELECT cancelled FROM got"
)
_LEASE = (
    "SELECT l.fence, l.worker, l.since_ns, w.host, w.pid, w.place, "
    "(extract(epoch FROM w.until) * 1000000000)::bigint, coalesce(w.until > clock_timestamp(), false) "
    "FROM {s}.lease AS l LEFT JOIN {s}.worker AS w ON w.id = l.worker WHERE l.run_id = $1::text "
    "AND l.worker IS NOT NULL"
)
_LEASES = (
    "SELECT l.run_id, l.fence, w.id, w.host, w.pid, w.place "
    "FROM {s}.lease AS l JOIN {s}.worker AS w ON w.id = l.worker WHERE w.until > clock_timestamp()"
)
_CLAIM = (
    "WITH now AS MATERIALIZED (SELECT clock_timestamp() AS at), "
    # Skips runs that another sweeper is claiming.
    "pick AS MATERIALIZED (SELECT r.number, r.version, r.run_id, l.fence FROM {s}.run AS r LEFT JOIN {s}.lease AS l "
    "ON l.run_id = r.run_id AND l.worker IS NOT NULL WHERE r.graph = $1::text "
    # BETWEEN uses the index of the status: with = the planner may read all runs in the order of their numbers.
    "AND r.status BETWEEN 'active' AND 'active' "
    # SELECT parses the known runs once, not for each row.
    "AND NOT (jsonb_exists((SELECT $4::text::jsonb), r.number::text) "
    "AND coalesce(((SELECT $4::text::jsonb) ->> r.number::text)::bigint = r.version, true)) "
    "AND strpos(r.run_id, '/#') = 0 "
    f"AND (r.due_ns IS NULL OR r.due_ns <= {_NOW_NS}) "
    # Its own fence: a claim that is repeated because its answer was lost finds the same run.
    "AND (l.fence = $3::bigint OR NOT EXISTS "
    "(SELECT FROM {s}.worker AS w, now WHERE w.id = l.worker AND w.until > now.at)) "
    "ORDER BY r.status, r.number LIMIT 1 FOR UPDATE OF r SKIP LOCKED), "
    # A run that was claimed after this statement began has another fence.
    "got AS (INSERT INTO {s}.lease AS l (run_id, worker, fence, since_ns, cancelled) "
    f"SELECT run_id, $2::text, $3::bigint, {_NOW_NS}, false FROM pick ON CONFLICT (run_id) DO UPDATE "
    "SET worker = excluded.worker, fence = excluded.fence, since_ns = excluded.since_ns "
    "WHERE l.worker IS NULL OR l.fence = (SELECT fence FROM pick) RETURNING l.run_id, l.fence, l.cancelled), "
    "own AS (UPDATE {s}.run AS r SET fence = got.fence FROM got WHERE r.run_id = got.run_id), "
    "nested AS (UPDATE {s}.run AS r SET fence = got.fence FROM got "
    "WHERE r.run_id > got.run_id || '/#' AND r.run_id < got.run_id || '/$') "
    "SELECT array_to_string(ARRAY(SELECT number FROM {s}.run WHERE status = 'active' "
    "AND number IN (SELECT jsonb_object_keys($4::text::jsonb)::bigint)), ' '), "
    "pick.number, pick.version, got.run_id, coalesce(got.cancelled, false) "
    "FROM (SELECT) AS always LEFT JOIN pick ON true LEFT JOIN got USING (run_id)"
)
_WORKERS_AT = "SELECT id, host, pid, place FROM {s}.worker WHERE starts_with(place, $1::text)"
_FREE_CLAIMED = (
    "WITH gone AS (DELETE FROM {s}.lease WHERE fence = $1::bigint AND NOT cancelled) "
    "UPDATE {s}.lease SET worker = NULL WHERE fence = $1 AND cancelled RETURNING 1"
)
_FREE = (
    "WITH gone AS (DELETE FROM {s}.lease WHERE run_id = $1::text AND fence = $2::bigint AND NOT cancelled) "
    "UPDATE {s}.lease SET worker = NULL WHERE run_id = $1 AND fence = $2 AND cancelled RETURNING 1"
)
_RENEW = (
    "WITH old AS (DELETE FROM {s}.worker WHERE until < clock_timestamp() - interval '1 day') "
    "INSERT INTO {s}.worker (id, host, pid, place, until) "
    "VALUES ($1::text, $2::text, $3::bigint, $4::text, clock_timestamp() + make_interval(secs => $5::text::float8)) "
    "ON CONFLICT (id) DO UPDATE SET until = excluded.until RETURNING 1"
)
_END = "DELETE FROM {s}.worker WHERE id = $1::text RETURNING 1"
_CANCEL = (
    "INSERT INTO {s}.lease AS l (run_id, worker, fence, since_ns, cancelled, by_whom) "
    "VALUES ($1::text, NULL, 0, 0, true, $2::text) ON CONFLICT (run_id) DO UPDATE SET cancelled = true, "
    "by_whom = CASE WHEN l.cancelled THEN l.by_whom ELSE excluded.by_whom END RETURNING 1"
)
_CANCELLED_BY = "SELECT by_whom FROM {s}.lease WHERE run_id = $1::text"
_NO_CANCELLATION = (
    "WITH which AS (SELECT $1::text AS run_id{if_gone}), "
    "gone AS (DELETE FROM {s}.lease USING which WHERE lease.run_id = which.run_id AND worker IS NULL) "
    "UPDATE {s}.lease SET cancelled = false, by_whom = NULL FROM which "
    "WHERE lease.run_id = which.run_id AND worker IS NOT NULL"
)
_TAKE_UP = f"{_NO_CANCELLATION.replace('{if_gone}', '')} RETURNING 1"
_FORGET = _NO_CANCELLATION.replace("{if_gone}", " WHERE NOT EXISTS (SELECT FROM {s}.run WHERE run_id = $1)")


class PostgresTable(SqlTable, ServerTable[Connection]):
    """Records and leases in a schema of a PostgreSQL database.

    Args:
        store: The name of the store, for error messages.
        identify: Called with the id of the store.
        connections: Connections to the database.
        schema: The schema.
        patience: Seconds to wait for the server before giving up.
        migrates: Whether to create missing tables and to migrate old ones.
        lease: Seconds after which a process that does not renew its lease loses its runs.

    Raises:
        FormatError: the tables are of another version.
        CheckpointError: the server does not answer.
    """

    failures = (psycopg.Error, UnicodeError, OverflowError)
    way_to_connections = "; set the option pool to a higher number"

    def __init__(
        self,
        store: str,
        identify: Identify,
        connections: Connections[Connection],
        schema: str,
        *,
        patience: float,
        migrates: bool,
        lease: float,
    ) -> None:
        super().__init__(dialect_of(schema))
        self.store, self._connections, self._patience = store, connections, patience
        self.owners = LeaseOwners(self, lease, patience, self)
        try:
            identify(self._ask("", lambda server: prepare(server, schema, store, migrates=migrates)))
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ requests

    def _is_passing(self, error: Exception) -> bool:
        return is_passing(error)

    def _explained(self, error: Exception, run_id: str, kind: type[CheckpointError]) -> CheckpointError:
        return explained(error, run_id, self.store, kind)

    def query(self, run_id: str, statement: str, values: Sequence[Any], patience: float = inf) -> list[Any]:
        request = self._here(statement), values
        return self._ask(run_id, lambda server: server.found([request])[0], patience=patience)

    def _query_many(self, statement: str, values: Sequence[Any]) -> list[Any]:
        # Not prepared: a plan for a common label would be used for a rare one as well.
        return self._ask("", lambda server: server.found([(statement, values)], prepares=False)[0])

    def _here(self, statement: str) -> str:
        return statement.replace("{s}.", self._dialect.schema)

    # ------------------------------------------------------------------ writing

    def _write(self, writes: Sequence[Write], statements: Sequence[Sequence[Statement]]) -> Sequence[bool]:
        transaction = transaction_of(writes)
        if transaction is not None and not isinstance(writes[0], Appended):
            return [self._finish(transaction.connection, writes[0], statements[0])]
        run_ids = [write.run_id for write in writes]
        # All transactions lock runs in the same order, to avoid deadlocks.
        order = sorted(range(len(writes)), key=run_ids.__getitem__)
        ordered = [statement for place in order for statement in statements[place]]
        is_sent = False

        def send(server: Connection) -> list[bool]:
            nonlocal is_sent
            was_sent, is_sent = is_sent, True
            try:
                changed = iter(server.found(ordered))
            except LockNotAvailable as error:
                if len(writes) == 1:
                    raise
                raise CheckpointError("", "a run is locked: each is written alone, and waits alone") from error
            made = {place: sum(len(next(changed)) for _ in statements[place]) > 0 for place in order}
            # If the answer to the first request was lost, it may have made the write.
            return [made[place] or (was_sent and self._is_done(server, write)) for place, write in enumerate(writes)]

        return self._ask(run_ids[0] if len(run_ids) == 1 else "", send, CheckpointSaveError)

    def begin(self, run_id: str) -> NodeTransaction:
        connection = self._ask(run_id, lambda server: server.lend())
        return NodeTransaction(connection, run_id, connection.close)

    def _finish(self, connection: Connection, write: Write, statements: Sequence[Statement]) -> bool:
        """Make a write in the transaction of a node, which commits it; if it is refused, the transaction stays open."""
        if connection.info.transaction_status == TransactionStatus.IDLE:
            raise ended_error(write.run_id)
        try:
            if not any(connection.found(statements)):
                return False
            connection.found([("COMMIT", ())])
        except self.failures as error:
            # Its answer may be lost.
            if not self._ask(write.run_id, lambda server: self._is_done(server, write), CheckpointSaveError):
                raise self._explained(error, write.run_id, CheckpointSaveError) from error
        if write.ownership is not None:
            write.ownership.roll_back()  # closes the connection
        return True

    def _is_done(self, server: Connection, write: Write) -> bool:
        """Return whether a run is as a write makes it: the seal covers the version as well."""
        if isinstance(write, Appended):
            newest = write.put[-1:]
            seals = f"SELECT seal FROM {self._dialect.schema}entry JOIN {self._dialect.schema}run USING (number)"
            return (
                not newest
                or [(newest[0].seal,)]
                == server.found(
                    [(f"{seals} WHERE run_id = ? AND entry.step = ? AND seq = ?", (write.run_id, *newest[0][:2]))]
                )[0]
            )
        (found,) = server.found([(f"SELECT seal FROM {self._dialect.schema}run WHERE run_id = ?", (write.run_id,))])
        return found == ([(write.run.seal,)] if isinstance(write, WriteBatch) else [])

    def _guard(self, run_id: str, ownership: Ownership | None, *, is_new: bool) -> Statement:
        if ownership is None:
            return "", ()
        lease = f"(SELECT 1 FROM {self._dialect.schema}lease AS l WHERE l.run_id = ? AND"
        if not ownership.fence:
            is_free = f" AND NOT EXISTS {lease} l.worker IS NOT NULL)"
            is_same = (
                f" AND run.fence = (SELECT o.fence FROM {self._dialect.schema}run AS o WHERE o.number = run.number)"
            )
            return is_free if is_new else is_same + is_free, (run_id,)
        # A write that waits for the row of a run compares the fence that the row has afterwards.
        is_owned = f" AND EXISTS {lease} l.fence = ? FOR SHARE)" if is_new else " AND run.fence = ?"
        is_wanted = "" if ownership.is_cancelled else f" AND NOT EXISTS {lease} l.cancelled)"
        return is_owned + is_wanted, (
            *([run_id] if is_new else []),
            ownership.fence,
            *([] if ownership.is_cancelled else [run_id]),
        )

    def _removing(self, removal: Removal) -> list[Statement]:
        return [*super()._removing(removal), (self._here(_FORGET), (removal.run_id,))]

    def _new_values(self, ownership: Ownership | None) -> Sequence[Any]:
        return (ownership.fence if ownership else 0,)

    # ------------------------------------------------------------------ reading

    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        found: list[RunRecord | Unreadable] = []
        while True:
            size = _PAGE if limit < 0 else min(limit - len(found), _PAGE)
            page = self._query_many(*select_page(which, size, before, self._dialect))
            found += map(run_or_unreadable, page)
            if len(page) < size or len(found) == limit:
                return found
            before = page[-1][1]

    def change_token(self) -> str:
        # It changes with every commit, in any database of the server.
        return str(self.query("", "SELECT pg_current_snapshot()::text", ())[0][0])

    def now_ns(self) -> int:
        return int(self.query("", f"SELECT {_NOW_NS}", ())[0][0])

    # ------------------------------------------------------------------ leases

    def fence(self, run_id: str) -> Fence:
        found = self.query(run_id, _FENCE, (run_id,))
        return (int(found[0][0]), bool(found[0][1])) if found else (0, False)

    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        statement, values = (_CANCEL, (run_id, by)) if is_cancelled else (_TAKE_UP, (run_id,))
        self.query(run_id, statement, values)

    def cancelled_by(self, run_id: str) -> str | None:
        found = self.query(run_id, _CANCELLED_BY, (run_id,))
        return found[0][0] if found else None

    def acquire(self, run_id: str, worker: Worker, fence: int, instead: int) -> bool | None:
        """Lease a run, as `Leases.acquire`."""
        found = self.query(run_id, _ACQUIRE, (run_id, worker.id, fence, instead, *nested_range(run_id)))
        return bool(found[0][0]) if found else None

    def lease(self, run_id: str) -> Lease | None:
        """Return the lease of a run."""
        found = self.query(run_id, _LEASE, (run_id,))
        if not found:
            return None
        fence, worker_id, since_ns, host, pid, place, until_ns, is_running = found[0]
        worker = Worker(worker_id, host or "?", pid or 0, place or "")
        until = None if until_ns is None else clock.to_datetime(until_ns)
        return Lease(fence, worker, clock.to_datetime(since_ns), until, is_running)

    def leases(self) -> list[tuple[str, int, Worker]]:
        """Return the leases that have not expired, as `Leases.leases`."""
        return [(run_id, fence, Worker(*worker)) for run_id, fence, *worker in self.query("", _LEASES, ())]

    def claim(self, graph: str, worker: Worker, fence: int, known: Known) -> Claim:
        """Lease the oldest abandoned run, as `Claims.claim`."""
        self._end_killed()
        ((left, *claimed),) = self.query("", _CLAIM, (graph, worker.id, fence, json.dumps(known)))
        return Claim([*map(int, left.split())], *claimed)

    def _end_killed(self) -> None:
        """Record which processes of this machine were killed."""
        machine = machine_name()
        for found in self.query("", _WORKERS_AT, (f"{machine}/",)) if machine else ():
            if has_ended(Worker(*found)):
                self.end_worker(Worker(*found))

    def free(self, run_id: str, fence: int) -> None:
        """Release a run, if this is still its fence. Without an id, release the run of an interrupted claim."""
        statement, values = (_FREE, (run_id, fence)) if run_id else (_FREE_CLAIMED, (fence,))
        self.query(run_id, statement, values, SHORT_PATIENCE)

    def renew_worker(self, worker: Worker, seconds: float, patience: float) -> None:
        """Record that a process stays alive for so many seconds, as `Leases.renew_worker`."""
        values = worker.id, worker.host, worker.pid, worker.place, str(seconds)
        self.query("", _RENEW, values, patience)

    def end_worker(self, worker: Worker) -> None:
        """Record that a process has ended, which frees its runs."""
        self.query("", _END, (worker.id,), SHORT_PATIENCE)
