"""A graph as a node of another: what goes in and comes out, its own run, and what becomes of that."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    AsyncNodeError,
    CheckpointStore,
    EventType,
    ExecutionError,
    GraphConfig,
    GraphError,
    InvalidRunIdError,
    NodeContext,
    ParallelNode,
    ParentStep,
    RetryPolicy,
    RunCancelledError,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.stores.memory import MemoryStore
from stategraph.testing import Killed, MortalStore
from tests.scenarios import (
    RUN,
    Scene,
    as_async,
    broken_first,
    call_sync,
    counted,
    make_graph,
    raises,
    reopened,
    returns,
    shorter_than,
    trace,
    traces,
)
from tests.simulated_process import Crash, SimulatedProcess, World
from tests.simulated_process import MortalStore as MortalTo
from tests.test_events import Recorder


def inner_graph(nodes: dict[str, Any], **options: Any) -> StateGraph:
    """-> a graph that is to be a node."""
    return make_graph(nodes, **{"store": MemoryStore(), "name": "inner", "interval": 0, **options})


def outer_graph(rag: Any, store: Any, **options: Any) -> StateGraph:
    """-> a graph with another one, named rag, in its middle."""
    nodes = {"before": trace("before"), "rag": rag, "after": trace("after")}
    return make_graph(nodes, store=store, name="outer", **options)


class TestBorders:
    """What goes in and what comes out."""

    def test_by_default(self, any_play: Scene) -> None:
        """The whole State goes in; what was changed, added and removed comes out. It is one step."""
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

    @pytest.mark.parametrize(
        ("inputs", "outputs", "text"),
        [
            (["no"], None, "'no', named in its inputs"),
            (None, ["no"], "'no', named in its outputs"),
            (lambda state: 5, None, "inputs are to be a mapping"),
            (None, lambda state: 5, "outputs are to be a mapping"),
        ],
    )
    def test_what_is_not_there(self, any_play: Scene, inputs: Any, outputs: Any, text: str) -> None:
        """The error names it."""
        with pytest.raises(ExecutionError, match=text):
            any_play.execute(outer_graph(inner_graph(traces("a")).as_node(inputs, outputs), any_play.store))

    @pytest.mark.parametrize("keys", ["abc", 5, [1], {"a": 1}])
    def test_no_keys(self, keys: Any) -> None:
        """They are refused at once."""
        for name in ("inputs", "outputs"):
            with pytest.raises(TypeError, match=f"{name}|keys"):
                inner_graph(traces("a")).as_node(**{name: keys})

    def test_outputs_that_fail_do_not_cost_the_run_within(self, play: Scene) -> None:
        """It is complete, and is not done again."""
        log: Any = []
        outputs = broken_first(lambda final: {"n": final["n"]}, ValueError("once"))
        inner = inner_graph({"work": lambda state: log.append(1) or {"n": 1}})
        graph = outer_graph(inner.as_node(outputs=outputs), play.store)
        with pytest.raises(ExecutionError):
            play.execute(graph)

        assert (play.resume(graph)["n"], log) == (1, [1])


class TestTheRunWithin:
    """It has an id and checkpoints of its own, in the store of the outer graph."""

    def test_ids(self, any_play: Scene) -> None:
        """That of the outer run, the step and the node."""
        ids: Any = []
        inner = inner_graph({"a": lambda state: ids.append(state.run_id) or {}})
        edges = [("rag", "t"), ("t", "rag", shorter_than(3)), ("t", "end")]
        nodes = {"rag": inner.as_node(), "t": trace("t"), "end": trace("end")}

        any_play.execute(make_graph(nodes, edges, store=any_play.store))

        assert ids == ["run/#1/rag", "run/#3/rag", "run/#5/rag"]

    def test_its_checkpoints_are_hidden(self, play: Scene) -> None:
        """They are there while it runs, with the step it belongs to; nobody is shown them, and they go with it."""
        found: Any = []

        def look(state: State) -> dict[str, Any]:
            child = play.store.load("run/#2/rag")
            found.append((child.step, child.parent, play.store.list(), [run.run_id for run in play.store.runs()]))
            return {}

        inner = inner_graph({"a": trace("a"), "look": look})
        play.execute(outer_graph(inner.as_node(), play.store, preserve=True))

        assert found == [(1, ParentStep(RUN, 1), [RUN], [RUN])]
        assert play.store.list() == [RUN]
        with pytest.raises(LookupError):
            play.store.load("run/#2/rag")

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_a_failure_goes_on_within(self, play: Scene, depth: int, durability: str) -> None:
        """What was completed within is not done again, in another process either."""
        log: Any = []
        node: Any = None
        broken = broken_first(trace("b"), ValueError("once"))
        for level in range(depth):
            nodes = {"a": lambda state, level=level: log.append(f"a{level}") or {}}
            nodes |= {"b": broken} if node is None else {"rag": node}
            node = inner_graph(nodes, name=f"inner {level}").as_node()
        with pytest.raises(ExecutionError) as caught:
            play.execute(outer_graph(node, play.store, durability=durability))
        assert play.store.load(RUN).status is RunStatus.FAILED

        final = play.resume(outer_graph(node, reopened(play.store), durability=durability))

        assert final["trace"] == ["before", "b", "after"]
        assert sorted(log) == [f"a{level}" for level in range(depth)]
        assert all(text in str(caught.value) for text in ["'rag'", "'b'", "ValueError: once"])
        assert caught.value.node_name == "rag"
        assert isinstance(caught.value.__cause__, ExecutionError)

    @pytest.mark.parametrize("at", ["a", "b", "after"])
    @pytest.mark.parametrize("interval", [1, 3])
    def test_a_kill(self, play: Scene, at: str, interval: int) -> None:
        """At any point: what was saved is not done again, and the result is that of a run that never died."""
        mortal = MortalStore(play.store)

        def make(store: Any, alive: bool) -> StateGraph:
            def node(name: str) -> Any:
                return trace(name) if alive or name != at else lambda state: mortal.die()

            nodes = {"before": trace("before"), "rag": inner_graph({"a": node("a"), "b": node("b")}).as_node()}
            return make_graph({**nodes, "after": node("after")}, store=store, name="outer", interval=interval)

        with pytest.raises(Killed):
            play.execute(make(mortal, False))

        final = play.resume(make(reopened(play.store), True))

        assert (final["trace"], final.step) == (["before", "a", "b", "after"], 3)

    def test_its_parts(self, play: Scene) -> None:
        """Branches within are kept as well."""
        log: Any = []
        second = broken_first(lambda state: {}, ValueError("once"))
        branches = ParallelNode({"x": lambda state: log.append("x") or {"x": 1}, "y": second}, 1)
        graph = outer_graph(inner_graph({"branches": branches}).as_node(), play.store)
        with pytest.raises(ExecutionError):
            play.execute(graph)

        assert (play.resume(graph)["x"], log) == (1, ["x"])

    def test_a_cancellation_within(self, any_play: Scene) -> None:
        """It stops the whole run, which can be resumed where it stands."""
        cancel: Any = threading.Event()
        log: Any = []
        inner = inner_graph({"a": lambda state: log.append(1) or cancel.set() or {}, "b": trace("b")})
        graph = outer_graph(inner.as_node(), any_play.store)
        with pytest.raises(RunCancelledError) as caught:
            any_play.execute(graph, cancel=cancel)

        assert (caught.value.state.run_id, any_play.store.load(RUN).status) == (RUN, RunStatus.ACTIVE)
        assert any_play.resume(graph)["trace"] == ["before", "b", "after"]
        assert len(log) == (1 if any_play.store.keeps_parts else 2)

    def test_policy_and_store_are_inherited(self, play: Scene) -> None:
        """Those that the inner graph has for itself are for runs of its own."""
        own = MemoryStore()
        found: Any = []
        nodes = {**traces("ab"), "look": lambda state: found.append(len(play.store.history("run/#2/rag"))) or {}}
        inner = inner_graph(nodes, store=own, interval=1, preserve=True)

        play.execute(outer_graph(inner.as_node(), play.store, retention="full"))

        assert (found, own.list()) == ([3], [])  # its input, and two steps
        assert call_sync(inner, "execute", State(run_id="alone")) == own.load("alone")

    def test_a_run_that_was_rolled_back(self, play: Scene) -> None:
        """Its steps are others than before, and so are those within: they have other idempotency keys."""
        keys: list[str] = []

        def note(state: State, context: NodeContext) -> dict[str, Any]:
            keys.append(context.idempotency_key)
            return {}

        graph = outer_graph(inner_graph({"a": note}).as_node(), play.store, retention="full", preserve=True)
        play.execute(graph)
        play.store.rollback(RUN, 1)

        play.resume(graph)

        assert keys == [f"outer/{RUN}/#2/rag/#1/a", f"outer/{RUN}/#2~1/rag/#1~1/a"]

    def test_without_checkpoints(self, memory_play: Scene) -> None:
        """Nothing is saved of it either."""
        inner = inner_graph(traces("a"), interval=1, store=memory_play.store)

        assert memory_play.execute(outer_graph(inner.as_node(), memory_play.store, interval=0)).step == 3
        assert memory_play.store.list() == []

    @pytest.mark.parametrize("depth", [1, 2])
    def test_updates_reach_it(self, play: Scene, depth: int) -> None:
        """Of a resume: a run within that was begun goes on with them, and what it has done stays done."""
        nodes = {"a": trace("a"), "b": lambda state: {"result": 10 / state["by"]}}
        graph = make_graph(nodes, store=play.store)
        for _ in range(depth):
            graph = outer_graph(graph.as_node(), play.store)
        with pytest.raises(ExecutionError):
            play.execute(graph, State({"by": 0}, run_id=RUN))

        final = play.resume(graph, {"by": 5, "new": 1})

        assert (final["result"], final["by"], final["new"], final["trace"].count("a")) == (2, 5, 1, 1)

    @pytest.mark.parametrize("is_begun", [False, True])
    def test_updates_reach_it_once(self, play: Scene, is_begun: bool) -> None:
        """Another attempt goes on from what had come of them by then."""

        def check(state: State) -> dict[str, Any]:
            return {"n": state["n"], "checked": 10 / state["n"]}

        inner = inner_graph(
            {
                "check": check if is_begun else trace("check"),
                "count": lambda state: {"n": state["n"] + 1},
                "last": broken_first(trace("last"), ConnectionError("busy")),
            }
        )
        retry = {"inner": {"retry": RetryPolicy(initial_delay=0)}}
        node = inner.as_node() if is_begun else inner.as_node(check, ["n"])
        outer = make_graph({"inner": node}, store=play.store, name="outer", policies=retry)
        with pytest.raises(ExecutionError):
            play.execute(outer, State({"n": 0}, run_id=RUN))

        assert play.resume(outer, {"n": 5})["n"] == 6

    @pytest.mark.parametrize("depth", [1, 2])
    def test_updates_reach_it_whenever_the_process_dies(self, tmp_path: Path, depth: int) -> None:
        """The resume with updates is cut off at every point of it, and followed by one without."""

        def build(store: CheckpointStore) -> StateGraph:
            nodes = {"check": lambda state: {"result": [10 / by for by in state["by"]]}, "count": add_one}
            graph = make_graph(nodes, store=store)
            for _ in range(depth):
                graph = outer_graph(graph.as_node(), store, preserve=True)
            return graph

        def add_one(state: State) -> dict[str, Any]:
            return {"by": [*state["by"], 1]}

        for until in itertools.count(1):
            world = World("memory", tmp_path)
            with pytest.raises(ExecutionError):
                build(world.opened()).execute(State({"by": [0]}, run_id=RUN))
            process = SimulatedProcess(until)
            try:
                build(MortalTo(world.opened(), process, world.journal)).resume(RUN, {"by": [5]})
            except Crash:
                saved = world.opened().load(RUN)
                if saved.status is not RunStatus.COMPLETED:
                    build(world.opened()).resume(RUN, {"by": [5]} if saved["by"] == [0] else {})
            final = world.opened().load(RUN)
            assert (final["result"], final["by"]) == ([2], [5, 1]), process.passed
            if len(process.passed) < until:
                break

        assert until > 10 * depth

    @pytest.mark.parametrize("depth", [1, 2])
    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    @pytest.mark.parametrize("how", ["fails", "pauses"])
    def test_it_never_outlives_the_run_around_it(self, tmp_path: Path, how: str, durability: str, depth: int) -> None:
        """A process that dies while it is saved leaves nothing that a run of the same id, begun anew with other input,
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
            if final.status is RunStatus.PAUSED:  # it had paused within, but nobody was told
                final = graph.resume(RUN)
            assert dict(final) == dict.fromkeys(["n", "before", "a", "last"], 2 if is_lost else 1), process.passed
            if len(process.passed) < until:
                break

        assert until > 4

    @pytest.mark.parametrize("outputs", [None, ["n", "result"]])
    def test_updates_for_one_that_is_over(self, play: Scene, outputs: Any) -> None:
        """Its step is not: as it was made of other data, it is done once more."""
        mortal = MortalStore(play.store)
        inner = inner_graph({"a": lambda state: {"result": state["n"] + 1}})

        def make(store: Any, after: Any) -> StateGraph:
            nodes = {"rag": inner.as_node(None, outputs), "after": after}
            return make_graph(nodes, store=store, name="outer", interval=2)

        with pytest.raises(Killed):
            play.execute(make(mortal, lambda state: mortal.die()), State({"n": 1}, run_id=RUN))

        final = play.resume(make(reopened(play.store), trace("after")), {"n": 5})

        assert (final["n"], final["result"]) == (5, 6)

    def test_updates_beside_what_a_function_makes_of_it(self, play: Scene) -> None:
        """What is the same as before is no update, even if it is another object: what was done with it stays done."""
        work = broken_first(lambda state: {"todo": state["todo"]}, ValueError("once"))
        inner = inner_graph({"pop": lambda state: {"todo": state["todo"][1:]}, "work": work})
        node = inner.as_node(lambda state: {"todo": list(state["docs"])}, ["todo"])
        graph = outer_graph(node, play.store)
        with pytest.raises(ExecutionError):
            play.execute(graph, State({"docs": [1, 2]}, run_id=RUN))

        assert play.resume(graph, {"note": 1})["todo"] == [2]

    def test_what_it_ended_with_does_not_fit(self, play: Scene) -> None:
        """It is done again once it was mended, but not if the border was."""
        calls: list[int] = []

        def make(key: str, outputs: Any) -> StateGraph:
            nodes = {"a": counted(returns({key: 1}), calls)}
            return outer_graph(inner_graph(nodes).as_node(None, outputs), play.store)

        with pytest.raises(ExecutionError, match="named in its outputs"):
            play.execute(make("typo", ["y"]))
        play.store.fork(RUN, "copy")

        assert play.call(make("typo", {"y": "typo"}), "resume", "copy")["y"] == 1
        assert calls == [1]
        assert play.resume(make("y", ["y"]))["y"] == 1
        assert calls == [1, 1]

    def test_max_iterations(self, memory_play: Scene) -> None:
        """Each graph has its own."""
        inner = make_graph(traces("abc"), store=memory_play.store, name="inner", max_iterations=2)
        with pytest.raises(ExecutionError, match="max_iterations"):
            memory_play.execute(outer_graph(inner.as_node(), memory_play.store))


