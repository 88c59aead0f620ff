"""The events that an observer gets of a run."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import structlog

from stategraph import (
    Event,
    EventType,
    ExecutionError,
    InterruptNode,
    MapNode,
    MultiObserver,
    RetryPolicy,
    RunStatus,
    State,
    Updates,
    get_observer,
    key_equals,
)
from stategraph._values import events as events_module
from stategraph.observers.logging import StructlogObserver
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Scene, broken_first, make_graph, trace, traces

RUN_EVENTS = frozenset(EventType) - events_module.STATE_EVENTS


class Recorder:
    """Records events; any object with on_event is an observer."""

    def __init__(self, *types: EventType) -> None:
        self.types = types or RUN_EVENTS
        self.events: list[Event] = []

    def wants(self, type: EventType) -> bool:
        """Whether it is one of those to remember."""
        return type in self.types

    def on_event(self, event: Event) -> None:
        """Remember it."""
        self.events.append(event)

    def names(self) -> list[str]:
        """Return the events in words: the type, and the node or the edge."""
        return [f"{event.type} {event.data.get('node', event.data.get('target'))}" for event in self.events]

    def data(self, type: EventType) -> list[dict[str, Any]]:
        """Return the data of all events of a type."""
        return [dict(event.data) for event in self.events if event.type is type]


class BrokenObserver:
    """Raises an error for every event."""

    def on_event(self, event: Event) -> None:
        """Raise."""
        raise ValueError("observer")


class TestOrder:
    """The events of a run, in order."""

    def test_a_run(self, memory_scene: Scene) -> None:
        """From its start to its end."""
        recorder = Recorder()

        memory_scene.execute(memory_scene.graph(traces("ab"), observer=recorder))

        assert recorder.names() == [
            "graph.start ",
            *("node.start a", "node.complete a", "checkpoint.save a"),
            *("edge.evaluate b", "edge.transition b"),
            *("node.start b", "node.complete b"),
            *("checkpoint.delete b", "graph.complete b"),
        ]

    def test_a_failure_and_a_resume(self, memory_scene: Scene) -> None:
        """The failed State is saved and the error reported; the resume begins with the load."""
        recorder = Recorder()
        nodes = {**traces("a"), "b": broken_first(trace("b"), ValueError("no topic"))}
        graph = memory_scene.graph(nodes, observer=recorder, interval=10)
        with pytest.raises(ExecutionError):
            memory_scene.execute(graph)

        assert recorder.names()[-3:] == ["node.error b", "checkpoint.save a", "graph.error b"]
        assert "ValueError: no topic" in recorder.data(EventType.GRAPH_ERROR)[0]["error"]
        assert recorder.data(EventType.GRAPH_ERROR)[0]["status"] == "failed"

        recorder.events.clear()
        memory_scene.resume(graph, {"n": 1})

        assert recorder.names() == [
            *("checkpoint.load a", "checkpoint.save a", "checkpoint.resume a", "graph.start a"),
            *("edge.evaluate b", "edge.transition b", "node.start b", "node.complete b"),
            *("checkpoint.delete b", "graph.complete b"),
        ]

    def test_every_edge_that_is_tried(self, memory_scene: Scene) -> None:
        """Each tried edge is reported with its answer, and the taken one again as a transition."""
        recorder = Recorder(EventType.EDGE_EVALUATE, EventType.EDGE_TRANSITION)
        edges = [("a", "b", key_equals("n", 1)), ("a", "c", key_equals("n", 2)), ("a", "d"), ("b", "d"), ("c", "d")]

        memory_scene.execute(memory_scene.graph(traces("abcd"), edges, observer=recorder), State({"n": 2}, run_id=RUN))

        assert [(event.type.value, event.data["target"], event.data.get("result")) for event in recorder.events] == [
            ("edge.evaluate", "b", False),
            ("edge.evaluate", "c", True),
            ("edge.transition", "c", None),
            ("edge.evaluate", "d", True),
            ("edge.transition", "d", None),
        ]
        assert recorder.events[0].data["predicate"] == "key_equals('n', 1)"


class TestData:
    """The data of events."""

    def test_events_of_states(self, memory_scene: Scene) -> None:
        """A State in a run reports changes with the keys and without the values."""
        recorder = Recorder(*events_module.STATE_EVENTS)

        def change(state: State) -> State:
            return state.set("a", 1).update(b=2).merge({"c": 3}).remove("a").clone()

        memory_scene.execute(memory_scene.graph({"a": change}, observer=recorder))

        assert [(event.type.value, event.data.get("keys")) for event in recorder.events] == [
            ("state.set", ("a",)),
            ("state.set", ("b",)),
            ("state.merge", ("c",)),
            ("state.set", ("a",)),
            ("state.clone", None),
        ]
        assert {event.source for event in recorder.events} == {"flow"}


class TestBrokenObservers:
    """An observer that raises breaks nothing."""

    def test_it_is_reported_once(self, memory_scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
        """A broken observer is reported once with its class and error, and the run completes."""
        final = memory_scene.execute(memory_scene.graph(traces("abc"), observer=BrokenObserver()))

        assert final.step == 3
        assert [(record.name, record.levelno) for record in caplog.records] == [("stategraph", logging.ERROR)]
        assert "BrokenObserver" in caplog.text
        assert "ValueError: observer" in caplog.text


class TestMultiObserver:
    """Several observers as one."""

    def test_all_hear_all(self, memory_scene: Scene) -> None:
        """All observers get all events in the given order, even if one raises."""
        first, last = Recorder(), Recorder()
        memory_scene.execute(memory_scene.graph(traces("ab"), observer=MultiObserver(first, BrokenObserver(), last)))

        assert first.names() == last.names()
        assert len(first.events) == 10

    def test_each_hears_what_it_wants(self, memory_scene: Scene) -> None:
        """Each observer gets only the events that it wants."""
        starts, ends = Recorder(EventType.NODE_START), Recorder(EventType.NODE_COMPLETE)

        memory_scene.execute(memory_scene.graph(traces("ab"), observer=MultiObserver([starts, ends])))

        assert starts.names() == ["node.start a", "node.start b"]
        assert ends.names() == ["node.complete a", "node.complete b"]


class TestStructlog:
    """The observer "structlog"."""

    @pytest.fixture(autouse=True)
    def unconfigured(self) -> Iterator[None]:
        """structlog as it is at first, before and after."""
        structlog.reset_defaults()
        yield
        structlog.reset_defaults()

    def test_it_writes_to_stderr(self, memory_scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
        """Where structlog is not configured, lines go to stderr, and stdout stays the program's own."""
        memory_scene.execute(memory_scene.graph(traces("a"), observer=get_observer("structlog")))

        out, err = capfd.readouterr()
        assert out == ""
        assert "graph.start" in err
        assert RUN in err

    @pytest.mark.parametrize(
        "data",
        [
            {"run_id": "a", "step": 3, "node": ""},
            {"b": "two words", "a": 'say "no"', "c": "k=v", "d": None, "e": ("x", 1.5)},
            {"status": RunStatus.FAILED, "error": "it is\nbroken"},
        ],
    )
    def test_its_lines_are_structlogs(self, capsys: pytest.CaptureFixture[str], data: Mapping[str, Any]) -> None:
        """Where structlog is not configured, whether it is imported or not."""
        event = Event(EventType.GRAPH_ERROR, datetime.now(UTC), "flow", data)

        with structlog.contextvars.bound_contextvars(job="nightly"):
            StructlogObserver().on_event(event)
            logger = structlog.wrap_logger(
                structlog.PrintLogger(sys.stderr),
                [structlog.contextvars.merge_contextvars, *cast(Any, _PLAIN_LINES)],
            )
            logger.error("graph.error", graph="flow", **data)

        ours, theirs = capsys.readouterr().err.splitlines()
        assert re.match(r"\d{4}(-\d\d){2} \d\d(:\d\d){2} ", ours)
        assert ours.partition("[")[2] == theirs.partition("[")[2]

    @pytest.mark.parametrize("is_configured", [False, True])
    def test_it_sends_a_terminal_no_escapes(self, monkeypatch: pytest.MonkeyPatch, is_configured: bool) -> None:
        """A text of others, such as the reason of a pause, cannot control the terminal."""
        if is_configured:
            structlog.configure(processors=_PLAIN_LINES)
        terminal = io.StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdout", terminal)  # where structlog writes by default
        reason = "\x1b[2J\x9b31m\u202ereason"

        StructlogObserver().on_event(Event(EventType.GRAPH_PAUSE, datetime.now(UTC), "flow", {"reason": reason}))

        assert r"\x1b[2J\x9b31m\u202ereason" in terminal.getvalue()
        assert not [escape for escape in ("\x1b[2J", "\x9b", "\u202e") if escape in terminal.getvalue()]

    def test_it_writes_where_structlog_is_configured_to(self, memory_scene: Scene) -> None:
        """An event is logged with its name, type and data, and the name of the graph."""
        lines: list[dict[str, Any]] = []
        structlog.configure(processors=[structlog.processors.add_log_level, collect(lines)])

        memory_scene.execute(memory_scene.graph(traces("a"), observer=StructlogObserver()))

        assert [(line["event"], line["level"], line["graph"], line["run_id"]) for line in lines] == [
            ("graph.start", "info", "flow", RUN),
            ("graph.complete", "info", "flow", RUN),
        ]


