"""Deadlines of pauses, and the answer after them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stategraph import AnswerError, ExecutionError, InterruptNode, RunStatus, State
from stategraph.testing import fixed
from tests.scenarios import RUN, Scene, broken_first, make_graph, trace
from tests.test_pauses import reviewed

LATER = datetime(2021, 1, 1, tzinfo=UTC)  # than fixed() begins


def handler(state: State) -> dict[str, Any]:
    """Record the handled error."""
    return {"trace": [state["error"]["type"], state["error"]["node"]]}


class TestDeadlines:
    """Until when a run can be answered."""

    def test_in_time(self, any_play: Scene) -> None:
        """The pause has the deadline, and an answer before it counts."""
        graph = reviewed(any_play.store, InterruptNode("draft", "verdict", deadline=60))
        with fixed():
            paused = any_play.execute(graph)
            assert paused.pause is not None
            assert paused.pause.deadline == paused.pause.at + timedelta(seconds=60)
            with pytest.raises(AnswerError, match=r"until 2020"):
                any_play.resume(graph)
            final = any_play.resume(graph, {"verdict": "good"})

        assert final["verdict"] == "good"

    def test_otherwise(self, any_play: Scene) -> None:
        """After the deadline the run continues with `otherwise`, and refuses other answers."""
        graph = reviewed(any_play.store, InterruptNode("draft", "verdict", deadline=60, otherwise="silence"))
        with fixed():
            paused = any_play.execute(graph)
        with fixed(LATER):
            with pytest.raises(
                AnswerError, match=r"too late: .* until .*; resume\('run'\) goes on with the default answer$"
            ):
                any_play.resume(graph, {"verdict": "good"})
            assert any_play.store.load(RUN) == paused

            final = any_play.resume(graph, {"more": 1})

        assert (final["verdict"], final["more"], final["trace"]) == ("silence", 1, ["publish"])

    def test_without_otherwise(self, any_play: Scene) -> None:
        """The run fails with a TimeoutError, and asks again when it is resumed once more, also with an early answer."""
        graph = reviewed(any_play.store, InterruptNode("draft", "verdict", deadline=60))
        with fixed():
            any_play.execute(graph)
        with fixed(LATER):
            with pytest.raises(ExecutionError) as caught:
                any_play.resume(graph, {"verdict": "good"})
            failed = any_play.store.load(RUN)
            again = any_play.resume(graph, {"verdict": "before the question"})
            assert again.pause is not None
            final = any_play.resume(graph, {"verdict": "good"})

        assert isinstance(caught.value.__cause__, TimeoutError)
        assert caught.value.node_name == "ask"
        assert failed.error is not None
        assert (failed.status, failed.pause, failed.error.type) == (RunStatus.FAILED, None, "TimeoutError")
        assert again.pause.at > LATER
        assert final["verdict"] == "good"

    @pytest.mark.parametrize("persist", [None, ["trace"]])
    @pytest.mark.parametrize("is_within", [False, True])
    def test_a_handler(self, play: Scene, is_within: bool, persist: Any) -> None:
        """Where failures of the node are handled, this is one, and counts as a step."""
        ask: Any = InterruptNode(None, "ok", deadline=60)
        if is_within:
            ask = make_graph({"question": ask}, store=play.store).as_node()
        nodes = {"a": trace("a"), "ask": ask, "late": broken_first(handler, ValueError("busy"))}
        policies = {"ask": {"on_error": "late"}}
        options = {
            "name": "outer",
            "policies": policies,
            "exits": ["ask", "late"],
            "preserve": True,
            "persist": persist,
        }
        graph = make_graph(nodes, [("a", "ask")], store=play.store, **options)
        with fixed():
            play.execute(graph)
        with fixed(LATER):
            with pytest.raises(ExecutionError, match="busy"):
                play.resume(graph)
            assert play.store.load(RUN).step == 2

            final = play.resume(graph)

        assert (final["trace"], final.step) == (["TimeoutError", "ask"], 3)

    def test_otherwise_has_to_be_an_answer_that_will_do(self) -> None:
        """Found out when the node is made, not when the deadline has passed."""
        with pytest.raises(ValueError, match="validator"):
            InterruptNode(None, "ok", validator=lambda ok: ok == "yes", deadline=1, otherwise="no")
        with pytest.raises(ValueError, match="int"):
            InterruptNode(None, "ok", schema=int, deadline=1, otherwise="no")
        with pytest.raises(ValueError, match="deadline"):
            InterruptNode(None, "ok", otherwise="no")
        for deadline in (0, -1, True, "1", float("nan"), float("inf"), 1e12, 10**400):
            with pytest.raises(ValueError, match="deadline"):
                InterruptNode(None, "ok", deadline=deadline)  # type: ignore[arg-type]
