"""The story of a run: with retention "full" its history has every change."""

from __future__ import annotations

from typing import Any

import pytest

from stategraph import AnswerError, ExecutionError, InterruptNode, RetryPolicy, RunStatus, State
from stategraph.stores import CheckpointStore
from tests.scenarios import RUN, Scene, make_graph, raises

FULL: dict[str, Any] = {"retention": "full", "preserve": True}


def review(store: CheckpointStore, **options: Any) -> Any:
    """Return a graph that writes a draft, asks, and publishes the verdict."""
    nodes = {
        "write": lambda state: {"draft": f"about {state['topic']}"},
        "ask": InterruptNode("draft", "verdict"),
        "publish": lambda state: {"published": state["verdict"]},
    }
    return make_graph(nodes, **{"store": store, **FULL, **options})


def kinds(store: CheckpointStore, run_id: str = RUN) -> list[str]:
    return [row.kind for row in store.history(run_id)]


def test_the_history_of_an_approval(play: Scene) -> None:
    """The history has the input, the question and the answer, with author and time, and each can be loaded."""
    graph = review(play.store)
    play.execute(graph, State({"topic": "tea"}, run_id=RUN), by="carla", labels={"team": "news"})
    play.resume(graph, {"verdict": "yes"}, by="anna")

    rows = play.store.history(RUN)

    assert [(row.kind, row.step, row.revision) for row in rows] == [
        *(("input", 0, 0), ("step", 1, 0), ("pause", 1, 1), ("answer", 1, 2)),
        *(("step", 2, 0), ("step", 3, 0), ("end", 3, 1)),
    ]
    assert [row.by for row in rows] == ["carla", None, None, "anna", None, None, None]
    assert [row.timestamp for row in rows] == sorted(row.timestamp for row in rows)
    assert rows[2].pause is not None
    assert rows[2].pause.value == "about tea"
    assert play.store.load(RUN, 1, revision=2)["verdict"] == "yes"
    assert "verdict" not in play.store.load(RUN, 1, revision=1)
    assert rows[0].labels == play.store.load(RUN).labels == {"team": "news"}


def test_failures_and_updates_are_recorded(play: Scene) -> None:
    """Failures are recorded with their traceback, also at the first node, and so are updates."""
    with pytest.raises(ExecutionError):
        play.execute(make_graph({"a": raises(ValueError("no"))}, store=play.store, **FULL), State(run_id=RUN))
    play.resume(make_graph({"a": lambda state: {"n": 1}}, store=play.store, **FULL), {"given": 1}, by="bob")

    rows = play.store.history(RUN)

    assert [(row.kind, row.by) for row in rows] == [
        *(("input", None), ("failure", None), ("update", "bob"), ("step", None), ("end", None)),
    ]
    assert rows[1].error is not None
    assert rows[1].error.message == "no"
    assert "scenarios.py" in rows[1].error.traceback
    assert play.store.load(RUN, 0, revision=0).status is RunStatus.ACTIVE


def test_going_on_without_updates_adds_nothing(play: Scene) -> None:
    """A resume without updates adds no row; only its outcome does."""
    left = [ValueError("first"), ValueError("second")]

    def flaky(state: State) -> dict[str, int]:
        if left:
            raise left.pop()
        return {"n": 1}

    graph = make_graph({"a": lambda state: {}, "b": flaky}, store=play.store, **FULL)
    with pytest.raises(ExecutionError):
        play.execute(graph)
    with pytest.raises(ExecutionError):
        play.resume(graph, by="bob")
    play.resume(graph, by="bob")
    play.store.rollback(RUN, 2, revision=0)
    play.resume(graph)

    assert kinds(play.store) == [*("input", "step", "failure", "failure", "step", "end"), "rollback", "end"]


@pytest.mark.parametrize("how", ["fails", "pauses", "is cancelled"])
def test_the_input_is_recorded_once(play: Scene, how: str) -> None:
    """The input is recorded once, even if the run never passes its first node."""
    first = InterruptNode(None, "x") if how == "pauses" else raises(ValueError())
    graph = make_graph({"a": first, "b": lambda state: {}}, store=play.store, **FULL)
    graph.submit(State(run_id=RUN))
    if how == "is cancelled":
        graph.cancel(RUN)
    for _ in range(2):
        try:
            play.resume(graph)
        except (ExecutionError, AnswerError):
            continue

    assert kinds(play.store).count("input") == 1


def test_a_step_tells_how_long_it_took(play: Scene) -> None:
    """A step has its duration, its attempts and the process that saved it."""
    left = [ValueError("first"), ValueError("second")]

    def flaky(state: State) -> dict[str, int]:
        if left:
            raise left.pop()
        return {"n": 1}

    policies = {"a": {"retry": RetryPolicy(max_attempts=3, initial_delay=0.001)}}
    play.execute(make_graph({"a": flaky}, store=play.store, policies=policies, **FULL))

    rows = {str(row.kind): row for row in play.store.history(RUN)}

    step = rows["step"]
    assert step.attempts == 3
    assert step.took is not None
    assert step.began is not None
    assert 0 < step.took < 60
    assert step.began < step.timestamp
    assert rows["end"].took is None
    assert step.owner is not None
    assert step.owner.rpartition(":")[2].isdecimal()
    assert step.created == rows["input"].timestamp


def test_back_to_the_start(play: Scene) -> None:
    """A run goes back to its start and continues from there; later rows stay in the story."""
    graph = review(play.store)
    play.execute(graph, State({"topic": "tea"}, run_id=RUN))
    play.resume(graph, {"verdict": "yes"})
    before = play.store.history(RUN)

    back = play.store.rollback(RUN, 0, by="zoe")
    again = play.resume(graph)

    assert (back.step, dict(back)) == (0, {"topic": "tea"})
    assert again.status is RunStatus.PAUSED
    rows = play.store.history(RUN)
    assert rows[: len(before)] == before
    assert [(row.kind, row.step, row.revision, row.by) for row in rows[len(before) :]] == [
        *(("rollback", 0, 1, "zoe"), ("step", 1, 3, None), ("pause", 1, 4, None)),
    ]
    assert play.store.load(RUN, 3)["published"] == "yes"


def test_nested_runs_stay(play: Scene) -> None:
    """Nested runs of completed steps stay with their histories after a rollback."""
    inner = make_graph({"a": lambda state: {"n": state["n"] + 1}}, store=play.store, **FULL)
    graph = make_graph({"call": inner.as_node(), "end": lambda state: {"m": state["n"]}}, store=play.store, **FULL)
    play.execute(graph, State({"n": 1}, run_id=RUN))
    (nested,) = play.store.runs(parent=RUN)

    play.store.rollback(RUN, 0)
    play.resume(graph, {"n": 5})

    found = {row.run_id: play.store.load(row.run_id)["n"] for row in play.store.iter_runs(parent=RUN)}
    assert found == {f"{RUN}/#1/call": 2, f"{RUN}/#1~1/call": 6}
    assert kinds(play.store, nested.run_id) == ["input", "step", "end"]
    assert play.store.list() == [RUN]
    play.store.delete(RUN)
    assert play.store.runs(parent=RUN) == []