def test_async_nodes_within(memory_play: Scene) -> None:
    """They are awaited; on a running loop, `execute` refuses them before anything runs."""
    store = memory_play.store
    graph = outer_graph(inner_graph({"a": as_async(trace("a"))}).as_node(), store)

    async def main() -> None:
        graph.execute(State(run_id=RUN))

    with pytest.raises(AsyncNodeError, match="'rag'"):
        asyncio.run(main())

    assert store.list() == []
    assert memory_play.execute(graph).step == 3


def test_events_tell_both_graphs(memory_play: Scene) -> None:
    """Each under its name, to the observer of the outer graph alone."""
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

    @pytest.mark.parametrize("stranger", [f"{RUN}/rag", f"{RUN}/2/rag", f"{RUN}/rag:2", f"{RUN}/rag/a"])
    @pytest.mark.parametrize("is_first", [True, False])
    def test_a_run_that_is_named_alike(self, play: Scene, stranger: str, is_first: bool) -> None:
        """A run of one's own is not taken for a nested one, nor is that in its way."""
        graph = outer_graph(inner_graph({"a": broken_first(trace("a"), ValueError("once"))}).as_node(), play.store)
        other = make_graph(traces("x"), store=play.store, name="other", preserve=True)
        if is_first:
            call_sync(other, "execute", State(run_id=stranger))
        with pytest.raises(ExecutionError, match="once"):
            play.execute(graph)
        if not is_first:
            call_sync(other, "execute", State(run_id=stranger))

        final = play.resume(graph)

        assert final["trace"] == ["before", "a", "after"]
        assert play.store.load(stranger)["trace"] == ["x"]
        assert play.store.list() == [stranger]

    @pytest.mark.parametrize("run_id", [NESTED, f"{NESTED}/#1/x", "a/#1~2/b"])
    def test_no_state_is_given_one(self, run_id: str) -> None:
        with pytest.raises(InvalidRunIdError, match="names a nested run, which begins by itself in step"):
            State(run_id=run_id)

    @pytest.mark.parametrize("run_id", ["a/#b", "a/#0/b", "a/#01/b", "a/#1/.b", "a/#1", "a/#1#b", "a/#1/b c", "a#1/b"])
    def test_what_names_nothing(self, run_id: str) -> None:
        """Not even a nested run, nor anything that a store has."""
        with pytest.raises(InvalidRunIdError, match="use 1 to 200"):
            State(run_id=run_id, parent=ParentStep("a", 0))
        with pytest.raises(InvalidRunIdError):
            MemoryStore().load(run_id)

    @pytest.mark.parametrize("interval", [0, 1])
    def test_no_run_begins_with_one(self, memory_play: Scene, interval: int) -> None:
        """Whether anything is saved or not."""
        graph = make_graph(traces("a"), store=memory_play.store, interval=interval)
        forged = State(run_id=self.NESTED, parent=ParentStep(RUN, 1))

        with pytest.raises(InvalidRunIdError, match=f"goes on with run '{RUN}'"):
            memory_play.execute(graph, forged)
        assert memory_play.store.list() == []

    def test_it_goes_on_with_the_run_around_it(self, play: Scene) -> None:
        """Not by itself, whose end nobody would wait for; it can be looked at, and a fork of it is a run of its own."""
        inner = inner_graph({"a": trace("a"), "b": broken_first(trace("b"), ValueError("once"))})
        graph = outer_graph(inner.as_node(), play.store)
        alone = make_graph(inner.nodes, store=play.store, name="inner")
        with pytest.raises(ExecutionError):
            play.execute(graph)
        saved = play.store.load(self.NESTED)

        with pytest.raises(InvalidRunIdError, match=f"goes on with run '{RUN}'"):
            play.call(alone, "resume", self.NESTED)
        with pytest.raises(InvalidRunIdError, match=f"goes on with run '{RUN}'"):
            play.execute(alone, saved)
        with pytest.raises(InvalidRunIdError, match="names a nested run"):
            play.store.fork(RUN, "other/#2/rag")
        assert [row.run_id for row in play.store.history(self.NESTED)] == [self.NESTED]
        assert play.store.list() == [RUN]
        play.store.fork(self.NESTED, "own")
        assert play.call(alone, "resume", "own")["trace"] == ["before", "a", "b"]
        assert play.resume(graph)["trace"] == ["before", "a", "b", "after"]

    def test_long_ids(self, play: Scene) -> None:
        """An id of 200 characters and names of 200 leave room for what is nested, sixteen deep."""
        name = "n" * 200
        graph = inner_graph({name: broken_first(trace("a"), ValueError("once"))})
        for _ in range(16):
            graph = make_graph({name: graph.as_node()}, store=play.store)
        with pytest.raises(ExecutionError):
            play.execute(graph, State(run_id="x" * 200))

        assert play.call(graph, "resume", "x" * 200)["trace"] == ["a"]

    def test_a_fork_keeps_the_history_of_what_is_nested(self, play: Scene) -> None:
        """Every step of it can be loaded under its new id."""
        inner = inner_graph({**traces("ab"), "c": broken_first(trace("c"), ValueError("once"))})
        graph = outer_graph(inner.as_node(), play.store, retention="full")
        with pytest.raises(ExecutionError):
            play.execute(graph)

        play.store.fork(RUN, "copy")

        rows = play.store.history("copy/#2/rag")
        assert [row.kind for row in rows] == ["input", "step", "step", "failure"]
        assert [play.store.load("copy/#2/rag", step)["trace"][-1] for step in (1, 2)] == ["a", "b"]


