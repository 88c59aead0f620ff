"""The "opentelemetry" observer: runs as traces and metrics (https://opentelemetry.io). It takes the API alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import attrs

try:
    from opentelemetry import context, metrics, trace
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the observer 'opentelemetry' takes the API of OpenTelemetry: pip install '.[otel]'", name=error.name
    ) from error

from stategraph._values import clock
from stategraph._values.events import Event, EventType
from stategraph.observers.base import Observer

_MOST_BEFORE = 10_000  # runs of which it is known which span was their last


@attrs.define(eq=False)
class _Run:
    """A run, or a nested one, in a call, and the node that is under way in it.

    Attributes:
        about: Attributes that its spans and metrics share.
        span: Its span.
        node: That of the node.
        parts: How many parts of the node have ended in which way.
    """

    about: Mapping[str, Any]
    span: trace.Span
    node: trace.Span | None = None
    parts: dict[str, int] = attrs.field(factory=dict)


class OpenTelemetryObserver(Observer):
    """Makes a span of each call of a graph, each nested run and each node, and measures them.

    What nodes do is in the context of their spans, in threads and tasks as well: spans that they begin stand below. See
    docs/observers.md for the names.

    Args:
        tracer_provider: Where spans go; the global provider if it is None.
        meter_provider: Likewise, for what is measured.
    """

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        version = import_module("stategraph").__version__
        self._tracer = trace.get_tracer("stategraph", version, tracer_provider)
        self._measured = _Measured(metrics.get_meter("stategraph", version, meter_provider))
        self._runs: dict[tuple[str, str], _Run] = {}
        self._before: OrderedDict[str, trace.SpanContext] = OrderedDict()  # the last span of each run
        self._heard: dict[EventType, Callable[[_Run, Mapping[str, Any], int], None]] = {
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
            if run is not None:  # else it is not under way: it is about to be
                self._heard[event.type](run, data, at)

    def enter_node(self, call_id: str, run_id: str) -> Callable[[], object]:
        """Make the span of the node that is under way the current one; return what undoes that."""
        run = self._runs.get((call_id, run_id))
        if run is None or run.node is None:
            return bool
        return partial(context.detach, context.attach(trace.set_span_in_context(run.node)))

    # ------------------------------------------------------------------ runs

    def _begin_run(self, graph: str, data: Mapping[str, Any], at: int) -> None:
        run_id, outer_id = data["run_id"], data.get("parent_run_id")
        outer = None if outer_id is None else self._runs.get((data["call_id"], outer_id))
        parent = None if outer is None or outer.node is None else trace.set_span_in_context(outer.node)
        before = self._before.get(run_id)
        about = {"stategraph.graph": graph, "stategraph.run.id": run_id}
        told = {**about, "stategraph.call.id": data["call_id"], "stategraph.step": data["step"]}
        if outer_id is not None:
            told |= {"stategraph.parent.run.id": outer_id, "stategraph.parent.step": data["parent_step"]}
        links = [] if before is None else [trace.Link(before, {"stategraph.link": "call before"})]
        span = self._tracer.start_span(f"run {graph}", parent, attributes=told, links=links, start_time=at)
        self._runs[data["call_id"], run_id] = _Run(about, span)
        self._before[run_id] = span.get_span_context()
        self._before.move_to_end(run_id)
        while len(self._before) > _MOST_BEFORE:
            self._before.popitem(last=False)
        self._measured.under_way.add(1, {"stategraph.graph": graph})

    def _end_run(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        del self._runs[data["call_id"], data["run_id"]]
        if run.node is not None:
            self._end_span_of_node(run, at)
        graph, status = run.about["stategraph.graph"], data["status"]
        run.span.set_attributes({"stategraph.status": status, "stategraph.last_step": data["step"]})
        run.span.end(at)
        self._measured.under_way.add(-1, {"stategraph.graph": graph})
        self._measured.runs.record(data["took"], {"stategraph.graph": graph, "stategraph.status": status})

    def _end_paused(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        run.span.set_attribute("stategraph.pause.node", data["pause_node"])
        if run.node is not None:
            run.node.set_attribute("stategraph.outcome", "paused")
        self._end_run(run, data, at)

    def _end_failed(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        run.span.set_attributes({"error.type": data["error_type"], "stategraph.failed_node": data["node"]})
        if data["error_type"] != "RunCancelledError":  # which is no error: somebody wanted it
            run.span.set_status(trace.StatusCode.ERROR, data["error"])
            if run.node is not None:
                run.node.set_status(trace.StatusCode.ERROR, data["error"])
        if run.node is not None:
            run.node.set_attribute("stategraph.outcome", "failed" if data["status"] == "failed" else "cut off")
        self._end_run(run, data, at)

    # ------------------------------------------------------------------ nodes

    def _begin_node(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        told = {**run.about, "stategraph.node": data["node"], "stategraph.step": data["step"]}
        below = trace.set_span_in_context(run.span)
        run.node = self._tracer.start_span(f"node {data['node']}", below, attributes=told, start_time=at)

    def _end_node(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        outcome, graph = data["outcome"], run.about["stategraph.graph"]
        if run.node is not None:
            run.node.set_attributes({"stategraph.attempts": data["attempts"], "stategraph.outcome": outcome})
            if outcome == "failed":
                run.node.set_status(trace.StatusCode.ERROR)
            self._end_span_of_node(run, at)
        about = {"stategraph.graph": graph, "stategraph.node": data["node"], "stategraph.outcome": outcome}
        self._measured.nodes.record(data["took"] or 0.0, about)

    def _end_span_of_node(self, run: _Run, at: int) -> None:
        node, run.node = run.node, None
        parts, run.parts = run.parts, {}
        if node is not None:
            node.set_attributes({f"stategraph.parts.{outcome}": count for outcome, count in parts.items()})
            node.end(at)

    def _note_error(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        if run.node is not None:
            run.node.add_event("exception", {**_exception(data), "stategraph.attempt": data["attempt"]}, at)

    def _note_retry(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        run.parts = {}  # those that are kept are found again
        self._measured.retries.add(
            1, {"stategraph.graph": run.about["stategraph.graph"], "stategraph.node": data["node"]}
        )
        if run.node is not None:
            run.node.add_event("retry", {"stategraph.attempt": data["attempt"], "stategraph.delay": data["delay"]}, at)

    def _note_part(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        outcome = data["outcome"]
        run.parts["total"] = data["total"]
        run.parts[outcome] = run.parts.get(outcome, 0) + 1
        about = {"stategraph.graph": run.about["stategraph.graph"], "stategraph.node": data["node"]}
        self._measured.parts.add(1, {**about, "stategraph.outcome": outcome})
        if "error" in data and run.node is not None:
            run.node.add_event("exception", {**_exception(data), "stategraph.part": data["part"]}, at)

    def _note_hit(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        if run.node is not None:
            run.node.set_attribute("stategraph.cache.hit", value=True)

    def _measure_save(self, run: _Run, data: Mapping[str, Any], at: int) -> None:
        if data.get("took") is not None:
            self._measured.saves.record(data["took"], {"stategraph.graph": run.about["stategraph.graph"]})


def _exception(data: Mapping[str, Any]) -> dict[str, Any]:
    message = data["error"].removeprefix(f"{data['error_type']}: ")
    about = {"exception.type": data["error_type"], "exception.message": message}
    return {**about, "exception.stacktrace": data["traceback"]}


class _Measured:
    """What is measured."""

    def __init__(self, meter: metrics.Meter) -> None:
        def histogram(name: str, description: str) -> metrics.Histogram:
            return meter.create_histogram(f"stategraph.{name}", "s", description)

        self.runs = histogram("run.duration", "How long calls and nested runs took, until they ended or paused")
        self.nodes = histogram("node.duration", "How long nodes took, with all of their attempts")
        self.saves = histogram("checkpoint.save.duration", "How long it took to save a State")
        self.retries = meter.create_counter("stategraph.node.retries", "{attempt}", "Attempts after the first")
        self.parts = meter.create_counter("stategraph.parts", "{part}", "Branches and items that have ended")
        self.under_way = meter.create_up_down_counter("stategraph.runs.under_way", "{run}", "Runs that are at work")
