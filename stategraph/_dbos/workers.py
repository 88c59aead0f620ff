"""DBOS in this process: performs turns, beats, and gives the turns of dead workers back.

DBOS allows one instance in each process. A worker is a workflow that is done at once; each beat writes its row again.
Beats carry the time of the database, so no clock of one machine is compared with that of another.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import attrs
import dbos._dbos as inside_dbos
from dbos import DBOS, DBOSConfig, SetWorkflowID, WorkflowStatus
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from stategraph._dbos.codec import Codec
from stategraph._dbos.orders import TICK, TURN, WORKER, Ordered, find_turns, outside_workflow, turns_of
from stategraph._owners.base import host_name
from stategraph._util.validators import is_count, is_seconds
from stategraph._values.provenance import Owner, RunStatus
from stategraph.errors import CheckpointError, ConfigError, RunBusyError, RunCancelledError, RunLostError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores.toolkit import state_to_bytes
from stategraph.turns import Order, forget, from_bytes, graph_of, perform

_LOOK_AGAIN = 0.2  # seconds after which a run that is at work elsewhere is asked for again
_NOTED = 0.02  # seconds between looks at what DBOS has noted


class GivenUp(BaseException):
    """A turn is not done here: another worker has it, or is to have it. DBOS notes nothing of that."""


class Worker:
    """Performs turns. DBOS keeps what came of each, and the store of its graph all else.

    Args:
        name: What DBOS knows this process by.
        graphs: The graphs, by their names.
        max_recoveries: How many workers one step of a run may take down.
        is_dead: Whether an owner of a run is a worker that is known to be dead.
        give_back: Gives a turn back to its queue, if DBOS has it down as this worker's.

    Attributes:
        stops: Set once no more turns are to be performed.
    """

    def __init__(
        self,
        name: str,
        graphs: Mapping[str, StateGraph],
        max_recoveries: int,
        is_dead: Callable[[Owner], bool],
        give_back: Callable[[str], object],
    ) -> None:
        self.name = name
        self.stops = threading.Event()
        self._graphs, self._max_recoveries = graphs, max_recoveries
        self._is_dead, self._give_back = is_dead, give_back
        self._active: dict[threading.Event, str] = {}  # a turn may be here twice: given back, and delivered once more
        self._done: dict[str, Order] = {}
        self._idle = threading.Condition()
        self._forgetting = threading.Lock()  # the keeper forgets as well as whoever closes

    @property
    def active(self) -> list[str]:
        """The ids of the turns that are being performed."""
        return list(self._active.values())

    # ------------------------------------------------------------------ a turn

    def take_turn(self, id: str, kept: bytes) -> dict[str, Any]:
        """Perform the turn of an id; return what DBOS is to keep of what came of it."""
        cancel = threading.Event()
        with self._idle:
            self._active[cancel] = id
            if self.stops.is_set():
                cancel.set()
        try:
            order = from_bytes(kept)
            state = self._performed(order, cancel)
            return self._outcome(id, order, state)
        except (RunCancelledError, GivenUp):  # this worker stops, or the turn is not its own any more
            self._give_back(id)
            raise GivenUp from None
        except RunLostError:
            if id in self._own_turns():  # somebody who is no worker has taken the run
                raise
            raise GivenUp from None
        finally:
            with self._idle:
                del self._active[cancel]
                self._idle.notify_all()

    def _performed(self, order: Order, cancel: threading.Event) -> State:
        """Perform an order. Who is at work on its run is waited for, unless it is a worker that is dead or frozen."""
        take_over = False
        while True:
            try:
                return perform(
                    order, self._graphs, cancel=cancel, take_over=take_over, max_recoveries=self._max_recoveries
                )
            except RunBusyError as busy:
                take_over = self._is_dead(busy.owner)
                if not take_over and cancel.wait(_LOOK_AGAIN):
                    raise GivenUp from None

    def _outcome(self, id: str, order: Order, state: State) -> dict[str, Any]:
        graph = graph_of(order.graph, self._graphs)
        goes = state.status is RunStatus.COMPLETED and not graph.config.checkpoint.preserve
        if goes:
            self._done[id] = order
        return {"status": state.status.value, "step": state.step, "state": state_to_bytes(state) if goes else None}

    def _own_turns(self) -> set[str]:
        return {turn.id for turn in find_turns(status="PENDING", executor_id=self.name)}

    # ------------------------------------------------------------------ beside turns

    def forget_lost(self) -> None:
        """Stop turns that DBOS has given to others meanwhile, before their next node."""
        active = dict(self._active)
        if active:
            own = self._own_turns()
            for cancel, turn in active.items():
                if turn not in own:
                    cancel.set()

    def forget_done(self) -> bool:
        """Delete runs that are not to be preserved, once DBOS has noted that they are done; return whether any is left.

        Until then they stay: a turn that is delivered again has to find them.
        """
        with self._forgetting:
            waiting = dict(self._done)
            if waiting:
                for turn in find_turns(workflow_ids=list(waiting)):
                    if turn.status == "SUCCESS":
                        forget(waiting[turn.id], self._graphs)
                    if not turn.is_open:
                        del self._done[turn.id]
            return bool(self._done)

    def forget_left(self) -> None:
        """Delete runs that are done and that a worker has left, because it died before it could."""
        for graph in self._graphs.values():
            if graph.config.checkpoint.preserve:
                continue
            for summary in list(graph.store.iter_runs(status=RunStatus.COMPLETED, graph=graph.config.name)):
                newest = next(iter(turns_of(summary.run_id, load_output=True)), None)
                if newest is not None and _is_noted(newest):
                    forget(Order(graph, summary.run_id, newest.number), self._graphs)

    def stop(self, patience: float) -> bool:
        """Stop all turns before their next nodes; return whether they have stopped within so many seconds."""
        with self._idle:
            self.stops.set()
            for cancel in self._active:
                cancel.set()
            return self._idle.wait_for(lambda: not self._active, patience)

    def settle(self, patience: float) -> None:
        """Wait until DBOS has noted what was done here, for so many seconds at most."""
        until = monotonic() + patience
        while self.forget_done() and monotonic() < until:
            sleep(_NOTED)


def _is_noted(turn: Ordered) -> bool:
    return turn.status == "SUCCESS" and isinstance(turn.outcome, dict) and turn.outcome.get("state") is not None


def register(worker: Worker) -> None:
    """Have DBOS call a worker for each turn. DBOS takes functions alone, and knows them by their names."""

    def turn(kept: bytes) -> dict[str, Any]:
        return outside_workflow(worker.take_turn, str(DBOS.workflow_id), kept)

    DBOS.workflow(name=TURN, max_recovery_attempts=None)(turn)


_KEPT = 3600.0  # seconds for which a worker is remembered that is dead: it may be frozen, and own runs
_SOON = 0.1  # seconds after which runs are looked at that are to be deleted
_BEATS = 3  # in the time after which a worker is dead


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
            outside_workflow(DBOS.delete_workflow, self._id)

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
        worker.forget_lost()
        beats = self._beats()
        now = beats.get(self.name)
        if now is None:  # it was taken for dead, for long: frozen perhaps, or cut off
            self._join()
            return
        living = {worker for worker, beat in beats.items() if not self._is_over(beat, now)}
        if not self._judges or min(living) != self.name:  # one of them is enough
            return
        self._give_back(beats, living, now)
        if beats.keys() - living - self._seen_dead:
            worker.forget_left()
        self._seen_dead = beats.keys() - living

    def _beat(self) -> None:
        """Say that this worker lives. If it could not for long, others may not have been able to either."""
        outside_workflow(DBOS.update_workflow_attributes, self._id, self._about)
        before, self._beaten = self._beaten, monotonic()
        if self._beaten - before > self.lapse:
            self._judges_from = self._beaten + self.lapse

    @property
    def _judges(self) -> bool:
        """Whether it can tell who is dead: nobody can while the database is away."""
        return self._judges_from <= monotonic() <= self._beaten + self.lapse

    def _give_back(self, beats: Mapping[str, WorkflowStatus], living: set[str], now: WorkflowStatus) -> None:
        """Give back the turns of workers that are dead, and those of nobody, which a worker leaves that has ended."""
        for found in outside_workflow(DBOS.list_workflows, status="PENDING", name=[TURN, TICK], **self._asked):
            owner = found.executor_id or ""
            if owner not in living and (owner in beats or self._is_over(found, now)):
                self._recover(found.workflow_id, [owner])
        for beat in beats.values():
            if self._is_over(beat, now, max(_KEPT, 10 * self.lapse)):
                outside_workflow(DBOS.delete_workflow, beat.workflow_id)

    def is_dead(self, owner: Owner) -> bool:
        """Return whether the owner of a run is a worker whose beats have ended."""
        beats = self._beats()
        now = beats.get(self.name)
        about = {"host": owner.host, "pid": owner.pid}
        found = [beat for beat in beats.values() if beat.attributes == about]
        return self._judges and now is not None and bool(found) and all(self._is_over(beat, now) for beat in found)

    def _is_over(self, beat: WorkflowStatus, now: WorkflowStatus, lapse: float | None = None) -> bool:
        """Return whether a workflow was written so many seconds before the last beat of this worker."""
        return (beat.updated_at or 0) < (now.updated_at or 0) - (lapse or self.lapse) * 1000

    def _beats(self) -> dict[str, WorkflowStatus]:
        """Return the last beats of all workers, by their names. A beat is the row that DBOS has of a worker."""
        found = outside_workflow(DBOS.list_workflows, name=WORKER, **self._asked)
        return {beat.workflow_id.removeprefix(f"{WORKER}:"): beat for beat in found}

    def _join(self) -> None:
        """Make this worker known to the others."""
        outside_workflow(self._begin)
        self._beat()

    def _begin(self) -> None:
        with SetWorkflowID(self._id):
            DBOS.start_workflow(self._alive)


def _live() -> None:
    """Do nothing: what counts is that DBOS knows of it."""


DEFAULT_QUEUE = "stategraph"
_PATIENCE = 30.0  # seconds to wait for whoever writes to a file of SQLite, as DBOS does
_RECOVERED = "_dbos_internal_queue"  # where DBOS puts what it recovers, if that was on no queue


def _is_count(queue: Queue, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not is_count(value, at_least=1):
        raise ConfigError(f"queue.{attribute.name}", value, "a number of turns from 1 on, or None for any")


def _is_rate(queue: Queue, attribute: object, value: Any) -> None:
    is_pair = isinstance(value, tuple) and len(value) == 2 and is_count(value[0], at_least=1) and is_seconds(value[1])
    if value is not None and not is_pair:
        raise ConfigError("queue.rate", value, "how many turns in how many seconds, such as (50, 60.0)")


def _checked(queues: Mapping[str, Queue]) -> Mapping[str, Queue]:
    is_mapping = isinstance(queues, Mapping)
    if not is_mapping or not all(isinstance(queue, Queue) for queue in queues.values()):
        raise ConfigError("queues", queues, 'Queues by their names, such as {"bank": Queue(concurrency=4)}')
    return queues


@attrs.frozen
class Queue:
    """How many turns of a queue are performed.

    Attributes:
        concurrency: So many at the same time, by all workers; None for any number.
        per_worker: So many at the same time, by each worker; None for any number.
        rate: So many begin in so many seconds, as in ``(50, 60.0)``; None for any number.
    """

    concurrency: int | None = attrs.field(default=None, validator=_is_count)
    per_worker: int | None = attrs.field(default=None, validator=_is_count)
    rate: tuple[int, float] | None = attrs.field(default=None, validator=_is_rate)

    def declare(self, name: str, poll: float) -> None:
        """Make it known to DBOS by a name; workers look for turns every so many seconds."""
        limiter: Any = None if self.rate is None else {"limit": self.rate[0], "period": self.rate[1]}
        DBOS.register_queue(
            name,
            global_concurrency=self.concurrency,
            worker_concurrency=self.per_worker,
            limiter=limiter,
            polling_interval_sec=poll,
            on_conflict="always_update",
        )


class Process:
    """DBOS in this process.

    Args:
        name: The name of the application: those of one name, on one database, share the work.
        url: The database of DBOS.
        queues: The queues, by their names.
        poll: Seconds after which workers look again for turns.
        lapse: Seconds without a sign of life after which a worker is dead.
        config: More for DBOS, by the names in its `DBOSConfig`.
    """

    def __init__(
        self, name: str, url: str, queues: Mapping[str, Queue], poll: float, lapse: float, config: Mapping[str, Any]
    ) -> None:
        self.worker_name = f"{host_name()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.queues = {DEFAULT_QUEUE: Queue(per_worker=8), **_checked(queues)}
        self._name, self._url, self._poll, self._lapse, self._config = name, url, poll, lapse, config
        self._pid = 0
        self._dbos: DBOS | None = None
        self._keeper: Keeper | None = None
        self._worker: Worker | None = None

    @property
    def is_launched(self) -> bool:
        """Whether it is there."""
        return self._dbos is not None

    @property
    def is_forked(self) -> bool:
        """Whether it is that of the process from which this one was forked: connections cannot be shared."""
        return self.is_launched and self._pid != os.getpid()

    def has_queue(self, name: str) -> bool:
        """Return whether there is a queue of this name, declared here or by others."""
        return name in self.queues or (self.is_launched and outside_workflow(DBOS.retrieve_queue, name) is not None)

    def launch(
        self, graphs: Mapping[str, StateGraph], max_recoveries: int, register_more: Callable[[], object], *, work: bool
    ) -> None:
        """Connect to the database, and begin to perform turns, unless this process is only to order some."""
        if inside_dbos._dbos_global_instance is not None:
            raise RuntimeError(
                "there is a DBOS in this process already, and it allows no second one: close it first; "
                "or, where this process was forked from one that had it, launch after the fork alone"
            )
        _share(self._url)
        config: dict[str, Any] = {
            "name": self._name,
            "system_database_url": self._url,
            "serializer": Codec(),
            "executor_id": self.worker_name,
            "application_version": f"{self._name}-turns",  # of one version for ever: nothing has to be deterministic
            "log_level": "WARNING",
            **self._config,
        }
        self._pid = os.getpid()
        self._dbos = dbos = DBOS(config=DBOSConfig(**config))  # type: ignore[typeddict-item]
        try:
            self._keeper = keeper = Keeper(self._name, self.worker_name, self._lapse, self._recover)
            self._worker = Worker(self.worker_name, graphs, max_recoveries, keeper.is_dead, self._give_back)
            register(self._worker)
            register_more()
            if not work:
                DBOS.listen_queues([])
            DBOS.launch()
            if work:
                keeper.start(self._worker, dbos.logger)
            for name, queue in self.queues.items():
                queue.declare(name, self._poll)
        except BaseException as error:
            self.close(0.0)
            if isinstance(error, OperationalError):
                reason = " ".join(str(error.orig).split())
                raise CheckpointError("", f"the database of DBOS, which url names, cannot be used: {reason}") from error
            raise

    def close(self, patience: float) -> bool:
        """Perform no more turns, give back those that are not done, and leave DBOS.

        Returns whether all turns have stopped within so many seconds. Those that have not are given back all the same:
        who gets them waits until the node returns that is running.
        """
        if self._dbos is None or self.is_forked:
            return True
        for event in self._dbos.background_thread_stop_events:  # no queue is looked at any more
            event.set()
        has_stopped = True
        try:
            if self._worker is not None:
                has_stopped = self._worker.stop(patience)
                for turn in self._worker.active:
                    self._give_back(turn)
                self._worker.settle(patience)
            if self._keeper is not None:
                self._keeper.stop()
        finally:
            for name in (TURN, TICK, WORKER):  # workflows of the user stay known, for a DBOS to come
                self._dbos._registry.workflow_info_map.pop(name, None)
            DBOS.destroy()
            self._dbos = self._keeper = self._worker = None
        return has_stopped

    def _recover(self, id: str, workers: list[str]) -> None:
        """Have a workflow performed anew, if DBOS has it down as one that one of these workers is at work on.

        DBOS does that by itself for workers that begin again under their names, and has no public name for it.
        """
        if self._dbos is not None:
            self._dbos._sys_db.reenqueue_for_recovery(id, workers, _RECOVERED)

    def _give_back(self, id: str) -> None:
        self._recover(id, [self.worker_name])


def _share(url: str) -> None:
    """Make a file of SQLite one that processes share well, and nobody else reads: DBOS would make a plain one."""
    parts = make_url(url)
    if parts.get_backend_name() != "sqlite" or not parts.database or parts.database == ":memory:":
        return
    path = Path(parts.database)
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, timeout=_PATIENCE)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
