"""Events of runs and States, and how observers receive them.

An event that no observer wants is never made: callers check `wanted_events` first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, cast

import attrs

from stategraph._util.callables import answered, failures, problem_of
from stategraph._values import clock
from stategraph.errors import ConfigError


class EventType(StrEnum):
    """The types of events. The data of every event include ``run_id``."""

    STATE_CREATE = "state.create"
    """A State that has an observer is created."""

    STATE_CLONE = "state.clone"
    """A State that has an observer is copied."""

    STATE_SET = "state.set"
    """Keys of a State that has an observer are set or removed. Data: `keys`."""

    STATE_MERGE = "state.merge"
    """A mapping is merged into a State that has an observer. Data: `keys`."""

    GRAPH_START = "graph.start"
    """A call of `execute` or `resume` begins or continues a run or a nested run."""

    GRAPH_COMPLETE = "graph.complete"
    """The run is complete. Data: `took`."""

    GRAPH_PAUSE = "graph.pause"
    """The run pauses. Data: `took`, `pause_node`, `reason` and `response_param`."""

    GRAPH_ERROR = "graph.error"
    """The call ends early.

    Data: `node`, the failed node or, if there is none, the last one entered; `error`, `error_type`, `traceback`,
    `attempts` and `took`. A traceback has the last calls that led to the exception: file, line and function of each.
    Files have the names under which they are imported. Calls of stategraph are left out, unless there are no others.
    """

    NODE_START = "node.start"
    """A node begins."""

    NODE_COMPLETE = "node.complete"
    """A node has ended.

    Data: `took`, `attempts`, and `outcome`: "completed", or "failed" if another node handles the failure.
    """

    NODE_ERROR = "node.error"
    """An attempt of a node has failed. Data: `attempt`, `error`, `error_type`, `traceback` and `took`."""

    NODE_RETRY = "node.retry"
    """Another attempt follows a failed one, whose `node.error` comes before. Data: `attempt`, `error`, and `delay` in
    seconds."""

    NODE_CHUNK = "node.chunk"
    """A node has emitted a chunk. Data: `chunk`."""

    NODE_RECOMPUTE = "node.recompute"
    """A node runs again on resume, for keys that are not saved. Data: `keys`."""

    PART_COMPLETE = "part.complete"
    """A branch or an item is done, and saved if the store keeps parts.

    Data: `part`; `total`, the number of parts; `took`, `attempt`, and `outcome`: "completed"; "collected" if its error
    is its result, which adds `error`, `error_type` and `traceback`; "found" if an earlier call had finished it.
    """

    PART_ERROR = "part.error"
    """A branch or an item has failed.

    Data: `part`, `total`, `took`, `attempt`, `outcome` ("failed"), `error`, `error_type` and `traceback`.
    """

    PART_RETRY = "part.retry"
    """An attempt of an item has failed, and another follows.

    Data: as of `part.error`, with `outcome` "retried", and `delay` in seconds.
    """

    CACHE_HIT = "cache.hit"
    """A node with a cache found a result. Data: `key`."""

    CACHE_MISS = "cache.miss"
    """A node with a cache found no result. Data: `key`, or None, and `reason`."""

    EDGE_EVALUATE = "edge.evaluate"
    """An edge was tried. Data: `source`, `target`, `edge`, `predicate` and `result`."""

    EDGE_TRANSITION = "edge.transition"
    """An edge is taken. Data: `source`, `target`, `edge` and `predicate`."""

    CYCLE_DETECTED = "cycle.detected"
    """A node begins that this call has already completed."""

    CHECKPOINT_SAVE = "checkpoint.save"
    """The run has saved a State. Data: `took`; with durability "async", the time to queue it."""

    CHECKPOINT_LOAD = "checkpoint.load"
    """The run has loaded the State from which it continues. Data: `took`."""

    CHECKPOINT_RESUME = "checkpoint.resume"
    """The run continues from a State."""

    CHECKPOINT_DELETE = "checkpoint.delete"
    """The run is complete and was deleted."""

    LEASE_LATE = "lease.late"
    """The server did not receive the renewal of the lease.

    Data: `left`, the seconds after which others may take the run (0.0: now), and `error`, the reason.
    """


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
    """An event of a run or of a State.

    Attributes:
        type: The type of the event.
        timestamp: The time of the event, aware, in UTC.
        source: The name of the graph, or "state" if no graph was running.
        data: `EventType` describes the data of each type. All have the ``run_id``. All but those of ``lease.late`` and
            ``state.*`` also have the ``call_id`` of the call of `execute` or `resume`, which nested runs share; in a
            nested run ``parent_run_id``, ``parent_step`` and ``parent_node``; ``step`` and ``node``, which in an event
            outside of a step are the last completed ones; and ``status``, the status of the run, in ``graph.*``,
            ``checkpoint.*`` and ``node.complete``. Data with ``took``, in seconds, also have ``began``, an aware
            datetime.
    """

    type: EventType
    timestamp: datetime
    source: str
    data: Mapping[str, Any]


class Listener(Protocol):
    """An observer: anything with ``on_event``. Its ``wants(event_type) -> bool``, if any, chooses the events."""

    def on_event(self, event: Event) -> None:
        """Receive an event. The first exception of an observer is logged; none affects the run."""


def listener_problem(listener: object) -> str:
    """Return why an object is not an observer; empty if it is one."""
    if isinstance(listener, type):
        return f"use an object that receives events, not its class: {listener.__name__}() makes one"
    if not hasattr(listener, "on_event"):
        return "use an object with a sync method on_event(event), or the name of an observer"
    for name in ("on_event", "wants"):
        problem = problem_of(getattr(listener, name), 1) if hasattr(listener, name) else ""
        if problem:
            return f"use an object with a sync method on_event(event); its {name}: {problem}"
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
_reported: deque[object] = deque(maxlen=_MOST_REPORTED)
"""The last observers that raised."""


def report(listener: object, error: BaseException) -> None:
    """Log an exception of an observer, unless an earlier exception of it was logged."""
    if any(known is listener for known in _reported.copy()):  # another thread may add one
        return
    _reported.append(listener)
    import logging  # imported when used

    logging.getLogger("stategraph").error(
        "observer %s raised; the run goes on, and further errors of this observer are not reported",
        type(listener).__qualname__,
        exc_info=error,
    )


# --------------------------------------------------------------------------- observers


class Observer:
    """Base for observers. Anything with ``on_event`` is one; this class adds the defaults.

    An observer may also have a method ``enter_node(call_id, run_id)``. It is called right before the function of a
    node, in the same thread or task, and returns a function to call afterwards. Context variables that it sets are
    visible to the node, and to threads and tasks that begin in the node.
    """

    def on_event(self, event: Event) -> None:
        """Receive an event, in order and in the thread of the run. An exception is logged once and ignored."""

    def wants(self, type: EventType) -> bool:
        """Return whether to receive events of this type.

        It is called when a run starts. An event that no observer wants is never built.
        """
        return True


class NoopObserver(Observer):
    """Ignores all events."""

    def wants(self, type: EventType) -> bool:
        return False


class MultiObserver(Observer):
    """Passes each event to several observers, in the order given, even if one of them raises.

    Args:
        observers: The observers, or one iterable of them.

    Raises:
        ConfigError: an observer is a class, async, or no observer at all.
    """

    def __init__(self, *observers: Listener | Iterable[Listener]) -> None:
        self.observers: tuple[Listener, ...] = tuple(observer for given in observers for observer in _each(given))
        entering = [observer for observer in self.observers if hasattr(observer, "enter_node")]
        if entering:
            self.enter_node: Callable[..., Callable[[], object]] = partial(_enter_all, entering)

    def on_event(self, event: Event) -> None:
        for observer in self.observers:
            if wants(observer, event.type):
                notify_of(observer, event)

    def wants(self, type: EventType) -> bool:
        return any(wants(observer, type) for observer in self.observers)


def _enter_all(observers: list[Any], call_id: str, run_id: str) -> Callable[[], object]:
    """Call `enter_node` of each observer; return a function that undoes all of it."""
    with ExitStack() as stack:
        for observer in observers:
            stack.callback(observer.enter_node(call_id, run_id))
        return stack.pop_all().close


def _each(given: Listener | Iterable[Listener]) -> Iterable[Listener]:
    is_one = hasattr(given, "on_event") or not isinstance(given, Iterable)
    observers = (cast(Listener, given),) if is_one else cast(Iterable[Listener], given)
    return map(check_observer, observers)


def check_observer(observer: Any, key: str = "observer") -> Listener:
    """Return an observer unchanged.

    Raises:
        ConfigError: it is no observer; the key names it.
    """
    problem = listener_problem(observer)
    if problem:
        raise ConfigError(key, observer, problem)
    return observer  # type: ignore[no-any-return]
