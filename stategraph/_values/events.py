"""Events of runs and States, and how observers receive them.

An event that no observer wants is never made: callers check `wanted_events` first.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import attrs

from stategraph._util.callables import answered, failures, problem_of
from stategraph._values import clock


class EventType(StrEnum):
    """The types of events. The data of every event include ``run_id``."""

    STATE_CREATE = "state.create"
    STATE_CLONE = "state.clone"
    STATE_SET = "state.set"
    STATE_MERGE = "state.merge"
    GRAPH_START = "graph.start"
    GRAPH_COMPLETE = "graph.complete"
    GRAPH_PAUSE = "graph.pause"
    GRAPH_ERROR = "graph.error"
    NODE_START = "node.start"
    NODE_COMPLETE = "node.complete"
    NODE_ERROR = "node.error"
    NODE_RETRY = "node.retry"
    NODE_CHUNK = "node.chunk"
    NODE_RECOMPUTE = "node.recompute"
    PART_COMPLETE = "part.complete"
    PART_ERROR = "part.error"
    PART_RETRY = "part.retry"
    CACHE_HIT = "cache.hit"
    CACHE_MISS = "cache.miss"
    EDGE_EVALUATE = "edge.evaluate"
    EDGE_TRANSITION = "edge.transition"
    CYCLE_DETECTED = "cycle.detected"
    CHECKPOINT_SAVE = "checkpoint.save"
    CHECKPOINT_LOAD = "checkpoint.load"
    CHECKPOINT_RESUME = "checkpoint.resume"
    CHECKPOINT_DELETE = "checkpoint.delete"
    LEASE_LATE = "lease.late"


STATE_EVENTS = frozenset({EventType.STATE_CREATE, EventType.STATE_CLONE, EventType.STATE_SET, EventType.STATE_MERGE})
"""Events of a State; all others are those of a run."""

STEP_EVENTS = frozenset(
    {EventType.NODE_START, EventType.NODE_COMPLETE, EventType.CYCLE_DETECTED}
    | {EventType.EDGE_EVALUATE, EventType.EDGE_TRANSITION}
)
"""Events of every step of a run."""

PART_EVENTS = frozenset({EventType.PART_COMPLETE, EventType.PART_ERROR})
"""Events of branches and items."""

_ALL = tuple(EventType)


@attrs.frozen
class Event:
    """An event. Its source is the name of the graph, or "state" if no graph was running."""

    type: EventType
    timestamp: datetime
    source: str
    data: Mapping[str, Any]


class Listener(Protocol):
    """An observer: anything with ``on_event``. Its ``wants(event_type) -> bool``, if any, chooses the events."""

    def on_event(self, event: Event) -> None:
        """Receive an event. The first exception of an observer is logged; none affects the run."""


def listener_problem(listener: object) -> str:
    """Return why an object is no observer; empty if it is one."""
    if isinstance(listener, type):
        return f"an object that hears of events is: {listener.__name__}() makes one"
    for name in ("on_event", "wants"):
        problem = problem_of(getattr(listener, name, None), 1)
        if problem and (name == "on_event" or hasattr(listener, name)):
            return f"an object with a sync on_event(event) is; of its {name}: {problem}"
    return ""


def wants(listener: Listener, type: EventType) -> bool:
    """Return whether the listener wants events of this type. It does unless its ``wants`` returns a false value."""
    ask = getattr(listener, "wants", None)
    if ask is None:
        return True
    try:
        answer = ask(type)
        return answer is True or (answer is not False and bool(answered(answer, "wants")))
    except failures() as error:
        report(listener, error)
        return False


def wanted_events(listener: Listener | None) -> frozenset[EventType]:
    """Return the types of events that the listener wants."""
    return frozenset(() if listener is None else filter(partial(wants, listener), _ALL))


def notify(listener: Listener, type: EventType, source: str, data: Mapping[str, Any]) -> None:
    """Send the listener an event that happens now. Data with the duration `took` also receive the time `began`."""
    now_ns, took = clock.now_ns(), data.get("took")
    if took is not None:
        data = {**data, "began": clock.to_datetime(now_ns - round(took * 1e9))}
    notify_of(listener, Event(type, clock.to_datetime(now_ns), source, data))


def notify_of(listener: Listener, event: Event) -> None:
    """Send the listener an event. Its first exception is logged; none is propagated."""
    try:
        answer: object = listener.on_event(event)  # type: ignore[func-returns-value]
        if answer is not None:
            answered(answer, "on_event")
    except failures() as error:
        report(listener, error)


_MOST_REPORTED = 100
_reported: dict[int, object] = {}
"""The last observers that raised, by id: they may not be hashable. Holding them keeps their ids unique."""


def report(listener: object, error: BaseException) -> None:
    """Log an exception of an observer, unless an earlier exception of it was logged."""
    if id(listener) in _reported:
        return
    _reported[id(listener)] = listener
    if len(_reported) > _MOST_REPORTED:
        _reported.pop(next(iter(_reported)), None)
    import logging  # imported when used

    logging.getLogger("stategraph").error(
        "observer %s raised; the run goes on, and further errors of this observer are not reported",
        type(listener).__qualname__,
        exc_info=error,
    )
