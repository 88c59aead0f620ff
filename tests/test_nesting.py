"""A graph as a node of another: its inputs and outputs, and its own run."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointStore,
    EventType,
    ExecutionError,
    GraphConfig,
    GraphError,
    InvalidRunIdError,
    NodeContext,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.stores.memory import MemoryStore
from stategraph.testing import Killed
from stategraph.testing import MortalStore as Mortal
from tests.pairs import every_pair
from tests.scenarios import RUN, Scene, broken_first, call_sync, make_graph, raises, shorter_than, trace, traces
from tests.simulated_process import CALLS, Crash, SimulatedProcess, Tool, World, cancels, cancels_task, interrupts, live
from tests.simulated_process import MortalStore as MortalTo
from tests.test_events import Recorder


def inner_graph(nodes: dict[str, Any], **options: Any) -> StateGraph:
    """Return a graph that is to be a node."""
    return make_graph(nodes, **{"store": MemoryStore(), "name": "inner", "interval": 0, **options})


def outer_graph(rag: Any, store: Any, **options: Any) -> StateGraph:
    """Return a graph with another one, named rag, in its middle."""
    nodes = {"before": trace("before"), "rag": rag, "after": trace("after")}
    return make_graph(nodes, store=store, name="outer", **options)


class TestBorders:
    """Inputs and outputs of a nested graph."""

    def test_by_default(self, any_play: Scene) -> None:
        """By default the whole State goes in, and all changes come out as one step."""
        inner = inner_graph(
            {"a": lambda state: state.set("n", 2).set("new", 3), "b": lambda state: state.remove("old")}
        )

        final = any_play.execute(outer_graph(inner.as_node(), any_play.store), State({"n": 1, "old": 0}, run_id=RUN))

        assert dict(final) == {"n": 2, "new": 3, "trace": ["before", "after"]}
        assert (final.step, final.graph, final.run_id) == (3, "outer", RUN)

    @pytest.mark.parametrize(
        ("inputs", "outputs"),
        [
            (["question"], ["answer"]),
            ({"question": "question"}, {"answer": "answer"}),
            (lambda state: {"question": state["question"]}, lambda final: {"answer": final["answer"]}),
        ],
        ids=["keys", "mapping", "function"],
    )
    def test_some_keys(self, any_play: Scene, inputs: Any, outputs: Any) -> None:
        """Nothing else is seen on either side."""
        seen: Any = []

        def work(state: State) -> dict[str, Any]:
            seen.append((dict(state), state.graph))
            return {"answer": 42, "scratch": 1}

        node = inner_graph({"work": work}).as_node(inputs, outputs)
        final = any_play.execute(outer_graph(node, any_play.store), State({"question": "?", "other": 1}, run_id=RUN))

        assert dict(final) == {"question": "?", "other": 1, "trace": ["before", "after"], "answer": 42}
        assert seen == [({"question": "?"}, "inner")]

    def test_other_names(self, any_play: Scene) -> None:
        """A mapping renames: keys in there from keys out there, and back; updates are renamed as well."""
        inner = inner_graph({"a": trace("a"), "work": lambda state: {"y": 10 / state["x"]}})
        graph = outer_graph(inner.as_node({"x": "n"}, {"m": "y"}), any_play.store)
        with pytest.raises(ExecutionError):
            any_play.execute(graph, State({"n": 0}, run_id=RUN))

        final = any_play.resume(graph, {"n": 5})

        assert (final["m"], "x" in final, "y" in final) == (2, False, False)


class TestTheRunWithin:
    """A nested run has its own id and checkpoints in the store of the outer graph."""

    def test_ids(self, any_play: Scene) -> None:
        """The id of a nested run has the outer run, the step and the node."""
        ids: Any = []
        inner = inner_graph({"a": lambda state: ids.append(state.run_id) or {}})
        edges = [("rag", "t"), ("t", "rag", shorter_than(3)), ("t", "end")]
        nodes = {"rag": inner.as_node(), "t": trace("t"), "end": trace("end")}

        any_play.execute(make_graph(nodes, edges, store=any_play.store))

        assert ids == ["run/#1/rag", "run/#3/rag", "run/#5/rag"]

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    @pytest.mark.parametrize("how", ["fails", "pauses"])
    def test_it_never_outlives_the_run_around_it(self, tmp_path: Path, how: str, durability: str, depth: int) -> None:
        """A process that dies while it is saved leaves nothing that a run of the same id, begun again with other input,
        would take for its own."""

        def build(store: CheckpointStore, is_first: bool) -> StateGraph:
            def last(state: State) -> Any:
                if is_first:
                    return state.paused("why") if how == "pauses" else raises(ValueError("no"))(state)
                return {"last": state["n"]}

            nodes: dict[str, Any] = {"a": lambda state: {"a": state["n"]}, "last": last}
            graph = make_graph(nodes, store=store, durability=durability)
            for _ in range(depth):
                nodes = {"before": lambda state: {"before": state["n"]}, "rag": graph.as_node()}
                graph = make_graph(nodes, store=store, durability=durability, preserve=True)
            return graph

        for until in itertools.count(1):
            world, process = World("memory", tmp_path), SimulatedProcess(until, kinds=("store",))
            with contextlib.suppress(Crash, ExecutionError):
                build(MortalTo(world.opened(), process, world.journal), True).execute(State({"n": 1}, run_id=RUN))
            store = world.opened()
            is_lost = RUN not in store.list()
            graph = build(store, False)
            final = graph.execute(State({"n": 2}, run_id=RUN)) if is_lost else graph.resume(RUN)
            if final.status is RunStatus.PAUSED:  # it had paused within, but the caller did not see it
                final = graph.resume(RUN)
            assert dict(final) == dict.fromkeys(["n", "before", "a", "last"], 2 if is_lost else 1), process.passed
            if len(process.passed) < until:
                break

        assert until > 4


def test_events_tell_both_graphs(memory_play: Scene) -> None:
    """Only the observer of the outer graph gets the events of both graphs, each under its name."""
    recorder = Recorder(EventType.GRAPH_START, EventType.GRAPH_COMPLETE)
    unheard = Recorder(EventType.GRAPH_START, EventType.GRAPH_COMPLETE)
    inner = inner_graph(traces("a"), observer=unheard)
    memory_play.execute(outer_graph(inner.as_node(), memory_play.store, observer=recorder))

    assert unheard.events == []
    assert [(event.type.value, event.source) for event in recorder.events] == [
        ("graph.start", "outer"),
        ("graph.start", "inner"),
        ("graph.complete", "inner"),
        ("graph.complete", "outer"),
    ]


class TestIdsOfNestedRuns:
    """No caller gives a run the id of a nested one, so that no other run is ever in its place."""

    NESTED = f"{RUN}/#2/rag"

    @pytest.mark.parametrize("run_id", [NESTED, f"{NESTED}/#1/x", "a/#1~2/b"])
    def test_no_state_is_given_one(self, run_id: str) -> None:
        with pytest.raises(InvalidRunIdError, match="names a nested run, which begins by itself in step"):
            State(run_id=run_id)

    def test_it_goes_on_with_the_run_around_it(self, play: Scene) -> None:
        """A nested run cannot be resumed alone; it can be loaded, and a fork of it is an independent run."""
        inner = inner_graph({"a": trace("a"), "b": broken_first(trace("b"), ValueError("once"))})
        graph = outer_graph(inner.as_node(), play.store)
        alone = make_graph(inner.nodes, store=play.store, name="inner")
        with pytest.raises(ExecutionError):
            play.execute(graph)
        saved = play.store.load(self.NESTED)

        with pytest.raises(InvalidRunIdError, match=f"continues with run '{RUN}'"):
            play.call(alone, "resume", self.NESTED)
        with pytest.raises(InvalidRunIdError, match=f"continues with run '{RUN}'"):
            play.execute(alone, saved)
        with pytest.raises(InvalidRunIdError, match="names a nested run"):
            play.store.fork(RUN, "other/#2/rag")
        assert [row.run_id for row in play.store.history(self.NESTED)] == [self.NESTED]
        assert play.store.list() == [RUN]
        play.store.fork(self.NESTED, "own")
        assert play.call(alone, "resume", "own")["trace"] == ["before", "a", "b"]
        assert play.resume(graph)["trace"] == ["before", "a", "b", "after"]


class TestValidation:
    """Nested graphs that are refused before a run begins."""

    @pytest.mark.parametrize("name", ["a b", "a/b", "a:b", ".a", "ä"])
    def test_names_that_do_not_fit_ids(self, name: str) -> None:
        """The name becomes part of the id of the run within."""
        with pytest.raises(GraphError, match="part of run ids"):
            make_graph({name: inner_graph(traces("a")).as_node()}, store=MemoryStore()).validate()

    def test_a_graph_within_itself(self) -> None:
        """Directly or not: the error shows the way around."""
        graph = StateGraph(GraphConfig("self"), store=MemoryStore())
        middle = make_graph({"back": graph.as_node()}, store=MemoryStore(), name="middle")
        graph.add_node("go", middle.as_node())
        graph.set_entry_point("go")
        graph.set_exit_point("go")

        with pytest.raises(GraphError, match=r"contains itself: middle -> self -> middle"):
            graph.validate()
        with pytest.raises(GraphError, match="contains itself"):
            make_graph({"x": graph.as_node()}, store=MemoryStore(), name="around").validate()

    def test_too_deep(self) -> None:
        """Sixteen graphs within another are the most."""
        graph = inner_graph(traces("a"))
        for _ in range(16):
            graph = inner_graph({"x": graph.as_node()})
        assert call_sync(graph, "execute", State())["trace"] == ["a"]

        with pytest.raises(GraphError, match="16 deep"):
            inner_graph({"x": graph.as_node()}).validate()


@pytest.mark.parametrize("how", ["sync", "exit", "async"])
def test_a_death_leaves_no_nested_run_behind(how: str) -> None:
    """Wherever a process dies: once the run is complete, its nested runs are gone, whichever call completed it."""
    for death in itertools.count(1):
        kept = MemoryStore()
        mortal = Mortal(kept, death)
        nodes = {"a": trace("a"), "in": inner_graph(traces("b"), interval=1).as_node()}
        graphs = [make_graph(nodes, store=store, durability=how, preserve=True) for store in (mortal, kept)]
        with contextlib.suppress(Killed):
            graphs[0].execute(State(run_id=RUN))
        if RUN in kept.list() and kept.load(RUN).status is not RunStatus.COMPLETED:
            graphs[1].resume(RUN)

        assert kept.runs(parent=RUN) == []
        if not mortal.is_dead:
            return


@every_pair(
    driver=CALLS,
    act=[cancels, cancels_task, interrupts],
    preserve=[True, False],
    durability=["sync", "exit", "async"],
)
def test_a_stop_leaves_no_nested_run_behind(
    tmp_path: Path, durability: str, preserve: bool, act: Any, driver: str
) -> None:
    """Wherever a call is stopped: once the run is complete, its nested runs are gone; and so is the run itself, unless
    the graph preserves it."""

    def build(store: CheckpointStore, process: SimulatedProcess, tool: Tool) -> StateGraph:
        def work(state: State, context: NodeContext) -> dict[str, Any]:
            tool.work(context)
            return {}

        nodes = {"a": trace("a"), "in": inner_graph({"b": work}, interval=1).as_node()}
        return make_graph(nodes, store=store, durability=durability, preserve=preserve)

    for point in itertools.count(1):
        world, process = World("memory", tmp_path), SimulatedProcess(point, act)
        live(world, build, {}, lambda pause: None, driver=driver, process=process)

        kept = world.opened()
        assert ([*kept.iter_runs(parent=RUN)], kept.list()) == ([], [RUN] * preserve)
        assert world.journal.repeated == []
        if len(process.passed) < point:
            return
