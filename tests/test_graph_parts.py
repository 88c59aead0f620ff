"""Graphs as items and as branches: each runs, pauses and is answered separately."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    AnswerError,
    ErrorInfo,
    ExecutionError,
    InterruptNode,
    MapNode,
    ParallelNode,
    RunCancelledError,
    RunLostError,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.stores import SqliteStore
from stategraph.testing import fixed
from tests.scenarios import RUN, Scene, make_graph, reopened, trace

ORDERS = [{"id": 1}, {"id": 2}, {"id": 3}]


@attrs.define
class Desk:
    """Orders that a person approves one by one, and a log of the work for them."""

    store: Any
    as_node: Any = staticmethod(lambda function: function)
    how: dict[str, Any] = attrs.field(factory=dict)
    priced: list[int] = attrs.field(factory=list)
    paid: list[tuple[int, Any]] = attrs.field(factory=list)

    def order(self, **options: Any) -> StateGraph:
        """Return the graph of one order."""

        def price(state: State) -> dict[str, Any]:
            self.priced.append(state["id"])
            return {"total": 100 * state["id"]}

        def pay(state: State) -> dict[str, Any]:
            self.paid.append((state["id"], state["ok"]))
            return {"paid": state["ok"]}

        nodes = {
            "price": self.as_node(price),
            "ask": InterruptNode("total", "ok", schema=bool),
            "pay": self.as_node(pay),
        }
        return make_graph(nodes, store=self.store, name="order", **{**self.how, **options})

    def orders(self, **options: Any) -> StateGraph:
        """Return the graph of all of them."""
        nodes = {
            "before": trace("before"),
            "each": MapNode(self.order(), "orders", "done", **options),
            "end": trace("end"),
        }
        return make_graph(nodes, store=self.store, name="orders", **self.how)


@pytest.fixture
def desk(play: Scene) -> Desk:
    """Return the desk of a test."""
    return Desk(play.store, play.as_node)


def start(play: Scene, graph: StateGraph, orders: Any = ORDERS) -> State:
    """Return the State at the first pause, or the end."""
    return play.execute(graph, State({"orders": orders}, run_id=RUN))


def noting(name: str, log: list[str]) -> Any:
    """Return a node that notes its name."""

    def node(state: State) -> dict[str, Any]:
        log.append(name)
        return {}

    return node


def waiting(state: State) -> list[tuple[str, Any]]:
    """Return which parts ask, and what they show."""
    return [] if state.pause is None else [(pause.part, pause.value) for pause in state.pause.each]


class TestItems:
    """A graph for each item."""

    def test_each_is_answered_by_itself(self, play: Scene, desk: Desk) -> None:
        """Items are answered in any order, also by another process, and nothing is done twice."""
        paused = start(play, desk.orders())
        assert waiting(paused) == [("0", 100), ("1", 200), ("2", 300)]
        assert paused.pause is not None
        third, second, first = (paused.pause.each[at] for at in (2, 1, 0))

        desk.store = reopened(play.store)
        paused = play.resume(desk.orders(), {"ok": True}, pause=third)
        assert (waiting(paused), desk.paid) == ([("0", 100), ("1", 200)], [(3, True)])
        paused = play.resume(desk.orders(), {"ok": False}, pause=first.id)
        assert (waiting(paused), desk.paid[1:]) == ([("1", 200)], [(1, False)])
        final = play.resume(desk.orders(), {"ok": True}, pause=second)

        assert [order["paid"] for order in final["done"]] == [False, True, True]
        assert final["done"][1] == {"id": 2, "total": 200, "ok": True, "paid": True}
        assert (final["trace"], final.step) == (["before", "end"], 3)
        assert (sorted(desk.priced), sorted(desk.paid)) == ([1, 2, 3], [(1, False), (2, True), (3, True)])

    def test_an_answer_that_may_be_for_several_is_refused(self, play: Scene, desk: Desk) -> None:
        """The error lists the questions, and no payment has been made."""
        paused = start(play, desk.orders())
        with pytest.raises(
            AnswerError, match=r"parts '0', '1', '2' ask for 'ok': say which of 3 is answered, by pause="
        ):
            play.resume(desk.orders(), {"ok": True})
        assert (play.store.load(RUN), desk.paid) == (paused, [])

    def test_a_failure_of_one(self, play: Scene, desk: Desk) -> None:
        """The error names the item; after the repair paused items still wait, and done items stay done."""
        graph = desk.orders(max_workers=1)
        with pytest.raises(ExecutionError, match="1 of its parts failed: 1: ") as raised:
            start(play, graph, [{"id": 1}, {"no": 2}])
        assert isinstance(raised.value.__cause__, ExceptionGroup)

        paused = play.resume(graph, {"orders": [{"id": 1}, {"id": 2}]})

        assert waiting(paused) == [("0", 100), ("1", 200)]
        assert desk.priced == [1, 2]

    def test_failures_may_be_collected(self, play: Scene, desk: Desk) -> None:
        """A collected failure is an ErrorInfo in place of the result, and is not tried again."""
        graph = desk.orders(on_error="collect")
        paused = start(play, graph, [{"id": 1}, {"no": 2}])
        assert waiting(paused) == [("0", 100)]
        final = play.resume(graph, {"ok": True})
        assert isinstance(final["done"][1], ErrorInfo)
        assert final["done"][0]["paid"] is True

    def test_a_changed_item_begins_again(self, play: Scene, desk: Desk) -> None:
        """The others wait where they did."""
        paused = start(play, desk.orders())
        assert paused.pause is not None
        changed = [ORDERS[0], {"id": 7}, ORDERS[2]]
        paused = play.resume(desk.orders(), {"ok": True, "orders": changed}, pause=paused.pause.each[0])
        assert (waiting(paused), desk.paid) == ([("1", 700), ("2", 300)], [(1, True)])
        assert sorted(desk.priced) == [1, 2, 3, 7]

    def test_a_rollback_asks_all_again(self, play: Scene, desk: Desk) -> None:
        """An answer to a former question is refused."""
        paused = start(play, desk.orders())
        assert paused.pause is not None
        play.store.rollback(RUN, 1)
        with pytest.raises(AnswerError):
            play.resume(desk.orders(), {"ok": True}, pause=paused.pause.each[1])
        again = play.resume(desk.orders())
        assert waiting(again) == waiting(paused)
        assert again.pause is not None
        assert {pause.id for pause in again.pause.each}.isdisjoint(pause.id for pause in paused.pause.each)

    def test_a_fork_waits_as_the_run_does(self, play: Scene, desk: Desk) -> None:
        """A fork of a paused run is answered separately from its source."""
        start(play, desk.orders())
        play.store.fork(RUN, "copy")
        copied = play.call(desk.orders(), "resume", "copy")
        assert waiting(copied) == [("0", 100), ("1", 200), ("2", 300)]
        assert copied.pause is not None
        for pause in copied.pause.each:
            copied = play.call(desk.orders(), "resume", "copy", {"ok": True}, pause=pause)
        assert copied.status is RunStatus.COMPLETED
        assert waiting(play.store.load(RUN)) == [("0", 100), ("1", 200), ("2", 300)]
        assert sorted(desk.priced) == [1, 2, 3]


class TestBranches:
    """Graphs beside functions."""

    def test_each_is_answered_by_itself(self, play: Scene) -> None:
        """Branches may ask for different keys, and an answer repeats no finished node."""
        calls: list[str] = []

        def look(state: State) -> dict[str, Any]:
            calls.append("look")
            return {"seen": state["n"]}

        def asking(name: str) -> StateGraph:
            return make_graph({"ask": InterruptNode("n", name), "use": trace(name)}, store=play.store, name=name)

        branches: dict[str, Any] = {
            "legal": asking("legal").as_node(outputs=["legal"]),
            "money": asking("money").as_node(outputs=["money"]),
            "look": play.as_node(look),
        }
        graph = make_graph({"both": ParallelNode(branches), "end": trace("end")}, store=play.store, name="both")
        paused = play.execute(graph, State({"n": 3}, run_id=RUN))
        assert waiting(paused) == [("legal", 3), ("money", 3)]

        paused = play.resume(graph, {"money": "fine"})
        assert waiting(paused) == [("legal", 3)]
        final = play.resume(graph, {"legal": "no"})

        assert {key: final[key] for key in ("legal", "money", "seen")} == {"legal": "no", "money": "fine", "seen": 3}
        assert calls == ["look"]

    def test_each_has_its_deadline(self, play: Scene) -> None:
        """A resume without an answer continues the branches whose deadline has passed."""

        def asking(name: str, deadline: float) -> StateGraph:
            node = InterruptNode("n", name, deadline=deadline, otherwise="late")
            return make_graph({"ask": node}, store=play.store, name=name)

        branches = {name: asking(name, deadline).as_node() for name, deadline in (("slow", 1e9), ("quick", 60.0))}
        graph = make_graph({"both": ParallelNode(branches)}, store=play.store, name="both")
        with fixed():
            paused = play.execute(graph, State({"n": 3}, run_id=RUN))
        assert waiting(paused) == [("slow", 3), ("quick", 3)]
        with fixed(datetime(2021, 1, 1, tzinfo=UTC)):
            paused = play.resume(graph)
            assert waiting(paused) == [("slow", 3)]
            final = play.resume(graph, {"slow": "no"})

        assert (final["slow"], final["quick"]) == ("no", "late")

    def test_maps_in_branches_in_maps(self, play: Scene, desk: Desk) -> None:
        """The part that asks is named by its way."""
        branches: dict[str, Any] = {
            "orders": desk.orders().as_node(outputs=["done"]),
            "count": lambda state: {"n": len(state["orders"])},
        }
        shop = make_graph({"both": ParallelNode(branches)}, store=play.store, name="shop")
        graph = make_graph({"shops": MapNode(shop, "shops", "done")}, store=play.store, name="shops")
        shops = [{"orders": ORDERS[:2]}, {"orders": ORDERS[2:]}]
        paused = play.execute(graph, State({"shops": shops}, run_id=RUN))
        assert waiting(paused) == [("0/orders/0", 100), ("0/orders/1", 200), ("1/orders/0", 300)]
        while paused.pause is not None:
            paused = play.resume(graph, {"ok": True}, pause=paused.pause.each[-1])
        assert [[order["paid"] for order in shop["done"]] for shop in paused["done"]] == [[True, True], [True]]
        assert [shop["n"] for shop in paused["done"]] == [2, 1]
        assert desk.paid == [(3, True), (2, True), (1, True)]


class TestStopping:
    """The end of the outer run ends all its parts."""

    def test_a_timeout_of_the_node(self, play: Scene) -> None:
        """After a timeout of the node no part continues."""
        begun: list[str] = []

        def slow(state: State) -> dict[str, Any]:
            begun.append("slow")
            time.sleep(0.1)
            return {}

        item = play.graph({"slow": slow, "late": noting("late", begun)}, name="item")
        graph = make_graph(
            {"each": MapNode(item, "items", "done")}, store=play.store, policies={"each": {"timeout": 0.02}}
        )
        with pytest.raises(ExecutionError, match="timeout"):
            play.execute(graph, State({"items": [{}, {}]}, run_id=RUN))
        time.sleep(0.2)
        assert "late" not in begun

    def test_a_cancellation(self, play: Scene) -> None:
        """The next node of no part begins."""
        cancel, begun = threading.Event(), list[str]()

        def cancelling(state: State) -> dict[str, Any]:
            cancel.set()
            return {}

        item = play.graph({"first": cancelling, "next": noting("next", begun)})
        graph = make_graph({"each": MapNode(item, "items", "done")}, store=play.store, name="outer")
        with pytest.raises(RunCancelledError):
            play.execute(graph, State({"items": [{}, {}, {}]}, run_id=RUN), cancel=cancel)
        assert begun == []

        final = play.resume(graph)
        assert (final.status, begun) == (RunStatus.COMPLETED, ["next"] * 3)

    def test_a_run_that_was_taken_over(self, tmp_path: Path) -> None:
        """No part of it writes anything more."""
        store, other = SqliteStore(tmp_path / "a.db"), SqliteStore(tmp_path / "a.db")

        def steal(state: State) -> dict[str, Any]:
            other.delete(RUN, take_over=True)
            return {}

        item = make_graph({"steal": steal, "next": trace("next")}, store=store, name="item")
        graph = make_graph({"each": MapNode(item, "items", "done", max_workers=1)}, store=store)
        with store, other:
            with pytest.raises(RunLostError):
                graph.execute(State({"items": [{}, {}]}, run_id=RUN))
            assert other.list() == []
