"""The records of a "redis" store: its scripts, and what becomes of those that are not answered."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import redis

from stategraph._owners.base import Fence
from stategraph._owners.leases import Lease, LeaseOwners, Worker
from stategraph._values import clock
from stategraph._values.ids import nested_range
from stategraph.errors import CheckpointError, CheckpointSaveError, ConfigError, FormatError
from stategraph.stores._checks import RunFilter
from stategraph.stores._redis import records
from stategraph.stores._redis.connections import (
    Asked,
    Links,
    Nodes,
    UnfitServerError,
    explained,
    is_passing,
    unfit,
)
from stategraph.stores._redis.scripts import (
    ACQUIRE,
    CANCEL,
    CHAIN,
    FREE,
    LEASES,
    REMOVE,
    RENEW,
    RUN,
    TAKE_UP,
)
from stategraph.stores._rows.records import MAX_STEP, CheckpointRecord, RunRecord, Unreadable, Write
from stategraph.stores._rows.table import Identify
from stategraph.stores._servers.connections import Connections
from stategraph.stores._servers.table import ServerTable

_SHORT = 5.0  # seconds: of what is said again soon, or at the end of a process
_MOST = 8  # threads that use a connection at the same time
_LAYOUT = 1  # of the keys; a newer one is refused
_WRITTEN, _WAS_THERE = 1, 2  # answers to a save


class RedisTable(ServerTable[Links]):
    """Records and leases in a Redis database.

    A process is in one partition, so the clock of one server says how long it is there. What is not answered is asked
    once more: what stands there tells whether it was done before.

    Args:
        store: The store, as errors name it.
        nodes: Where the partitions are.
        replicas: How many replicas must have what is written.
        patience: How many seconds anything may take.
        lease: How many seconds a run stays with a process that is not heard of.
    """

    failures = (redis.RedisError, UnicodeError)

    def __init__(self, store: object, nodes: Nodes, *, replicas: int, patience: float, lease: float) -> None:
        self.store, self._nodes = store, nodes
        self._replicas, self._patience = replicas, patience
        self._is_open = False
        self._whole = _Whole()
        self._connections = Connections(partial(Links, nodes), _MOST)
        self.owners = LeaseOwners(self, lease)

    def open(self, identify: Identify) -> None:
        """Connect to the server, and find the id of the store; a new store gets it here.

        Raises:
            ConfigError: the server would lose what it acknowledges, or the store has another number of partitions.
            FormatError: its keys are of a newer version.
            CheckpointError: the server cannot be asked.
        """
        key, count = self._nodes.tags[0] + b":store", self._nodes.count
        made = [("HSETNX", key, name, value) for name, value in (("partitions", count), ("layout", _LAYOUT))]
        commands = [*made, ("HSETNX", key, "id", os.urandom(16)), ("HMGET", key, "partitions", "layout", "id")]
        *_, (partitions, layout, store_id) = self._answers("", [Asked(0, None, command) for command in commands])
        if int(layout) > _LAYOUT:
            reads = f"this version of stategraph reads up to {_LAYOUT}; update it"
            raise FormatError("", f"the {self.store} has keys of version {int(layout)} and {reads}")
        if int(partitions) != count:
            raise ConfigError(
                "checkpoint.options.partitions", count, f"{int(partitions)}: the {self.store} was made with so many"
            )
        identify(store_id)
        self._is_open = True

    # ------------------------------------------------------------------ asking

    def _may_pass(self, error: Exception) -> bool:  # as in a failover; a store is not opened on a replica
        return is_passing(error) and (self._is_open or not isinstance(error, UnfitServerError))

    def _explained(self, error: Exception, run_id: str, kind: type[CheckpointError]) -> CheckpointError | ConfigError:
        if isinstance(error, UnfitServerError) and not self._is_open:
            return unfit(error)
        return explained(error, run_id, self.store, kind)

    def _answers(
        self, run_id: str, several: Sequence[Asked], patience: float | None = None, replicas: int = 0
    ) -> list[Any]:
        return self._ask(run_id, lambda links: _checked(links.ask(several, replicas)), patience=patience)

    def query(self, run_id: str, *several: Asked) -> list[Any]:
        """Return all that is asked for."""
        return self._ask_surely([run_id], lambda links: _checked(links.ask(several)))

    def change(self, run_id: str, asked: Asked, patience: float | None = None, *, confirms: bool = True) -> Any:
        """Return the answer to what writes, and may be asked twice; once the replicas have it, unless that is for
        somebody who will ask again."""
        replicas = self._replicas if confirms else 0
        return self._answers(run_id, [asked], patience, replicas)[0]

    # ------------------------------------------------------------------ writing

    def apply(self, writes: Sequence[Write]) -> Sequence[bool | Exception]:
        """Make writes in one round trip, as `Table.apply`; each as a whole, and whatever becomes of the others."""
        written: list[bool | Exception] = [False] * len(writes)
        asked_for: dict[int, Asked] = {}
        for place, write in enumerate(writes):
            try:
                if not write.is_lost:
                    asked_for[place] = records.script_of(write, self._nodes, self.store)
            except CheckpointSaveError as error:
                if len(writes) == 1:
                    raise
                written[place] = error
        if asked_for:
            found = self._applied([writes[place] for place in asked_for], list(asked_for.values()))
            for place, outcome in zip(asked_for, found, strict=True):
                # Of one who was asked for in time, and was late all the same.
                written[place] = False if writes[place].is_lost else outcome
        return written

    def _applied(self, writes: Sequence[Write], several: Sequence[Asked]) -> list[bool | Exception]:
        is_again = False

        def write(links: Links) -> list[bool | Exception]:
            nonlocal is_again
            was_again, is_again = is_again, True
            found = links.ask(several, self._replicas)
            if len(found) == 1 or any(isinstance(answer, Exception) and is_passing(answer) for answer in found):
                _checked(found)
            # What was not written now may have been before, when the answer was lost.
            return [self._outcome(*one, was_again) for one in zip(writes, found, strict=True)]

        return self._ask_surely([one.run_id for one in writes], write, CheckpointSaveError)

    def _outcome(self, write: Write, answer: Any, was_again: bool) -> bool | Exception:
        if isinstance(answer, Exception):
            error = explained(answer, "", self.store, CheckpointSaveError)
            error.__cause__ = answer
            return error
        code, is_cancelled = answer if isinstance(answer, list) else (answer, False)
        if is_cancelled and write.ownership is not None:
            write.ownership.is_cancelled = True
        return bool(code == _WRITTEN or (code == _WAS_THERE and was_again))

    # ------------------------------------------------------------------ removing

    def remove_damaged(self, run_id: str) -> bool:
        try:
            key = run_id.encode(errors="surrogateescape")
        except UnicodeEncodeError:  # it is not what `runs` reports of a text that is no UTF-8
            return False
        answers = self._answers(run_id, self._nodes.on_each(REMOVE, key, "", "", 0, 0))
        return any(code == _WRITTEN for code, _ in answers)

    # ------------------------------------------------------------------ reading

    def run(self, run_id: str) -> RunRecord | None:
        whole = self._whole.of(run_id)
        if whole is None:
            (whole,) = self.query(run_id, self._nodes.command(run_id, "HMGET", b":run:", "n", "d"))
        number, record, *_ = whole
        if number is None and record is None:
            return None
        return records.found_run(self, run_id, number, record)

    def runs(self, which: RunFilter, limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        if which.only_ids is not None:
            return self._runs_of(sorted(which.only_ids), limit, before)
        found = records.runs(lambda several: self.query("", *several), self._nodes.count, which, limit, before, self)
        return list(found if limit < 0 else islice(found, limit))

    def _runs_of(self, run_ids: Sequence[str], limit: int, before: int | None) -> list[RunRecord | Unreadable]:
        asked = (self._nodes.command(run_id, "HMGET", b":run:", "n", "d") for run_id in run_ids)
        found = zip(run_ids, self.query("", *asked), strict=True)
        saved = [(run_id, *kept) for run_id, kept in found if kept != [None, None]]
        runs = [records.run_or_unreadable(self, *one) for one in saved]
        wanted = [run for run in runs if before is None or (run.number or 0) < before]
        wanted.sort(key=lambda run: run.number or 0, reverse=True)
        return wanted if limit < 0 else wanted[:limit]

    def change_token(self) -> str:
        commands = [("GET", tag + b":changes") for tag in self._nodes.tags]
        counts = self.query("", *(Asked(partition, None, one) for partition, one in enumerate(commands)))
        return "-".join((count or b"0").decode() for count in counts)

    def nested_ids(self, run_id: str) -> list[str]:
        first, last = nested_range(run_id)
        nested = self._nodes.command(run_id, "ZRANGEBYLEX", b":nested", f"({first}", f"({last}")
        (found,) = self.query(run_id, nested)
        return [nested_id.decode(errors="surrogateescape") for nested_id in found]

    def chain(self, run_id: str, sequence: int) -> list[CheckpointRecord]:
        whole = self._whole.of(run_id)
        found = None if whole is None else records.newest_of(whole, sequence)
        if found is None:
            self._whole.forget()  # what is read now may be younger
            (found,) = self.query(run_id, self._nodes.script(run_id, CHAIN, sequence))
        if not found:
            return []
        _, members, payloads = found
        rows = [records.row_of(run_id, *one) for one in zip(members, payloads, strict=True)]
        return rows if rows[-1].sequence == sequence else []

    def index(self, run_id: str, first: int = 0, last: int = MAX_STEP) -> list[CheckpointRecord]:
        whole = self._whole.of(run_id)
        if whole is not None:
            rows = (records.row_of(run_id, member, b"") for member in whole[2])
            return [row for row in rows if first <= row.sequence <= last]
        (found,) = self.query(run_id, self._nodes.command(run_id, "ZRANGEBYSCORE", b":rows:", first, last))
        return [records.row_of(run_id, member, b"") for member in found]

    @contextmanager
    def undisturbed(self, run_id: str) -> Iterator[None]:
        (whole,) = self.query(run_id, self._nodes.script(run_id, RUN))
        self._whole.run = run_id, whole
        try:
            yield
        finally:
            self._whole.forget()

    # ------------------------------------------------------------------ leases

    def fence(self, run_id: str) -> Fence:
        """Return the fence of a run, 0 if nobody has it, and whether the run is cancelled."""
        worker, fence, cancelled = self._of_lease(run_id, "worker", "fence", "cancelled")
        return (int(fence) if worker and fence else 0), cancelled is not None

    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        """Note that a run is cancelled or not, durably; by whom, the first who cancels it says."""
        cancel = self._nodes.script(run_id, CANCEL, "" if by is None else f"={by}")
        self.change(run_id, cancel if is_cancelled else self._nodes.script(run_id, TAKE_UP))

    def cancelled_by(self, run_id: str) -> str | None:
        """Return who has cancelled a run, if that was said."""
        (by,) = self._of_lease(run_id, "by")
        return None if by is None else by.decode()

    def acquire(self, run_id: str, worker: Worker, fence: int, instead: int) -> bool | None:
        """Lease a run, as `Leases.acquire`."""
        found = self.change(run_id, self._nodes.script(run_id, ACQUIRE, worker.id, fence, instead))
        return None if found is None else bool(found)

    def lease(self, run_id: str) -> Lease | None:
        """Return who has a run."""
        worker_id, fence, since = self._of_lease(run_id, "worker", "fence", "since")
        if worker_id is None or fence is None:
            return None
        worker, until_us, is_running = self._worker(worker_id)
        until = None if until_us is None else clock.to_datetime(until_us * 1000)
        return Lease(int(fence), worker, clock.to_datetime(int(since or 0) * 1000), until, is_running)

    def leases(self) -> list[tuple[str, int, Worker]]:
        """Return the leases that have not run out, as `Leases.leases`."""
        by_partition = self.query("", *self._nodes.on_each(LEASES))
        found = [lease for leases in by_partition for lease in leases]
        workers = {worker_id: self._worker(worker_id) for worker_id in {worker_id for _, _, worker_id in found}}
        running = {worker_id: worker for worker_id, (worker, _, is_running) in workers.items() if is_running}
        return [(run.decode(), int(fence), running[by]) for run, fence, by in found if by in running]

    def _worker(self, worker_id: bytes) -> tuple[Worker, int | None, bool]:
        """Return a process, until when it is there in microseconds, and whether it is, by the clock of its server."""
        name = worker_id.decode()
        about = self._nodes.command(name, "HMGET", b":worker:", "host", "pid", "place", "until")
        (host, pid, place, until), now = self.query("", about, Asked(about.partition, None, ("TIME",)))
        worker = Worker(name, (host or b"?").decode(), int(pid or 0), (place or b"").decode())
        until_us = None if until is None else int(until)
        return worker, until_us, until_us is not None and until_us > int(now[0]) * 1_000_000 + int(now[1])

    def free(self, run_id: str, fence: int) -> None:
        """Let go of a run, if this is still its fence."""
        free = self._nodes.script(run_id, FREE, fence)
        self.change(run_id, free, min(self._patience, _SHORT), confirms=False)

    def renew_worker(self, worker: Worker, seconds: float) -> None:
        """Say that a process is there, and will be for so long."""
        about = worker.host, worker.pid, worker.place, round(seconds * 1_000_000)
        renew = self._nodes.script(worker.id, RENEW, *about)
        self.change("", renew, min(self._patience, max(_SHORT, seconds / 3)), confirms=False)

    def end_worker(self, worker: Worker) -> None:
        """Say that a process has ended: all that it has is free."""
        end = self._nodes.command(worker.id, "DEL", b":worker:")
        self.change("", end, min(self._patience, _SHORT), confirms=False)

    def _of_lease(self, run_id: str, *names: str) -> Sequence[bytes | None]:
        (found,) = self.query(run_id, self._nodes.command(run_id, "HMGET", b":lease:", *names))
        return list(found)


class _Whole(threading.local):
    """What was read of a run in this thread at one time.

    Attributes:
        run: Its id, and what was found; None if there is none, or it may be older than what was read since.
    """

    run: tuple[str, list[Any]] | None = None

    def of(self, run_id: str) -> list[Any] | None:
        """Return what was found, if it is this run."""
        return self.run[1] if self.run is not None and self.run[0] == run_id else None

    def forget(self) -> None:
        """Read anew from now on."""
        self.run = None


def _checked(answers: list[Any]) -> list[Any]:
    """Return answers. Raises the first one that is an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers
