"""Runs as traces and metrics, as the SDK of OpenTelemetry keeps them."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace as otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from stategraph import AsyncNodeError, ExecutionError, RetryPolicy, RunCancelledError, State, get_observer
from stategraph.nodes.interrupt import InterruptNode
from stategraph.nodes.map import MapNode
from stategraph.nodes.parallel import ParallelNode
from stategraph.observers.opentelemetry import OpenTelemetryObserver
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Scene, broken_first, make_graph, raises, trace, traces


def id_of(span: Any) -> int:
    """Return the id of a span."""
    found: int = span.get_span_context().span_id
    return found


class Open(SpanProcessor):
    """Knows which spans have not ended."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.names[id_of(span)] = span.name

    def on_end(self, span: ReadableSpan) -> None:
        del self.names[id_of(span)]


class Traced:
    """An observer whose spans and figures are kept in memory, and a tracer of the user's own."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self._open = Open()
        self.provider.add_span_processor(self._open)
        self.meters = MeterProvider([self.reader])
        self.observer = OpenTelemetryObserver(self.provider, self.meters)
        self.tracer = self.provider.get_tracer("the user's")

    @property
    def under_way(self) -> list[str]:
        """The names of the spans that have not ended."""
        return list(self._open.names.values())

    @property
    def spans(self) -> list[ReadableSpan]:
        """The spans that have ended, the one that began first first."""
        return sorted(
            self.exporter.get_finished_spans(), key=lambda span: (span.start_time or 0, -(span.end_time or 0))
        )

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans with a name."""
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only one of a name."""
        (span,) = self.named(name)
        return span

    def tree(self) -> set[tuple[str, str | None]]:
        """Return the name of each span, with that of the one that it stands below."""
        names = {id_of(span): span.name for span in self.spans}
        return {(span.name, names.get(span.parent.span_id, "gone") if span.parent else None) for span in self.spans}

    def figures(self, name: str) -> dict[tuple[Any, ...], Any]:
        """Return the sum or the count of a metric for each set of attribute values."""
        data: Any = self.reader.get_metrics_data()
        points = [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        return {
            tuple(value for _, value in sorted((point.attributes or {}).items())): getattr(
                point, "count", getattr(point, "value", None)
            )
            for point in points
        }

    def mark(self, name: str, answer: Any = None) -> Callable[[Any], Any]:
        """Return a node, or a function for items, that opens a span."""

        def work(given: Any) -> Any:
            with self.tracer.start_as_current_span(name):
                return {} if answer is None else answer

        return work

    def amark(self, name: str) -> Callable[[Any], Any]:
        """Return an async one, in whose span others get their turn."""

        async def work(given: Any) -> Any:
            with self.tracer.start_as_current_span(name):
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            with self.tracer.start_as_current_span(f"{name} again"):
                return {}

        return work


@pytest.fixture
def traced() -> Iterator[Traced]:
    one = Traced()
    yield one
    assert one.under_way == []
    assert otel.get_current_span() is otel.INVALID_SPAN  # nothing is left in the context of the caller
    spans = {id_of(span): span for span in one.spans}
    for span in one.spans:  # each lies in the one above
        above = spans[span.parent.span_id] if span.parent else span
        assert (above.start_time or 0) <= (span.start_time or 0) <= (span.end_time or 0) <= (above.end_time or 0)
    one.provider.shutdown()
    one.meters.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return its attributes, without the beginning of their names."""
    return {name.removeprefix("stategraph."): value for name, value in (span.attributes or {}).items()}


class TestSpans:
    """Spans of calls, nodes, parts and nested runs."""

    def test_a_call_its_nodes_and_nested_runs(self, play: Scene, traced: Traced) -> None:
        """The spans of a call, its nodes and nested runs form one tree below the span of the caller."""
        inner = make_graph(traces("xy"), store=play.store, name="inner")
        nodes = {"a": trace("a"), "sub": inner.as_node()}
        with traced.tracer.start_as_current_span("request"):
            play.execute(make_graph(nodes, store=play.store, observer=traced.observer))

        assert traced.tree() == {
            ("request", None),
            ("run flow", "request"),
            ("node a", "run flow"),
            ("node sub", "run flow"),
            ("run inner", "node sub"),
            ("node x", "run inner"),
            ("node y", "run inner"),
        }
        assert len({span.get_span_context().trace_id for span in traced.spans}) == 1  # type: ignore[union-attr]
        outer, nested = attributes(traced.one("run flow")), attributes(traced.one("run inner"))
        assert (outer["graph"], outer["run.id"], outer["status"], outer["last_step"]) == ("flow", RUN, "completed", 2)
        assert (nested["parent.run.id"], nested["parent.step"]) == (RUN, 2)
        assert nested["call.id"] == outer["call.id"]
        node = attributes(traced.one("node sub"))
        assert (node["node"], node["step"], node["attempts"], node["outcome"]) == ("sub", 2, 1, "completed")

    def test_spans_of_users_are_below_the_node(self, play: Scene, traced: Traced) -> None:
        """Spans of users are below the node: in branches and items, sync and async, with and without a timeout."""
        mark = traced.mark
        nodes = {
            "plain": mark("1"),
            "limited": mark("2"),
            "items": MapNode(mark("3", 1), over="l", into="out"),
            "branches": ParallelNode({"sync": mark("4"), "async": traced.amark("5")}),
            "async": traced.amark("6"),
            "async limited": traced.amark("7"),
            "sub": make_graph({"x": mark("8")}, store=play.store, name="inner").as_node(),
        }
        policies = {"limited": {"timeout": 60}, "async limited": {"timeout": 60}}
        graph = make_graph(nodes, store=play.store, observer=traced.observer, policies=policies)
        play.execute(graph, State({"l": [1, 2]}, run_id=RUN))

        own = {(name, above) for name, above in traced.tree() if name[0].isdigit()}
        assert own == {
            *(("1", "node plain"), ("2", "node limited"), ("3", "node items"), ("4", "node branches")),
            *(("5", "node branches"), ("5 again", "node branches"), ("6", "node async"), ("6 again", "node async")),
            *(("7", "node async limited"), ("7 again", "node async limited"), ("8", "node x")),
        }
        assert len(traced.named("3")) == 2


