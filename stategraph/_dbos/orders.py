"""Orders in DBOS: each turn of a run is a workflow, values have the codec of stategraph, and schedules order runs."""

from __future__ import annotations

import base64
import contextvars
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import attrs
from dbos import DBOS, EnqueueOptions, ScheduleInput, Serializer, WorkflowStatus
from dbos import error as dbos_error

from stategraph import errors
from stategraph._text.shown import describe_exception
from stategraph._values.progress import Pause
from stategraph._values.provenance import Owner
from stategraph.errors import ConfigError, UnknownNameError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.stores._codec import msgpack
from stategraph.turns import Order, from_bytes, to_bytes

TURN, TICK, WORKER = "stategraph.turn", "stategraph.tick", "stategraph.worker"
"""The names of the workflows: a turn of a run, a tick of a schedule, a worker."""

WAITING = ("ENQUEUED", "DELAYED")
OPEN = (*WAITING, "PENDING")
"""The statuses in DBOS of turns that wait for a worker, and of unfinished turns."""

DATABASE, WAY_OUT = "database of DBOS", "runner.runs() names the runs it knows"
"""The parts of an error about a run that DBOS does not know."""

_NEWEST = 20  # turns to load for one run: the prefix may also match turns of another run
_P = ParamSpec("_P")
_R = TypeVar("_R")


@attrs.frozen
class Turn:
    """A turn in DBOS.

    Attributes:
        id: The id of its workflow.
        run_id: The run.
        number: The number of the turn in its run.
        status: The status in DBOS.
        graph: The name of the graph.
        queue: The queue, if DBOS still knows it.
        worker: The last worker.
        labels: The labels of a run that begins with this turn.
        outcome: The outcome, if it was loaded.
        error: The error that ended it, if it was loaded.
    """

    id: str
    run_id: str
    number: int
    status: str
    graph: str
    queue: str | None
    worker: str | None
    labels: Mapping[str, str]
    outcome: Any = None
    error: Exception | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is unfinished."""
        return self.status in OPEN

    @classmethod
    def of(cls, found: WorkflowStatus) -> Turn:
        """Return the turn of a workflow."""
        run_id, _, number = found.workflow_id.rpartition("#")
        about = found.attributes or {}
        return cls(
            found.workflow_id,
            run_id,
            int(number),
            found.status,
            about.get("graph", ""),
            found.queue_name,
            found.executor_id,
            about.get("labels", {}),
            found.output,
            found.error,
        )


def turn_id(run_id: str, number: int) -> str:
    """Return the id of the workflow for a turn. Run ids have no # at this place."""
    return f"{run_id}#{number}"


