"""The helpers of stategraph.testing for tests of graphs."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from stategraph import (
    CheckpointConfig,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    MapNode,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
)
from stategraph.stores import CheckpointStore, MemoryStore
from stategraph.testing import MortalStore, assert_resumes_everywhere, fail_at, kill_at

pytest_plugins = ["pytester"]


def graph_of(*nodes: Any, store: CheckpointStore | None = None, **checkpoint: Any) -> StateGraph:
    """Return a graph of some nodes, one after the other, that are named a, b, c and so on."""
    checkpoint = {"interval": 1, "preserve": True, **checkpoint}
    graph = StateGraph(GraphConfig("tested", observer="noop", checkpoint=CheckpointConfig(**checkpoint)), store=store)
    names = "abcdef"[: len(nodes)]
    for name, node in zip(names, nodes, strict=True):
        graph.add_node(name, node)
    if len(nodes) > 1:
        graph.add_sequence(*names)
    graph.set_entry_point(names[0])
    graph.set_exit_point(names[-1])
    return graph


def add(state: State) -> dict[str, int]:
    return {"n": state.get("n", 0) + 1}


async def add_async(state: State) -> dict[str, int]:
    await asyncio.sleep(0)
    return {"n": state.get("n", 0) + 1}


class TestKillAt:
    def test_the_store_holds_what_a_killed_process_leaves(self, any_store: CheckpointStore) -> None:
        """The killed step is the newest saved one, and a resume continues from it."""
        graph = graph_of(add, add_async, add, store=any_store)
        after: list[State] = []
        with kill_at(2):
            after.append(graph.execute(State(run_id="a")))
        assert after == []
        assert (any_store.load("a").step, any_store.load("a")["n"]) == (2, 2)
        assert MortalStore(any_store).list() == ["a"]
        assert graph.resume("a")["n"] == 3

    def test_it_may_die_before_the_save(self) -> None:
        """With saved=False the step before is the newest one, and the run has no owner."""
        graph = graph_of(add, add, add, store=(store := MemoryStore()))
        with kill_at(2, saved=False):
            graph.execute(State(run_id="a"))
        assert (store.load("a").step, store.owner("a")) == (1, None)
        assert graph.resume("a")["n"] == 3

    def test_a_run_that_does_not_come_there_is_told_of(self) -> None:
        with pytest.raises(AssertionError, match="no run in the block has saved step 7"), kill_at(7):
            graph_of(add, store=MemoryStore()).execute(State())

    @pytest.mark.parametrize("durability", ["sync", "async"])
    def test_it_does_not_matter_how_steps_are_saved(self, durability: str) -> None:
        graph = graph_of(add, add, add, store=(store := MemoryStore()), durability=durability)
        with kill_at(2):
            graph.execute(State(run_id="a"))
        assert store.load("a").step == 2

    def test_steps_of_nested_runs_do_not_count(self) -> None:
        """The run that is called dies at its own step."""
        graph = graph_of(graph_of(add, add, add).as_node(), add, add, store=(store := MemoryStore()))
        with kill_at(2):
            graph.execute(State(run_id="a"))
        assert store.load("a").step == 2
        assert graph.resume("a")["n"] == 5


class TestFailAt:
    @pytest.mark.parametrize("node", [add, add_async, lambda state, context: {"n": state.get("n", 0) + 1}])
    def test_the_node_fails_and_a_resume_goes_on(self, node: Any) -> None:
        """The node fails before its function runs, and a resume completes the run."""
        graph = graph_of(add, node, add, store=MemoryStore())
        with pytest.raises(ExecutionError, match=r"node 'b'.*RuntimeError: fail_at\('b'\)"), fail_at("b"):
            graph.execute(State(run_id="a"))
        assert graph.resume("a")["n"] == 3

    def test_a_retry_outlasts_as_many_failures(self) -> None:
        graph = StateGraph("tested", store=MemoryStore(), observer="noop")
        graph.add_node("a", add, retry=RetryPolicy(max_attempts=3, initial_delay=0))
        graph.set_entry_point("a")
        graph.set_exit_point("a")
        with fail_at("a", OSError("no"), times=2):
            assert graph.execute(State())["n"] == 1
        with pytest.raises(ExecutionError, match="OSError: no"), fail_at("a", OSError("no"), times=3):
            graph.execute(State())

    def test_a_node_that_is_not_called_is_told_of(self) -> None:
        with pytest.raises(AssertionError, match="'z'"), fail_at("z"):
            graph_of(add, store=MemoryStore()).execute(State())


def with_nested(kind: str, store: CheckpointStore) -> tuple[StateGraph, str, list[str]]:
    """Return a graph with a nested one, the path of the nested nodes, and a log of calls."""
    ran: list[str] = []

    def note(name: str) -> Any:
        def node(state: State) -> dict[str, Any]:
            ran.append(name)
            return {name: True}

        return node

    within = graph_of(note("first"), note("second"))
    if kind == "deep":
        within = graph_of(within.as_node())
    node: Any = within.as_node(outputs=[])
    if kind == "item":
        node = MapNode(node, over="items", into="made")
    if kind == "branch":
        node = ParallelNode({"left": node, "right": note("right")})
    way = {"deep": "b/a/", "branch": "b/left/"}.get(kind, "b/")
    return graph_of(note("before"), node, note("after"), store=store), way, ran


@pytest.mark.parametrize("kind", ["nested", "deep", "item", "branch"])
class TestNestedNodes:
    def test_one_fails(self, any_store: CheckpointStore, kind: str) -> None:
        """A path names the nested node that fails, and a resume continues at it."""
        graph, way, ran = with_nested(kind, any_store)
        with pytest.raises(ExecutionError, match=r"OSError: away"), fail_at(f"{way}b", OSError("away")):
            graph.execute(State({"items": [{}]}, run_id="a"))
        assert [name for name in ran if name != "right"] == ["before", "first"]
        graph.resume("a")
        assert "after" in ran

    def test_the_process_dies_at_one(self, any_store: CheckpointStore, kind: str) -> None:
        """The process dies when the nested step is saved, and a resume repeats no saved step."""
        if not any_store.keeps_parts:
            pytest.skip("it saves nothing of nested runs")
        for saved in (True, False):
            graph, way, ran = with_nested(kind, any_store)
            with kill_at(f"{way}a", saved=saved):
                graph.execute(State({"items": [{}]}, run_id=f"run-{saved}"))
            assert [name for name in ran if name != "right"] == ["before", "first"]
            graph.resume(f"run-{saved}")
            assert ran.count("first") == (1 if saved else 2)

    def test_one_that_is_not_there_is_told_of(self, any_store: CheckpointStore, kind: str) -> None:
        graph, way, _ = with_nested(kind, any_store)
        with pytest.raises(AssertionError, match=f"'{way}z'"), fail_at(f"{way}z"):
            graph.execute(State({"items": [{}]}))
        with pytest.raises(AssertionError, match=f"has saved a step of node {way}z"), kill_at(f"{way}z"):
            graph.execute(State({"items": [{}]}))


class TestResumesEverywhere:
    def test_a_sound_graph_does(self) -> None:
        """A sound graph of any parts passes, and its own store is not used."""
        inner = graph_of(add, add)
        left, right = (lambda state: {"left": state["n"]}), (lambda state: {"right": state["n"]})
        store = MemoryStore()
        graph = graph_of(
            inner.as_node(),
            MapNode(lambda item: item * 2, over="items", into="doubled", max_workers=1),
            ParallelNode({"left": left, "right": right}, max_workers=1),
            InterruptNode("n", "answer"),
            add_async,
            store=store,
            interval=0,
        )
        state = State({"items": [1, 2]})
        assert assert_resumes_everywhere(graph, state, answers={"answer": "yes"}) > 10
        assert assert_resumes_everywhere(graph, state, answers=lambda paused: {"answer": paused["n"]}) > 10
        assert store.list() == []

    def test_a_node_that_counts_by_itself_is_found(self) -> None:
        """A node that counts in memory is found: its count differs from run to run."""
        calls: list[int] = []

        def count(state: State) -> dict[str, int]:
            calls.append(1)
            return {"n": len(calls)}

        with pytest.raises(AssertionError, match="two undisturbed runs end differently: 'n' is 2, not 1"):
            assert_resumes_everywhere(graph_of(count), State())
        assert assert_resumes_everywhere(graph_of(count), State(), ignore=["n"])

    @pytest.mark.parametrize(
        ("later", "difference"),
        [
            ({"n": 2}, "'n' is 2, not 1"),
            ({}, "'n' is missing; it was 1"),
            ({"n": 1, "m": 1}, "'m' is 1, new"),
            (None, "it does not go on: ExecutionError"),
        ],
    )
    def test_a_run_that_ends_differently_after_a_kill_is_found(self, later: Any, difference: str) -> None:
        """The error says where the run was killed, and the first difference."""
        results: Any = iter([{"n": 1}, {"n": 1}, later, later])

        def node(state: State) -> dict[str, int]:
            result: dict[str, int] | None = next(results, {"n": 1})
            if result is None:
                raise OSError
            return result

        graph = graph_of(node)

        with pytest.raises(AssertionError, match=f"killed before write 1 of .*{difference}"):
            assert_resumes_everywhere(graph, State())

    def test_keys_that_are_not_saved_and_pauses_without_a_question(self) -> None:
        """A run that completed before the kill has only its saved keys; a pause that asks nothing is resumed."""
        assert assert_resumes_everywhere(graph_of(add, lambda state: {"m": state["n"]}, persist=["m"]), State())
        calls = itertools.count()
        waits = graph_of(lambda state: {} if next(calls) % 2 else state.paused("later"))
        assert assert_resumes_everywhere(waits, State())

    def test_a_pause_without_an_answer_is_told_of(self) -> None:
        with pytest.raises(AssertionError, match=r"pauses at node 'a' for 'answer'.*answers=\{'answer'"):
            assert_resumes_everywhere(graph_of(InterruptNode(None, "answer")), State())


def test_the_fixtures_of_the_plugin(pytester: pytest.Pytester) -> None:
    """A store for each test, and a clock that stands."""
    pytester.makepyfile(
        """
        from stategraph import State, StateGraph


        def test_one(memory_store, fixed_clock):
            assert State().run_id == "run-1"
            memory_store.save(State(run_id="a"))


        def test_other(memory_store):
            assert memory_store.list() == []
        """
    )
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=2)
