"""Idempotency keys: the same for each repeat of a step, different for other steps, and valid for any service."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stategraph import ExecutionError, NodeContext, RunExistsError, State, StepConflictError
from stategraph._values.ids import check_run_id, nested_id
from stategraph.stores.memory import MemoryStore
from tests.scenarios import RUN, Scene, broken_first, make_graph, reopened, returns, trace


class Notes:
    """Nodes, branches and items that note the keys that they are given."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def node(self, state: State, context: NodeContext) -> dict[str, Any]:
        """Note the key."""
        self.keys.append(context.idempotency_key)
        return {}

    def item(self, item: object, context: NodeContext) -> None:
        """Note the key."""
        self.keys.append(context.idempotency_key)


@pytest.fixture
def notes() -> Notes:
    return Notes()


# --------------------------------------------------------------------------- what a key is made of

_TEXTS = ["a", "1", "a/b", "a/#1/b", "b/#1", "#1", "1~1", "~1", "a%2Fb", "%2F", ".", "..", "ä", "a b", "##", "a@b", "é"]
_NAMES = st.sampled_from(_TEXTS) | st.text("a1/#~%. ä", min_size=1, max_size=6)
_RUNS = st.sampled_from(["r", "1", "r/1", "r/a", "r/a/1", "r:1", "r/1/a/1", "r/a:3"])
_STEPS = st.integers(1, 12)
_GENERATIONS = st.integers(0, 3)
_PLACES = st.tuples(_STEPS, _NAMES, _GENERATIONS)
_CONTEXTS = st.tuples(
    _NAMES, _RUNS, st.lists(_PLACES, max_size=2).map(tuple), _STEPS, _GENERATIONS, _NAMES, st.just("") | _NAMES
)


def key_of(graph: str, run: str, path: Any, step: int, generation: int, node: str, part: str) -> str:
    """Return the key of a step of a run, or of a nested run at the end of a path."""
    for place in path:
        run = nested_id(run, *place)
    assert check_run_id(run) == run
    return NodeContext(run, graph, node, step, generation=generation, part=part).idempotency_key


@given(_CONTEXTS, _CONTEXTS)
def test_different_steps_have_different_keys(one: Any, other: Any) -> None:
    """Different steps have different keys for all names of graphs, runs, nodes and parts."""
    assert (key_of(*one) == key_of(*other)) == (one == other)


def test_a_key_has_at_most_255_characters() -> None:
    """A longer key is cut, keeps its beginning, and still differs from the keys of other steps."""
    names = ["n" * 200, "n" * 199 + "m", "ä" * 200]
    contexts = [
        ("graph", run, path, step, 0, node, part)
        for run, path, step, node, part in itertools.product(
            ["r" * 200, "r"], [(), ((2, "n" * 200, 0), (3, "n" * 200, 1))], [1, 2], names, ["", *names]
        )
    ]
    keys = [key_of(*context) for context in contexts]

    assert max(map(len, keys)) == 255
    assert len(set(keys)) == len(keys)
    assert all(key.startswith("graph/r") for key in keys)
    assert key_of(*contexts[-1]) == keys[-1]


# --------------------------------------------------------------------------- through graphs


def test_a_graph_that_a_loop_comes_back_to(any_play: Scene, notes: Notes) -> None:
    """Each run of a nested graph in a loop has its own keys."""
    inner = make_graph({"pay": notes.node}, store=MemoryStore(), name="inner")
    edges = [("cust", "t"), ("t", "cust", lambda state: len(state["trace"]) < 3), ("t", "end")]
    nodes = {"cust": inner.as_node(), "t": trace("t"), "end": trace("end")}

    any_play.execute(make_graph(nodes, edges, store=any_play.store))

    assert notes.keys == [f"flow/run/#{step}/cust/#1/pay" for step in (1, 3, 5)]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_step_that_is_repeated(any_play: Scene, notes: Notes, depth: int) -> None:
    """A repeated step has the same key after a failure and a resume, in nested graphs, too."""
    once = broken_first(returns({}), ValueError("the answer was lost"))

    def pay(state: State, context: NodeContext) -> Any:
        notes.node(state, context)
        return once(state)

    graph = make_graph({"a": trace("a"), "pay": pay}, store=any_play.store)
    for _ in range(depth):
        graph = make_graph({"a": trace("a"), "in": graph.as_node()}, store=any_play.store)
    with pytest.raises(ExecutionError):
        any_play.execute(graph)
    any_play.resume(graph)

    assert notes.keys == [f"flow/run/{'#2/in/' * depth}#2/pay"] * 2


def test_a_run_that_begins_again(any_play: Scene, notes: Notes) -> None:
    """A deleted run that is executed again under its id has the same keys, so nothing is paid twice."""
    graph = make_graph({"pay": notes.node, "end": returns({})}, store=any_play.store, preserve=True)
    any_play.execute(graph)
    any_play.store.delete(RUN)
    any_play.execute(graph)

    assert notes.keys == ["flow/run/#1/pay"] * 2


def test_a_step_of_another_life_of_the_run(play: Scene, notes: Notes) -> None:
    """A rollback, a fork and a further input make other steps of it."""
    inner = make_graph({"pay": notes.node}, store=MemoryStore(), name="inner")
    nodes = {"a": notes.node, "cust": inner.as_node(), "b": notes.node}
    graph = make_graph(nodes, store=play.store, preserve=True, retention="full")
    final = play.execute(graph)
    play.execute(graph, final.set("more", 1))
    play.store.fork(RUN, "copy", 1)
    play.call(graph, "resume", "copy")
    play.store.rollback(RUN, 1)
    play.resume(graph)

    assert len(notes.keys) == len(set(notes.keys)) == 3 + 3 + 2 + 2


@pytest.mark.parametrize("is_restart", [False, True])
def test_a_state_from_before_a_rollback(play: Scene, notes: Notes, is_restart: bool) -> None:
    """It is refused, and changes nothing: what was rolled back does not come to life, nor its keys."""
    nodes = {"a": returns({}), "b": returns({}), "pay": notes.node}
    graph = make_graph(nodes, store=play.store, preserve=True, retention="full")
    play.execute(graph)
    page, paid = play.store.load(RUN, 0), play.store.load(RUN)
    play.store.rollback(RUN, 0)
    if not is_restart:
        play.resume(graph)
    before = play.store.history(RUN)

    for store in (play.store, reopened(play.store)):
        for old in (page, paid):
            with pytest.raises(StepConflictError, match="before a rollback"):
                store.save(old)
            with pytest.raises(StepConflictError, match="before a rollback"):
                play.execute(make_graph(nodes, store=store, preserve=True), old.set("order", 3), restart=is_restart)
    with pytest.raises(RunExistsError if is_restart else StepConflictError):
        graph.submit(paid)

    assert play.store.history(RUN) == before


def test_every_rollback_begins_another_generation(play: Scene, notes: Notes) -> None:
    """Steps after a rollback to a revision from before another rollback are other steps as well."""
    graph = make_graph({"a": returns({}), "pay": notes.node}, store=play.store, preserve=True, retention="full")
    play.execute(graph)
    for _ in range(3):
        play.store.rollback(RUN, 1, 0)
        play.resume(graph)

    assert notes.keys == ["flow/run/#2/pay", *(f"flow/run/#2~{number}/pay" for number in (1, 2, 3))]
