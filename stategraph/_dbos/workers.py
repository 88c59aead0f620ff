"""DBOS in this process: performs turns, sends heartbeats, and gives back the turns of dead workers.

DBOS allows one instance in each process. A worker is a workflow that ends at once; each heartbeat updates its row.
Heartbeats carry the time of the database, so clocks of two machines are never compared.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import attrs
import dbos._dbos as inside_dbos
from dbos import DBOS, SetWorkflowID, WorkflowStatus
from sqlalchemy import make_url

from stategraph._dbos.orders import TICK, TURN, WORKER, enqueue, find_turns, outside_workflow, serializer_of, turns_of
from stategraph._owners.base import host_name
from stategraph._util.validators import is_count, is_seconds
from stategraph._values.provenance import Owner, RunStatus
from stategraph.errors import ConfigError, RunBusyError, RunCancelledError, RunLostError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores.toolkit import state_to_bytes
from stategraph.turns import Order, forget, from_bytes, graph_of, perform

_RETRY = 0.2  # seconds between two tries to perform a turn whose run has another owner
_POLL = 0.02  # seconds between two looks whether all completed runs are deleted


class GivenUp(BaseException):
    """Leaves a turn to another worker, which has it already or gets it. DBOS records nothing."""


class Worker:
    """Performs turns. DBOS keeps their outcomes, and the stores of the graphs keep everything else.

    Args:
        graphs: The graphs, by their names.
        max_recoveries: How many workers one step of a run may crash.
        fleet: The workers that share the database.

    Attributes:
        stops: Set when this worker takes no more turns.
    """

    def __init__(self, graphs: Mapping[str, StateGraph], max_recoveries: int, fleet: Fleet) -> None:
        self.stops = threading.Event()
        self._graphs, self._max_recoveries, self._fleet = graphs, max_recoveries, fleet
        self._active: dict[threading.Event, str] = {}  # may have a turn twice: given back, and delivered again
        self._done: dict[str, Order] = {}
        self._idle = threading.Condition()

    @property
    def active(self) -> list[str]:
        """The ids of the turns that this worker performs now."""
        return list(self._active.values())

    # ------------------------------------------------------------------ a turn

    def take_turn(self, id: str, kept: bytes) -> dict[str, Any]:
        """Perform a turn; return the outcome for DBOS."""
        cancel = threading.Event()
        with self._idle:
            self._active[cancel] = id
            if self.stops.is_set():
                cancel.set()
        try:
            order = from_bytes(kept)
            return self._outcome(id, order, self._performed(order, cancel))
        except (RunCancelledError, GivenUp):  # this worker stops, or lost the turn
            self._fleet.give_back(id)
            raise GivenUp from None
        except RunLostError:
            if id in self._own_turns():  # no worker took the run
                raise
            raise GivenUp from None
        finally:
            with self._idle:
                del self._active[cancel]
                self._idle.notify_all()

    def _performed(self, order: Order, cancel: threading.Event) -> State:
        """Perform an order. Wait for another owner of the run, unless that is a dead worker."""
        take_over = False
        while True:
            try:
                return perform(
                    order, self._graphs, cancel=cancel, take_over=take_over, max_recoveries=self._max_recoveries
                )
            except RunBusyError as busy:
                take_over = self._fleet.is_dead(busy.owner)
                if not take_over and cancel.wait(_RETRY):
                    raise GivenUp from None

    def _outcome(self, id: str, order: Order, state: State) -> dict[str, Any]:
        graph = graph_of(order.graph, self._graphs)
        is_temporary = state.status is RunStatus.COMPLETED and not graph.config.checkpoint.preserve
        if is_temporary:
            self._done[id] = order
        kept = state_to_bytes(state, serializer_of(graph)) if is_temporary else None
        return {"status": state.status.value, "step": state.step, "state": kept}

    def _own_turns(self) -> set[str]:
        return {turn.id for turn in find_turns(status="PENDING", executor_id=self._fleet.name)}

    # ------------------------------------------------------------------ beside turns

    def stop_lost(self) -> None:
        """Stop turns that DBOS has given to other workers, before their next nodes."""
        active = dict(self._active)
        if active:
            own = self._own_turns()
            for cancel, turn in active.items():
                if turn not in own:
                    cancel.set()

    def forget_done(self) -> None:
        """Delete completed runs that are not preserved, once DBOS has recorded their turns.

        Until then a run stays: a turn that is delivered again must find it.
        """
        waiting = dict(self._done)
        for turn in find_turns(workflow_ids=list(waiting)) if waiting else ():
            if turn.status == "SUCCESS":
                forget(waiting[turn.id], self._graphs)
            if not turn.is_open:
                del self._done[turn.id]

    def forget_left(self) -> None:
        """Delete completed runs that are not preserved and whose workers died before they deleted them."""
        for name, graph in self._graphs.items():
            if graph.config.checkpoint.preserve:
                continue
            for summary in list(graph.store.iter_runs(status=RunStatus.COMPLETED, graph=name)):
                newest = next(iter(turns_of(summary.run_id, load_output=True)), None)
                if newest is not None and newest.status == "SUCCESS" and newest.outcome["state"] is not None:
                    forget(Order(graph, summary.run_id, newest.number), self._graphs)

    def order_due(self) -> None:
        """Order the next turns of runs that are due. Other workers order the same ones, and each counts once."""
        for name, graph in self._graphs.items():
            now = graph.store._now_ns()
            for at, run_id in graph.store._due(name, _MOST_DUE):
                newest = next(iter(turns_of(run_id)), None) if at <= now else None
                if newest is not None and newest.status == "SUCCESS":  # after an error, a person goes on
                    order = Order(graph, run_id, newest.number + 1)
                    outside_workflow(enqueue, order, graph, newest.queue or DEFAULT_QUEUE, None, None)

    def stop(self, patience: float) -> bool:
        """Stop all turns before their next nodes; return whether all stopped within so many seconds."""
        with self._idle:
            self.stops.set()
            for cancel in self._active:
                cancel.set()
            has_stopped = self._idle.wait_for(lambda: not self._active, patience)
        for turn in self.active:
            self._fleet.give_back(turn)
        until = monotonic() + patience
        while self._done and monotonic() < until:  # the thread of the fleet calls forget_done
            sleep(_POLL)
        return has_stopped


_REMEMBERED = 3600.0  # seconds for which a dead worker is remembered: it may be frozen, and own runs
_PAUSE = 0.1  # seconds between two looks for runs to delete
_LOOK_FOR_DUE = 1.0  # seconds between two looks for runs that are due
_MOST_DUE = 100  # runs that are ordered at a time
_BEATS = 3  # heartbeats in the time after which a worker is dead


class Fleet:
    """The workers of one application on one database: their heartbeats show which of them are dead.

    Args:
        application: The name that the workers share.
        name: The name of this worker.
        lapse: Seconds without a heartbeat after which a worker is dead.
    """

    def __init__(self, application: str, name: str, lapse: float) -> None:
        self.name, self.lapse = name, lapse
        self._query: dict[str, Any] = {"application_name": application, "load_input": False, "load_output": False}
        self._id = f"{WORKER}:{name}"
        self._about = {"host": host_name(), "pid": os.getpid()}
        self._alive = DBOS.workflow(name=WORKER)(_live)
        self._seen_dead: set[str] = set()
        self._beaten = self._judges_from = monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, worker: Worker) -> None:
        """Announce this worker, and begin to watch the others in a thread."""
        self.join()
        self._thread = threading.Thread(target=self._watch, args=(worker,), name="stategraph-keeper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching, and remove this worker: its remaining turns are free at once."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            outside_workflow(DBOS.delete_workflow, self._id)

    def give_back(self, id: str, worker: str | None = None) -> None:
        """Put a workflow back on its queue, if DBOS has recorded that it belongs to a worker: this one by default.

        DBOS does so by itself for workers that restart under their old names, and has no public call for it.
        """
        instance = inside_dbos._dbos_global_instance
        if instance is not None:  # a turn may end after the runner is closed
            instance._sys_db.reenqueue_for_recovery(id, [self.name if worker is None else worker], _RECOVERED)

    def is_dead(self, owner: Owner) -> bool:
        """Return whether the owner of a run is a worker without recent heartbeats."""
        beats = self._beats()
        now = beats.get(self.name)
        about = {"host": owner.host, "pid": owner.pid}
        found = [beat for beat in beats.values() if beat.attributes == about]
        return self._judges and now is not None and bool(found) and all(self._is_over(beat, now) for beat in found)

    def join(self) -> None:
        """Announce this worker to the others."""
        outside_workflow(self._begin)
        self._beat()

    def _begin(self) -> None:
        with SetWorkflowID(self._id):
            DBOS.start_workflow(self._alive)

    # ------------------------------------------------------------------ watching

    def _watch(self, worker: Worker) -> None:
        self._try(worker.forget_left)
        beat_at = look_at = monotonic()
        while not self._stop.wait(_PAUSE):
            self._try(worker.forget_done)
            if monotonic() >= look_at and not worker.stops.is_set():
                look_at = monotonic() + _LOOK_FOR_DUE
                self._try(worker.order_due)
            if monotonic() >= beat_at:
                beat_at = monotonic() + self.lapse / _BEATS
                self._try(lambda: self.check(worker))

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the database may come back, so watching continues
            DBOS.logger.warning("stategraph could not watch its workers: %s", error)

    def check(self, worker: Worker) -> None:
        """Send a heartbeat, stop the turns that this worker has lost, and give back the turns of dead workers."""
        self._beat()
        worker.stop_lost()
        beats = self._beats()
        now = beats.get(self.name)
        if now is None:  # others took this worker for dead and removed it: it was frozen, or cut off
            self.join()
            return
        living = {name for name, beat in beats.items() if not self._is_over(beat, now)}
        if not self._judges or min(living) != self.name:  # one living worker does this for all
            return
        self._give_back_dead(beats, living, now)
        dead = beats.keys() - living
        if dead - self._seen_dead:
            worker.forget_left()
        self._seen_dead = dead

    def _beat(self) -> None:
        """Send a heartbeat. After a long gap, wait before judging others: they may have been cut off as well."""
        outside_workflow(DBOS.update_workflow_attributes, self._id, self._about)
        before, self._beaten = self._beaten, monotonic()
        if self._beaten - before > self.lapse:
            self._judges_from = self._beaten + self.lapse

    @property
    def _judges(self) -> bool:
        """Whether this worker knows which others are dead: not while the database is away."""
        return self._judges_from <= monotonic() <= self._beaten + self.lapse

    def _give_back_dead(self, beats: Mapping[str, WorkflowStatus], living: set[str], now: WorkflowStatus) -> None:
        """Give back the turns of dead and of unknown workers, and remove workers that died long ago."""
        for found in outside_workflow(DBOS.list_workflows, status="PENDING", name=[TURN, TICK], **self._query):
            owner = found.executor_id or ""
            if owner not in living and (owner in beats or self._is_over(found, now)):
                self.give_back(found.workflow_id, owner)
        for beat in beats.values():
            if self._is_over(beat, now, max(_REMEMBERED, 10 * self.lapse)):
                outside_workflow(DBOS.delete_workflow, beat.workflow_id)

    def _is_over(self, beat: WorkflowStatus, now: WorkflowStatus, lapse: float | None = None) -> bool:
        """Return whether a row was written so many seconds before the last heartbeat of this worker."""
        return (beat.updated_at or 0) < (now.updated_at or 0) - (lapse or self.lapse) * 1000

    def _beats(self) -> dict[str, WorkflowStatus]:
        """Return the rows of all workers by name. The time of a row is that of the last heartbeat."""
        found = outside_workflow(DBOS.list_workflows, name=WORKER, **self._query)
        return {beat.workflow_id.removeprefix(f"{WORKER}:"): beat for beat in found}


def _live() -> None:
    """Do nothing: DBOS only has to know this workflow."""


DEFAULT_QUEUE = "stategraph"
_PATIENCE = 30.0  # seconds to wait for another writer of a SQLite file, as DBOS does
_RECOVERED = "_dbos_internal_queue"  # DBOS puts recovered workflows here that were on no queue


def _is_count(queue: Queue, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not is_count(value, at_least=1):
        raise ConfigError(f"queue.{attribute.name}", value, "a positive number of turns, or None for no limit")


def _is_rate(queue: Queue, attribute: object, value: Any) -> None:
    is_pair = isinstance(value, tuple) and len(value) == 2 and is_count(value[0], at_least=1) and is_seconds(value[1])
    if value is not None and not is_pair:
        raise ConfigError("queue.rate", value, "how many turns in how many seconds, such as (50, 60.0)")


@attrs.frozen
class Queue:
    """Limits the turns of a queue.

    Attributes:
        concurrency: How many run at the same time among all workers; None for no limit.
        per_worker: How many run at the same time in each worker; None for no limit.
        rate: How many begin in how many seconds, as in ``(50, 60.0)``; None for no limit.
    """

    concurrency: int | None = attrs.field(default=None, validator=_is_count)
    per_worker: int | None = attrs.field(default=None, validator=_is_count)
    rate: tuple[int, float] | None = attrs.field(default=None, validator=_is_rate)

    def declare(self, name: str, poll: float) -> None:
        """Declare the queue to DBOS. Workers look for its turns every `poll` seconds."""
        DBOS.register_queue(
            name,
            global_concurrency=self.concurrency,
            worker_concurrency=self.per_worker,
            limiter=None if self.rate is None else {"limit": self.rate[0], "period": self.rate[1]},
            polling_interval_sec=poll,
            on_conflict="always_update",
        )


def share(url: str) -> None:
    """Create a private SQLite file in WAL mode, which several processes can share. DBOS would not do that."""
    parts = make_url(url)
    if parts.get_backend_name() != "sqlite" or not parts.database or parts.database == ":memory:":
        return
    path = Path(parts.database)
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, timeout=_PATIENCE)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
