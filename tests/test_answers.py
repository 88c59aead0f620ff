"""Answers: each to the pause that was shown, and of several one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from stategraph import (
    AnswerError,
    CheckpointNotFoundError,
    CheckpointStore,
    ExecutionError,
    InterruptNode,
    RunBusyError,
    RunCompleteError,
    RunStatus,
    State,
    StateGraph,
    key_equals,
)
from stategraph.stores.memory import MemoryStore
from stategraph.testing import fixed
from tests.conftest import make_store
from tests.scenarios import RUN, FourMethodStore, Scene, broken_first, counted, in_threads, make_graph, reopened, trace
from tests.test_nested_pauses import within

pytestmark = pytest.mark.timeout(120)
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
        """-> the graph."""
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
    """-> all that a store says of the run."""
    state = reopened(store).load(RUN)
    return state, state.status, state.pause, state.progress, store.history(RUN)


def refuses(play: Scene, graph: StateGraph, updates: Any, match: str, **how: Any) -> AnswerError:
    """-> the error with which an answer is refused; nothing has changed."""
    before = saved(play.store)
    with pytest.raises(AnswerError, match=match) as caught:
        play.resume(graph, updates, **how)
    assert saved(play.store) == before
    return caught.value


class TestAPause:
    """It has an id, and an answer may name it."""

    @pytest.mark.parametrize("by_id", [True, False])
    def test_it_is_answered(self, any_play: Scene, by_id: bool) -> None:
        """By itself, or by its id, which goes through a form and another process."""
        payments = Payments(1)
        pause = any_play.execute(payments.graph(any_play.store)).pause
        assert pause is not None
        assert pause.id == any_play.store.load(RUN).pause.id == any_play.store.runs()[0].pause.id  # type: ignore[union-attr]

        any_play.resume(payments.graph(reopened(any_play.store)), {"ok": "yes"}, pause=pause.id if by_id else pause)

        assert payments.paid == [100]

    @pytest.mark.parametrize("names", [("inner",), ("inner", "middle")])
    def test_of_nested_graphs_the_one_that_is_shown(self, play: Scene, names: tuple[str, ...]) -> None:
        """By the State of the outer run; another answer goes to another pause."""
        nodes = {"one": InterruptNode(None, "ok"), "two": InterruptNode(None, "ok")}
        graph = within(make_graph(nodes, store=play.store), *names)
        first = play.execute(graph).pause
        second = play.resume(graph, {"ok": 1}, pause=first).pause
        assert first is not None
        assert second is not None

        error = refuses(play, graph, {"ok": 1}, "pause to answer is over", pause=first)

        assert error.pause == second
        assert play.resume(graph, {"ok": 2}, pause=second.id)["ok"] == 2

    def test_of_a_stream(self, memory_play: Scene) -> None:
        """It is an option of all that resumes."""
        payments = Payments(2)
        graph = payments.graph(memory_play.store)
        pause = memory_play.execute(graph).pause
        assert [state.step for state in graph.stream_resume(RUN, {"ok": "yes"}, pause=pause)][-1] == 4

        with pytest.raises(AnswerError):
            list(graph.stream_resume(RUN, {"ok": "yes"}, pause=pause))

    @pytest.mark.parametrize("pause", [5, "", object(), State(), State().paused("by hand").pause])
    def test_what_is_none(self, memory_play: Scene, pause: Any) -> None:
        """It is said what is."""
        graph = Payments().graph(memory_play.store)
        memory_play.execute(graph)

        with pytest.raises(TypeError, match=r"pause is State\.pause of a run that waits, or its id, not"):
            memory_play.resume(graph, {"ok": "yes"}, pause=pause)

    def test_no_other_has_its_id(self) -> None:
        """Not of another run, step, time, generation, node, reason, value or key."""

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

    def test_a_value_that_only_this_store_keeps(self, memory_play: Scene) -> None:
        """Its pause has an id all the same."""
        graph = make_graph({"ask": InterruptNode("shown", "ok")}, store=FourMethodStore())
        pause = memory_play.execute(graph, State({"shown": object()}, run_id=RUN)).pause

        assert pause is not None
        assert memory_play.resume(graph, {"ok": 1}, pause=pause.id)["ok"] == 1


class TestOver:
    """A pause at which the run does not wait any more: its answer changes nothing, and it is said why."""

    def test_a_late_yes_to_an_older_proposal(self, any_play: Scene) -> None:
        """It never pays the newer one."""
        payments = Payments()
        graph = payments.graph(any_play.store)
        first = any_play.execute(graph).pause
        second = any_play.resume(graph, {"ok": "no"}, pause=first).pause

        error = refuses(any_play, graph, {"ok": "yes"}, "pause to answer is over", pause=first)
        any_play.resume(graph, {"ok": "yes"}, pause=second)

        assert (error.pause, payments.paid) == (second, [200])

    def test_a_run_that_failed_since(self, any_play: Scene) -> None:
        """After the step of the answer."""
        payments = Payments()
        payments.pay = broken_first(lambda state: None, ValueError("down"))
        graph = payments.graph(any_play.store)
        pause = any_play.execute(graph).pause
        with pytest.raises(ExecutionError):
            any_play.resume(graph, {"ok": "no"}, pause=pause)

        error = refuses(any_play, graph, {"ok": "yes"}, "pause to answer is over", pause=pause)

        assert error.pause is None

    def test_a_node_that_failed_with_the_answer(self, any_play: Scene) -> None:
        """The pause has been answered, in the step that is still being made."""

        def ship(state: State) -> Any:
            if "carrier" not in state:
                return state.paused("by whom?", response_param="carrier")
            raise ValueError("no such carrier")

        graph = make_graph({"ship": ship}, store=any_play.store)
        pause = any_play.execute(graph).pause
        with pytest.raises(ExecutionError):
            any_play.resume(graph, {"carrier": "x"})

        refuses(any_play, graph, {"carrier": "y"}, "pause to answer is over", pause=pause)

    def test_a_run_that_is_complete(self, any_play: Scene) -> None:
        """And preserved."""
        graph = Payments(1).graph(any_play.store, preserve=True)
        pause = any_play.execute(graph).pause
        any_play.resume(graph, {"ok": "yes"}, pause=pause)

        refuses(any_play, graph, {"ok": "yes"}, "pause to answer is over", pause=pause)
        with pytest.raises(RunCompleteError):
            any_play.resume(graph, {"ok": "yes"})

    @pytest.mark.parametrize("is_answered", [True, False])
    @pytest.mark.parametrize("is_nested", [True, False])
    def test_a_run_that_was_rolled_back(self, play: Scene, is_answered: bool, is_nested: bool) -> None:
        """To the step before the pause, or to where it waits: it asks its own question."""
        payments = Payments()
        options = {"preserve": True, "retention": "full"}
        graph = payments.graph(play.store, **options)
        graph = within(graph, **options) if is_nested else graph
        paused = play.execute(graph)
        assert paused.pause is not None
        if is_answered:
            play.resume(graph, {"ok": "yes"})
        play.store.rollback(RUN, paused.step)

        refuses(play, graph, {"ok": "yes"}, "pause to answer is over", pause=paused.pause)
        again = play.resume(graph)
        refuses(play, graph, {"ok": "yes"}, "pause to answer is over", pause=paused.pause)

        assert again.pause is not None
        assert (again.status, again.pause.value, again.pause.id == paused.pause.id) == (
            RunStatus.PAUSED,
            paused.pause.value,
            False,
        )
        assert payments.paid == [100] * is_answered

    @pytest.mark.parametrize("is_answered", [True, False])
    def test_a_nested_graph_that_begins_anew(self, play: Scene, is_answered: bool) -> None:
        """Its next question is not known yet, so nothing answers it, with or without the pause."""
        payments = Payments()
        graph = within(payments.graph(play.store), retention="full", preserve=True)
        step = play.execute(graph).step
        if is_answered:
            play.resume(graph, {"ok": "no"})
        play.store.rollback(RUN, step)

        refuses(play, graph, {"ok": "yes"}, "begins again and asks its own question: resume without an answer")
        again = play.resume(graph)

        assert play.resume(graph, {"ok": "yes"}, pause=again.pause).status is RunStatus.PAUSED
        assert payments.paid == [100]

    def test_a_fork(self, any_play: Scene) -> None:
        """It has a pause of its own, once it asks; the first run still waits."""
        payments = Payments()
        graph = payments.graph(any_play.store)
        pause = any_play.execute(graph).pause
        any_play.store.fork(RUN, "copy")

        with pytest.raises(AnswerError, match="pause to answer is over"):
            any_play.call(graph, "resume", "copy", {"ok": "yes"}, pause=pause)
        own = any_play.call(graph, "resume", "copy").pause
        with pytest.raises(AnswerError, match="pause to answer is over"):
            any_play.resume(graph, {"ok": "yes"}, pause=own)
        any_play.resume(graph, {"ok": "yes"}, pause=pause)
        any_play.call(graph, "resume", "copy", {"ok": "yes"}, pause=own)

        assert payments.paid == [100, 100]

    def test_a_run_that_never_paused(self, any_play: Scene) -> None:
        """The id is of nothing."""
        graph = make_graph({"a": trace("a"), "b": broken_first(trace("b"), ValueError())}, store=any_play.store)
        with pytest.raises(ExecutionError):
            any_play.execute(graph)

        refuses(any_play, graph, {}, "pause to answer is over", pause="0" * 40)


class TestAnsweredBefore:
    """A key whose pause has been answered is no update, whoever is at work by then."""

    @pytest.mark.parametrize("value", ["yes", "no"])
    def test_after_a_failure(self, any_play: Scene, value: str) -> None:
        """Not even the same value; other keys are given as ever, and the run goes on."""
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

    @pytest.mark.parametrize("removes", [True, False])
    def test_from_inside_a_node(self, any_play: Scene, removes: bool) -> None:
        """Whether or not the node has removed the key that it used."""

        def ship(state: State) -> Any:
            if "carrier" not in state:
                return state.paused("by whom?", response_param="carrier")
            return (state.remove("carrier") if removes else state).set("by", state["carrier"])

        nodes = {"ship": ship, "send": broken_first(trace("send"), ValueError("down"))}
        graph = make_graph(nodes, store=any_play.store)
        any_play.execute(graph)
        with pytest.raises(ExecutionError):
            any_play.resume(graph, {"carrier": "post"})

        refuses(any_play, graph, {"carrier": "other"}, "answered before")

        assert any_play.resume(graph)["by"] == "post"

    def test_while_the_run_waits_for_another_answer(self, any_play: Scene) -> None:
        """The other one does not bring it in."""
        nodes = {"one": InterruptNode(None, "one"), "two": InterruptNode(None, "two"), "end": trace("end")}
        graph = make_graph(nodes, store=any_play.store)
        any_play.execute(graph)
        any_play.resume(graph, {"one": 1})

        error = refuses(any_play, graph, {"one": 2, "two": 2}, "'one' has been answered before")
        assert error.pause is not None

        assert dict(any_play.resume(graph, {"two": 2})) == {"one": 1, "two": 2, "trace": ["end"]}

    def test_in_a_nested_graph(self, play: Scene) -> None:
        """While that waits for another answer, and after it."""
        nodes = {"one": InterruptNode(None, "one"), "two": InterruptNode(None, "two")}
        inner = make_graph(nodes, store=play.store)
        outer = {"inner": inner.as_node(), "end": broken_first(trace("end"), ValueError("down"))}
        graph = make_graph(outer, store=play.store, name="outer")
        play.execute(graph)
        play.resume(graph, {"one": 1})
        refuses(play, graph, {"one": 2, "two": 2}, "'one' has been answered before")
        with pytest.raises(ExecutionError):
            play.resume(graph, {"two": 2})

        refuses(play, graph, {"two": 3}, "'two' has been answered before")

        assert dict(play.resume(graph)) == {"one": 1, "two": 2, "trace": ["end"]}

    @pytest.mark.parametrize("way_out", ["fork", "rollback"])
    def test_a_way_out(self, any_play: Scene, way_out: str) -> None:
        """A copy of the run takes another value; a run that is taken back takes another answer."""
        if way_out == "rollback" and isinstance(any_play.store, FourMethodStore):
            pytest.skip("it keeps only the newest step")
        payments = Payments(1)
        payments.pay = broken_first(lambda state: None, ValueError("down"))
        graph = payments.graph(any_play.store, retention="full")
        any_play.execute(graph)
        with pytest.raises(ExecutionError):
            any_play.resume(graph, {"ok": "yes"})

        if way_out == "fork":
            final = any_play.call(graph, "resume", any_play.store.fork(RUN, "copy").run_id, {"ok": "no"})
        else:
            any_play.store.rollback(RUN, 1)
            final = any_play.resume(graph, {"ok": "no"})

        assert (final["ok"], payments.paid) == ("no", [100])


class TestAtTheSameTime:
    """Of answers that are given at the same time exactly one counts; all others are told."""

    CLICKS = 4

    def click(self, graph: StateGraph, run_id: str, **how: Any) -> list[BaseException]:
        """-> the errors of those whose answers did not count."""
        barrier = threading.Barrier(self.CLICKS)

        def answer() -> None:
            barrier.wait(20)
            graph.resume(run_id, {"ok": "yes"}, **how)

        return in_threads(*[answer] * self.CLICKS)

    @pytest.mark.parametrize("wait", [None, 30.0])
    def test_to_one_of_several_questions_under_a_key(self, every_store: CheckpointStore, wait: float | None) -> None:
        """That pause is answered, whoever comes late or has waited; the next one still waits."""
        payments = Payments(2)
        graph = payments.graph(every_store)
        for number in range(40 if every_store.__module__ in QUICK else 10):
            run_id = f"run-{number}"
            pause = graph.execute(State(run_id=run_id)).pause

            errors = self.click(graph, run_id, wait=wait, pause=pause)

            assert payments.paid == [100] * (number + 1)
            assert {type(error) for error in errors} <= {AnswerError, *([] if wait else [RunBusyError])}
            assert len(errors) == self.CLICKS - 1
            left = every_store.load(run_id).pause
            assert left is not None
            assert left.value == 200

    @pytest.mark.parametrize("wait", [None, 30.0])
    def test_without_the_pause(self, every_store: CheckpointStore, wait: float | None) -> None:
        """Where the next question has another key."""
        log = list[int]()
        nodes = {
            "ask": InterruptNode(None, "ok"),
            "pay": counted(trace("pay"), log),
            "more": InterruptNode(None, "more"),
        }
        graph = make_graph(nodes, store=every_store)
        for number in range(40 if every_store.__module__ in QUICK else 10):
            graph.execute(State(run_id=f"run-{number}"))

            errors = self.click(graph, f"run-{number}", wait=wait)

            assert len(log) == number + 1
            assert len(errors) == self.CLICKS - 1
            assert {type(error) for error in errors} <= {AnswerError, *([] if wait else [RunBusyError])}

    def test_after_waiting_for_the_first_one(self, memory_play: Scene) -> None:
        """What was asked only meanwhile was not shown to who answered: it takes the pause to answer it."""
        began, goes_on = threading.Event(), threading.Event()
        payments = Payments()
        payments.pay = lambda _: began.set() or goes_on.wait(20)  # type: ignore[func-returns-value]
        graph = payments.graph(memory_play.store)
        memory_play.execute(graph)
        first = threading.Thread(target=graph.resume, args=(RUN, {"ok": "yes"}))
        first.start()
        assert began.wait(20)
        threading.Timer(0.1, goes_on.set).start()

        with pytest.raises(AnswerError, match="asked this only while resume waited") as caught:
            memory_play.resume(graph, {"ok": "yes"}, wait=20)

        first.join(20)
        assert payments.paid == [100]
        memory_play.resume(graph, {"ok": "yes"}, wait=20, pause=caught.value.pause)
        assert payments.paid == [100, 200]

    def test_a_run_that_is_over_by_then(self, every_store: CheckpointStore) -> None:
        """It is complete and deleted, or complete and preserved; nothing is paid twice."""
        for preserve in (True, False):
            payments = Payments(1)
            graph = payments.graph(every_store, preserve=preserve)
            for number in range(10):
                graph.execute(State(run_id=f"run-{number}"))

                errors = self.click(graph, f"run-{number}")

                assert len(errors) == self.CLICKS - 1
                over = RunCompleteError if preserve else CheckpointNotFoundError
                assert {type(error) for error in errors} <= {RunBusyError, over}
            assert payments.paid == [100] * 10
            for run_id in every_store.list():
                every_store.delete(run_id)

    def test_after_a_crash(self, every_store: CheckpointStore) -> None:
        """The answer that counted is durable, and nobody's answer after it changes it."""
        payments = Payments(1)
        payments.pay = broken_first(lambda state: None, ValueError("down"))
        graph = payments.graph(every_store)
        graph.execute(State(run_id=RUN))
        with suppress(ExecutionError):
            graph.resume(RUN, {"ok": "yes"})

        errors = self.click(graph, RUN)

        assert {type(error) for error in errors} <= {AnswerError, RunBusyError}
        assert len(errors) == self.CLICKS
