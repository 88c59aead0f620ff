"""Leases of a PostgreSQL store, and which of its runs are cancelled."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from stategraph._owners.base import Fence
from stategraph._owners.leases import Claim, Lease, Worker
from stategraph._values import clock
from stategraph._values.ids import nested_range
from stategraph.stores._rows.sql_table import SqlTable

_NOW_NS = "(extract(epoch FROM clock_timestamp()) * 1000000000)::bigint"
_FENCE = "SELECT CASE WHEN worker IS NULL THEN 0 ELSE fence END, cancelled FROM {s}.lease WHERE run_id = $1::text"
_ACQUIRE = (
    "WITH got AS (INSERT INTO {s}.lease AS l (run_id, worker, fence, since_ns, cancelled) "
    f"VALUES ($1::text, $2::text, $3::bigint, {_NOW_NS}, false) ON CONFLICT (run_id) DO UPDATE "
    "SET worker = excluded.worker, fence = excluded.fence, since_ns = excluded.since_ns "
    "WHERE l.worker IS NULL OR l.fence IN ($3, $4::bigint) RETURNING l.run_id, l.fence, l.cancelled), "
    # In the rows of the run, too: whoever is about to write one of them is waited for, or finds another fence.
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
    # A run that another sweeper claims right now is locked by it, and left to it.
    "pick AS MATERIALIZED (SELECT r.number, r.run_id, l.fence FROM {s}.run AS r LEFT JOIN {s}.lease AS l "
    "ON l.run_id = r.run_id AND l.worker IS NOT NULL WHERE r.graph = $1::text "
    # By the index of the status: with an = the planner may read all runs by their numbers, the complete ones first.
    "AND r.status BETWEEN 'active' AND 'active' "
    "AND r.number NOT IN (SELECT json_array_elements_text($4::json)::bigint) AND strpos(r.run_id, '/#') = 0 "
    # Its own fence: a claim whose answer was lost is made once more, and comes to the same run.
    "AND (l.fence = $3::bigint OR NOT EXISTS "
    "(SELECT FROM {s}.worker AS w, now WHERE w.id = l.worker AND w.until > now.at)) "
    "ORDER BY r.status, r.number LIMIT 1 FOR UPDATE OF r SKIP LOCKED), "
    # One that was claimed a moment ago has another fence by now than the one that this statement began with.
    "got AS (INSERT INTO {s}.lease AS l (run_id, worker, fence, since_ns, cancelled) "
    f"SELECT run_id, $2::text, $3::bigint, {_NOW_NS}, false FROM pick ON CONFLICT (run_id) DO UPDATE "
    "SET worker = excluded.worker, fence = excluded.fence, since_ns = excluded.since_ns "
    "WHERE l.worker IS NULL OR l.fence = (SELECT fence FROM pick) RETURNING l.run_id, l.fence, l.cancelled), "
    "own AS (UPDATE {s}.run AS r SET fence = got.fence FROM got WHERE r.run_id = got.run_id), "
    "nested AS (UPDATE {s}.run AS r SET fence = got.fence FROM got "
    "WHERE r.run_id > got.run_id || '/#' AND r.run_id < got.run_id || '/$') "
    "SELECT pick.number, got.run_id, coalesce(got.cancelled, false), "
    "array_to_string(ARRAY(SELECT number FROM {s}.run WHERE status = 'active' "
    "AND number IN (SELECT json_array_elements_text($4)::bigint)), ' ') "
    "FROM pick LEFT JOIN got USING (run_id)"
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
_TAKE_UP = (
    "WITH gone AS (DELETE FROM {s}.lease WHERE run_id = $1::text AND worker IS NULL) "
    "UPDATE {s}.lease SET cancelled = false, by_whom = NULL WHERE run_id = $1 AND worker IS NOT NULL RETURNING 1"
)

_SHORT = 5.0  # seconds: of what is said again later, or at the end of a process
_SHORTEST = 1.0  # seconds that a server may take in any case


class LeasingTable(SqlTable):
    """A table that knows who has which run (see `stategraph._owners.leases.Leases`)."""

    _patience: float

    @abstractmethod
    def change(self, run_id: str, statement: str, values: Sequence[Any], patience: float | None = None) -> list[Any]:
        """Return what a statement finds that writes, and may be made twice."""

    def fence(self, run_id: str) -> Fence:
        """Return the fence of a run, 0 if nobody has it, and whether the run is cancelled."""
        found = self.query(run_id, _FENCE, (run_id,))
        return (int(found[0][0]), bool(found[0][1])) if found else (0, False)

    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        """Note that a run is cancelled or not, durably."""
        if is_cancelled:
            self.change(run_id, _CANCEL, (run_id, by))
        else:
            self.change(run_id, _TAKE_UP, (run_id,))

    def cancelled_by(self, run_id: str) -> str | None:
        """Return who has cancelled a run, if that was said."""
        found = self.query(run_id, _CANCELLED_BY, (run_id,))
        return found[0][0] if found else None

    def acquire(self, run_id: str, worker: Worker, fence: int, instead: int) -> bool | None:
        """Lease a run, as `Leases.acquire`."""
        values = run_id, worker.id, fence, instead, *nested_range(run_id)
        found = self.change(run_id, _ACQUIRE, values)
        return bool(found[0][0]) if found else None

    def lease(self, run_id: str) -> Lease | None:
        """Return who has a run."""
        found = self.query(run_id, _LEASE, (run_id,))
        if not found:
            return None
        fence, worker_id, since_ns, host, pid, place, until_ns, is_running = found[0]
        worker = Worker(worker_id, host or "?", pid or 0, place or "")
        until = None if until_ns is None else clock.to_datetime(until_ns)
        return Lease(fence, worker, clock.to_datetime(since_ns), until, is_running)

    def leases(self) -> list[tuple[str, int, Worker]]:
        """Return the leases that have not run out, as `Leases.leases`."""
        found = self.query("", _LEASES, ())
        return [(run_id, fence, Worker(*worker)) for run_id, fence, *worker in found]

    def claim(self, graph: str, worker: Worker, fence: int, tried: Sequence[int]) -> Claim | None:
        """Lease the oldest run that was left unfinished, as `Claims.claim`."""
        found = self.change("", _CLAIM, (graph, worker.id, fence, json.dumps(list(tried))))
        if not found:
            return None
        number, run_id, is_cancelled, left = found[0]
        return Claim(number, run_id, is_cancelled, [*map(int, left.split())])

    def workers_at(self, machine: str) -> list[Worker]:
        """Return the processes of a machine that have said that they are there."""
        return [Worker(*found) for found in self.query("", _WORKERS_AT, (f"{machine}/",))]

    def free(self, run_id: str, fence: int) -> None:
        """Let go of a run, if this is still its fence; also of one whose id is not known, as its claim was cut off."""
        patience = min(self._patience, _SHORT)
        if run_id:
            self.change(run_id, _FREE, (run_id, fence), patience)
        else:
            self.change(run_id, _FREE_CLAIMED, (fence,), patience)

    def renew_worker(self, worker: Worker, seconds: float) -> None:
        """Say that a process is there, and will be for so long."""
        values = worker.id, worker.host, worker.pid, worker.place, str(seconds)
        self.change("", _RENEW, values, min(self._patience, max(_SHORTEST, seconds / 3)))

    def end_worker(self, worker: Worker) -> None:
        """Say that a process has ended: all that it has is free."""
        self.change("", _END, (worker.id,), min(self._patience, _SHORT))
