"""One graph, many runs at the same time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stategraph import CheckpointStore, ExecutionError, NodeContext, State, StateGraph
from stategraph.stores.memory import MemoryStore
from tests.scenarios import NODES, RUN, Node, make_graph, shorter_than, trace, traces

EDGES = [("a", "b"), ("b", "a", shorter_than(6)), ("b", "c")]


def own(name: str) -> Node:
    """-> a node that appends its name and the run that it is told of."""

    def node(state: State, context: NodeContext) -> dict[str, Any]:
        assert context.run_id == state.run_id
        assert context.step == state.step + 1 == len(state.get("trace", ())) + 1
        return {"trace": [*state.get("trace", ()), f"{name} of {context.run_id}"]}

    return node


def shared_graph(store: CheckpointStore, kind: str = "sync nodes", **options: Any) -> StateGraph:
    """-> a graph with a cycle whose nodes watch for mixed-up runs."""
    return make_graph({name: NODES[kind](own(name)) for name in "abc"}, EDGES, store=store, **options)


def expected(run_id: str) -> list[str]:
    """-> the trace of a run that nothing disturbs."""
    return [f"{name} of {run_id}" for name in "abababc"]


RUNS = [f"run-{number}" for number in range(24)]


class TestThreads:
    """Runs in threads."""

    def test_they_never_mix(self, any_store: CheckpointStore, as_node: Any) -> None:
        """Every run has its own data, step and context."""
        graph = make_graph({name: as_node(own(name)) for name in "abc"}, EDGES, store=any_store, preserve=True)

        with ThreadPoolExecutor(8) as pool:
            finals = list(pool.map(lambda run_id: graph.execute(State(run_id=run_id)), RUNS))

        assert [final["trace"] for final in finals] == [expected(run_id) for run_id in RUNS]
        assert any_store.list() == sorted(RUNS)
        assert [any_store.load(final.run_id) for final in finals] == finals

    def test_they_fail_alone(self, any_store: CheckpointStore) -> None:
        """A run that fails and is resumed does not disturb the others."""
        failed: set[str] = set()
        errors: list[tuple[str, ...]] = []

        def fail_once(state: State) -> dict[str, Any]:
            if int(state.run_id[4:]) % 2 and state.run_id not in failed:
                failed.add(state.run_id)
                raise ValueError(state.run_id)
            return {"trace": [*state["trace"], "b"]}

        graph = make_graph({**traces("ac"), "b": fail_once}, [("a", "b"), ("b", "c")], exits="c", store=any_store)

        def run(run_id: str) -> State:
            try:
                return graph.execute(State(run_id=run_id))
            except ExecutionError as error:
                errors.append((run_id, error.state.run_id, str(error.__cause__)))
                return graph.resume(run_id)

        with ThreadPoolExecutor(8) as pool:
            finals = list(pool.map(run, RUNS))

        assert sorted(errors) == [(run_id, run_id, run_id) for run_id in sorted(failed)]
        assert {tuple(final["trace"]) for final in finals} == {("a", "b", "c")}
        assert any_store.list() == []


class TestTasks:
    """Runs as tasks on one event loop."""

    def test_they_never_mix(self, any_store: CheckpointStore, as_node: Any) -> None:
        """Every run has its own data, step and context."""
        graph = make_graph({name: as_node(own(name)) for name in "abc"}, EDGES, store=any_store, preserve=True)

        async def main() -> list[State]:
            return await asyncio.gather(*(graph.aexecute(State(run_id=run_id)) for run_id in RUNS))

        finals = asyncio.run(main())

        assert [final["trace"] for final in finals] == [expected(run_id) for run_id in RUNS]
        assert [any_store.load(final.run_id) for final in finals] == finals

    def test_the_loop_stays_free(self) -> None:
        """A sync node that blocks keeps no other run waiting."""
        opened, order = threading.Event(), []

        def blocked(state: State) -> dict[str, Any]:
            assert opened.wait(20)
            order.append("blocked")
            return {}

        async def main() -> None:
            store = MemoryStore()
            waiting = asyncio.create_task(make_graph({"a": blocked}, store=store).aexecute(State()))
            await make_graph(traces("ab"), store=store).aexecute(State())
            order.append("free")
            opened.set()
            await waiting

        asyncio.run(main())
        assert order == ["free", "blocked"]

    def test_one_is_cancelled(self) -> None:
        """The others complete."""
        store, started = MemoryStore(), asyncio.Event()

        async def slow(state: State) -> dict[str, Any]:
            if state.run_id == "run-0":
                started.set()
                await asyncio.Event().wait()
            return {}

        async def main() -> list[Any]:
            graph = make_graph({"a": trace("a"), "b": slow}, store=store)
            tasks = [asyncio.create_task(graph.aexecute(State(run_id=run_id))) for run_id in RUNS]
            await started.wait()
            tasks[0].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

        first, *others = asyncio.run(main())

        assert isinstance(first, asyncio.CancelledError)
        assert {final.step for final in others} == {2}
        assert store.list() == ["run-0"]


class TestChanging:
    """A graph that is changed while it runs."""

    def test_a_run_keeps_the_plan_that_it_has(self, driver: Any, as_node: Any) -> None:
        """Nodes, edges and exit points that are added count from the next call on."""
        store = MemoryStore()

        def change(state: State) -> dict[str, Any]:
            if not state.get("changed"):
                graph.add_node("d", trace("d"))
                graph.add_edge("c", "d")
                graph.add_edge("d", "a")
                graph.set_exit_point("b")
            return {"changed": True}

        graph = make_graph({"a": as_node(change), "b": trace("b"), "c": trace("c")}, store=store)

        final = driver(graph, "execute", State(run_id=RUN))

        assert (final["trace"], final.checkpoint_node) == (["b", "c"], "c")
        assert final.fingerprint != graph.fingerprint

    def test_building_and_running_at_once(self) -> None:
        """Runs that start while edges are added see each of them whole or not at all."""
        graph = make_graph(traces("ab"), store=MemoryStore(), interval=0)
        done = threading.Event()

        def run() -> set[tuple[str, ...]]:
            found = set()
            while not done.is_set():
                found.add(tuple(graph.execute(State())["trace"]))
            return found

        with ThreadPoolExecutor(4) as pool:
            runners = [pool.submit(run) for _ in range(4)]
            for number in range(200):
                graph.add_edge("a", "b", lambda state: True, name=str(number))
            done.set()

        assert {path for runner in runners for path in runner.result()} <= {("a", "b")}
