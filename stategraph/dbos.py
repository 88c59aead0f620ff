"""DBOSRunner: turns on DBOS, with queues, limits, priorities, delays, schedules, and recovery from dead workers.

It needs ``pip install "durable-stategraph[dbos]"``. DBOS hands out the work, and the store of each graph is the only
journal: a turn of a run is one workflow without steps. See the page "Many workers".
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

import attrs

from stategraph._dbos import checks  # before DBOS: it says what to install

# isort: split
import dbos._dbos as inside_dbos
from dbos import DBOS, DBOSConfig
from sqlalchemy.exc import OperationalError

from stategraph._dbos.orders import (
    DATABASE,
    TICK,
    TURN,
    WAITING,
    WAY_OUT,
    WORKER,
    Codec,
    MakeState,
    Schedule,
    Schedules,
    Turn,
    enqueue,
    order_of,
    outside_workflow,
    turns_of,
    withdraw,
)
from stategraph._dbos.runs import CurrentRun, RunView, TurnHandle, list_runs
from stategraph._dbos.workers import DEFAULT_QUEUE, Fleet, Queue, Worker, share
from stategraph._owners.base import host_name
from stategraph._util.validators import is_count, is_seconds
from stategraph._values.progress import Pause
from stategraph._values.provenance import Owner, RunStatus
from stategraph._values.sameness import differing_items
from stategraph.errors import (
    AnswerError,
    CheckpointError,
    CheckpointNotFoundError,
    ConfigError,
    RunBusyError,
    RunExistsError,
    UnknownNameError,
)
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.turns import Order, by_names, graph_of

__all__ = ["DBOSRunner", "Queue", "RunView", "TurnHandle"]


class DBOSRunner:
    """Lets workers perform the runs of graphs. After `launch`, this process is one of the workers.

    All workers need the same graphs, stores and url. A process has one runner at a time. As a context manager, the
    runner is launched and closed.

    Args:
        graphs: The graphs. Each must save its runs in a store that all workers share.
        url: The database of DBOS: ``postgresql://...`` for many machines, ``sqlite:///...`` for one; or the name of an
            environment variable with it. By default a file beside the first store on disk.
        name: The name of the application. Several applications may share a database, and then also the ids of runs.
        queues: More queues besides "stategraph", by their names, or another `Queue` for that name.
        lapse: Seconds without a heartbeat, by the clock of the database, after which a worker is dead. Others perform
            its turns then.
        poll: Seconds between two looks for turns.
        max_recoveries: How many workers one step of a run may crash in succession before the run fails.
        config: More settings of DBOS, by the names in its ``DBOSConfig``.

    Raises:
        ConfigError: an argument is wrong.
        CheckpointingDisabledError: a graph saves nothing.
    """

    def __init__(
        self,
        *graphs: StateGraph,
        url: str | None = None,
        name: str = "stategraph",
        queues: Mapping[str, Queue] | None = None,
        lapse: float = 15.0,
        poll: float = 0.5,
        max_recoveries: int = 10,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._graphs = checks.graphs_by_name(graphs)
        for key, value in (("lapse", lapse), ("poll", poll)):
            if not is_seconds(value):
                raise ConfigError(key, value, "a number of seconds above 0")
        if not is_count(max_recoveries, at_least=1):
            raise ConfigError(
                "max_recoveries", max_recoveries, "a positive integer: the most workers that a step may lose"
            )
        self._queues = {DEFAULT_QUEUE: Queue(per_worker=8), **(queues or {})}
        if not all(isinstance(queue, Queue) for queue in self._queues.values()):
            raise ConfigError("queues", queues, 'Queues by their names, such as {"bank": Queue(concurrency=4)}')
        self._name, self._url, self._config = name, checks.url_of(url, graphs), checks.config_of(config)
        self._lapse, self._poll, self._max_recoveries = lapse, poll, max_recoveries
        self._schedules = Schedules()
        self._pid = 0
        self._dbos: DBOS | None = None
        self._fleet: Fleet | None = None
        self._worker: Worker | None = None

    # ------------------------------------------------------------------ working

    def launch(self, *, work: bool = True) -> Self:
        """Connect to the database, and begin to perform turns.

        Args:
            work: Whether this process performs turns. If not, it only orders them, such as a web server.

        Raises:
            RuntimeError: this process already has a DBOS.
            CheckpointError: the database cannot be reached, or refuses the user.
        """
        checks.check_no_loop("runner.launch")
        if inside_dbos._dbos_global_instance is not None:
            raise RuntimeError(
                "there is a DBOS in this process already, and it allows no second one: close it first; "
                "or, where this process was forked from one that had it, launch after the fork alone"
            )
        share(self._url)
        self._pid = os.getpid()
        worker_name = f"{host_name()}:{self._pid}:{uuid.uuid4().hex[:8]}"
        config: dict[str, Any] = {
            "name": self._name,
            "system_database_url": self._url,
            "serializer": Codec(),
            "executor_id": worker_name,
            "application_version": f"{self._name}-turns",  # always the same: turns need not be deterministic
            "log_level": "WARNING",
            **self._config,
            # Errors of SQLAlchemy, which DBOS logs, would show the parameters of statements: States.
            "db_engine_kwargs": {"hide_parameters": True, **self._config.get("db_engine_kwargs", {})},
        }
        self._dbos = DBOS(config=DBOSConfig(**config))  # type: ignore[typeddict-item]
        try:
            self._begin(worker_name, work=work)
        except BaseException as error:
            self.close(0.0)
            if isinstance(error, OperationalError):
                reason = " ".join(str(error.orig).split())
                raise CheckpointError("", f"the database of DBOS, which url names, cannot be used: {reason}") from error
            raise
        return self

    def _begin(self, worker_name: str, *, work: bool) -> None:
        self._fleet = fleet = Fleet(self._name, worker_name, self._lapse)
        self._worker = worker = Worker(self._graphs, self._max_recoveries, fleet)

        def turn(kept: bytes) -> dict[str, Any]:  # DBOS takes functions only
            return outside_workflow(worker.take_turn, str(DBOS.workflow_id), kept)

        DBOS.workflow(name=TURN, max_recovery_attempts=None)(turn)
        self._schedules.register()
        if not work:
            DBOS.listen_queues([])
        DBOS.launch()
        if work:
            fleet.start(worker)
        for name, queue in self._queues.items():
            queue.declare(name, self._poll)
        self._schedules.apply()

    def close(self, patience: float = 30.0) -> bool:
        """Stop all turns before their next nodes, and give them back to the other workers.

        Args:
            patience: Seconds to wait for running nodes.

        Returns:
            Whether all turns have stopped. A turn that has not is given back all the same: its next worker waits until
            the running node returns.
        """
        if self._dbos is None or self._pid != os.getpid():  # a child of a fork shares the connections of its parent
            return True
        checks.check_no_loop("runner.close")
        for event in self._dbos.background_thread_stop_events:  # stops looking into queues
            event.set()
        has_stopped = True
        try:
            if self._worker is not None:
                has_stopped = self._worker.stop(patience)
            if self._fleet is not None:
                self._fleet.stop()
        finally:
            for name in (TURN, TICK, WORKER):  # workflows of the user stay registered for a later DBOS
                self._dbos._registry.workflow_info_map.pop(name, None)
            DBOS.destroy()
            self._dbos = self._fleet = self._worker = None
        return has_stopped

    def __enter__(self) -> Self:
        return self.launch() if self._dbos is None else self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ------------------------------------------------------------------ ordering

    def start(
        self,
        graph: StateGraph | str,
        state: State,
        *,
        queue: str = DEFAULT_QUEUE,
        priority: int | None = None,
        delay: float | None = None,
        labels: Mapping[str, str] | None = None,
        by: str | None = None,
    ) -> TurnHandle:
        """Order a run of a graph. A second order returns a handle of the same run.

        Args:
            graph: The graph, or its name.
            state: The first State; its run_id names the run.
            queue: The queue for the turn.
            priority: Turns with a lower number go first, from 1 on. Turns without a priority go before all of these.
            delay: Seconds before the turn is put on the queue.
            labels: The labels of the run.
            by: Your name, for the history.

        Raises:
            RunExistsError: the run was started with other data.
            UnknownNameError: the runner has no such graph, or no such queue.
        """
        self._check_launched("start")
        if not isinstance(state, State):
            raise TypeError(f"a run begins with State({{...}}, run_id=...), not with {type(state).__name__}")
        order = Order(self._graph(graph), state.run_id, state=state, labels=labels or {}, by=by)
        handle = self._handle(order)
        if not self._enqueue(order, queue, priority, delay):
            before = order_of(handle.id)
            earlier = None if before is None or before.graph != order.graph else before.state
            if earlier is None or earlier.keys() != state.keys() or differing_items(earlier, state):
                way_out = "it has other data, or is of another graph; choose another run_id"
                raise RunExistsError(order.run_id, DATABASE, way_out=way_out)
        return handle

    def answer(
        self,
        run_id: str,
        updates: Mapping[str, Any],
        *,
        pause: Pause | str | None = None,
        by: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int | None = None,
        delay: float | None = None,
    ) -> TurnHandle:
        """Answer a paused run: order its next turn.

        Only one of several answers to a pause counts, and it counts once, however often it is delivered.

        Args:
            run_id: The run.
            updates: The answer, under the key that the run waits for, and other changes.
            pause: The only pause to answer, or its id. By default the current pause of the run.
            by: Your name, for the history.
            queue: As for `start`.
            priority: As for `start`.
            delay: As for `start`.

        Raises:
            AnswerError: the run is not paused, waits at another pause or was answered; or the answer is missing.
            CheckpointNotFoundError: there is no such run.
        """
        self._check_launched("answer")
        current = CurrentRun.of(run_id, self._graphs)
        return self._answer(current, updates, getattr(pause, "id", pause), (queue, priority, delay), by=by)

    def resume(
        self,
        run_id: str,
        updates: Mapping[str, Any] | None = None,
        *,
        allow_changed: bool = False,
        migrate: Mapping[str, str] | None = None,
        by: str | None = None,
        queue: str = DEFAULT_QUEUE,
    ) -> TurnHandle:
        """Order the continuation of a run that has failed, was cancelled, or did not fit its graph.

        If the run waits for a worker or runs already, it is left alone, and the handle is that of its turn.

        Args:
            run_id: The run.
            updates: As for `StateGraph.resume`.
            allow_changed: As for `StateGraph.resume`.
            migrate: As for `StateGraph.resume`.
            by: Your name, for the history.
            queue: As for `start`.

        Raises:
            RunCompleteError: the run is complete.
            RunBusyError: there are updates, but the run waits for a worker or runs already.
            AnswerError: it is paused, and the updates are not its answer: see `answer`.
            CheckpointNotFoundError: there is no such run.
        """
        self._check_launched("resume")
        current = CurrentRun.of(run_id, self._graphs)
        how: dict[str, Any] = {"allow_changed": allow_changed, "migrate": migrate or {}, "by": by}
        if current.saved is not None and current.saved.status is RunStatus.PAUSED:
            return self._answer(current, updates or {}, None, (queue, None, None), **how)
        if current.open_turn is not None:
            return self._left_alone(current.open_turn, updates)
        order = attrs.evolve(current.next_order(), updates=updates or {}, **how)
        if not self._enqueue(order, queue, None, None):
            return self._left_alone(turns_of(run_id)[0], updates)
        return self._handle(order)

    def cancel(self, run_id: str, *, by: str | None = None) -> None:
        """Cancel a run that is queued, delayed, at work or paused. `resume` continues it.

        Raises:
            RunCompleteError: it is complete.
            CheckpointNotFoundError: there is no such run.
        """
        self._check_launched("cancel")
        current = CurrentRun.of(run_id, self._graphs)
        for turn in current.turns:
            if turn.status in WAITING:
                withdraw(turn.id)
        graph = current.graph
        if graph is None:  # the run has not begun: save it as submitted
            order = current.next_order()
            graph = self._graph(order.graph)
            if order.state is not None:
                with suppress(RunBusyError, RunExistsError):  # the run begins at this moment
                    graph.submit(order.state, labels=order.labels)
        graph.cancel(run_id, by=by)

    # ------------------------------------------------------------------ looking

    def handle(self, run_id: str) -> TurnHandle:
        """Return the newest turn of a run, to wait for it in any process.

        Raises:
            CheckpointNotFoundError: no turn was ordered.
        """
        self._check_launched("handle")
        for turn in turns_of(run_id):
            return self._handle(turn)
        raise CheckpointNotFoundError(run_id, DATABASE, way_out=WAY_OUT)

    def runs(
        self,
        status: str | None = None,
        graph: StateGraph | str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> list[RunView]:
        """Return runs with their status in the stores and in DBOS.

        Runs with unfinished or failed turns come first, then all others, the newest first.

        Args:
            status: Only runs with this status: "queued", "delayed", or one of `RunStatus`.
            graph: Only runs of this graph.
            labels: Only runs with these labels, and perhaps others.
            limit: The largest number of runs.
        """
        self._check_launched("runs")
        graphs = self._graphs if graph is None else by_names([self._graph(graph)])
        wanted = (labels or {}).items()
        return [
            view
            for view in list_runs(graphs, status, labels or {}, limit)
            if status in (None, view.status) and wanted <= dict(view.labels).items()
        ][:limit]

    # ------------------------------------------------------------------ by the clock

    def schedule(
        self,
        name: str,
        graph: StateGraph | str,
        cron: str,
        make_state: MakeState,
        *,
        queue: str = DEFAULT_QUEUE,
        labels: Mapping[str, str] | None = None,
        timezone: str | None = None,
    ) -> None:
        """Begin runs of a graph by the clock. Each due run begins once, however many workers there are.

        The schedule stays until `unschedule`. Every worker must know it: call this in each, before or after `launch`.

        Args:
            name: The name of the schedule.
            graph: The graph, or its name.
            cron: The times as in cron: five fields, or six with seconds first.
            make_state: Returns the State or the data that a run begins with, from the time at which the run is due.
            queue: As for `start`.
            labels: The labels of the runs.
            timezone: The time zone of `cron`, such as "Europe/Berlin"; UTC by default.
        """
        is_launched = self._dbos is not None
        if is_launched:
            self._check_launched("schedule")
        self._check_queue(queue)
        schedule = Schedule(self._graph(graph), cron, make_state, queue, dict(labels or {}), timezone)
        self._schedules.add(name, schedule, is_launched=is_launched)

    def unschedule(self, name: str) -> None:
        """End a schedule, in all processes. Its runs continue."""
        self._check_launched("unschedule")
        self._schedules.remove(name)

    # ------------------------------------------------------------------ inside

    def _answer(
        self,
        current: CurrentRun,
        updates: Mapping[str, Any],
        pause_id: Any,
        where: tuple[str, int | None, float | None],
        **how: Any,
    ) -> TurnHandle:
        """Order the turn that answers a pause. Raise AnswerError if the run does not wait for the answer."""
        awaited = current.awaited_pause(updates, pause_id)
        order = attrs.evolve(current.next_order(), updates=updates, pause=awaited, **how)
        if not self._enqueue(order, *where):
            problem = "another answer came at the same time, and only one counts"
            raise AnswerError(current.run_id, awaited, problem)
        return self._handle(order)

    def _enqueue(self, order: Order, queue: str, priority: int | None, delay: float | None) -> bool:
        self._check_queue(queue)
        checks.check_when(priority, delay)
        return outside_workflow(enqueue, order, self._graph(order.graph), queue, priority, delay)

    def _check_queue(self, queue: str) -> None:
        """Raise UnknownNameError unless this process or another one has declared a queue."""
        is_launched = self._dbos is not None
        if queue not in self._queues and not (is_launched and outside_workflow(DBOS.retrieve_queue, queue)):
            raise UnknownNameError("queue", queue, tuple(self._queues))

    def _check_launched(self, call: str) -> None:
        if self._dbos is None:
            raise RuntimeError("the runner is not launched: call launch(), or launch(work=False) to order turns alone")
        if self._pid != os.getpid():
            raise RuntimeError(
                "this process was forked after the runner was launched, and cannot share its connections: fork first "
                "and launch one in each process, or start processes by the method 'spawn'"
            )
        checks.check_no_loop(f"runner.{call}")

    def _graph(self, graph: StateGraph | str) -> StateGraph:
        return graph_of(graph.config.name if isinstance(graph, StateGraph) else graph, self._graphs)

    def _handle(self, turn: Turn | Order) -> TurnHandle:
        return TurnHandle(turn.run_id, turn.number, graph_of(turn.graph, self._graphs))

    def _left_alone(self, turn: Turn, updates: Mapping[str, Any] | None) -> TurnHandle:
        """Return the handle of an unfinished turn. Raise RunBusyError if there are updates."""
        if updates:
            host, _, rest = (turn.worker or f"queue {turn.queue}").partition(":")
            pid = rest.partition(":")[0]
            raise RunBusyError(turn.run_id, Owner(host, int(pid) if pid.isdigit() else None))
        return self._handle(turn)
