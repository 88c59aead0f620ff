"""DBOSRunner: turns on DBOS, which brings queues, limits, priorities, delays, schedules, and the restart of what a dead
worker had. It takes ``pip install ".[dbos]"``.

DBOS hands out the work, and the store of each graph is the only journal: a turn of a run is one workflow, and no step
of DBOS is made. See docs/many-workers.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Self

import attrs

from stategraph._dbos import checks
from stategraph._dbos.orders import (
    DATABASE,
    WAITING,
    WAY_OUT,
    MakeState,
    Ordered,
    Schedule,
    Schedules,
    enqueue,
    order_of,
    outside_workflow,
    turn_id,
    turns_of,
    withdraw,
)
from stategraph._dbos.runs import RunView, Standing, TurnHandle, list_runs
from stategraph._dbos.workers import DEFAULT_QUEUE, Process, Queue
from stategraph._util.validators import is_count, is_seconds
from stategraph._values.progress import Pause
from stategraph._values.provenance import Owner, RunStatus
from stategraph.errors import (
    AnswerError,
    CheckpointNotFoundError,
    ConfigError,
    RunBusyError,
    RunExistsError,
    UnknownNameError,
)
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.turns import Order, graph_of

__all__ = ["DBOSRunner", "Queue", "RunView", "TurnHandle"]


class DBOSRunner:
    """Has runs of graphs performed by workers, of which this process is one once it is launched.

    Every worker makes its runner with the same graphs, over the same stores and the same url. A process has one runner
    at a time. As a context manager, it is launched and closed.

    Args:
        graphs: The graphs. Each saves its runs, in a store that all workers share.
        url: The database of DBOS: ``postgresql://...`` for many machines, ``sqlite:///...`` for one; or the name of an
            environment variable that holds it. By default a file beside the first store that is on a disk.
        name: The name of the application. Others may share the database, and with it the ids of runs.
        queues: More queues than "stategraph", by their names, or another `Queue` for that.
        lapse: Seconds without a sign of life after which a worker is dead, by the clock of the database. Its turns are
            performed by others then.
        poll: Seconds after which workers look again for turns.
        max_recoveries: How many workers one step of a run may take down, one after the other; then the run is failed.
        config: More for DBOS, by the names in its ``DBOSConfig``.

    Raises:
        ConfigError: an argument is not what it should be.
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
            raise ConfigError("max_recoveries", max_recoveries, "how many workers a step may take down, from 1 on")
        self._max_recoveries = max_recoveries
        self._schedules = Schedules()
        self._process = Process(name, checks.url_of(url, graphs), queues or {}, poll, lapse, checks.config_of(config))

    # ------------------------------------------------------------------ working

    def launch(self, *, work: bool = True) -> Self:
        """Connect to the database, and begin to perform turns.

        Args:
            work: Whether this process performs turns. If not, it only orders them: a web server, for instance.

        Raises:
            RuntimeError: there is a DBOS in this process already.
            CheckpointError: its database cannot be reached, or refuses the user.
        """
        checks.check_no_loop("runner.launch")
        self._process.launch(self._graphs, self._max_recoveries, self._schedules.register, work=work)
        self._schedules.apply()
        return self

    def close(self, patience: float = 30.0) -> bool:
        """Stop all turns before their next nodes, and give them back to the other workers.

        Args:
            patience: Seconds to wait for nodes that are running.

        Returns:
            Whether all turns have stopped. Those that have not are given back all the same: who gets them waits until
            the node returns that is running.
        """
        if self._process.is_launched:
            checks.check_no_loop("runner.close")
        return self._process.close(patience)

    def __enter__(self) -> Self:
        return self if self._process.is_launched else self.launch()

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
        """Order a run of a graph. To order it again changes nothing: the same run is waited for.

        Args:
            graph: The graph, or its name.
            state: Where the run begins; its run_id names the run.
            queue: The queue that the turn is put on.
            priority: Turns with a lower number go first, from 1 on; without one, before all of these.
            delay: Seconds after which the turn is put on the queue.
            labels: What the run is labelled with.
            by: Who orders it, for the history.

        Raises:
            RunExistsError: the run was started with other data.
            UnknownNameError: the runner has no such graph, or no such queue.
        """
        self._check_launched("start")
        checks.check_state(state)
        order = Order(self._graph(graph), state.run_id, state=state, labels=labels or {}, by=by)
        handle = self._handle(order.run_id, order.number, order.graph)
        if not self._enqueue(order, queue, priority, delay):
            before = order_of(handle.id)
            if before is None or before.graph != order.graph or not checks.begins_alike(before, state):
                raise RunExistsError(
                    order.run_id, DATABASE, way_out="with other data or of another graph: choose another run_id"
                )
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

        Of answers that are given at the same time one counts, and it counts once, however often it is delivered.

        Args:
            run_id: The run.
            updates: The answer, under the key that the run waits for, and anything else.
            pause: The pause that is answered, or its id, and no other; by default that at which the run waits now.
            by: Who answers.
            queue: As for `start`.
            priority: As for `start`.
            delay: As for `start`.

        Raises:
            AnswerError: the run waits for nothing, at another pause, or has been answered; or there is no answer.
            CheckpointNotFoundError: there is no such run.
        """
        self._check_launched("answer")
        standing = Standing.of(run_id, self._graphs)
        return self._answer(standing, updates, getattr(pause, "id", pause), (queue, priority, delay), by=by)

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
        """Order that a run goes on which has failed, was cancelled, or did not fit its graph.

        A run that is on its way already is left alone, and waited for.

        Args:
            run_id: The run.
            updates: As for `StateGraph.resume`.
            allow_changed: As for `StateGraph.resume`.
            migrate: As for `StateGraph.resume`.
            by: Who orders it.
            queue: As for `start`.

        Raises:
            RunCompleteError: the run is complete.
            RunBusyError: it is on its way already, and there are updates for it.
            AnswerError: it is paused, and the updates are no answer: see `answer`.
            CheckpointNotFoundError: there is no such run.
        """
        self._check_launched("resume")
        standing = Standing.of(run_id, self._graphs)
        asked: dict[str, Any] = {"allow_changed": allow_changed, "migrate": migrate or {}, "by": by}
        if standing.saved is not None and standing.saved.status is RunStatus.PAUSED:
            return self._answer(standing, updates or {}, None, (queue, None, None), **asked)
        if standing.coming is not None:
            return self._left_alone(standing.coming, updates)
        order = attrs.evolve(standing.next_order(), updates=updates or {}, **asked)
        if not self._enqueue(order, queue, None, None):
            return self._left_alone(turns_of(run_id)[0], updates)
        return self._handle(run_id, order.number, order.graph)

    def cancel(self, run_id: str, *, by: str | None = None) -> None:
        """Cancel a run, whether it is queued, delayed, at work or paused; `resume` takes it up again.

        Raises:
            RunCompleteError: it is complete.
            CheckpointNotFoundError: there is no such run.
        """
        self._check_launched("cancel")
        standing = Standing.of(run_id, self._graphs)
        for turn in standing.turns:
            if turn.status in WAITING:
                withdraw(turn.id)
        graph = standing.graph
        if graph is None:  # it has not begun: it is kept as one that is to begin
            order = standing.next_order()
            graph = self._graph(order.graph)
            if order.state is not None:
                with suppress(RunBusyError, RunExistsError):  # it begins at this moment
                    graph.submit(order.state, labels=order.labels)
        graph.cancel(run_id, by=by)

    # ------------------------------------------------------------------ looking

    def handle(self, run_id: str) -> TurnHandle:
        """Return the newest turn that was ordered of a run, to wait for it, from any process.

        Raises:
            CheckpointNotFoundError: none was.
        """
        self._check_launched("handle")
        for turn in turns_of(run_id):
            return self._handle(run_id, turn.number, turn.graph)
        raise CheckpointNotFoundError(run_id, DATABASE, way_out=WAY_OUT)

    def runs(
        self,
        status: str | None = None,
        graph: StateGraph | str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> list[RunView]:
        """Return how runs stand, as their stores and DBOS tell it together.

        First come those whose turns wait or are at work, and those whose turns could not go on; then all others, the
        run that began last first.

        Args:
            status: Only those of this status: "queued", "delayed", or one of `RunStatus`.
            graph: Only those of this graph.
            labels: Only those with these labels, among others.
            limit: At most so many of each kind.
        """
        self._check_launched("runs")
        checks.check_status(status)
        graphs = self._graphs if graph is None else {self._graph(graph).config.name: self._graph(graph)}
        asked = (labels or {}).items()
        return [
            view
            for view in list_runs(graphs, status, labels or {}, limit)
            if status in (None, view.status) and asked <= dict(view.labels).items()
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
        """Begin runs of a graph by the clock, each once, whichever workers there are.

        The schedule stays until `unschedule`. Every worker has to know it: say it before or after `launch`, in each.

        Args:
            name: The name of the schedule.
            graph: The graph, or its name.
            cron: When, as cron writes it: five fields, or six with seconds first.
            make_state: Makes the State that a run begins with, or its data alone, from the time that it is due.
            queue: As for `start`.
            labels: What the runs are labelled with.
            timezone: The time zone of `cron`, such as "Europe/Berlin"; UTC by default.
        """
        if self._process.is_launched:
            self._check_launched("schedule")
        self._check_queue(queue)
        self._schedules.add(name, Schedule(self._graph(graph), cron, make_state, queue, dict(labels or {}), timezone))
        if self._process.is_launched:
            self._schedules.apply()

    def unschedule(self, name: str) -> None:
        """Begin no more runs by a schedule, in any process. Those that have begun go on."""
        self._check_launched("unschedule")
        self._schedules.remove(name)

    # ------------------------------------------------------------------ inside

    def _answer(
        self,
        standing: Standing,
        updates: Mapping[str, Any],
        pause_id: Any,
        where: tuple[str, int | None, float | None],
        **asked: Any,
    ) -> TurnHandle:
        """Order the turn that answers a pause. Raises AnswerError if the run does not wait for that."""
        awaited = standing.answered_by(updates, pause_id)
        order = attrs.evolve(standing.next_order(), updates=updates, pause=awaited, **asked)
        if not self._enqueue(order, *where):
            problem = "somebody else has answered at the same time, and one answer counts"
            raise AnswerError(standing.run_id, awaited, problem)
        return self._handle(standing.run_id, order.number, order.graph)

    def _enqueue(self, order: Order, queue: str, priority: int | None, delay: float | None) -> bool:
        self._check_queue(queue)
        checks.check_when(priority, delay)
        return outside_workflow(enqueue, order, queue, priority, delay)

    def _check_queue(self, queue: str) -> None:
        if not self._process.has_queue(queue):
            raise UnknownNameError("queue", queue, tuple(self._process.queues))

    def _check_launched(self, call: str) -> None:
        if not self._process.is_launched:
            raise RuntimeError("the runner is not launched: call launch(), or launch(work=False) to order turns alone")
        if self._process.is_forked:
            raise RuntimeError(
                "this process was forked after the runner was launched, and cannot share its connections: fork first "
                "and launch one in each process, or start processes by the method 'spawn'"
            )
        checks.check_no_loop(f"runner.{call}")

    def _graph(self, graph: StateGraph | str) -> StateGraph:
        return graph_of(graph.config.name if isinstance(graph, StateGraph) else graph, self._graphs)

    def _handle(self, run_id: str, number: int, graph: str) -> TurnHandle:
        return TurnHandle(run_id, number, turn_id(run_id, number), graph_of(graph, self._graphs))

    def _left_alone(self, turn: Ordered, updates: Mapping[str, Any] | None) -> TurnHandle:
        """Return the handle of a turn that is on its way. Raises RunBusyError if there are updates for it."""
        if updates:
            host, _, rest = (turn.worker or f"queue {turn.queue}").partition(":")
            pid = rest.partition(":")[0]
            raise RunBusyError(turn.run_id, Owner(host, int(pid) if pid.isdigit() else None))
        return self._handle(turn.run_id, turn.number, turn.graph)
