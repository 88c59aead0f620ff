"""Answers that are stored: the next call that works on the run goes on with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from stategraph import (
    Answer,
    AnswerError,
    CheckpointStore,
    EntryExistsError,
    ExecutionError,
    InterruptNode,
    MapNode,
    NodeContext,
    NotSerializableError,
    RunCompleteError,
    RunStatus,
    State,
    StateGraph,
)
from stategraph.testing import fixed
from tests.conftest import staged
from tests.scenarios import RUN, Scene, in_threads, make_graph, trace
from tests.test_messages import PLAYS

LATER = datetime(2021, 1, 1, tzinfo=UTC)  # than fixed() begins


@pytest.fixture(params=PLAYS, ids=" ".join)
def every_play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """Every store that keeps entries, with one of the drivers."""
    yield from staged((*request.param, "sync nodes"), tmp_path)


def test_an_answer_that_cannot_be_kept(every_play: Scene) -> None:
    """The error says where in the answer the value is, and no pause is named by its id."""
    graph = asks(every_play.store)
    every_play.execute(graph)
    with pytest.raises(NotSerializableError, match=r"^when in the answer cannot be saved"):
        graph.answer(RUN, {"when": object()})


def asks(store: CheckpointStore, **how: Any) -> StateGraph:
    """Return a graph that asks once."""
    nodes = {"ask": InterruptNode(None, "go", **how), "b": trace("b")}
    return make_graph(nodes, store=store, preserve=True, retention="full")


CHANGES: dict[str, Callable[[Any], Any]] = {
    "update": lambda store: store.update(RUN, {"more": 1}),
    "redact": lambda store: store.redact(RUN, "x"),
    "prune": lambda store: store.prune(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_answer_stays_due(every_play: Scene, change: str) -> None:
    """A sweep goes on with the run after any change that does not take the answer in."""
    graph = asks(every_play.store)
    every_play.execute(graph, State({"x": "secret"}, run_id=RUN))
    graph.answer(RUN, True)

    CHANGES[change](every_play.store)

    (recovered,) = graph.recover()
    assert recovered.state is not None
    assert recovered.state["go"] is True


class TestStored:
    """An answer is durable when the call returns, and counts once."""

    def test_the_next_call_goes_on(self, every_play: Scene) -> None:
        """Whichever it is; the history has the author of the answer."""
        store = every_play.store
        graph = make_graph(
            {"a": InterruptNode(None, "go"), "b": InterruptNode(None, "then"), "c": trace("c")},
            store=store,
            preserve=True,
            retention="full",
        )
        paused = every_play.execute(graph)
        every_play.call(graph, "answer", RUN, 1, pause=paused.pause, by="ann")
        assert store.load(RUN) == paused
        again = every_play.call(graph, "run", State(run_id=RUN), by="bob")
        assert (again["go"], again.status, again.step) == (1, RunStatus.PAUSED, 1)
        every_play.call(graph, "answer", RUN, 2)

        final = every_play.resume(graph)

        assert (final["go"], final["then"], final.status) == (1, 2, RunStatus.COMPLETED)
        authors = [row.by for row in store.history(RUN) if row.kind.value == "answer"]
        assert authors == ["ann", None]

    def test_of_two_answers_one_counts(self, every_play: Scene) -> None:
        """The other caller is told who was first, however it answers."""
        graph = asks(every_play.store)
        paused = every_play.execute(graph)
        refused = in_threads(*(lambda by=by: graph.answer(RUN, by, by=by) for by in ("ann", "bob")))

        assert [type(error) for error in refused] == [AnswerError]
        (kept,) = every_play.store.entries(RUN, step=0)
        for again in (lambda: graph.answer(RUN, 3), lambda: every_play.resume(graph, {"go": 3}, pause=paused.pause)):
            with pytest.raises(
                AnswerError,
                match=f"answered by {kept.by} at .* UTC, and an answer counts once; resume.* goes on with it",
            ):
                again()
        assert every_play.resume(graph)["go"] == kept.by

    def test_a_key_is_one_answer(self, every_play: Scene) -> None:
        """Before the run goes on and after; with another value it is an error."""
        graph = asks(every_play.store)
        every_play.execute(graph)
        for _ in range(2):
            graph.answer(RUN, 1, key="k")
        every_play.resume(graph)
        graph.answer(RUN, 1, key="k")

        with pytest.raises(EntryExistsError, match="'k'"):
            graph.answer(RUN, 2, key="k")
        with pytest.raises(RunCompleteError):
            graph.answer(RUN, 1, key="other")

    def test_what_is_no_answer(self, every_play: Scene) -> None:
        """A value that is refused, a pause at which the run does not wait, and a run that waits for nothing."""
        graph = asks(every_play.store, schema=bool)
        paused = every_play.execute(graph)
        with pytest.raises(AnswerError, match="'maybe'"):
            graph.answer(RUN, "maybe")
        with pytest.raises(AnswerError, match="does not wait at the given pause"):
            graph.answer(RUN, True, pause="another")
        with pytest.raises(LookupError):
            graph.answer("none", True)
        assert every_play.store.entries(RUN) == []
        assert every_play.store.load(RUN) == paused

    @pytest.mark.parametrize("how", ["schema", "validator"])
    @pytest.mark.parametrize("named", [False, True])
    def test_one_that_a_changed_graph_refuses(self, every_play: Scene, how: str, named: bool) -> None:
        """An answer of the call itself takes its place, also after the deadline; one that is refused does not."""
        store, deadline = every_play.store, 86_400
        stricter: dict[str, Any] = {"schema": bool} if how == "schema" else {"validator": lambda value: value is True}
        changed = asks(store, deadline=deadline, **stricter)
        with fixed():
            paused = every_play.execute(asks(store, deadline=deadline))
            asks(store, deadline=deadline).answer(RUN, "maybe", by="ann")
        pause = paused.pause if named else None
        with fixed(LATER):
            for updates in ({}, {"go": "no idea"}):
                with pytest.raises(AnswerError, match=repr(updates.get("go", "maybe")) if how == "schema" else "valid"):
                    every_play.resume(changed, updates, by="bob", pause=pause if updates else None)
            assert store.load(RUN) == paused

            final = every_play.resume(changed, {"go": True}, pause=pause, by="bob")

        assert (final["go"], final.status) == (True, RunStatus.COMPLETED)
        assert [row.by for row in store.history(RUN) if row.kind == "answer"] == ["bob"]

    @pytest.mark.parametrize("stored", ["first", "both", "both, refused"])
    def test_one_of_several_pauses(self, play: Scene, stored: str) -> None:
        """A call answers the pause that it names, once; stored answers, also refused ones, do not hold that up."""

        def step(schema: Any) -> StateGraph:
            nodes = {"ask": InterruptNode("item", "go", schema=schema), "b": trace("b")}
            one = make_graph(nodes, store=play.store, name="one")
            return make_graph({"all": MapNode(one, "items", "outs"), "end": trace("end")}, store=play.store)

        before, graph = step(object), step(int if "refused" in stored else object)
        paused = play.execute(before, State({"items": [{"item": 10}, {"item": 20}]}, run_id=RUN))
        assert paused.pause is not None
        first, second = sorted(paused.pause.each, key=lambda pause: pause.value)
        before.answer(RUN, "stored", pause=first)
        if "both" in stored:
            before.answer(RUN, "stored", pause=second)

        if stored == "first":
            final = play.resume(graph, {"go": 3}, pause=second)
        else:
            with pytest.raises(AnswerError, match="'stored'" if "refused" in stored else "an answer counts once"):
                play.resume(graph, {"go": 3}, pause=second)
            final = play.resume(graph, {"go": 1} if "refused" in stored else {})

        expected = {"first": ["stored", 3], "both": ["stored", "stored"], "both, refused": [1, 3]}
        assert [out["go"] for out in final["outs"]] == expected[stored]

    @pytest.mark.parametrize("order", [*permutations(range(3))])
    def test_several_pauses_of_a_step(self, play: Scene, order: tuple[int, ...]) -> None:
        """Each has an answer of its own, in any order; one call goes on with all of them."""

        def double(state: State, context: NodeContext) -> dict[str, Any]:
            answer = context.answer
            return {"out": [state["item"], state["go"], answer and answer.by]}

        one = make_graph({"ask": InterruptNode("item", "go"), "double": double}, store=play.store, name="one")
        graph = make_graph({"all": MapNode(one, "items", "outs"), "end": trace("end")}, store=play.store)
        paused = play.execute(graph, State({"items": [{"item": n} for n in (10, 20, 30)]}, run_id=RUN))
        assert paused.pause is not None
        pauses = sorted(paused.pause.each, key=lambda pause: pause.value)
        with pytest.raises(AnswerError, match="3 pauses"):
            graph.answer(RUN, 0)
        for place in order:
            graph.answer(RUN, place, pause=pauses[place], by=f"person {place}")

        final = play.resume(graph)

        assert [out["out"][:2] for out in final["outs"]] == [[10, 0], [20, 1], [30, 2]]


class TestDeadlines:
    """The deadline decides, or an answer does: never both, never none."""

    @pytest.mark.parametrize("otherwise", [{}, {"otherwise": "silence"}])
    def test_before_and_after(self, every_play: Scene, otherwise: dict[str, str]) -> None:
        """An answer that was stored before the deadline counts after it; after the deadline there is none to give."""
        graph = asks(every_play.store, deadline=86_400, **otherwise)
        with fixed():
            every_play.execute(graph)
            graph.answer(RUN, "yes", by="ann")
        with fixed(LATER):
            assert every_play.resume(graph)["go"] == "yes"

        every_play.store.delete(RUN)
        with fixed():
            every_play.execute(graph)
        then = "goes on with the default answer" if otherwise else "goes on: the node has failed"
        with fixed(LATER), pytest.raises(AnswerError, match=f"too late.*; resume.* {then}"):
            graph.answer(RUN, "yes")

    @pytest.mark.parametrize("otherwise", [{}, {"otherwise": "silence"}])
    def test_at_the_same_time(self, every_play: Scene, otherwise: dict[str, str]) -> None:
        """One of them wins, and the one who answers is told which."""
        for number in range(8):  # the clock goes on by a second whenever it is read
            graph, run_id = asks(every_play.store, deadline=number + 4, **otherwise), f"run-{number}"
            with fixed():
                graph.execute(State(run_id=run_id))
                refused = race(lambda: graph.answer(run_id, "yes"), lambda: every_play.call(graph, "resume", run_id))  # noqa: B023
            with fixed(LATER), suppress(ExecutionError):
                if every_play.store.load(run_id).status is RunStatus.PAUSED:
                    graph.resume(run_id)
            assert ("yes" in every_play.store.load(run_id).values()) is not refused


def race(first: Callable[[], object], second: Callable[[], object]) -> bool:
    """Make two calls at the same time; return whether the first one was refused."""
    start, done = threading.Barrier(2), list[bool]()

    def call(function: Callable[[], object], *notes: bool) -> None:
        start.wait()
        function()
        done.extend(notes)

    in_threads(lambda: call(first, True), lambda: call(second))
    return not done


class TestWhoAnswered:
    """A node and a validator know the author, the time and the way of an answer."""

    def test_a_node(self, every_play: Scene) -> None:
        """Also after a crash, until the step is done."""
        seen = list[Answer | None]()

        def ask(state: State, context: NodeContext) -> Any:
            seen.append(context.answer)
            if "go" not in state:
                return state.paused("go on?", response_param="go")
            if len(seen) == 2:
                raise OSError
            return {}

        def after(state: State, context: NodeContext) -> dict[str, Any]:
            return {"after": context.answer}

        graph = make_graph({"ask": ask, "after": after}, store=every_play.store)
        with fixed():
            every_play.execute(graph)
            graph.answer(RUN, "yes", by="ann")
            at = every_play.store.entries(RUN)[0].at
        with pytest.raises(ExecutionError):
            every_play.resume(graph, by="worker")
        final = every_play.resume(graph)

        assert seen == [None, *[Answer("yes", "ann", at, "person")] * 2]
        assert final["after"] is None

    @pytest.mark.parametrize("way", ["resume", "answer", "deadline", "fork"])
    def test_a_validator(self, every_play: Scene, way: str) -> None:
        """It may refuse an answer because of its author; `otherwise` comes from no one, at the deadline."""
        seen = list[Answer]()

        def check(answer: Any, about: Answer) -> bool:
            seen.append(about)
            return about.by != "eve"

        graph = asks(every_play.store, validator=check, deadline=86_400, otherwise="no")
        with fixed():
            paused = every_play.execute(graph)
            for call in (lambda: graph.answer(RUN, "x", by="eve"), lambda: graph.resume(RUN, {"go": "x"}, by="eve")):
                with pytest.raises(AnswerError, match="refused by its validator"):
                    call()
            if way == "answer":
                graph.answer(RUN, "yes", by="ann")
            elif way == "fork":
                every_play.store.fork(RUN, "copy")
                graph.resume("copy", {"go": "yes"}, by="ann")
            elif way == "resume":
                every_play.resume(graph, {"go": "yes"}, by="ann")
        if way in ("answer", "deadline"):
            with fixed(LATER):
                every_play.resume(graph, by="worker")

        last = seen[-1]
        assert (last.value, last.by, last.how) == (
            ("no", None, "deadline") if way == "deadline" else ("yes", "ann", "person")
        )
        assert paused.pause is not None
        assert way != "deadline" or last.at == paused.pause.deadline
