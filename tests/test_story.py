"""The story of a run: what its history tells, with retention "full", of all that was done to it."""

from __future__ import annotations

from typing import Any

import pytest

from stategraph import (
    AnswerError,
    ExecutionError,
    InterruptNode,
    MapNode,
    RetryPolicy,
    RunCancelledError,
    RunStatus,
    State,
)
from stategraph.stores import CheckpointStore
from tests.scenarios import RUN, Scene, make_graph, raises

FULL: dict[str, Any] = {"retention": "full", "preserve": True}


def review(store: CheckpointStore, **options: Any) -> Any:
    """-> a graph that writes, asks, and publishes what was approved."""
    nodes = {
        "write": lambda state: {"draft": f"about {state['topic']}"},
        "ask": InterruptNode("draft", "verdict"),
        "publish": lambda state: {"published": state["verdict"]},
    }
    return make_graph(nodes, **{"store": store, **FULL, **options})


def kinds(store: CheckpointStore, run_id: str = RUN) -> list[str]:
    return [row.kind for row in store.history(run_id)]


def test_the_history_of_an_approval(play: Scene) -> None:
    """What was given, shown, answered, by whom and when; each can be loaded as it was then."""
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


def test_a_second_turn_leaves_the_first_as_it_was(play: Scene) -> None:
    """Its input is a revision of the step where the first one ended."""
    graph = review(play.store)
    play.execute(graph, State({"topic": "tea"}, run_id=RUN))
    play.resume(graph, {"verdict": "yes"})
    before = play.store.history(RUN)

    play.execute(graph, play.store.load(RUN).set("topic", "milk"))

    assert play.store.history(RUN)[: len(before)] == before
    assert kinds(play.store)[len(before) :] == ["input", "step", "pause"]
    assert [play.store.load(RUN, 3, number)["topic"] for number in range(3)] == ["tea", "tea", "milk"]


def test_failures_and_updates_are_recorded(play: Scene) -> None:
    """With the calls that led to a failure, also that of the first node."""
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
    """A resume makes no step and gives no input: only what comes of it is told."""
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


@pytest.mark.parametrize("middle", ["map", "nested"])
def test_going_on_with_what_has_parts_adds_nothing(play: Scene, middle: str) -> None:
    """A run that was left where it stood is as it was."""
    nested = make_graph({"x": lambda state: {"n": 1}}, store=play.store, name="inner", **FULL)
    node = {"map": MapNode(str, over="items", into="texts"), "nested": nested.as_node()}[middle]
    graph = make_graph({"a": lambda state: {"items": [1, 2]}, "b": node}, store=play.store, **FULL)
    with graph.stream(State(run_id=RUN)) as states:
        next(states)
    play.resume(graph)

    assert kinds(play.store) == ["input", "step", "step", "end"]


@pytest.mark.parametrize("durability", ["sync", "async"])
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_step_of_a_cancelled_run_is_recorded_once(play: Scene, is_nested: bool, durability: str) -> None:
    """Of a nested run, too."""

    def cancelling(state: State) -> dict[str, int]:
        outer.cancel(RUN)
        return {"n": 1}

    options = {"store": play.store, "durability": durability, **FULL}
    nodes = {"c": cancelling, "d": lambda state: {"m": 1}}
    outer = make_graph({"a": make_graph(nodes, **options).as_node()} if is_nested else nodes, **options)
    with pytest.raises(RunCancelledError):
        play.execute(outer)

    if is_nested:
        (run,) = play.store.runs(parent=RUN)
        assert kinds(play.store, run.run_id) == ["input", "step"]
    assert kinds(play.store) == (["input", "cancel"] if is_nested else ["input", "step", "cancel"])
    play.resume(outer)
    assert kinds(play.store)[-2:] == ["step", "end"]


def test_repeated_questions_of_a_nested_graph_are_in_order(play: Scene) -> None:
    """A resume that finds the question open tells it again, and not as of a time before."""
    options = {"store": play.store, **FULL}
    nested = make_graph({"ask": InterruptNode(None, "ok"), "c": lambda state: {}}, **options)
    outer = make_graph({"a": lambda state: {}, "b": nested.as_node(), "d": lambda state: {}}, **options)
    play.execute(outer)
    play.store.rollback(RUN, 1)
    play.resume(outer)
    outer.cancel(RUN)
    play.store.rollback(RUN, 1, revision=1)
    for updates in ({}, {"more": 1}):
        try:
            play.resume(outer, updates)
        except AnswerError:
            continue

    times = [row.timestamp for row in play.store.history(RUN)]
    assert times == sorted(times)


