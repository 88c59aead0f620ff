"""Orders as DBOS keeps them: a turn of a run is a workflow, and a schedule orders runs by the clock."""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeAlias, TypeVar

import attrs
from dbos import DBOS, EnqueueOptions, ScheduleInput, WorkflowStatus
from dbos import error as dbos_error

from stategraph._dbos.checks import check_times
from stategraph.errors import ConfigError, UnknownNameError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.turns import Order, from_bytes, to_bytes

TURN, TICK, WORKER = "stategraph.turn", "stategraph.tick", "stategraph.worker"
"""The names of the workflows: a turn of a run, a tick of a schedule, the life of a worker."""

WAITING = ("ENQUEUED", "DELAYED")
OPEN = (*WAITING, "PENDING")
"""What DBOS says of a turn that nobody is at work on yet, and of one that is not done."""

DATABASE, WAY_OUT = "database of DBOS", "runner.runs() names the runs it knows"
"""What errors say of a run that DBOS does not know."""

_SEVERAL = 20  # of the newest turns of a run that are looked at: those of another one may be among them
_P = ParamSpec("_P")
_R = TypeVar("_R")


@attrs.frozen
class Ordered:
    """A turn, as DBOS knows of it.

    Attributes:
        id: The id of its workflow.
        run_id: The run.
        number: Which turn of the run it is.
        status: What DBOS says of it.
        graph: The name of the graph.
        pause: The id of the pause that it answers, if it does.
        queue: The queue that it is on, if DBOS still knows.
        worker: Who was at work on it last.
        labels: What the run is labelled with, if it begins with this turn.
        outcome: What came of it, if that was asked for.
        error: What it ended with, if that was asked for.
    """

    id: str
    run_id: str
    number: int
    status: str
    graph: str
    pause: str | None
    queue: str | None
    worker: str | None
    labels: Mapping[str, str]
    outcome: Any = None
    error: Exception | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is not done."""
        return self.status in OPEN

    @classmethod
    def of(cls, found: WorkflowStatus) -> Ordered:
        """Return what a workflow says that is a turn."""
        run_id, _, number = found.workflow_id.rpartition("#")
        about = found.attributes or {}
        return cls(
            found.workflow_id,
            run_id,
            int(number),
            found.status,
            about.get("graph", ""),
            about.get("pause"),
            found.queue_name,
            found.executor_id,
            about.get("labels", {}),
            found.output,
            found.error,
        )


def turn_id(run_id: str, number: int) -> str:
    """Return the id of the workflow that is a turn of a run. No id of a run has a # where this one has it."""
    return f"{run_id}#{number}"


