"""Events form a tree: each names its place, its duration and its outcome."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from stategraph import EventType, ExecutionError, RetryPolicy, State
from stategraph.nodes.interrupt import InterruptNode
from stategraph.nodes.map import MapNode
from stategraph.nodes.parallel import ParallelNode
from tests.scenarios import RUN, Scene, broken_first, make_graph, raises, trace, traces
from tests.test_events import Recorder

ENDINGS = {
    EventType.GRAPH_COMPLETE,
    EventType.GRAPH_PAUSE,
    EventType.GRAPH_ERROR,
    EventType.NODE_COMPLETE,
    EventType.NODE_ERROR,
    EventType.PART_COMPLETE,
    EventType.PART_ERROR,
    EventType.CHECKPOINT_SAVE,
    EventType.CHECKPOINT_LOAD,
}


def nested(scene: Scene, observer: Any = None) -> Any:
    """Return a graph that runs another one as its second step."""
    inner = make_graph(traces("xy"), store=scene.store, name="inner")
    return make_graph({"a": trace("a"), "sub": inner.as_node(), "b": trace("b")}, store=scene.store, observer=observer)


class TestPlaces:
    """Where an event belongs."""

    def test_a_nested_run_leads_to_its_parent(self, play: Scene) -> None:
        """Each event of a nested run names the outer run, step and node, and the same call."""
        recorder = Recorder()
        play.execute(nested(play, recorder))

        inner = [event.data for event in recorder.events if event.source == "inner"]
        assert inner
        assert {(data["parent_run_id"], data["parent_step"], data["parent_node"]) for data in inner} == {
            (RUN, 2, "sub")
        }
        assert not any("parent_run_id" in event.data for event in recorder.events if event.source == "flow")
        assert len({event.data["call_id"] for event in recorder.events}) == 1

    def test_each_call_is_another(self, play: Scene) -> None:
        """The events of a resume have another call id than those before."""
        recorder = Recorder(EventType.GRAPH_START)
        graph = make_graph(
            {"a": trace("a"), "ask": InterruptNode("why", "answer")}, store=play.store, observer=recorder
        )
        play.execute(graph, State({"why": 1}, run_id=RUN))
        play.resume(graph, {"answer": 1})

        first, second = recorder.data(EventType.GRAPH_START)
        assert first["call_id"] != second["call_id"]

    def test_a_turn_that_finishes_the_one_before(self, play: Scene) -> None:
        """The interrupted turn has events as those of a separate call, and its nodes are entered."""
        entered: list[str] = []

        class Entering(Recorder):
            def enter_node(self, call_id: str, run_id: str) -> Any:
                entered.append(call_id)
                return bool

        recorder = Entering(EventType.GRAPH_START)
        nodes = {"a": broken_first(trace("a"), ValueError())}
        graph = make_graph(nodes, store=play.store, observer=recorder, preserve=True)
        with pytest.raises(ExecutionError):
            play.call(graph, "turn", RUN, {})

        play.call(graph, "turn", RUN, {})

        begun = [data["call_id"] for data in recorder.data(EventType.GRAPH_START)]
        assert len(set(begun)) == 3
        assert entered == begun


class TestTimes:
    """Durations in ending events."""

    def test_all_that_ends(self, play: Scene) -> None:
        """It says when it began, and after how many seconds it ended."""
        recorder = Recorder()
        graph = make_graph(
            {
                "a": broken_first(trace("a"), ValueError()),
                "m": MapNode(len, "l", "out", on_error="collect"),
                "ask": InterruptNode("why", "answer"),
                "sub": make_graph(traces("x"), store=play.store, name="inner").as_node(),
                "bad": raises(ValueError("no")),
            },
            store=play.store,
            observer=recorder,
            policies={"a": {"retry": RetryPolicy(2, initial_delay=0)}},
        )
        play.execute(graph, State({"l": ["x", 1], "why": 1}, run_id=RUN))
        with pytest.raises(ExecutionError):
            play.resume(graph, {"answer": 1})

        found = {event.type for event in recorder.events}
        assert found >= ENDINGS - {EventType.PART_ERROR}
        for event in recorder.events:
            if event.type in ENDINGS:
                began, took = event.data["began"], event.data["took"]
                assert took >= 0
                assert isinstance(began, datetime)
                assert abs(event.timestamp - began - timedelta(seconds=took)) < timedelta(microseconds=3)
            else:
                assert "began" not in event.data

    def test_a_node_tells_how_it_went(self, play: Scene) -> None:
        """The event of a node has its attempts and its outcome, also if a handler takes its failure."""
        recorder = Recorder(EventType.NODE_COMPLETE)
        nodes = {"a": broken_first(trace("a"), ValueError()), "b": raises(ValueError("no")), "c": trace("c")}
        policies: Any = {"a": {"retry": RetryPolicy(2, initial_delay=0)}, "b": {"on_error": "c"}}
        play.execute(make_graph(nodes, store=play.store, observer=recorder, policies=policies))

        found = [(data["node"], data["attempts"], data["outcome"]) for data in recorder.data(EventType.NODE_COMPLETE)]
        assert found == [("a", 2, "completed"), ("b", 1, "failed"), ("c", 1, "completed")]


class TestFailures:
    """Events of failures."""

    def test_the_node_that_failed(self, memory_scene: Scene) -> None:
        """The events name the node that failed, with the type, the traceback and the attempts."""
        recorder = Recorder(EventType.NODE_ERROR, EventType.GRAPH_ERROR)
        nodes = {**traces("a"), "b": raises(ValueError("no topic"))}
        policies = {"b": {"retry": RetryPolicy(2, initial_delay=0)}}
        with pytest.raises(ExecutionError):
            memory_scene.execute(memory_scene.graph(nodes, observer=recorder, policies=policies))

        *attempts, end = [event.data for event in recorder.events]
        assert [(data["node"], data["step"], data["attempt"]) for data in attempts] == [("b", 2, 1), ("b", 2, 2)]
        assert (end["node"], end["step"], end["attempts"]) == ("b", 1, 2)
        assert all(data["error_type"] == "ValueError" for data in (*attempts, end))
        assert all("scenarios.py" in data["traceback"] for data in (*attempts, end))
        assert all("no topic" not in data["traceback"] for data in (*attempts, end))


class TestParts:
    """Events of branches and items."""

    def test_events_count_parts_and_failures(self, play: Scene) -> None:
        """The event of each part has the number of parts, also if it failed or its failure was collected."""
        recorder = Recorder(EventType.PART_COMPLETE, EventType.PART_ERROR)
        items = MapNode(len, "l", "out", 1, on_error="collect")
        branches = ParallelNode({"good": trace("good"), "bad": raises(ValueError("no"))}, 1)
        graph = make_graph({"m": items, "p": branches}, store=play.store, observer=recorder)
        with pytest.raises(ExecutionError):
            play.execute(graph, State({"l": ["x", 1]}, run_id=RUN))

        assert [
            (event.type, event.data["part"], event.data["total"], event.data["outcome"], event.data.get("error_type"))
            for event in recorder.events
        ] == [
            ("part.complete", "0", 2, "completed", None),
            ("part.complete", "1", 2, "collected", "TypeError"),
            ("part.complete", "good", 2, "completed", None),
            ("part.error", "bad", 2, "failed", "ValueError"),
        ]

    def test_those_that_were_done_before(self, play: Scene) -> None:
        """A resume reports parts that were completed before."""
        recorder = Recorder(EventType.PART_COMPLETE)
        left = [ValueError("no")]

        def item(number: int) -> int:
            if number == 2 and left:
                raise left.pop()
            return number

        graph = make_graph({"m": MapNode(item, "l", "out", 1)}, store=play.store, observer=recorder)
        with pytest.raises(ExecutionError):
            play.execute(graph, State({"l": [0, 1, 2, 3]}, run_id=RUN))
        recorder.events.clear()
        play.resume(graph)

        assert [(data["part"], data["outcome"]) for data in recorder.data(EventType.PART_COMPLETE)] == [
            *(("0", "found"), ("1", "found"), ("2", "completed"), ("3", "completed"))
        ]


class TestUnderWay:
    """The current node of a run, as other processes see it."""

    def test_in_this_process(self, scene: Scene) -> None:
        """The node, and since when."""
        found: list[Any] = []

        def ask(state: State) -> dict[str, Any]:
            found.append((scene.store.owner(RUN), state.timestamp))
            return {}

        scene.execute(scene.graph({"a": trace("a"), "b": ask}))

        ((owner, since),) = found
        assert (owner.node, owner.node_since) == ("b", since)
        assert scene.store.owner(RUN) is None