def outside_workflow(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function outside the context of DBOS, which would make each call in a workflow a step."""
    return contextvars.Context().run(function, *args, **kwargs)


def find_turns(**which: Any) -> list[Turn]:
    """Return turns without their outcomes, the newest first. Arguments are those of `DBOS.list_workflows`."""
    query = {"load_input": False, "load_output": False, "sort_desc": True, "name": TURN, **which}
    return [Turn.of(found) for found in outside_workflow(DBOS.list_workflows, **query)]


def turns_of(run_id: str, **which: Any) -> list[Turn]:
    """Return the newest turns of a run, the newest first."""
    found = find_turns(workflow_id_prefix=f"{run_id}#", limit=_NEWEST, **which)
    return sorted((turn for turn in found if turn.run_id == run_id), key=lambda turn: -turn.number)


def newest_by_run(turns: Iterable[Turn]) -> dict[str, Turn]:
    """Return the newest of these turns for each run."""
    return {turn.run_id: turn for turn in sorted(turns, key=lambda turn: turn.number)}


def order_of(id: str) -> Order | None:
    """Return the order of a turn."""
    for found in outside_workflow(DBOS.list_workflows, workflow_ids=[id], load_output=False):
        if found.input is not None:
            return from_bytes(found.input["args"][0])
    return None


def serializer_of(graph: StateGraph) -> str:
    """Return the serializer of the store of a graph: what it encrypts, DBOS gets encrypted."""
    return str(getattr(graph.store, "_serializer", "msgpack"))


def enqueue(order: Order, graph: StateGraph, queue: str, priority: int | None, delay: float | None) -> bool:
    """Give an order to DBOS; return whether it was new. Within a workflow, DBOS records it as a step."""
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
        DBOS.enqueue_workflow_with_options(options, to_bytes(order, serializer_of(graph)))
    except dbos_error.DBOSWorkflowIDInUseError:
        return False
    return True


def withdraw(id: str) -> None:
    """Cancel a turn that waits for a worker."""
    outside_workflow(DBOS.cancel_workflow, id)


# --------------------------------------------------------------------------- schedules


_KIND = "schedule that this worker has added (runner.schedule, in every worker)"

MakeState: TypeAlias = Callable[[datetime], State | Mapping[str, Any]]
"""Returns the State or the data that a run begins with, from the time at which the run is due."""


def _makes_states(schedule: Schedule, attribute: object, value: Any) -> None:
    if not callable(value) or inspect.iscoroutinefunction(value):
        raise ConfigError("make_state", value, "a sync function of the time: it returns the data of a run, or a State")


@attrs.frozen
class Schedule:
    """Begins runs of a graph by the clock.

    Attributes:
        graph: The graph.
        cron: The times: five fields, or six with seconds first.
        make_state: Returns the State or the data that a run begins with.
        queue: The queue of the runs.
        labels: The labels of the runs.
        timezone: The name of the time zone of `cron`, such as "Europe/Berlin"; None for UTC.
    """

    graph: StateGraph
    cron: str
    make_state: MakeState = attrs.field(validator=_makes_states)
    queue: str
    labels: Mapping[str, str]
    timezone: str | None


class Schedules:
    """The schedules whose functions this process knows."""

    def __init__(self) -> None:
        self._known: dict[str, Schedule] = {}
        self._tick: Any = None

    def register(self) -> None:
        """Register the workflow that DBOS calls for each due run."""

        def tick(at: datetime, name: str) -> None:
            self._begin(at, name)

        self._tick = DBOS.workflow(name=TICK, max_recovery_attempts=None)(tick)

    def add(self, name: str, schedule: Schedule, *, is_launched: bool) -> None:
        """Add a schedule, here and in DBOS. Before the launch, `apply` makes DBOS keep it."""
        if is_launched:
            DBOS.apply_schedules([self._entry(name, schedule)])
        self._known[name] = schedule

    def remove(self, name: str) -> None:
        """Remove a schedule, here and in DBOS."""
        self._known.pop(name, None)
        DBOS.delete_schedule(name)

    def apply(self) -> None:
        """Store the known schedules in DBOS."""
        DBOS.apply_schedules([self._entry(name, schedule) for name, schedule in self._known.items()])

    def _entry(self, name: str, schedule: Schedule) -> ScheduleInput:
        return {
            "schedule_name": name,
            "workflow_fn": self._tick,
            "schedule": schedule.cron,
            "context": name,
            "queue_name": schedule.queue,
            "cron_timezone": schedule.timezone,
        }

    def _begin(self, at: datetime, name: str) -> None:
        """Order a due run, by default named after schedule and time. DBOS does not repeat the order with the tick."""
        schedule = self._known.get(name)
        if schedule is None:
            raise UnknownNameError(_KIND, name, tuple(self._known))
        state = outside_workflow(schedule.make_state, at)
        if not isinstance(state, State):
            state = State(state, run_id=f"{name}-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}")
        order = Order(schedule.graph, state.run_id, state=state, labels=schedule.labels)
        enqueue(order, schedule.graph, schedule.queue, None, None)


# --------------------------------------------------------------------------- values


_RECORDS: Mapping[str, type] = {"Owner": Owner, "Pause": Pause}


class Codec(Serializer):
    """Serializes the arguments, outcomes and errors of workflows with exact types and without pickle.

    An error of stategraph keeps its fields; a State in it keeps only its run and step, because the store has the rest.
    Other errors keep their type and text.
    """

    def name(self) -> str:
        """Return the name that DBOS stores with each value."""
        return "stategraph"

    def serialize(self, data: Any) -> str:
        """Return a value, or an exception, as text."""
        parts = ["error", *_error_parts(data)] if isinstance(data, BaseException) else ["value", data]
        return base64.b64encode(msgpack.encode(parts)).decode()

    def deserialize(cls, serialized_data: str) -> Any:  # noqa: N805 - as DBOS names it
        """Return the value of a text that `serialize` returned."""
        kind, *parts = msgpack.decode(base64.b64decode(serialized_data))
        return _error_of(*parts) if kind == "error" else parts[0]


def _error_parts(error: BaseException) -> list[Any]:
    """Return the type, the text and, if they can be kept, the fields of an error."""
    text = describe_exception(error).removeprefix(f"{type(error).__name__}: ")
    parts: list[Any] = [type(error).__name__, text.encode("utf-8", "backslashreplace").decode(), None]
    if isinstance(error, errors.StateGraphError):
        fields = [_plain(getattr(error, field.name)) for field in attrs.fields(cast(Any, type(error))) if field.init]
        with suppress(errors.NotSerializableError):  # the text remains
            msgpack.encode(fields)
            parts[-1] = fields
    return parts


def _plain(value: Any) -> list[Any]:
    if isinstance(value, State):
        return ["State", value.run_id, value.step]
    if isinstance(value, Pause | Owner):
        return [type(value).__name__, attrs.asdict(value, recurse=False)]
    return ["", value]


def _whole(kind: str, value: Any, *step: int) -> Any:
    if kind == "State":
        return State(run_id=value, step=step[0])
    return _RECORDS[kind](**value) if kind else value


def _error_of(name: str, text: str, fields: list[Any] | None) -> Exception:
    """Return the error of these parts."""
    cls = getattr(errors, name, None)
    if fields is not None and isinstance(cls, type) and issubclass(cls, errors.StateGraphError):
        error: errors.StateGraphError = cls(*(_whole(*field) for field in fields))
        return error
    return RuntimeError(f"{name}: {text}")
