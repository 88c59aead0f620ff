"""An answer counts for the pause that was shown, and exactly one answer counts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stategraph import (
    AnswerError,
    CheckpointStore,
    ExecutionError,
    InterruptNode,
    RunBusyError,
    State,
    StateGraph,
    key_equals,
)
from stategraph.stores.memory import MemoryStore
from stategraph.testing import fixed
from tests.conftest import make_store
from tests.scenarios import RUN, FourMethodStore, Scene, broken_first, in_threads, make_graph, reopened, trace
from tests.test_nested_pauses import within

pytestmark = pytest.mark.timeout(600)
KINDS = ["memory", "sqlite", "disk", "four methods"]
QUICK = {MemoryStore.__module__, FourMethodStore.__module__}


@pytest.fixture(params=KINDS)
def every_store(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[CheckpointStore]:
    """A store of each kind."""
    with make_store(request.param, tmp_path) as store:
        yield store


class Payments:
    """A graph that proposes 100, 200 and so on, one after the other, and pays those to which the answer is yes."""

    def __init__(self, turns: int = 3) -> None:
        self.turns, self.paid = turns, list[int]()
        self.pay: Callable[[State], Any] = lambda state: None

    def graph(self, store: CheckpointStore, **options: Any) -> StateGraph:
        """Return the graph."""
        nodes = {"propose": self._propose, "ask": InterruptNode("amount", "ok"), "pay": self._pay, "end": trace("end")}
        edges = [
            ("propose", "ask"),
            ("ask", "pay"),
            ("pay", "end", key_equals("amount", 100 * self.turns)),
            ("pay", "propose"),
        ]
        return make_graph(nodes, edges, store=store, **options)

    def _propose(self, state: State) -> dict[str, Any]:
        return {"amount": state.get("amount", 0) + 100}

    def _pay(self, state: State) -> dict[str, Any]:
        if state["ok"] == "yes":
            self.paid.append(state["amount"])
        self.pay(state)
        return {}


def saved(store: CheckpointStore) -> tuple[Any, ...]:
    """Return all that a store says of the run."""
    state = reopened(store).load(RUN)
    return state, state.status, state.pause, state.progress, store.history(RUN)


def refuses(play: Scene, graph: StateGraph, updates: Any, match: str, **how: Any) -> AnswerError:
    """Return the error with which an answer is refused; nothing has changed."""
    before = saved(play.store)
    with pytest.raises(AnswerError, match=match) as caught:
        play.resume(graph, updates, **how)
    assert saved(play.store) == before
    return caught.value


class TestAPause:
    """It has an id, and an answer may name it."""

    @pytest.mark.parametrize("names", [("inner",), ("inner", "middle")])
    def test_of_nested_graphs_the_one_that_is_shown(self, play: Scene, names: tuple[str, ...]) -> None:
        """The pause of the outer State names the nested question; another answer goes to another pause."""
        nodes = {"one": InterruptNode(None, "ok"), "two": InterruptNode(None, "ok")}
        graph = within(make_graph(nodes, store=play.store), *names)
        first = play.execute(graph).pause
        second = play.resume(graph, {"ok": 1}, pause=first).pause
        assert first is not None
        assert second is not None

        error = refuses(play, graph, {"ok": 1}, "does not wait at the given pause", pause=first)

        assert error.pause == second
        assert play.resume(graph, {"ok": 2}, pause=second.id)["ok"] == 2

    def test_no_other_has_its_id(self) -> None:
        """Pauses that differ in run, step, time, generation, node, reason, value or key have different ids."""

        def id_of(
            value: Any = 1, reason: str = "why", key: str = "ok", node: str = "ask", run: str = RUN, wait: int = 0
        ) -> str:
            ask = InterruptNode("shown", key, reason=reason)
            graph = make_graph({"a": trace("a"), node: ask}, store=MemoryStore())
            with fixed():
                for _ in range(wait):
                    State()
                paused = graph.execute(State({"shown": value}, run_id=run))
            assert paused.pause is not None
            return paused.pause.id

        assert id_of() == id_of()
        others = [
            *(id_of(value) for value in (2, 1.0, True, "1", [1], 0.0, -0.0)),
            *(id_of(reason="other"), id_of(key="other"), id_of(node="other"), id_of(run="other"), id_of(wait=1)),
        ]
        assert len({id_of(), *others}) == 1 + len(others)


class TestOver:
    """An answer to a pause that is over changes nothing, and the error says why."""

    def test_a_late_yes_to_an_older_proposal(self, any_play: Scene) -> None:
        """It never pays the newer one."""
        payments = Payments()
        graph = payments.graph(any_play.store)
        first = any_play.execute(graph).pause
        second = any_play.resume(graph, {"ok": "no"}, pause=first).pause

        error = refuses(any_play, graph, {"ok": "yes"}, "does not wait at the given pause", pause=first)
        any_play.resume(graph, {"ok": "yes"}, pause=second)

        assert (error.pause, payments.paid) == (second, [200])


class TestAnsweredBefore:
    """The key of an answered pause is no update, even if another process owns the run by then."""

    @pytest.mark.parametrize("value", ["yes", "no"])
    def test_after_a_failure(self, any_play: Scene, value: str) -> None:
        """After a failure the key is refused even with the same value; other updates resume the run."""
        payments = Payments(1)
        payments.pay = broken_first(lambda state: None, ValueError("down"))
        graph = payments.graph(any_play.store)
        any_play.execute(graph)
        with pytest.raises(ExecutionError):
            any_play.resume(graph, {"ok": "yes"})

        refuses(any_play, graph, {"ok": value}, r"'ok' has been answered before.*rollback.*fork")
        refuses(any_play, graph, {"ok": value, "note": 1}, "answered before")

        final = any_play.resume(graph, {"note": 1})
        assert (final["ok"], final["note"], payments.paid) == ("yes", 1, [100, 100])


class TestCancelled:
    """A cancelled run waits on at its pause."""

    @pytest.mark.parametrize("names", [(), ("inner",)], ids=["alone", "nested"])
    @pytest.mark.parametrize("named", [False, True])
    def test_it_can_be_answered_at_every_visit(self, play: Scene, names: tuple[str, ...], named: bool) -> None:
        """An answer continues it, named or not; without one it asks, and another pause is refused."""
        payments = Payments(2)
        graph = payments.graph(play.store)
        graph = within(graph, *names) if names else graph
        state, pauses = play.execute(graph), []
        while state.pause is not None:
            pauses.append(state.pause)
            graph.cancel(RUN)

            refuses(play, graph, None, "no answer is given")
            if len(pauses) > 1:
                refuses(play, graph, {"ok": "yes"}, "at the given pause", pause=pauses[0])
            state = play.resume(graph, {"ok": "yes"}, pause=pauses[-1] if named else None)

        assert payments.paid == [100, 200]


class TestAtTheSameTime:
    """Exactly one of several simultaneous answers counts; all others get an error."""

    CLICKS = 4

    def click(self, graph: StateGraph, run_id: str, **how: Any) -> list[BaseException]:
        """Return the errors of those whose answers did not count."""
        barrier = threading.Barrier(self.CLICKS)

        def answer() -> None:
            barrier.wait(300)
            graph.resume(run_id, {"ok": "yes"}, **how)

        return in_threads(*[answer] * self.CLICKS)

    @pytest.mark.parametrize("wait", [None, 30.0])
    def test_to_one_of_several_questions_under_a_key(self, every_store: CheckpointStore, wait: float | None) -> None:
        """The answer reaches its pause, late answers are refused, and the next pause still waits."""
        payments = Payments(2)
        graph = payments.graph(every_store)
        for number in range(15 if every_store.__module__ in QUICK else 5):
            run_id = f"run-{number}"
            pause = graph.execute(State(run_id=run_id)).pause

            errors = self.click(graph, run_id, wait=wait, pause=pause)

            assert payments.paid == [100] * (number + 1)
            assert {type(error) for error in errors} <= {AnswerError, *([] if wait else [RunBusyError])}
            assert len(errors) == self.CLICKS - 1
            left = every_store.load(run_id).pause
            assert left is not None
            assert left.value == 200
