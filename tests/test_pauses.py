"""Runs that wait for a person: their questions, valid answers, and no lost answer."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any, TypedDict

import attrs
import pytest

from stategraph import (
    AnswerError,
    CheckpointStore,
    ExecutionError,
    InterruptNode,
    MapNode,
    RunStatus,
    State,
    StateGraph,
    Updates,
    key_equals,
    register_type,
)
from stategraph.testing import Killed, MortalStore
from tests.conftest import PLAYS
from tests.pairs import every_pair
from tests.scenarios import RUN, Scene, broken_first, make_graph, raises, reopened, returns, trace, traces

ASK = InterruptNode("draft", "verdict", reason="needs a review")


@register_type
@attrs.frozen
class Decision:
    """An answer with a shape."""

    is_good: bool
    note: str = ""


def write(state: State) -> dict[str, Any]:
    """Write the next draft."""
    return {"draft": f"draft {state.step + 1}"}


def reviewed(store: CheckpointStore, ask: Any = ASK, **options: Any) -> StateGraph:
    """Return a graph that writes, asks for a verdict, and publishes."""
    nodes = {"write": write, "ask": ask, "publish": trace("publish")}
    return make_graph(nodes, **{"store": store, **options})


class TestAsking:
    """A pause stops the run and shows its question."""

    def test_execute_returns_the_paused_state(self, any_play: Scene) -> None:
        """The paused State follows the last completed node, and equals the saved one."""
        paused = any_play.execute(reviewed(any_play.store))

        assert (paused.status, paused.step, paused.checkpoint_node) == (RunStatus.PAUSED, 1, "write")
        assert paused.pause is not None
        pause = paused.pause
        assert (pause.reason, pause.node, pause.value) == ("needs a review", "ask", "draft 1")
        assert (pause.response_param, pause.deadline) == ("verdict", None)
        assert pause.at >= paused.timestamp
        assert reopened(any_play.store).load(RUN) == paused

    def test_the_store_tells_who_waits_for_what(self, any_play: Scene) -> None:
        """The list of runs and the history show the pause of a waiting run, and none of others."""
        graph = reviewed(any_play.store, retention="full")
        any_play.execute(graph)
        with pytest.raises(ExecutionError):
            any_play.execute(make_graph({"a": raises(ValueError())}, store=any_play.store), State(run_id="other"))
        store = reopened(any_play.store)

        (waiting,) = store.runs(status="paused")

        assert waiting.pause == store.load(RUN).pause
        assert waiting.run_id == RUN
        assert store.history(RUN)[-1].pause == waiting.pause
        assert [run.pause for run in store.runs(status="failed")] == [None]
        any_play.resume(reviewed(store, preserve=True, retention="full"), {"verdict": "good"})
        assert store.runs(status="paused") == []
        history = store.history(RUN)  # of a store of four methods, the newest only
        assert [row.kind for row in history if row.pause is not None] == ["pause"] * (len(history) > 1)

    @pytest.mark.parametrize("options", [{"durability": "async"}, {"durability": "exit"}, {"interval": 5}], ids=str)
    def test_a_pause_is_durable_when_the_call_returns(self, any_play: Scene, options: dict[str, Any]) -> None:
        """When the call returns, the pause is durable."""
        paused = any_play.execute(reviewed(any_play.store, **options))

        assert reopened(any_play.store).load(RUN) == paused
        assert any_play.resume(reviewed(any_play.store, **options), {"verdict": 1})["trace"] == ["publish"]


class TestAnswering:
    """Resume brings the answer."""

    def test_the_run_goes_on(self, any_play: Scene) -> None:
        """An answer resumes the run, also in another process; the interrupt counts as a step, and the pause is gone."""
        any_play.execute(reviewed(any_play.store))

        final = any_play.resume(reviewed(reopened(any_play.store)), {"verdict": "good", "more": 1})

        assert dict(final) == {"draft": "draft 1", "verdict": "good", "more": 1, "trace": ["publish"]}
        assert (final.step, final.status, final.pause) == (3, RunStatus.COMPLETED, None)

    @pytest.mark.parametrize("updates", [None, {"other": 1}])
    def test_without_the_answer(self, any_play: Scene, updates: Any) -> None:
        """The error names the missing answer, and the run stays paused."""
        graph = reviewed(any_play.store)
        paused = any_play.execute(graph)

        with pytest.raises(AnswerError) as caught:
            any_play.resume(graph, updates)

        assert all(word in str(caught.value) for word in [RUN, "'ask'", "'verdict'", "needs a review", "draft 1"])
        assert caught.value.pause == paused.pause
        assert any_play.store.load(RUN) == paused

    @pytest.mark.parametrize("answer", ["bad", None])
    def test_a_validator(self, any_play: Scene, answer: Any) -> None:
        """An answer that a validator refuses, by False or an exception, leaves the run paused."""

        def is_allowed(verdict: str) -> bool:
            return verdict.upper() == "GOOD"

        graph = reviewed(any_play.store, InterruptNode("draft", "verdict", validator=is_allowed))
        paused = any_play.execute(graph)

        with pytest.raises(AnswerError, match="'verdict'"):
            any_play.resume(graph, {"verdict": answer})

        assert any_play.store.load(RUN) == paused
        assert any_play.resume(graph, {"verdict": "good"})["verdict"] == "good"

    def test_a_schema(self, any_play: Scene) -> None:
        """The answer is made into its type; one that does not fit leaves the run as it is."""
        graph = reviewed(any_play.store, InterruptNode("draft", "verdict", schema=Decision), preserve=True)
        paused = any_play.execute(graph)

        with pytest.raises(AnswerError, match="Decision"):
            any_play.resume(graph, {"verdict": "yes"})
        assert any_play.store.load(RUN) == paused
        final = any_play.resume(graph, {"verdict": {"is_good": True}})

        assert final["verdict"] == Decision(True)
        assert any_play.store.load(RUN) == final

    @pytest.mark.parametrize(
        ("schema", "answer"), [(bool, "no"), (bool, None), (str, None), (int, "5"), (int, 3.9), (list[str], "abc")]
    )
    def test_nothing_is_guessed(self, memory_play: Scene, schema: Any, answer: Any) -> None:
        """An answer of another type is refused and not converted: "no" is no approval."""
        graph = reviewed(memory_play.store, InterruptNode("draft", "verdict", schema=schema))
        memory_play.execute(graph)

        with pytest.raises(AnswerError, match="expected"):
            memory_play.resume(graph, {"verdict": answer})

    @pytest.mark.parametrize("given", [{}, {"verdict": "again"}])
    def test_every_visit_asks_again(self, any_play: Scene, given: dict[str, Any]) -> None:
        """An answer, or an input that counts as one, is one for a single visit."""
        ask = attrs.evolve(ASK, take_given=True)
        nodes = {"write": write, "ask": ask, "publish": trace("publish")}
        edges = [("write", "ask"), ("ask", "write", key_equals("verdict", "again")), ("ask", "publish")]
        graph = make_graph(nodes, edges, store=any_play.store, preserve=True)
        shown = []
        state = any_play.execute(graph, State(given, run_id=RUN))
        for answer in ["again"] * (2 - len(given)) + ["good"]:
            assert state.pause is not None
            shown.append(state.pause.value)
            state = any_play.resume(graph, {"verdict": answer})

        assert shown == ["draft 1", "draft 3", "draft 5"][len(given) :]
        assert (state["draft"], state.step) == ("draft 5", 7)

    @every_pair(
        how=["input", "default", "node", "update", "turn", "restart", "nested", "item"],
        take_given=[False, True],
        play=PLAYS,
        indirect=["play"],
    )
    def test_only_a_resume_of_the_pause_answers(self, play: Scene, how: str, take_given: bool) -> None:
        """A value that the key had before the question is no answer, unless the node takes it."""
        given: dict[str, Any] = {"ok": True} if how in ("input", "nested", "item") else {}
        ask: Any = InterruptNode("amount", "ok", take_given=take_given)
        if how in ("nested", "item"):
            ask = make_graph({"within": ask, "end": trace("end")}, store=play.store, name="inner").as_node()
        if how == "item":
            ask = MapNode(ask, over="orders", into="answers")
            given = {"orders": [{"amount": 120, **given}]}
        propose: Any = returns({"amount": 120, "ok": True} if how == "node" else {"amount": 120})
        propose = broken_first(propose, ValueError("down")) if how == "update" else propose
        graph = make_graph({"propose": propose, "ask": ask, "end": trace("end")}, store=play.store, preserve=True)
        if how == "default":
            graph.set_defaults({"ok": True})
        if how == "turn":
            state = play.call(graph, "turn", RUN, {"question": "money?", "ok": True})
        elif how == "update":
            with pytest.raises(ExecutionError):
                play.execute(graph)
            state = play.resume(graph, {"ok": True})
        elif how == "restart":
            first = make_graph({"propose": propose, "end": trace("end")}, store=play.store, preserve=True)
            state = play.execute(graph, play.execute(first).set("ok", True))
        else:
            state = play.execute(graph, State(given, run_id=RUN))

        assert state.status == ("completed" if take_given else "paused")
        if not take_given:
            assert play.resume(graph, {"ok": False}).status == "completed"

    def test_a_crash_does_not_lose_the_answer(self, any_play: Scene) -> None:
        """An answer that resume has accepted survives a crash and is not asked for again."""
        mortal = MortalStore(any_play.store)

        def die(answer: Any) -> None:
            if any_play.store.load(RUN).status is RunStatus.ACTIVE:  # the answer is accepted, and now it is taken
                mortal.die()

        any_play.execute(reviewed(any_play.store))
        with pytest.raises(Killed):
            any_play.resume(reviewed(mortal, Dying(die)), {"verdict": "good", "more": 1})
        assert any_play.store.load(RUN)["verdict"] == "good"

        final = any_play.resume(reviewed(reopened(any_play.store)))

        assert (final["verdict"], final["more"], final.step) == ("good", 1, 3)


def asks_itself(state: State) -> Any:
    """Pause unless there is an answer."""
    return {} if "ok" in state else state.paused("sure?", response_param="ok")


def going_back(play: Scene, how: str, step: int = 1) -> State:
    """Return the State of the run that continues from a step."""
    return play.store.rollback(RUN, step) if how == "rollback" else play.store.fork(RUN, "copy", step)


@pytest.mark.parametrize("goes_back", ["rollback", "fork"])
class TestGoingBack:
    """Going back to the step before a pause, whose answer came later."""

    @pytest.mark.parametrize("ask", [InterruptNode("draft", "ok"), asks_itself], ids=["node", "from inside"])
    @pytest.mark.parametrize("has_completed", [False, True])
    def test_it_asks_again(self, play: Scene, goes_back: str, ask: Any, has_completed: bool) -> None:
        """The run asks again: an approval counts only for the value that it approved."""
        publish = trace("publish") if has_completed else raises(ValueError("down"))
        nodes = {"write": lambda _: {"draft": "x"}, "ask": ask, "publish": publish}
        graph = make_graph(nodes, store=play.store, retention="full", preserve=True)
        play.execute(graph)
        with contextlib.nullcontext() if has_completed else pytest.raises(ExecutionError):
            play.resume(graph, {"ok": "yes", "note": "quick"})
        back = going_back(play, goes_back)

        paused = play.call(graph, "resume", back.run_id)

        assert (paused.status, "ok" in back, paused["note"]) == (RunStatus.PAUSED, False, "quick")
        assert paused.pause is not None
        assert paused.pause.response_param == "ok"

    @pytest.mark.parametrize("is_within", [False, True])
    def test_an_answer_that_will_not_do(self, play: Scene, goes_back: str, is_within: bool) -> None:
        """An invalid answer is refused again, whether or not the run has already asked again."""
        ask: Any = InterruptNode(None, "ok", validator=lambda ok: ok == "yes")
        if is_within and goes_back == "fork":  # after a rollback a nested run begins again and gets the answer as input
            ask = make_graph({"question": ask}, store=play.store).as_node()
        nodes = {"a": trace("a"), "ask": ask, "end": trace("end")}
        graph = make_graph(nodes, store=play.store, name="outer", retention="full", preserve=True)
        play.execute(graph)
        if goes_back == "rollback":
            play.resume(graph, {"ok": "yes"})
        back = going_back(play, goes_back)

        for _ in range(2):
            with pytest.raises(AnswerError, match="refused"):
                play.call(graph, "resume", back.run_id, {"ok": "no"})
            back = play.call(graph, "resume", back.run_id) if back.pause is None else back

        assert play.call(graph, "resume", back.run_id, {"ok": "yes"})["ok"] == "yes"


class Dying(InterruptNode):
    """Dies when it looks at its answer for the second time."""

    def __init__(self, die: Any) -> None:
        super().__init__("draft", "verdict", validator=die)


class Work(TypedDict, total=False):
    """The data of a node that pauses twice."""

    trace: list[str]
    junk: int
    draft: int
    quota: int
    more: int
    done: int


class TestPausingFromInside:
    """Any node may pause the run."""

    @pytest.mark.parametrize("how", ["latest", "full", "interval", "queued", "schema", "persist", "nested", "chunks"])
    def test_its_changes_are_kept_and_it_runs_again(self, play: Scene, how: str) -> None:
        """A node that pauses is not completed: it runs again, and finds what it changed, between all its pauses."""
        seen = []

        def work(state: State) -> Any:
            seen.append({key: value for key, value in state.items() if key != "trace"})
            if "quota" not in state:
                changed = state if "draft" in state else state.set("draft", 1).remove("junk")
                return changed.paused("first?", {"used": [1]}, response_param="quota")
            if "more" not in state:
                return state.set("draft", 1 + state["quota"]).paused("second?", response_param="more")
            return {"done": state["draft"] + state["more"]}

        def chunks(state: State) -> Any:
            yield "a chunk"
            result = work(state)
            yield result if isinstance(result, State) else Updates(result)

        kinds: dict[str, dict[str, Any]] = {
            "full": {"retention": "full"},
            "interval": {"interval": 5, "retention": "full"},
            "queued": {"durability": "async", "retention": "full"},
            "schema": {"schema": Work},
            "persist": {"persist": [*Work.__annotations__]},
        }
        options = kinds.get(how, {})
        nodes = {"a": lambda _: {"junk": 0}, "work": chunks if how == "chunks" else work, "end": trace("end")}
        graph = make_graph(nodes, store=play.store, preserve=True, **options)
        if how == "nested":
            graph = make_graph({"in": graph.as_node(), "end": trace("end")}, store=play.store, name="outer")
        paused = play.execute(graph)
        assert play.store.load(RUN) == paused
        assert paused.pause is not None
        assert paused.pause.value == {"used": [1]}
        if how != "nested":
            assert dict(paused) == {"draft": 1}
        again = play.resume(graph, {"quota": 5})
        assert play.store.load(RUN) == again
        with pytest.raises(AnswerError, match="answered before"):
            play.resume(graph, {"quota": 6})
        final = play.resume(graph, {"more": 10})

        assert (final["done"], final.status) == (16, "completed")
        assert seen == [{"junk": 0}, {"draft": 1, "quota": 5}, {"draft": 6, "quota": 5, "more": 10}]
        if "retention" in options:
            told = [(row.kind, row.step) for row in reopened(play.store).history(RUN)]
            assert [kind for kind, step in told if step == 1] == ["step", "pause", "answer", "pause", "answer"]
            self.go_back_from(play, graph, seen)

    def go_back_from(self, play: Scene, graph: StateGraph, seen: list[Any]) -> None:
        """A run that goes back asks again, with data that the node had."""
        for revision in range(1, len([row for row in play.store.history(RUN) if row.step == 1])):
            state = play.store.fork(RUN, f"copy-{revision}", 1, revision)
            paused = play.call(graph, "resume", state.run_id)
            answers = {"quota": 5, "more": 10}
            while paused.pause is not None:
                key = str(paused.pause.response_param)
                paused = play.call(graph, "resume", state.run_id, {key: answers[key]})
            assert paused["done"] == 16
        assert all(data in seen[:3] or data in ({"draft": 6, "quota": 5}, {"draft": 1}) for data in seen)

    def test_changes_of_unsaved_keys(self, play: Scene) -> None:
        """The node would go on without them: it fails, and the error names them."""
        graph = make_graph(
            {"work": lambda state: state.set("draft", 1).paused("why")}, store=play.store, persist=["done"]
        )

        with pytest.raises(ExecutionError, match=r"not saved \('draft'\).*checkpoint.persist"):
            play.execute(graph)

    def test_resuming_can_be_answer_enough(self, any_play: Scene) -> None:
        """Without a response_param a resume needs no answer, and no edge is tried again."""
        tries = []

        def work(state: State) -> Any:
            tries.append(1)
            return state.paused("come back later") if len(tries) < 3 else {"done": True}

        edges = [("a", "work", lambda state: not tries), ("work", "b")]
        graph = make_graph({**traces("a"), "work": work, **traces("b")}, edges, store=any_play.store)
        assert any_play.execute(graph).status is RunStatus.PAUSED
        assert any_play.resume(graph).status is RunStatus.PAUSED

        assert any_play.resume(graph)["trace"] == ["a", "b"]

    @pytest.mark.parametrize("deadline", [0, -1, 1e-6, 1, 1e10, 10**10, datetime(9999, 12, 31, tzinfo=UTC)], ids=str)
    def test_a_deadline_that_is_one(self, play: Scene, deadline: Any) -> None:
        """It is saved with the pause."""
        graph = make_graph({"ask": lambda state: state.paused("why", deadline=deadline)}, store=play.store)

        paused = play.execute(graph)

        assert paused.pause is not None
        assert play.store.load(RUN).pause == paused.pause
        assert isinstance(paused.pause.deadline, datetime)