_PLAIN_LINES: list[Any] = [
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper("%Y-%m-%d %H:%M:%S", utc=False),
    structlog.dev.ConsoleRenderer(colors=False),
]


def collect(lines: list[dict[str, Any]]) -> Any:
    """Return a structlog processor that keeps the lines to itself."""

    def process(logger: Any, method: str, line: dict[str, Any]) -> Any:
        lines.append(dict(line))
        raise structlog.DropEvent

    return process


def test_the_table_of_data_in_the_docs() -> None:
    """It lists every event, and the data that runs emit."""
    text = (Path(__file__).parents[1] / "docs" / "observers.md").read_text(encoding="utf-8")
    listed: dict[str, set[str]] = {}
    for events, data in re.findall(r"^\| (`[a-z]+\..*?) \| (.*) \|$", text, re.MULTILINE):
        listed |= {event: set(re.findall(r"`(.*?)`", data)) for event in re.findall(r"`(.*?)`", events)}
    assert listed.keys() == set(EventType)

    recorder, calls = Recorder(), []

    def generate(state: State) -> Any:
        yield "chunk"
        yield Updates({"n": 1})

    def fails_twice(state: State) -> dict[str, Any]:
        calls.append(1)
        if len(calls) < 4:
            raise OSError("not yet")
        return {}

    def odd(item: int) -> int:
        if item % 2:
            raise ValueError("odd")
        return item

    soon = RetryPolicy(2, initial_delay=0.001)
    nodes: dict[str, Any] = {
        "generate": generate,
        "map": MapNode(odd, "items", "made", retry=soon, on_error="collect"),
        "fails": fails_twice,
        "ask": InterruptNode("n", "answer"),
    }
    graph = make_graph(nodes, store=MemoryStore(), observer=recorder, policies={"fails": {"retry": soon}})
    with pytest.raises(ExecutionError):
        graph.execute(State({"items": [1, 2]}, run_id=RUN))
    graph.resume(RUN)
    graph.resume(RUN, {"answer": 1})

    common = {"run_id", "call_id", "step", "node"}
    found: dict[str, set[str]] = {}
    for event in recorder.events:
        found.setdefault(event.type, set()).update(event.data.keys() - common)
    for event_type, emitted in found.items():
        assert emitted <= listed[event_type], event_type
        assert emitted == listed[event_type] or event_type.startswith("part."), event_type
