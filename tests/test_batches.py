"""Batches: `run_many` and `arun_many`."""

import asyncio
import threading

import pytest

from stategraph import ConfigError, RunCancelledError, RunStatus, State, StateGraph
from stategraph.stores.memory import MemoryStore
from tests.scenarios import WatchedStore
from tests.test_cancellations import in_time
from tests.test_stopping import Gate, cancel_at


def graph_of(node, store=None):
    graph = StateGraph("batch", store=store or MemoryStore())
    graph.add_node("work", node)
    graph.add_node("end", lambda state: {"end": True})
    graph.add_edge("work", "end")
    graph.set_entry_point("work")
    graph.set_exit_point("end")
    return graph


def double(state):
    if state["n"] == 3:
        raise ValueError("three")
    return {"n": 2 * state["n"]}


def numbers(count):
    return (State({"n": n}, run_id=f"n{n}") for n in range(count))


def run_sync(graph, states, **options):
    return list(graph.run_many(states, **options))


def run_async(graph, states, **options):
    async def collected():
        return [result async for result in graph.arun_many(states, **options)]

    return asyncio.run(collected())


@pytest.mark.parametrize("collect", [run_sync, run_async])
class TestBothDrivers:
    def test_results_come_in_the_order_of_the_states_and_one_failure_stops_no_other(self, collect):
        """Each result has its run id and its State or error."""
        results = collect(graph_of(double), numbers(20), max_workers=4)

        assert [result.run_id for result in results] == [f"n{n}" for n in range(20)]
        assert [result.run_id for result in results if result.error] == ["n3"]
        assert [result.state["n"] for result in results if not result.error] == [2 * n for n in range(20) if n != 3]

    def test_an_id_that_comes_twice_is_named(self, collect):
        """The second is refused as a duplicate, not as a run with another owner."""
        twice = [State({"n": n}, run_id=run_id) for n, run_id in enumerate(["a", "b", "a"])]
        results = collect(graph_of(double), twice, max_workers=3)
        assert [result.error is None for result in results] == [True, True, False]
        assert "run id 'a' comes twice in this batch" in str(results[2].error)

    def test_no_more_run_at_the_same_time_than_workers(self, collect):
        """Exactly two runs are active at a time, as each waits for another."""
        pairs, lock, inside = threading.Barrier(2), threading.Lock(), []
        most = []

        def node(state):
            with lock:
                inside.append(1)
                most.append(len(inside))
            pairs.wait(300)
            with lock:
                inside.pop()
            return {}

        results = collect(graph_of(node), numbers(8), max_workers=2)

        assert not any(result.error for result in results)
        assert max(most) == 2

    def test_states_are_taken_as_they_are_needed(self, collect):
        """At the first result, at most twice as many States as workers were taken."""
        taken, seen = [], []

        def states():
            for state in numbers(50):
                taken.append(state)
                seen.append(len(taken))
                yield state

        graph = graph_of(lambda state: {})
        if collect is run_sync:
            with graph.run_many(states(), max_workers=2) as results:
                next(results)
        else:

            async def first():
                results = graph.arun_many(states(), max_workers=2)
                await anext(results)
                await results.aclose()

            asyncio.run(first())

        assert len(taken) == 4

    def test_an_error_of_the_states_comes_after_earlier_results(self, collect):
        """Nothing that has run is lost."""
        store = MemoryStore()

        def states():
            yield from numbers(2)
            raise OSError("no more")

        with pytest.raises(OSError, match="no more"):
            collect(graph_of(lambda state: {}, store), states())


def under_way(store):
    """Return a graph whose second run waits in its node, and the two events of that."""
    began, may_end = threading.Event(), threading.Event()

    def node(state):
        if state["n"] == 1:
            began.set()
            assert may_end.wait(300)
        return {}

    return graph_of(node, store), began, may_end


def test_closing_stops_what_is_under_way():
    """Closing stops the active run before its next node, begins no other, and the run can be resumed."""
    store = MemoryStore()
    graph, began, may_end = under_way(store)
    results = graph.run_many(numbers(50), max_workers=1)
    assert next(results).run_id == "n0"
    assert began.wait(300)
    threading.Timer(0.05, may_end.set).start()

    results.close()

    assert list(results) == []
    assert set(store.list()) <= {"n1"}
    assert graph.run(State({"n": 1}, run_id="n1")).status is RunStatus.COMPLETED


def test_an_abandoned_batch_stops():
    """An abandoned batch stops before the next node with a warning."""
    store = MemoryStore()
    graph, began, may_end = under_way(store)
    results = graph.run_many(numbers(50), max_workers=1)
    next(results)
    assert began.wait(300)
    threads = [one for one in threading.enumerate() if one.name.startswith("stategraph batch")]

    with pytest.warns(ResourceWarning, match="neither closed nor exhausted"):
        del results
    may_end.set()
    for one in threads:
        one.join(300)

    assert len(threads) == 1
    assert set(store.list()) <= {"n1"}
    assert graph.run(State({"n": 1}, run_id="n1")).status is RunStatus.COMPLETED


@pytest.mark.parametrize("collect", [run_sync, run_async])
def test_options_of_a_call_apply_to_each_run(collect):
    """Such as labels; and the event of the caller stops them all."""
    store = MemoryStore()
    graph = graph_of(lambda state: {}, store)
    collect(graph, numbers(3), labels={"night": "1"})
    cancel = threading.Event()
    cancel.set()
    stopped = collect(graph, (State({"n": 7}, run_id=name) for name in "ab"), cancel=cancel)

    assert all(isinstance(result.error, RunCancelledError) for result in stopped)
    with pytest.raises(ConfigError, match="cancel"):
        results = collect(graph, numbers(1), cancel="now")
        raise results[0].error


def test_closing_on_an_event_loop_cancels_what_is_under_way():
    """The tasks have ended when `aclose` returns."""
    ended, waits = [], asyncio.Event()

    async def node(state):
        if state["n"]:
            waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(state["n"])
        return {}

    async def batch():
        results = graph_of(node).arun_many(numbers(50), max_workers=2)
        assert (await anext(results)).run_id == "n0"
        await waits.wait()
        await results.aclose()
        return len(asyncio.all_tasks())

    assert asyncio.run(batch()) == 1
    assert ended


def test_a_cancellation_while_a_run_is_deleted():
    """The result of the deleted run, which nothing else holds, is yielded. Then the batch raises the cancellation."""
    gate, results = Gate(), []

    def before(method, _):
        if method == "delete" and not gate.reached.is_set():
            gate.wait()

    async def collect(graph):
        async for result in graph.arun_many(numbers(50), max_workers=1):
            results.append(result)

    async def main():
        await cancel_at(
            gate, asyncio.create_task(collect(graph_of(lambda state: {}, WatchedStore(MemoryStore(), before))))
        )

    in_time(main)
    assert [result.run_id for result in results] == ["n0"]
    assert results[0].state.status is RunStatus.COMPLETED
