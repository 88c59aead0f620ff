"""store.update changes the data of a run that waits, without its answer."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from stategraph import (
    AnswerError,
    CheckpointNotFoundError,
    InterruptNode,
    MapNode,
    RunBusyError,
    RunCompleteError,
    SchemaError,
    State,
    StateGraph,
    UnknownNameError,
)
from tests.scenarios import RUN, Scene, in_threads, make_graph, trace


class Typed(TypedDict, total=False):
    """The keys of that graph."""

    n: int
    trace: list[str]
    ok: bool
    double: int


def asks(play: Scene, **how: Any) -> StateGraph:
    """Return a graph that asks, and then reads "n"."""
    nodes = {"a": trace("a"), "ask": InterruptNode("n", "ok"), "b": lambda state: {"double": 2 * state["n"]}}
    return make_graph(nodes, store=play.store, preserve=True, **how)


def test_a_paused_run(any_play: Scene) -> None:
    """It waits at the same pause, with the new data, and goes on with them after its answer."""
    graph = asks(any_play)
    before = any_play.execute(graph, State({"n": 1, "old": 2}, run_id=RUN))

    changed = any_play.store.update(RUN, {"n": 21, "more": [1]}, remove=["old"], by="ada")

    assert dict(changed) == {"n": 21, "trace": ["a"], "more": [1]}
    assert (changed.pause, changed.status, changed.step) == (before.pause, "paused", before.step)
    assert any_play.store.load(RUN) == changed
    final = any_play.resume(graph, {"ok": True}, pause=before.pause)
    assert (final["double"], "old" in final) == (42, False)


def test_the_history(play: Scene) -> None:
    """A full history has the change, with its author."""
    graph = asks(play, retention="full")
    play.execute(graph, State({"n": 1}, run_id=RUN))

    play.store.update(RUN, {"n": 2}, by="ada")

    newest = play.store.history(RUN)[-1]
    assert (newest.kind, newest.by, newest.status, newest.step) == ("update", "ada", "paused", 1)
    assert [play.store.load(RUN, 1, revision)["n"] for revision in (newest.revision - 1, newest.revision)] == [1, 2]


def test_what_is_refused(any_play: Scene) -> None:
    """An answer, an unknown key, a run at work and one that is complete; nothing changes."""
    store, busy = any_play.store, list[BaseException]()

    def change(state: State) -> dict[str, Any]:
        with pytest.raises(RunBusyError) as raised:
            store.update(RUN, {"n": 2})
        busy.append(raised.value)
        return {}

    def change_elsewhere(state: State) -> dict[str, Any]:
        errors = in_threads(lambda: change(state))
        assert errors == []
        return {}

    make_graph({"u": change_elsewhere}, store=store, preserve=True).execute(State(run_id=RUN))
    assert len(busy) == 1
    with pytest.raises(RunCompleteError):
        store.update(RUN, {"n": 2})
    store.delete(RUN)
    with pytest.raises(CheckpointNotFoundError):
        store.update(RUN, {"n": 2})
    before = any_play.execute(asks(any_play), State({"n": 1}, run_id=RUN))
    with pytest.raises(AnswerError, match="an update is no answer"):
        store.update(RUN, {"n": 2, "ok": True})
    with pytest.raises(UnknownNameError, match="'m'"):
        store.update(RUN, {"n": 2}, remove=["m"])
    with pytest.raises(TypeError, match="mapping"):
        store.update(RUN, ["n"])  # type: ignore[arg-type]
    assert store.load(RUN) == before


def test_the_schema(play: Scene) -> None:
    """The call that goes on checks the data; another update corrects them."""
    graph = asks(play, schema=Typed)
    play.execute(graph, State({"n": 1}, run_id=RUN))
    play.store.update(RUN, {"n": "many"})
    with pytest.raises(SchemaError, match="many"):
        play.resume(graph, {"ok": True})

    play.store.update(RUN, {"n": 4})

    assert play.resume(graph, {"ok": True})["double"] == 8


@pytest.mark.parametrize("is_map", [False, True])
def test_a_nested_pause(play: Scene, *, is_map: bool) -> None:
    """The nested run that waits gets the new data; an item that is made of others begins again."""
    nested = asks(play, name="nested")
    node = MapNode(nested.as_node(), over="items", into="out") if is_map else nested.as_node()
    graph = make_graph({"in": node, "end": trace("end")}, store=play.store, preserve=True)
    play.execute(graph, State({"items": [{"n": 1}]} if is_map else {"n": 1}, run_id=RUN))

    play.store.update(RUN, {"items": [{"n": 5}]} if is_map else {"n": 5})
    if is_map:
        with pytest.raises(AnswerError, match="begins again and pauses with its own question"):
            play.resume(graph, {"ok": True})
        asked = play.resume(graph)
        assert asked.pause is not None
        assert asked.pause.value == 5
    else:
        assert play.resume(graph, {"ok": True})["double"] == 10
