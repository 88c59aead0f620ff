"""Events: what happens in a run, and how an observer is told.

An event that nobody listens to is never built: code that raises one asks `wanted_events` first.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

import attrs

from stategraph._util.callables import answered, failures, problem_of
from stategraph._values import clock


class EventType(StrEnum):
    """The kinds of events; every one carries at least ``run_id`` in its data."""

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
"""What happens at every step of a run."""


@attrs.frozen
class Event:
    """Something that happened: when, in which graph (or "state" where no graph was at work), and what belongs to it."""

    type: EventType
    timestamp: datetime
    source: str
    data: Mapping[str, Any]


class Listener(Protocol):
    """An observer: anything with ``on_event``. If it has ``wants(event_type) -> bool``, that is asked."""

    def on_event(self, event: Event) -> None:
        """Hear of an event. What is raised here is reported once and breaks nothing."""


def listener_problem(listener: object) -> str:
    """Return what keeps an object from being an observer; empty if nothing does."""
    if isinstance(listener, type):
        return f"an object that hears of events is: {listener.__name__}() makes one"
    for name in ("on_event", "wants"):
        problem = problem_of(getattr(listener, name, None), 1)
        if problem and (name == "on_event" or hasattr(listener, name)):
            return f"an object with a sync on_event(event) is; of its {name}: {problem}"
    return ""


def wants(listener: Listener, type: EventType) -> bool:
    """Return whether the listener wants to hear of events of this type: yes, unless its ``wants`` says no."""
    ask = getattr(listener, "wants", None)
    if ask is None:
        return True
    try:
        answer = ask(type)
        return answer is True or (answer is not False and bool(answered(answer, "wants")))
    except failures() as error:
        _report(listener, error)
        return False


def wanted_events(listener: Listener | None) -> frozenset[EventType]:
    """Return the types of events that the listener wants to hear of."""
    return frozenset(() if listener is None else (kind for kind in EventType if wants(listener, kind)))


def notify(listener: Listener, type: EventType, source: str, data: Mapping[str, Any]) -> None:
    """Tell the listener of something that happens now."""
    notify_of(listener, Event(type, clock.to_datetime(clock.now_ns()), source, data))


def notify_of(listener: Listener, event: Event) -> None:
    """Tell the listener of an event. What it raises is logged, once for each listener, and goes no further."""
    try:
        answer: object = listener.on_event(event)  # type: ignore[func-returns-value]
        if answer is not None:
            answered(answer, "on_event")
    except failures() as error:
        _report(listener, error)


_MOST_REPORTED = 1_000  # observers that have raised; an older one may be reported once more
_reported: dict[int, Callable[[], object]] = {}  # by id, because observers need not be hashable


def _forget(key: int, _: object) -> None:
    _reported.pop(key, None)


def _report(listener: object, error: BaseException) -> None:
    known = _reported.get(id(listener))
    if known is not None and known() is listener:  # an id can be used again once its object is gone
        return
    try:
        _reported[id(listener)] = weakref.ref(listener, partial(_forget, id(listener)))
    except TypeError:  # an object without __weakref__ is kept, but not for ever
        _reported[id(listener)] = lambda: listener
    for key in list(_reported)[:-_MOST_REPORTED]:
        _reported.pop(key, None)
    import logging  # imported when used: 5 ms

    logging.getLogger("stategraph").error(
        "observer %s raised; the run goes on, and further errors of this observer are not reported",
        type(listener).__qualname__,
        exc_info=error,
    )
