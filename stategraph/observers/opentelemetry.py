"""The "opentelemetry" observer: runs as traces and metrics (https://opentelemetry.io). It takes the API alone."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import attrs

try:
    from opentelemetry import context, metrics, trace
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "the observer 'opentelemetry' takes the API of OpenTelemetry: pip install 'durable-stategraph[otel]'",
        name=_missing.name,
    ) from _missing

from stategraph._values import clock
from stategraph._values.events import Event, EventType, Observer

_Data: TypeAlias = Mapping[str, Any]
_MOST_BEFORE = 10_000  # runs whose last span is remembered
_DURATIONS = {
    "run": "How long calls and nested runs took, until they ended or paused",
    "node": "How long nodes took, with all of their attempts",
    "checkpoint.save": "How long it took to save a State",
}
"""Histograms in seconds, with their descriptions."""


@attrs.define(eq=False)
class _Run:
    """A run of a call, which may be nested, and its current node.

    Attributes:
        graph: The attribute that names its graph in spans and metrics.
        about: The attributes that its spans share.
        span: The span of the run.
        node: The span of the current node; an invalid span if there is none.
        parts: How many parts of the node have ended, by outcome.
    """

    graph: _Data
    about: _Data
    span: trace.Span
    node: trace.Span = trace.INVALID_SPAN
    parts: Counter[str] = attrs.field(factory=Counter)


class OpenTelemetryObserver(Observer):
    """Makes a span for each call of a graph, each nested run and each node, and measures them.

    Nodes run in the context of their spans, in threads and tasks as well: spans that they begin are children.

    The names of attributes begin with ``stategraph.``, except for ``error.type``. A span ``run NAME`` has ``graph``,
    ``run.id``, ``call.id``, ``step`` (the last one before) and, at the end, ``status`` and ``last_step``;
    in a nested run ``parent.run.id`` and ``parent.step``; after a pause ``pause.node``; after an error ``failed_node``
    and ``error.type``. Its link to the call before has ``link`` "call before".

    A span ``node NAME`` has ``graph``, ``run.id``, ``node``, ``step``, ``attempts``, and ``outcome``: "completed",
    "failed", "paused" or "cut off". It has ``cache.hit`` if it used a cached result, and for branches and items
    ``parts.total``, ``parts.completed``, ``parts.collected``, ``parts.found`` and ``parts.failed``. A failed attempt is
    an event ``exception`` with ``attempt``, another attempt an event ``retry``, and a failed part an event
    ``exception`` with ``part``.

    Metrics, and their attributes:

    - ``stategraph.run.duration``: seconds of calls and nested runs; ``graph``, ``status``.
    - ``stategraph.node.duration``: seconds of nodes that ended; ``graph``, ``node``, ``outcome``.
    - ``stategraph.node.retries``: attempts after the first; ``graph``, ``node``.
    - ``stategraph.parts``: branches and items that have ended; ``graph``, ``node``, ``outcome``.
    - ``stategraph.checkpoint.save.duration``: seconds of saves; ``graph``.
    - ``stategraph.runs.under_way``: the runs at work, nested ones included; ``graph``.

    Args:
        tracer_provider: Where spans go; the global provider if it is None.
        meter_provider: Where metrics go; the global provider if it is None.
    """

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        version = import_module("stategraph").__version__
        self._tracer = trace.get_tracer("stategraph", version, tracer_provider)
        meter = metrics.get_meter("stategraph", version, meter_provider)
        self._took = {
            name: meter.create_histogram(f"stategraph.{name}.duration", "s", description)
            for name, description in _DURATIONS.items()
        }
        self._retries = meter.create_counter("stategraph.node.retries", "{attempt}", "Attempts after the first")
        self._parts = meter.create_counter("stategraph.parts", "{part}", "Branches and items that have ended")
        self._under_way = meter.create_up_down_counter("stategraph.runs.under_way", "{run}", "Runs that are at work")
        self._runs: dict[tuple[str, str], _Run] = {}
        self._before: OrderedDict[str, trace.SpanContext] = OrderedDict()  # the last span of each run
        self._heard: dict[EventType, Callable[[_Run, _Data, int], None]] = {
            EventType.NODE_START: self._begin_node,
            EventType.NODE_COMPLETE: self._end_node,
            EventType.NODE_ERROR: self._note_error,
            EventType.NODE_RETRY: self._note_retry,
            EventType.PART_COMPLETE: self._note_part,
            EventType.PART_ERROR: self._note_part,
            EventType.CACHE_HIT: self._note_hit,
            EventType.CHECKPOINT_SAVE: self._measure_save,
            EventType.GRAPH_COMPLETE: self._end_run,
            EventType.GRAPH_PAUSE: self._end_paused,
            EventType.GRAPH_ERROR: self._end_failed,
        }

    def wants(self, type: EventType) -> bool:
        return type is EventType.GRAPH_START or type in self._heard

    def on_event(self, event: Event) -> None:
        data, at = event.data, clock.to_ns(event.timestamp)
        if event.type is EventType.GRAPH_START:
            self._begin_run(event.source, data, at)
        else:
            run = self._runs.get((data["call_id"], data["run_id"]))
            if run is not None:  # a State may be saved before the run starts
                self._heard[event.type](run, data, at)

    def enter_node(self, call_id: str, run_id: str) -> Callable[[], object]:
        """Make the span of the current node the current span; return a function that undoes it."""
        run = self._runs.get((call_id, run_id))
        if run is None or run.node is trace.INVALID_SPAN:
            return bool
        return partial(context.detach, context.attach(trace.set_span_in_context(run.node)))

    # ------------------------------------------------------------------ runs

    def _begin_run(self, name: str, data: _Data, at: int) -> None:
        run_id, outer_id = data["run_id"], data.get("parent_run_id")
        outer = None if outer_id is None else self._runs.get((data["call_id"], outer_id))
        parent = None if outer is None or outer.node is trace.INVALID_SPAN else trace.set_span_in_context(outer.node)
        before = self._before.get(run_id)
        graph = {"stategraph.graph": name}
        about = {**graph, "stategraph.run.id": run_id}
        attributes = {**about, "stategraph.call.id": data["call_id"], "stategraph.step": data["step"]}
        if outer_id is not None:
            attributes |= {"stategraph.parent.run.id": outer_id, "stategraph.parent.step": data["parent_step"]}
        links = [] if before is None else [trace.Link(before, {"stategraph.link": "call before"})]
        span = self._tracer.start_span(f"run {name}", parent, attributes=attributes, links=links, start_time=at)
        self._runs[data["call_id"], run_id] = _Run(graph, about, span)
        self._before[run_id] = span.get_span_context()
        self._before.move_to_end(run_id)
        while len(self._before) > _MOST_BEFORE:
            self._before.popitem(last=False)
        self._under_way.add(1, graph)

    def _end_run(self, run: _Run, data: _Data, at: int) -> None:
        del self._runs[data["call_id"], data["run_id"]]
        self._end_span_of_node(run, at)
        status = {"stategraph.status": data["status"]}
        run.span.set_attributes({**status, "stategraph.last_step": data["step"]})
        run.span.end(at)
        self._under_way.add(-1, run.graph)
        self._took["run"].record(data["took"], {**run.graph, **status})

    def _end_paused(self, run: _Run, data: _Data, at: int) -> None:
        run.span.set_attribute("stategraph.pause.node", data["pause_node"])
        run.node.set_attribute("stategraph.outcome", "paused")
        self._end_run(run, data, at)

    def _end_failed(self, run: _Run, data: _Data, at: int) -> None:
        run.span.set_attributes({"error.type": data["error_type"], "stategraph.failed_node": data["node"]})
        if data["error_type"] != "RunCancelledError":  # a cancelled run has not failed
            for span in (run.span, run.node):
                span.set_status(trace.StatusCode.ERROR, data["error"])
        run.node.set_attribute("stategraph.outcome", "failed" if data["status"] == "failed" else "cut off")
        self._end_run(run, data, at)

    # ------------------------------------------------------------------ nodes

    def _begin_node(self, run: _Run, data: _Data, at: int) -> None:
        attributes = {**run.about, "stategraph.node": data["node"], "stategraph.step": data["step"]}
        below = trace.set_span_in_context(run.span)
        run.node = self._tracer.start_span(f"node {data['node']}", below, attributes=attributes, start_time=at)

    def _end_node(self, run: _Run, data: _Data, at: int) -> None:
        outcome = {"stategraph.outcome": data["outcome"]}
        run.node.set_attributes({"stategraph.attempts": data["attempts"], **outcome})
        if data["outcome"] == "failed":
            run.node.set_status(trace.StatusCode.ERROR)
        self._end_span_of_node(run, at)
        self._took["node"].record(data["took"] or 0.0, {**run.graph, "stategraph.node": data["node"], **outcome})

    def _end_span_of_node(self, run: _Run, at: int) -> None:
        run.node.set_attributes({f"stategraph.parts.{outcome}": count for outcome, count in run.parts.items()})
        run.node.end(at)
        run.node, run.parts = trace.INVALID_SPAN, Counter()

    def _note_error(self, run: _Run, data: _Data, at: int) -> None:
        run.node.add_event("exception", {**_exception(data), "stategraph.attempt": data["attempt"]}, at)

    def _note_retry(self, run: _Run, data: _Data, at: int) -> None:
        run.parts = Counter()  # the next attempt finds and counts the kept parts again
        self._retries.add(1, {**run.graph, "stategraph.node": data["node"]})
        run.node.add_event("retry", {"stategraph.attempt": data["attempt"], "stategraph.delay": data["delay"]}, at)

    def _note_part(self, run: _Run, data: _Data, at: int) -> None:
        outcome = data["outcome"]
        run.parts["total"] = data["total"]
        run.parts[outcome] += 1
        self._parts.add(1, {**run.graph, "stategraph.node": data["node"], "stategraph.outcome": outcome})
        if "error" in data:
            run.node.add_event("exception", {**_exception(data), "stategraph.part": data["part"]}, at)

    def _note_hit(self, run: _Run, data: _Data, at: int) -> None:
        run.node.set_attribute("stategraph.cache.hit", value=True)

    def _measure_save(self, run: _Run, data: _Data, at: int) -> None:
        if data.get("took") is not None:
            self._took["checkpoint.save"].record(data["took"], run.graph)


def _exception(data: _Data) -> dict[str, Any]:
    message = data["error"].removeprefix(f"{data['error_type']}: ")
    about = {"exception.type": data["error_type"], "exception.message": message}
    return {**about, "exception.stacktrace": data["traceback"]}
