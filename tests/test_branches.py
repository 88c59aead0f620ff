"""Simultaneous branches and items: their input, their results, and their number at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from stategraph import ExecutionError, MapNode, NodeContext, ParallelNode, RunStatus, State, StateGraph
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Scene, as_async, as_sync, live_threads, make_graph, raises, returns

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """No thread that was not there before."""
    before = live_threads()
    yield
    assert live_threads() <= before


def parallel(branches: dict[str, Any], *args: Any, store: Any = None, **options: Any) -> StateGraph:
    """Return a graph of one ParallelNode."""
    return make_graph({"work": ParallelNode(branches, *args, **options)}, store=store or MemoryStore())


def mapping(function: Any, *args: Any, store: Any = None, **options: Any) -> StateGraph:
    """Return a graph of one MapNode."""
    return make_graph({"work": MapNode(function, "items", "out", *args, **options)}, store=store or MemoryStore())


def errors_of(caught: pytest.ExceptionInfo[ExecutionError]) -> list[str]:
    """Return the texts of the errors of the parts of a node that failed."""
    group = caught.value.__cause__
    assert isinstance(group, ExceptionGroup)
    return sorted(str(error) for error in group.exceptions)


class Crowd:
    """Counts how many are in it at once; everyone waits in it until `size` others have come, or have had the time."""

    def __init__(self, size: int) -> None:
        self._size, self._now, self.most = size, 0, 0
        self._changed = threading.Condition()

    def visit(self, argument: Any) -> Any:
        """Come in, wait, and go."""
        with self._changed:
            self._now += 1
            self.most = max(self.most, self._now)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.most > self._size, timeout=0.02)
            self._now -= 1
        return {}

    async def avisit(self, argument: Any) -> Any:
        """The same on an event loop."""
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.001)
        self._now -= 1
        return {}


def square(state: dict[str, Any]) -> dict[str, Any]:
    """Do a branch in a process."""
    assert type(state) is dict
    return {"square": state["n"] ** 2, "list": [*state["list"], 3]}


def double(item: Any) -> Any:
    """Do an item in a process."""
    return {"double": item["n"] * 2}


@pytest.mark.parametrize("kind", [as_sync, as_async])
class TestMerging:
    """The input of branches, and the merging of their updates."""

    def test_all_see_the_same_state(self, any_play: Scene, kind: Any) -> None:
        """None sees what another one writes; together they are one step."""
        branches = {name: kind(lambda state, name=name: {name: dict(state)}) for name in "abc"}

        final = any_play.execute(parallel(branches, store=any_play.store), State({"n": 1}, run_id=RUN))

        assert dict(final) == {"n": 1, "a": {"n": 1}, "b": {"n": 1}, "c": {"n": 1}}
        assert (final.step, final.checkpoint_node, final.status) == (1, "work", RunStatus.COMPLETED)

    def test_in_declared_order(self, memory_play: Scene, kind: Any) -> None:
        """Updates are merged in the declared order, whichever branch finishes first."""
        is_last = threading.Event()

        def slow(state: State) -> dict[str, Any]:
            assert kind is as_async or is_last.wait(300)
            return {"all": ["slow"], "slow": 1}

        def fast(state: State) -> dict[str, Any]:
            is_last.set()
            return {"all": ["fast"], "fast": 2}

        graph = parallel({"slow": kind(slow), "fast": kind(fast)}, 2, reducers={"all": lambda a, b: [*a, *b]})

        final = memory_play.execute(graph)

        assert dict(final) == {"all": ["slow", "fast"], "slow": 1, "fast": 2}
        assert list(final) == ["all", "slow", "fast"]

    def test_contexts(self, any_play: Scene, kind: Any) -> None:
        """Each branch and each item has its own idempotency key."""

        def branch(state: State, context: NodeContext) -> dict[str, Any]:
            return {context.part: context.idempotency_key}

        def item(value: int, context: NodeContext) -> str:
            return f"{value} {context.idempotency_key}"

        nodes = {"both": ParallelNode({"a": kind(branch), "b": kind(branch)}), "each": MapNode(kind(item), "l", "out")}
        final = any_play.execute(make_graph(nodes, store=any_play.store), State({"l": [7, 8]}, run_id=RUN))

        assert (final["a"], final["b"]) == ("flow/run/#1/both/a", "flow/run/#1/both/b")
        assert final["out"] == ["7 flow/run/#2/each/0", "8 flow/run/#2/each/1"]


class TestHowMany:
    """At the same time."""

    @pytest.mark.parametrize("most", [1, 3])
    def test_max_workers(self, memory_play: Scene, most: int) -> None:
        """Exactly `max_workers` parts run at a time, in threads and on an event loop."""
        for visit in ("visit", "avisit"):
            crowd, items = Crowd(most), Crowd(most)
            branches = {str(number): getattr(crowd, visit) for number in range(3 * most)}
            memory_play.execute(parallel(branches, most))
            memory_play.execute(mapping(getattr(items, visit), most), State({"items": [1] * 3 * most}))

            assert (crowd.most, items.most) == (most, most)

    def test_processes(self, memory_play: Scene) -> None:
        """Importable functions get plain data; results and errors come back."""
        state = State({"n": 3, "list": [1, 2]}, run_id=RUN)
        final = memory_play.execute(parallel({"square": square}, processes=True, store=memory_play.store), state)
        assert (final["square"], final["list"]) == (9, [1, 2, 3])

        items = State({"items": [{"n": n} for n in range(5)]}, run_id="items")
        final = memory_play.execute(mapping(double, 1, processes=True, store=memory_play.store), items)
        assert final["out"] == [{"double": 2 * n} for n in range(5)]


class TestItems:
    """One call for each."""

    @pytest.mark.parametrize("kind", [as_sync, as_async])
    @pytest.mark.parametrize("count", [0, 1, 10])
    def test_in_their_order(self, any_play: Scene, kind: Any, count: int) -> None:
        """The list of results is as long as that of items; a tuple will do as well."""
        for number, items in enumerate([list(range(count)), tuple(range(count))]):
            graph = mapping(kind(lambda item: item * 2), store=any_play.store)
            final = any_play.execute(graph, State({"items": items}, run_id=f"run-{number}"))

            assert (final["out"], final.step) == ([2 * item for item in range(count)], 1)


@pytest.mark.parametrize("kind", [as_sync, as_async])
class TestFailures:
    """Of one or several."""

    def test_all_errors_are_raised(self, any_play: Scene, kind: Any) -> None:
        """All errors are raised as a group, each with a note of its part, and saved with the run."""
        branches = {name: kind(raises(ValueError(f"no {name}"))) for name in "ab"}
        graph = parallel({**branches, "c": kind(returns({"c": 1}))}, on_failure="finish", store=any_play.store)

        with pytest.raises(ExecutionError) as caught:
            any_play.execute(graph)

        assert errors_of(caught) == ["no a", "no b"]
        error = any_play.store.load(RUN).error
        assert error is not None
        assert (error.type, error.node) == ("ExceptionGroup", "work")
        assert all(text in error.message for text in ["2 of its parts failed", "a: ValueError: no a", "b: ", "no b"])
        assert "in part 'a' of node 'work'" in caught.value.__cause__.exceptions[0].__notes__  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            ParallelNode({"a": lambda state: state.remove("n"), "b": returns({"n": 1})}),
            "'a' removes 'n', which 'b'",
        ),
        (ParallelNode({"a": returns({"n": 2}), "b": returns({"n": 1})}, reducers={"n": lambda a, b: 1 / 0}), "by zero"),
        (ParallelNode({"a": lambda _: State(run_id=RUN).paused("why")}), "a part cannot pause the run"),
        (MapNode(lambda _: State(run_id=RUN).paused("why"), "items", "out"), "cannot pause"),
        (MapNode(str, "n", "out"), "it goes over 'n', a list or a tuple, but that is an int"),
        (MapNode(str, "absent", "out"), "it goes over 'absent', .* not in the State"),
        (MapNode(mapping(str), "items", "out"), "item 0 is 7 .*a graph begins with a mapping"),
    ],
)
def test_results_and_items_that_do_not_fit(memory_play: Scene, node: Any, message: str) -> None:
    """The error names the branch or the item, the key, and what would fit."""
    with pytest.raises(ExecutionError, match=message):
        memory_play.execute(
            make_graph({"work": node}, store=memory_play.store), State({"n": 0, "items": [7]}, run_id=RUN)
        )


def test_a_key_that_a_branch_removes(memory_play: Scene) -> None:
    """It is removed, if no other branch writes it."""
    graph = parallel({"a": lambda state: state.remove("n"), "b": returns({"m": 1})}, store=memory_play.store)

    assert dict(memory_play.execute(graph, State({"n": 1}, run_id=RUN))) == {"m": 1}
