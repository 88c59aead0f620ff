"""What a run spends is counted once each, whatever happens, and limits stop it."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    CheckpointConfig,
    ConfigError,
    InterruptNode,
    LimitError,
    MapNode,
    NodeContext,
    ParallelNode,
    RetryPolicy,
    RunStatus,
    State,
    StateGraph,
)
from stategraph._values.entries import Entry
from stategraph.errors import EntriesNotKeptError, ExecutionError
from stategraph.stores import MemoryStore
from stategraph.testing import Killed, MortalStore
from tests.conftest import make_store
from tests.scenarios import HOW, RUN, FourMethodStore, Scene, make_graph, raises


def spends(**amounts: Any) -> Any:
    """Return a node that spends these amounts."""

    def node(given: Any, context: NodeContext) -> dict[str, Any]:
        context.spend(**amounts)
        return {}

    return node


def spends_and_fails(left: list[int], **amounts: Any) -> Any:
    """Return a node that spends in each attempt, and fails as often as the list has items."""

    def node(given: Any, context: NodeContext) -> dict[str, Any]:
        context.spend(**amounts)
        if left:
            left.pop()
            raise OSError("no connection")
        return {}

    return node


KINDS = ("swallowed", "retried", "handled", "collected", "retried items", "swallowed items", "branch", "nested", "deep")
RETRY = RetryPolicy(max_attempts=3, initial_delay=0)


def of_all_kinds(store: Any, fails: list[int], **checkpoint: Any) -> StateGraph:
    """Return a graph that spends 0.1 usd in each of 1 + 3 + 2 + 2 + 3 calls, if the retried node fails twice."""
    inner = make_graph({"first": spends(usd=0.1), "last": spends(usd=0.1, tokens=5)}, store=store, name="inner")
    nodes: dict[str, Any] = {
        "alone": spends(usd=0.1),
        "retried": spends_and_fails(fails, usd=0.1),
        "branches": ParallelNode({"left": spends(usd=0.1), "right": spends(usd=0.1)}),
        "nested": inner.as_node(outputs={}),
        "items": MapNode(spends(usd=0.1), "all", "done"),
    }
    return make_graph(nodes, store=store, preserve=True, policies={"retried": {"retry": RETRY}}, **checkpoint)


ALL = State({"all": [1, 2, 3]}, run_id=RUN)
SUMS = {"usd": 1.1, "tokens": 5}


class TestSums:
    @pytest.mark.parametrize("how", ["sync", "async", "exit", "sync, full"])
    def test_each_call_counts_once(self, play: Scene, how: str) -> None:
        """Failed attempts, branches, items and nested graphs count as well, and the sum is exact."""
        graph = of_all_kinds(play.store, [1, 2], **HOW[how])

        final = play.call(graph, "execute", ALL)

        assert final.spent == play.store.load(RUN).spent == SUMS
        assert play.store.entries(RUN) == []

    def test_without_a_store(self, driver: Any) -> None:
        """A run that is not saved counts as well."""
        graph = make_graph({"pay": spends(usd=Decimal("0.1"))}, store=FourMethodStore(), interval=0)

        assert driver(graph, "execute", State()).spent == {"usd": 0.1}
        assert State().spent == {}

    @pytest.mark.parametrize("how", ["sync", "async", "exit"])
    def test_killed_at_any_write(self, how: str) -> None:
        """A call that returned counts once; one that was killed before it returned may count."""
        calls = Counter[str]()

        def node(given: Any, context: NodeContext) -> dict[str, Any]:
            calls["begun"] += 1
            context.spend(calls=1)
            calls["returned"] += 1
            return {}

        def graph_in(store: Any) -> StateGraph:
            inner = make_graph({"one": node, "two": node}, store=store, name="inner", **HOW[how])
            nodes = {"a": node, "items": MapNode(node, "all", "done", 1), "nested": inner.as_node(outputs={})}
            return make_graph({**nodes, "z": node}, store=store, preserve=True, **HOW[how])

        for death in range(1, 60):
            kept = MemoryStore()
            calls.clear()
            try:
                graph_in(MortalStore(kept, death)).run(ALL)
            except Killed:
                graph_in(kept).run(ALL)
            assert calls["returned"] <= kept.load(RUN).spent["calls"] <= calls["begun"]

    def test_a_failed_step_counts_once_it_is_completed(self, play: Scene) -> None:
        """What it has spent is not in the State before; the resumed run has it."""
        graph = make_graph(
            {"pay": spends(usd=1), "send": spends_and_fails([1], usd=1)}, store=play.store, preserve=True
        )
        with pytest.raises(ExecutionError) as caught:
            play.call(graph, "execute", State(run_id=RUN))
        assert caught.value.state.spent == {"usd": 1}

        assert play.call(graph, "resume", RUN).spent == {"usd": 3}

    def test_a_nested_graph_that_begins_again(self, play: Scene) -> None:
        """Its first run was of another input; what that has spent stays spent."""
        inner = make_graph({"pay": spends(usd=1), "fail": raises(OSError())}, store=play.store, name="inner")
        graph = make_graph({"all": MapNode(inner.as_node(), "all", "done")}, store=play.store, preserve=True)
        with pytest.raises(ExecutionError):
            play.call(graph, "execute", State({"all": [{"n": 1}]}, run_id=RUN))
        inner = make_graph({"pay": spends(usd=1), "fail": spends(usd=1)}, store=play.store, name="inner")
        graph = make_graph({"all": MapNode(inner.as_node(), "all", "done")}, store=play.store, preserve=True)

        assert play.call(graph, "resume", RUN, {"all": [{"n": 2}]}).spent == {"usd": 3}

    def test_a_rollback_takes_nothing_back(self, play: Scene) -> None:
        """The sums of the steps that are taken back stay, also those of the step under way."""
        nodes = {"pay": spends(usd=1), "more": spends(usd=1), "fail": spends_and_fails([1], usd=1)}
        graph = make_graph(nodes, store=play.store, preserve=True, retention="full")
        with pytest.raises(ExecutionError):
            play.call(graph, "execute", State(run_id=RUN))

        assert play.store.rollback(RUN, 1).spent == {"usd": 3}

        assert play.call(graph, "resume", RUN).spent == {"usd": 5}

    def test_the_next_turn_goes_on(self, play: Scene) -> None:
        """The sums are those of the run, with all of its turns; a restart keeps those of a failed step."""
        graph = make_graph({"pay": spends_and_fails([1], usd=1)}, store=play.store, preserve=True)
        state = State(run_id=RUN)
        with pytest.raises(ExecutionError):
            play.call(graph, "execute", state)
        assert play.call(graph, "execute", play.store.load(RUN), restart=True).spent == {"usd": 2}

        assert play.call(graph, "turn", RUN, {"n": 1}).spent == {"usd": 3}

    @pytest.mark.parametrize("kind", ["memory", "sqlite", "disk", "postgres", "redis"])
    def test_many_threads(self, tmp_path: Path, kind: str) -> None:
        """Items of one step that spend at the same time lose nothing, in any store that keeps entries."""
        nodes = {"items": MapNode(spends(n=1), "all", "done", 8), "fail": spends_and_fails([1], n=1)}
        with make_store(kind, tmp_path) as store:
            graph = make_graph(nodes, store=store, preserve=True)
            with pytest.raises(ExecutionError):
                graph.execute(State({"all": [*range(100)]}, run_id=RUN))
            assert graph.resume(RUN).spent == {"n": 102}

    @pytest.mark.parametrize("amounts", [{}, {"usd": -1}, {"usd": float("nan")}, {"usd": True}, {"usd": "1"}])
    def test_wrong_amounts(self, amounts: dict[str, Any]) -> None:
        """They are refused, and nothing is kept."""
        store = MemoryStore()
        graph = make_graph({"pay": spends(**amounts)}, store=store, preserve=True)
        with pytest.raises(ExecutionError, match=next(iter(amounts), "names no amount")):
            graph.execute(State(run_id=RUN))
        assert store.entries(RUN) == []

    def test_a_store_of_four_methods(self) -> None:
        """It is refused, as it would be lost in a crash."""
        graph = make_graph({"pay": spends(usd=1)}, store=FourMethodStore())
        with pytest.raises(EntriesNotKeptError):
            graph.execute(State())


class TestLimits:
    def test_a_larger_one_goes_on(self, play: Scene) -> None:
        """The amount that reached the limit counts, and the step begins again."""
        graph = make_graph(
            {"a": spends(usd=2), "b": spends(usd=3), "c": spends(usd=1)}, store=play.store, preserve=True
        )

        with pytest.raises(LimitError, match=r"usd 5 of 5 .*resume\('run', limits=") as caught:
            play.call(graph, "execute", State(run_id=RUN), limits={"usd": 5, "tokens": 9})
        assert (caught.value.spent, caught.value.node_name) == ({"usd": 5}, "b")
        saved = play.store.load(RUN)
        assert (saved.step, saved.status, saved.spent) == (1, RunStatus.FAILED, {"usd": 2})
        assert saved.error is not None
        assert saved.error.type == "LimitError"
        assert [*graph.recover()] == []

        with pytest.raises(LimitError):  # and nothing is spent
            play.call(graph, "resume", RUN, limits={"usd": 5})
        assert play.call(graph, "resume", RUN, limits={"usd": 10}).spent == {"usd": 9}

    def test_each_call_says_it(self, play: Scene) -> None:
        """It lays its limits over those of the configuration, by name."""
        graph = make_graph({"pay": spends(usd=1)}, store=play.store, preserve=True, limits={"usd": 1})
        for method in ("execute", "run"):
            with pytest.raises(LimitError):
                play.call(graph, method, State(), limits={"calls": 1})
            play.call(graph, method, State(), limits={"usd": 2})
        with pytest.raises(LimitError):
            play.call(graph, "turn", RUN, {})
        assert play.call(graph, "resume", RUN, limits={"usd": 3}).spent == {"usd": 2}

    def test_a_recovered_run_stops(self, play: Scene) -> None:
        """Its owner died after it had reached the limit: it fails before a node runs, and is not recovered again."""
        graph = make_graph({"pay": spends(usd=1)}, store=play.store, accept=True, limits={"usd": 3})
        graph.submit(State(run_id=RUN))
        play.store.append(RUN, [Entry("spend", {"usd": 3}, 1, "pay")])

        (recovered,) = graph.recover()

        assert isinstance(recovered.error, LimitError)
        assert [*graph.recover()] == []
        assert play.store.load(RUN).status is RunStatus.FAILED
        assert [*graph.recover(limits={"usd": 4})] == []

    @pytest.mark.parametrize("kind", KINDS)
    def test_nothing_hides_it(self, play: Scene, kind: str) -> None:
        """Neither a node, a retry, a handler, collected errors nor a nested graph."""
        calls = list[int]()

        def node(given: Any, context: NodeContext) -> dict[str, Any]:
            calls.append(1)
            try:
                context.spend(usd=5)
            except LimitError as error:
                if not kind.startswith("swallowed"):
                    raise (OSError() if kind.startswith("retried") else error) from error
            return {}

        inner = make_graph({"in": node, "next": node}, store=play.store, name="inner")
        middle = make_graph({"mid": inner.as_node(outputs={}), "after": node}, store=play.store, name="middle")
        pays: Any = {
            "collected": MapNode(node, "all", "done", 1, on_error="collect", retry=RETRY),
            "retried items": MapNode(node, "all", "done", 1, on_error="collect", retry=RETRY),
            "swallowed items": MapNode(node, "all", "done", 1),
            "branch": ParallelNode({"left": node}),
            "nested": inner.as_node(outputs={}),
            "deep": MapNode(middle.as_node(outputs={}), "all", "done", 1, on_error="collect"),
        }.get(kind, node)
        policies: dict[str, Any] = {"pay": {"on_error": "mend"} if kind == "handled" else {"retry": RETRY}}
        graph = make_graph({"pay": pays, "mend": node}, store=play.store, policies=policies, preserve=True)
        first = State({"all": [{"n": 1}, {"n": 2}]}, run_id=RUN)

        with pytest.raises(LimitError) as caught:
            play.call(graph, "execute", first, limits={"usd": 5})

        assert caught.value.state.run_id == RUN
        assert len(calls) == 1
        final = play.call(graph, "resume", RUN, limits={"usd": 1000})
        assert final.spent == {"usd": 5 * len(calls)}
        assert [*final.get("done", ())] in ([], [{}, {}])  # and no collected error

    def test_a_pause_between(self, play: Scene) -> None:
        """The answer goes on with what was spent before."""
        nodes = {"a": spends(usd=2), "ask": InterruptNode("a", "b"), "c": spends(usd=2)}
        graph = make_graph(nodes, store=play.store, preserve=True)
        play.call(graph, "execute", State({"a": 1}, run_id=RUN))
        with pytest.raises(LimitError):
            play.call(graph, "resume", RUN, {"b": 1}, limits={"usd": 4})

    @pytest.mark.parametrize("limits", [5, {"usd": 0}, {"usd": "5"}, {5: 5}])
    def test_wrong_limits(self, limits: Any) -> None:
        """They are refused."""
        graph = make_graph({"pay": spends(usd=1)}, store=MemoryStore())
        with pytest.raises(ConfigError, match="limits"):
            graph.execute(State(), limits=limits)
        with pytest.raises(ConfigError, match=r"checkpoint\.limits"):
            CheckpointConfig(limits=limits)


def test_a_context_of_no_run_counts_nothing() -> None:
    """So a node that spends and reads messages can be tested alone."""
    context = NodeContext("run", "graph", "node", 1)

    assert spends(usd=1)(State(), context) == {}
    assert context.messages() == []
    with pytest.raises(RuntimeError, match="belongs to no run"):
        _ = context.connection
