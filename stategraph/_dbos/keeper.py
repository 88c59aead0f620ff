"""Keeper: says that this worker lives, and gives what dead ones had back to the queues.

A worker is a workflow of DBOS that is done at once, and whose row is written again with each beat. Its time is that of
the database, for beats of all workers: no clock of a machine is compared with that of another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import attrs
from dbos import DBOS, SetWorkflowID, WorkflowStatus

from stategraph._dbos.orders import TICK, TURN, WORKER, apart
from stategraph._dbos.worker import Worker
from stategraph._owners.holds import host_name
from stategraph._values.provenance import Owner

_KEPT = 3600.0  # seconds for which a worker is remembered that is dead: it may be frozen, and own runs
_SOON = 0.1  # seconds after which runs are looked at that are to be deleted
_BEATS = 3  # in the time after which a worker is dead


@attrs.frozen
class Beat:
    """The last beat of a worker.

    Attributes:
        worker: Its name.
        at_ms: When, as the database tells it.
        host: The machine.
        pid: The process.
    """

    worker: str
    at_ms: int
    host: str
    pid: int

    @classmethod
    def of(cls, found: WorkflowStatus) -> Beat:
        """Return what the workflow says that is a worker."""
        about: Mapping[str, Any] = found.attributes or {}
        worker = found.workflow_id.removeprefix(f"{WORKER}:")
        return cls(worker, found.updated_at or 0, about.get("host", ""), about.get("pid", 0))


class Keeper:
    """Watches over the workers of one DBOS, in a thread of its own.

    Args:
        application: The name that its workers share.
        name: The name of this worker.
        lapse: Seconds without a beat after which a worker is dead.
        recover: Gives a turn back to its queue if DBOS has it down as that of one of these workers.
    """

    def __init__(self, application: str, name: str, lapse: float, recover: Callable[[str, list[str]], object]) -> None:
        self.name, self.lapse = name, lapse
        self._asked: dict[str, Any] = {"application_name": application, "load_input": False, "load_output": False}
        self._recover = recover
        self._id = f"{WORKER}:{name}"
        self._about = {"host": host_name(), "pid": os.getpid()}
        self._alive = DBOS.workflow(name=WORKER)(_live)
        self._seen_dead: set[str] = set()
        self._beaten = self._judges_from = monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, worker: Worker, log: Any) -> None:
        """Make this worker known, and begin to watch."""
        self._join()
        self._thread = threading.Thread(target=self._watch, args=(worker, log), name="stategraph-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End watching. This worker is known no more: what it still had is free at once."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            apart(DBOS.delete_workflow, self._id)

    # ------------------------------------------------------------------ watching

    def _watch(self, worker: Worker, log: Any) -> None:
        self._tried(worker.forget_left, log)
        beat_at = monotonic()
        while not self._stop.wait(_SOON):
            self._tried(worker.forget_done, log)
            if monotonic() >= beat_at:
                beat_at = monotonic() + self.lapse / _BEATS
                self._tried(lambda: self.keep(worker), log)

    def _tried(self, work: Callable[[], object], log: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a database that is away comes back: watching goes on
            log.warning("stategraph could not watch over its workers: %s", error)

    def keep(self, worker: Worker) -> None:
        """Beat once, drop what is not this worker's any more, and give back what dead ones had."""
        self._beat()
        worker.drop_lost()
        beats = self._beats()
        now = beats.get(self.name)
        if now is None:  # it was taken for dead, for long: frozen perhaps, or cut off
            self._join()
            return
        living = {beat.worker for beat in beats.values() if not self._is_over(beat, now)}
        if not self._judges or min(living) != self.name:  # one of them is enough
            return
        self._give_back(beats, living, now)
        if beats.keys() - living - self._seen_dead:
            worker.forget_left()
        self._seen_dead = beats.keys() - living

    def _beat(self) -> None:
        """Say that this worker lives. If it could not for long, others may not have been able to either."""
        apart(DBOS.update_workflow_attributes, self._id, self._about)
        before, self._beaten = self._beaten, monotonic()
        if self._beaten - before > self.lapse:
            self._judges_from = self._beaten + self.lapse

    @property
    def _judges(self) -> bool:
        """Whether it can tell who is dead: nobody can while the database is away."""
        return self._judges_from <= monotonic() <= self._beaten + self.lapse

    def _give_back(self, beats: Mapping[str, Beat], living: set[str], now: Beat) -> None:
        """Give back the turns of workers that are dead, and those of nobody, which a worker leaves that has ended."""
        for found in apart(DBOS.list_workflows, status="PENDING", name=[TURN, TICK], **self._asked):
            owner = found.executor_id or ""
            is_old = (found.updated_at or 0) < now.at_ms - self.lapse * 1000
            if owner not in living and (owner in beats or is_old):
                self._recover(found.workflow_id, [owner])
        for beat in beats.values():
            if beat.at_ms < now.at_ms - max(_KEPT, 10 * self.lapse) * 1000:
                apart(DBOS.delete_workflow, f"{WORKER}:{beat.worker}")

    def is_dead(self, owner: Owner) -> bool:
        """Return whether the owner of a run is a worker whose beats have ended."""
        beats = self._beats()
        now = beats.get(self.name)
        found = [beat for beat in beats.values() if (beat.host, beat.pid) == (owner.host, owner.pid)]
        return self._judges and now is not None and bool(found) and all(self._is_over(beat, now) for beat in found)

    def _is_over(self, beat: Beat, now: Beat) -> bool:
        return beat.at_ms < now.at_ms - self.lapse * 1000

    def _beats(self) -> dict[str, Beat]:
        found = apart(DBOS.list_workflows, name=WORKER, **self._asked)
        return {beat.worker: beat for beat in map(Beat.of, found)}

    def _join(self) -> None:
        """Make this worker known to the others."""
        apart(self._begin)
        self._beat()

    def _begin(self) -> None:
        with SetWorkflowID(self._id):
            DBOS.start_workflow(self._alive)


def _live() -> None:
    """Do nothing: what counts is that DBOS knows of it."""