def test_a_rollback_by_no_name(play: Scene) -> None:
    """Of who takes a run back: it stays as it is."""
    graph = review(play.store)
    play.execute(graph, State({"topic": "tea"}, run_id=RUN))

    with pytest.raises(TypeError, match="by is a str that says who, not 5"):
        play.store.rollback(RUN, 0, by=5)  # type: ignore[arg-type]

    assert kinds(play.store) == ["input", "step", "pause"]


@pytest.mark.parametrize("how", ["fails", "pauses", "is cancelled"])
def test_the_input_is_recorded_once(play: Scene, how: str) -> None:
    """Also of a run that never gets beyond its first node."""
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


def test_a_run_submitted_twice_is_recorded_once(play: Scene) -> None:
    """Also if it is executed then; other labels are another input."""
    graph = make_graph({"a": lambda state: {"n": 1}}, store=play.store, **FULL)
    for _ in range(2):
        graph.submit(State(run_id=RUN))
    assert kinds(play.store) == ["input"]
    play.execute(graph, State(run_id=RUN))
    assert kinds(play.store) == ["input", "step", "end"]
    for team in ("news", "ads"):
        graph.submit(State(run_id="other"), labels={"team": team})
    assert play.store.load("other").labels == {"team": "ads"}


def test_a_step_tells_how_long_it_took(play: Scene) -> None:
    """And in how many attempts, and which process saved it."""
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
    """Before the first step; what came later stays as story, and the run goes on from there."""
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


def test_a_fork_at_what_was_asked(play: Scene) -> None:
    """The copy asks again; its history is that of the source up to there."""
    graph = review(play.store)
    play.execute(graph, State({"topic": "tea"}, run_id=RUN))
    play.resume(graph, {"verdict": "yes"})

    play.store.fork(RUN, "copy", 1, revision=1)

    assert kinds(play.store, "copy")[:2] == ["input", "step"]
    assert "verdict" not in play.store.load("copy")
    assert play.store.diff(RUN, 3, 1, other="copy").removed.keys() == {"verdict", "published"}


@pytest.mark.parametrize("options", [{}, {"durability": "async"}, {"interval": 5}], ids=str)
def test_a_story_has_its_beginning_and_its_end(play: Scene, options: dict[str, Any]) -> None:
    """However seldom is saved."""
    graph = make_graph({name: lambda state: {} for name in "abc"}, **{"store": play.store, **FULL, **options})
    play.execute(graph)

    told = kinds(play.store)

    assert told[0] == "input"
    assert told[-2:] == ["step", "end"]


@pytest.mark.parametrize("retention", ["latest", "windowed"])
def test_other_retentions_keep_what_they_kept(play: Scene, retention: str) -> None:
    """A checkpoint a step, the newest state of it."""
    options = {"window": 2} if retention == "windowed" else {}
    graph = review(play.store, retention=retention, **options)
    play.execute(graph, State({"topic": "tea"}, run_id=RUN))
    play.resume(graph, {"verdict": "yes"}, by="anna")

    assert [(row.step, row.revision) for row in play.store.history(RUN)] == [(2, 0), (3, 0)][
        -(options.get("window", 1)) :
    ]


def test_nested_runs_stay(play: Scene) -> None:
    """Those of completed steps, whatever is taken back: each with a history of its own."""
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


def test_a_fork_makes_again_what_is_nested(play: Scene) -> None:
    """The nested run of a step that the source has completed is none of the copy's."""
    calls: list[int] = []

    def count(state: State) -> dict[str, int]:
        calls.append(1)
        return {"n": 2}

    inner = make_graph({"a": count}, store=play.store, **FULL)
    nodes = {"first": lambda state: {}, "call": inner.as_node(), "end": lambda state: {}}
    graph = make_graph(nodes, store=play.store, **FULL)
    play.execute(graph, State({"n": 1}, run_id=RUN))

    play.store.fork(RUN, "copy", 1)
    play.call(graph, "resume", "copy")

    assert len(calls) == 2
    assert [row.run_id for row in play.store.runs(parent="copy")] == ["copy/#2/call"]
