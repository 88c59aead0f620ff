"""A pause in a nested graph pauses the outer run, which takes the answer."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from stategraph import AnswerError, ExecutionError, GraphError, InterruptNode, RunStatus, StateGraph
from stategraph.testing import Killed, MortalStore
from tests.scenarios import RUN, Scene, counted, make_graph, reopened, trace
from tests.test_pauses import reviewed


def within(graph: StateGraph, *names: str, **options: Any) -> StateGraph:
    """Return a graph that runs another one between two nodes; each further name is one more around that."""
    for name in names or ("inner",):
        nodes = {f"before {name}": trace(f"before {name}"), name: graph.as_node(), "end": trace("end")}
        graph = make_graph(nodes, **{"store": graph.store, "name": f"around {name}", **options})
    return graph


@attrs.frozen
class Answered:
    """The schema of a graph that knows the answer."""

    trace: list[str]
    ok: int | None = None


@pytest.mark.parametrize("names", [("inner",), ("inner", "middle")], ids=["one deep", "two deep"])
class TestAnswering:
    """Through the outermost run."""

    def test_it_goes_on_where_it_waits(self, play: Scene, names: tuple[str, ...]) -> None:
        """The answer continues the nested run at its pause, also in another process, and repeats nothing."""
        drafts: list[int] = []
        nodes = {"write": counted(lambda state: {"draft": "x"}, drafts), "ask": InterruptNode("draft", "ok")}

        def make(store: Any) -> StateGraph:
            return within(make_graph({**nodes, "publish": trace("publish")}, store=store), *names)

        paused = play.execute(make(play.store))
        assert paused.pause is not None
        assert (paused.status, paused.pause.node) == (RunStatus.PAUSED, names[-1])
        assert (paused.pause.value, paused.pause.response_param, paused.step) == ("x", "ok", 1)
        (waiting,) = play.store.runs(status="paused")
        assert (waiting.run_id, waiting.pause) == (RUN, paused.pause)

        final = play.resume(make(reopened(play.store)), {"ok": 1})

        assert (final["ok"], final["draft"], final.step) == (1, "x", 3)
        assert final["trace"] == [*(f"before {name}" for name in reversed(names)), "publish", *["end"] * len(names)]
        assert drafts == [1]

    def test_the_node_within_validates(self, play: Scene, names: tuple[str, ...]) -> None:
        """The nested node validates the answer: a refused one leaves the run paused, and a converted one comes out."""
        graph = within(reviewed(play.store, InterruptNode("draft", "verdict", schema=int)), *names)
        paused = play.execute(graph)

        with pytest.raises(AnswerError, match="int"):
            play.resume(graph, {"verdict": "x"})
        assert play.store.load(RUN) == paused

        assert play.resume(graph, {"verdict": 7})["verdict"] == 7

    def test_a_schema_on_the_way_without_the_key(self, play: Scene, names: tuple[str, ...]) -> None:
        """A schema without the key of the answer is refused: before the run, or at a pause that only the run shows."""
        nodes: list[tuple[Any, type[Exception]]] = [
            (InterruptNode(None, "other"), GraphError),
            (lambda state: state.paused("sure?", response_param="other"), ExecutionError),
        ]
        for node, error in nodes:
            inner = within(make_graph({"ask": node}, store=play.store), *names)
            outer = make_graph({"in": inner.as_node()}, store=play.store, name="typed", schema=Answered)

            with pytest.raises(error, match=r"'other'.*Answered"):
                play.execute(outer)

    @pytest.mark.parametrize("durability", ["sync", "async", "exit"])
    def test_a_crash_behind_the_answer(self, play: Scene, names: tuple[str, ...], durability: str) -> None:
        """After a crash an accepted answer is not asked for again, under every durability."""
        mortal = MortalStore(play.store)

        def make(store: Any, publish: Any) -> StateGraph:
            nodes = {"write": trace("write"), "ask": InterruptNode(None, "ok"), "publish": publish}
            return within(make_graph(nodes, store=store), *names, durability=durability)

        play.execute(make(play.store, None or trace("publish")))
        with pytest.raises(Killed):
            play.resume(make(mortal, lambda state: mortal.die()), {"ok": 1})

        final = play.resume(make(reopened(play.store), trace("publish")))

        assert (final["ok"], final["trace"].count("write"), final.status) == (1, 1, RunStatus.COMPLETED)


class TestWhatElse:
    """Where a pause within meets other things."""

    def test_checkpoints_are_those_of_the_outer_graph(self, memory_play: Scene) -> None:
        """A nested graph needs no checkpoints, but the outer graph does if the nested one pauses."""
        inner = reviewed(memory_play.store, interval=0)
        assert memory_play.execute(within(inner)).status is RunStatus.PAUSED

        with pytest.raises(GraphError, match="'inner' pauses runs, which needs checkpoints"):
            within(inner, interval=0).validate()