def outside_workflow(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function outside of the context of DBOS. Inside a workflow, DBOS would make a step of each call."""
    return contextvars.Context().run(function, *args, **kwargs)


def find_turns(**which: Any) -> list[Ordered]:
    """Return turns, the newest first, as `DBOS.list_workflows` finds them, without what came of them."""
    asked = {"load_input": False, "load_output": False, "sort_desc": True, "name": TURN, **which}
    return [Ordered.of(found) for found in outside_workflow(DBOS.list_workflows, **asked)]


def turns_of(run_id: str, **which: Any) -> list[Ordered]:
    """Return the newest turns of a run, the newest first."""
    found = find_turns(workflow_id_prefix=turn_id(run_id, 1)[:-1], limit=_SEVERAL, **which)
    return sorted((turn for turn in found if turn.run_id == run_id), key=lambda turn: -turn.number)


def newest_by_run(turns: Iterable[Ordered]) -> dict[str, Ordered]:
    """Return the newest of these turns of each run."""
    return {turn.run_id: turn for turn in sorted(turns, key=lambda turn: turn.number)}


def order_of(id: str) -> Order | None:
    """Return what was ordered with a turn."""
    for found in outside_workflow(DBOS.list_workflows, workflow_ids=[id], load_output=False):
        if found.input is not None:
            return from_bytes(found.input["args"][0])
    return None


def enqueue(order: Order, queue: str, priority: int | None, delay: float | None) -> bool:
    """Give an order to DBOS; return whether it was new to it.

    Within a workflow, DBOS notes that this one was given by that.
    """
    options: EnqueueOptions = {
        "workflow_name": TURN,
        "queue_name": queue,
        "workflow_id": turn_id(order.run_id, order.number),
        "workflow_id_reuse_policy": "reject",
        "app_version": DBOS.application_version,
        "attributes": {"graph": order.graph, "pause": order.pause, "labels": dict(order.labels)},
    }
    if priority is not None:
        options["priority"] = priority
    if delay is not None:
        options["delay_seconds"] = delay
    try:
        DBOS.enqueue_workflow_with_options(options, to_bytes(order))
    except dbos_error.DBOSWorkflowIDInUseError:
        return False
    return True


def withdraw(id: str) -> None:
    """Take back a turn that waits for a worker."""
    outside_workflow(DBOS.cancel_workflow, id)


_KIND = "schedule that this worker has added (runner.schedule, in every worker)"

MakeState: TypeAlias = Callable[[datetime], State | Mapping[str, Any]]
"""Makes the State with which a run begins, or its data alone, from the time that the run is due."""


def _makes_states(schedule: Schedule, attribute: object, value: Any) -> None:
    if not callable(value) or inspect.iscoroutinefunction(value):
        raise ConfigError("make_state", value, "a sync function of the time: it returns the data of a run, or a State")


@attrs.frozen
class Schedule:
    """Runs of a graph that begin by the clock.

    Attributes:
        graph: The graph.
        cron: When: five fields, or six with seconds first.
        make_state: What they begin with.
        queue: The queue that they are put on.
        labels: What they are labelled with.
        timezone: The name of the time zone of `cron`, such as "Europe/Berlin"; None for UTC.
    """

    graph: StateGraph
    cron: str
    make_state: MakeState = attrs.field(validator=_makes_states)
    queue: str
    labels: Mapping[str, str]
    timezone: str | None

    def __attrs_post_init__(self) -> None:
        check_times(self.cron, self.timezone)

    def order(self, name: str, at: datetime) -> Order:
        """Return the order for the run that is due at a time. Without an id of its own, it is named after that."""
        made = outside_workflow(self.make_state, at)
        if not isinstance(made, State):
            made = State(made, run_id=f"{name}-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}")
        return Order(self.graph, made.run_id, state=made, labels=self.labels)


class Schedules:
    """The schedules that this process knows how to make States for."""

    def __init__(self) -> None:
        self._known: dict[str, Schedule] = {}
        self._tick: Any = None

    def register(self) -> None:
        """Have DBOS call this for every run that is due."""

        def tick(at: datetime, name: str) -> None:
            self._begin(at, name)

        self._tick = DBOS.workflow(name=TICK, max_recovery_attempts=None)(tick)

    def add(self, name: str, schedule: Schedule) -> None:
        """Know a schedule."""
        self._known[name] = schedule

    def remove(self, name: str) -> None:
        """Know a schedule no more, here and in DBOS."""
        self._known.pop(name, None)
        DBOS.delete_schedule(name)

    def apply(self) -> None:
        """Have DBOS keep those that are known."""
        entries: list[ScheduleInput] = [
            {
                "schedule_name": name,
                "workflow_fn": self._tick,
                "schedule": schedule.cron,
                "context": name,
                "queue_name": schedule.queue,
                "cron_timezone": schedule.timezone,
            }
            for name, schedule in self._known.items()
        ]
        if entries:
            DBOS.apply_schedules(entries)

    def _begin(self, at: datetime, name: str) -> None:
        """Order the run that is due. A tick that is performed again finds that it has ordered it: DBOS noted that."""
        schedule = self._known.get(name)
        if schedule is None:
            raise UnknownNameError(_KIND, name, tuple(self._known))
        enqueue(schedule.order(name, at), schedule.queue, None, None)