class TestValidation:
    """What is refused before a run begins."""

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

    def test_problems_within(self) -> None:
        """A graph that could not run by itself cannot run within another."""
        inner = make_graph(traces("ab"), [], store=MemoryStore(), name="inner")
        with pytest.raises(GraphError, match=r"in graph 'inner' of node 'rag'.*'b'"):
            outer_graph(inner.as_node(), MemoryStore()).validate()

    def test_a_failure_without_a_checkpoint(self) -> None:
        """The error shows both runs all the same."""
        graph = outer_graph(inner_graph({"a": raises(ValueError("no"))}).as_node(), MemoryStore(), interval=0)
        with pytest.raises(ExecutionError, match=r"'rag'.*'a' of run 'run/#2/rag'.*no"):
            call_sync(graph, "execute", State(run_id=RUN))

    def test_a_graph_that_has_become_async(self) -> None:
        """It is refused on a running loop, also if the outer one was validated before."""
        nodes = {"x": raises(AssertionError()), "z": trace("z")}
        inner = make_graph(nodes, [("x", "z", lambda state: "y" not in state)], store=MemoryStore(), name="inner")
        graph = outer_graph(inner.as_node(), MemoryStore())
        graph.validate()
        inner.add_node("y", as_async(trace("y")))
        inner.add_edge("x", "y")
        inner.add_edge("y", "z")

        async def main() -> None:
            graph.execute(State())

        with pytest.raises(AsyncNodeError, match="'rag'"):
            asyncio.run(main())
