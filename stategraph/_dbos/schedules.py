"""Schedules: runs that begin at certain times, each once, whichever workers there are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import attrs
from dbos import DBOS, ScheduleInput

from stategraph._dbos.checks import check_times
from stategraph._dbos.orders import TICK, apart, enqueue
from stategraph.errors import ConfigError, UnknownNameError
from stategraph.graph import StateGraph
from stategraph.state import State
from stategraph.turns import Order

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
        made = apart(self.make_state, at)
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
        entries = [self._entry(name, schedule) for name, schedule in self._known.items()]
        if entries:
            DBOS.apply_schedules(entries)

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
        """Order the run that is due. A tick that is performed again finds that it has ordered it: DBOS noted that."""
        schedule = self._known.get(name)
        if schedule is None:
            raise UnknownNameError(_KIND, name, tuple(self._known))
        enqueue(schedule.order(name, at), schedule.queue, None, None)
