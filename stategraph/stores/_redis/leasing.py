"""Leases of a Redis store, and which of its runs are cancelled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from stategraph._owners.holds import Fence
from stategraph._owners.leases import Lease, Worker
from stategraph._values import clock
from stategraph.stores._redis.connections import Asked, Nodes
from stategraph.stores._redis.scripts import ACQUIRE, CANCEL, FREE, LEASES, RENEW, TAKE_UP

_SHORT = 5.0  # seconds: of what is said again soon, or at the end of a process


class Leasing(ABC):
    """Who has which run, beside the runs of the store (see `stategraph._owners.leases.Leases`).

    A process is in one partition, so the clock of one server says how long it is there.
    """

    _nodes: Nodes
    _patience: float

    @abstractmethod
    def query(self, run_id: str, *several: Asked) -> list[Any]:
        """Return all that is asked for."""

    @abstractmethod
    def change(self, run_id: str, asked: Asked, patience: float | None = None, *, confirms: bool = True) -> Any:
        """Return the answer to what writes, and may be asked twice."""

    def fence(self, run_id: str) -> Fence:
        """Return the fence of a run, 0 if nobody has it, and whether the run is cancelled."""
        worker, fence, cancelled = self._of_lease(run_id, "worker", "fence", "cancelled")
        return (int(fence) if worker and fence else 0), cancelled is not None

    def set_cancelled(self, run_id: str, is_cancelled: bool, by: str | None = None) -> None:
        """Note that a run is cancelled or not, durably; by whom, the first who cancels it says."""
        values = (run_id, "" if by is None else f"={by}") if is_cancelled else (run_id,)
        self.change(run_id, Asked(self._nodes.partition_of(run_id), CANCEL if is_cancelled else TAKE_UP, values))

    def cancelled_by(self, run_id: str) -> str | None:
        """Return who has cancelled a run, if that was said."""
        (by,) = self._of_lease(run_id, "by")
        return None if by is None else by.decode()

    def acquire(self, run_id: str, worker: Worker, fence: int, instead: int) -> bool | None:
        """Lease a run, as `Leases.acquire`."""
        values = run_id, worker.id, fence, instead
        found = self.change(run_id, Asked(self._nodes.partition_of(run_id), ACQUIRE, values))
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
        by_partition = self.query("", *(Asked(partition, LEASES, ()) for partition in range(self._nodes.count)))
        found = [lease for leases in by_partition for lease in leases]
        workers = {worker_id: self._worker(worker_id) for worker_id in {worker_id for _, _, worker_id in found}}
        running = {worker_id: worker for worker_id, (worker, _, is_running) in workers.items() if is_running}
        return [(run.decode(), int(fence), running[by]) for run, fence, by in found if by in running]

    def _worker(self, worker_id: bytes) -> tuple[Worker, int | None, bool]:
        """Return a process, until when it is there in microseconds, and whether it is, by the clock of its server."""
        name = worker_id.decode()
        partition = self._nodes.partition_of(name)
        key = self._nodes.tags[partition] + b":worker:" + worker_id
        commands = ("HMGET", key, "host", "pid", "place", "until"), ("TIME",)
        (host, pid, place, until), now = self.query("", *(Asked(partition, None, one) for one in commands))
        worker = Worker(name, (host or b"?").decode(), int(pid or 0), (place or b"").decode())
        until_us = None if until is None else int(until)
        return worker, until_us, until_us is not None and until_us > int(now[0]) * 1_000_000 + int(now[1])

    def free(self, run_id: str, fence: int) -> None:
        """Let go of a run, if this is still its fence."""
        asked = Asked(self._nodes.partition_of(run_id), FREE, (run_id, fence))
        self.change(run_id, asked, min(self._patience, _SHORT), confirms=False)

    def renew_worker(self, worker: Worker, seconds: float) -> None:
        """Say that a process is there, and will be for so long."""
        values = worker.id, worker.host, worker.pid, worker.place, round(seconds * 1_000_000)
        asked = Asked(self._nodes.partition_of(worker.id), RENEW, values)
        self.change("", asked, min(self._patience, max(_SHORT, seconds / 3)), confirms=False)

    def end_worker(self, worker: Worker) -> None:
        """Say that a process has ended: all that it has is free."""
        partition = self._nodes.partition_of(worker.id)
        key = self._nodes.tags[partition] + b":worker:" + worker.id.encode()
        self.change("", Asked(partition, None, ("DEL", key)), min(self._patience, _SHORT), confirms=False)

    def _of_lease(self, run_id: str, *names: str) -> Sequence[bytes | None]:
        partition = self._nodes.partition_of(run_id)
        key = self._nodes.tags[partition] + b":lease:" + run_id.encode()
        (found,) = self.query(run_id, Asked(partition, None, ("HMGET", key, *names)))
        return list(found)