class TestEnds:
    """How spans end."""

    def test_a_failure(self, play: Scene, traced: Traced) -> None:
        """The node and the call are errors, with the exception of each attempt."""
        policies = {"bad": {"retry": RetryPolicy(2, initial_delay=0)}}
        nodes = {**traces("a"), "bad": raises(ValueError("no"))}
        with pytest.raises(ExecutionError):
            play.execute(make_graph(nodes, store=play.store, observer=traced.observer, policies=policies))

        run, node = traced.one("run flow"), traced.one("node bad")
        assert (run.status.status_code, node.status.status_code) == (StatusCode.ERROR, StatusCode.ERROR)
        assert traced.one("node a").status.status_code is StatusCode.UNSET
        about = attributes(run)
        assert (about["status"], about["failed_node"], about["error.type"]) == ("failed", "bad", "ValueError")
        assert [event.name for event in node.events] == ["exception", "retry", "exception"]
        raised = dict(node.events[0].attributes or {})
        assert (raised["exception.type"], raised["exception.message"]) == ("ValueError", "no")
        assert "scenarios.py" in str(raised["exception.stacktrace"])

    def test_a_pause(self, play: Scene, traced: Traced) -> None:
        """No span is open while a run waits; a resume links to the call before, also in nested runs, in a new trace."""
        inner = make_graph({"x": trace("x"), "ask": InterruptNode("why", "answer")}, store=play.store, name="inner")
        graph = make_graph({"sub": inner.as_node(), "b": trace("b")}, store=play.store, observer=traced.observer)
        play.execute(graph, State({"why": 1}, run_id=RUN))

        assert traced.under_way == []
        assert [span.name for span in traced.spans] == ["run flow", "node sub", "run inner", "node x", "node ask"]
        about = attributes(traced.one("run flow"))
        assert (about["status"], about["pause.node"]) == ("paused", "sub")
        assert attributes(traced.one("node ask"))["outcome"] == "paused"

        play.resume(graph, {"answer": 1})

        for name in ("run flow", "run inner"):
            first, second = traced.named(name)
            assert [link.context for link in second.links] == [first.get_span_context()]
            assert first.links == ()
            assert first.get_span_context().trace_id != second.get_span_context().trace_id  # type: ignore[union-attr]

    def test_a_run_that_is_cancelled(self, play: Scene, traced: Traced) -> None:
        """It has not failed."""
        stop = threading.Event()

        def node(state: State) -> dict[str, Any]:
            stop.set()
            return {}

        graph = make_graph({"a": node, "b": trace("b")}, store=play.store, observer=traced.observer)
        with pytest.raises(RunCancelledError):
            play.execute(graph, cancel=stop)

        run = traced.one("run flow")
        assert run.status.status_code is StatusCode.UNSET
        assert attributes(run)["error.type"] == "RunCancelledError"

    def test_a_coroutine_that_is_not_awaited(self, traced: Traced) -> None:
        """It is closed, and Python does not warn of it."""

        async def work() -> dict[str, Any]:
            return {}

        async def main() -> None:
            with pytest.raises(AsyncNodeError):
                make_graph({"a": lambda state: work()}, store=MemoryStore(), observer=traced.observer).execute(State())

        asyncio.run(main())
        gc.collect()  # a warning is an error here


class TestMetrics:
    """The metrics of runs."""

    def test_all_of_them(self, play: Scene, traced: Traced) -> None:
        """The metrics are recorded with the graph, the node and the outcome."""
        nodes = {
            "a": broken_first(trace("a"), ValueError()),
            "m": MapNode(len, "l", "out"),
            "ask": InterruptNode("why", "answer"),
        }
        policies = {"a": {"retry": RetryPolicy(2, initial_delay=0)}}
        graph = make_graph(nodes, store=play.store, observer=traced.observer, policies=policies)
        play.execute(graph, State({"l": ["x", "y"], "why": 1}, run_id=RUN))
        play.resume(graph, {"answer": 1})

        assert traced.figures("stategraph.run.duration") == {("flow", "paused"): 1, ("flow", "completed"): 1}
        assert traced.figures("stategraph.node.duration") == {
            ("flow", "a", "completed"): 1,
            ("flow", "m", "completed"): 1,
            ("flow", "ask", "completed"): 1,
        }
        assert traced.figures("stategraph.node.retries") == {("flow", "a"): 1}
        assert traced.figures("stategraph.parts") == {("flow", "m", "completed"): 2}
        assert traced.figures("stategraph.runs.under_way") == {("flow",): 0}
        assert traced.figures("stategraph.checkpoint.save.duration")["flow",] >= 3


def test_it_is_known_by_name(memory_play: Scene) -> None:
    """The observer by name uses the providers of the program; without any it records nothing."""
    graph = make_graph(traces("a"), store=memory_play.store, observer=get_observer("opentelemetry"))

    assert memory_play.execute(graph).step == 1
