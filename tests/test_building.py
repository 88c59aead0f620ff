"""Building a StateGraph: refused graphs and fingerprints."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

import attrs
import pytest

from stategraph import (
    CheckpointConfig,
    ExecutionError,
    GraphConfig,
    GraphError,
    NodeContext,
    ParallelNode,
    State,
    StateGraph,
    UnknownNameError,
    UnknownNodeError,
    key_equals,
    key_exists,
    not_,
)
from stategraph.stores.memory import MemoryStore
from stategraph.stores.sqlite import SqliteStore


def nothing(state: State) -> dict[str, Any]:
    return {}


@pytest.fixture
def graph() -> StateGraph:
    return StateGraph(GraphConfig("review", observer="noop"))


@pytest.fixture
def line(graph: StateGraph) -> StateGraph:
    """Return a valid graph: draft -> review -> publish."""
    return built(graph, "draft review publish", "draft>review review>publish", "draft", "publish")


def built(graph: StateGraph, nodes: str, edges: str, entry: str = "", exits: str = "") -> StateGraph:
    for name in nodes.split():
        graph.add_node(name, nothing)
    for edge in edges.split():
        source, target = edge.split(">")
        graph.add_edge(source, target)
    if entry:
        graph.set_entry_point(entry)
    for name in exits.split():
        graph.set_exit_point(name)
    return graph


def alone(graph: StateGraph, node: Callable[..., Any]) -> StateGraph:
    """Return the graph with this one node."""
    graph.add_node("node", node)
    graph.set_entry_point("node")
    graph.set_exit_point("node")
    return graph


def ran(node: Callable[..., Any], **data: Any) -> State:
    """Return what a run of this one node gives."""
    return alone(StateGraph("one"), node).execute(State(data, run_id="r"))


# --------------------------------------------------------------------------- the graph itself


def test_a_graph_knows_what_it_is_made_of(graph: StateGraph) -> None:
    """A graph lists its nodes and edges in the order in which they were added."""
    predicate = key_exists("a")
    graph.add_node("b", nothing)
    graph.add_node("a", dict)
    graph.add_edge("b", "a", predicate, name="on a")
    graph.add_edge("b", "b")

    assert graph.name == "review"
    assert dict(graph.nodes) == {"b": nothing, "a": dict}
    assert list(graph.nodes) == ["b", "a"]
    assert [(edge.source, edge.target, edge.predicate, edge.name) for edge in graph.edges] == [
        ("b", "a", predicate, "on a"),
        ("b", "b", None, None),
    ]
    assert repr(graph) == "StateGraph('review', 2 nodes, 2 edges, memory store)"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (GraphConfig("g", observer="structlgo"), "no observer is named 'structlgo'; did you mean 'structlog'"),
        (
            GraphConfig("g", checkpoint=CheckpointConfig(store="memroy")),
            "store is named 'memroy'; did you mean 'memory'",
        ),
    ],
)
def test_unknown_names_are_found_when_the_graph_is_made(config: GraphConfig, text: str) -> None:
    """Unknown names fail when the graph is made, not when the first run starts."""
    with pytest.raises(UnknownNameError, match=text):
        StateGraph(config)


# --------------------------------------------------------------------------- nodes


def test_a_name_may_be_a_member_of_an_enum(tmp_path: Path) -> None:
    """The name is its value, which a store keeps: of a graph, a node, a branch, an edge and the target of a route."""

    class Name(StrEnum):
        WORK = "work"
        SPLIT = "split"
        MEND = "mend"

    with SqliteStore(tmp_path / "runs.db") as store:
        graph = StateGraph(GraphConfig(Name.WORK, checkpoint=CheckpointConfig(interval=1, preserve=True)), store=store)
        graph.add_node(Name.MEND, lambda state: {"done": True})
        graph.add_node(Name.SPLIT, ParallelNode({Name.WORK: lambda state: {"x": 1}, Name.MEND: lambda state: {"y": 1}}))
        graph.add_node(Name.WORK, lambda state: {"x": 1 / 0}, on_error=Name.MEND)
        graph.set_entry_point(Name.SPLIT)
        graph.set_exit_point(Name.MEND)
        graph.add_route(Name.SPLIT, lambda state: state["x"], {1: Name.WORK}, name=Name.SPLIT)
        graph.add_edge(Name.WORK, Name.MEND, name=Name.WORK)
        graph.execute(State(run_id="a"))

        assert store.load("a").graph == "work"
        assert store.load("a")["done"]


class Methods:
    def node(self, state: State) -> dict[str, Any]:
        return {"saw": None}

    __call__ = node

    def with_context(self, state: State, context: NodeContext) -> dict[str, Any]:
        return {"saw": context}

    async def late(self, state: State, context: NodeContext) -> dict[str, Any]:
        return {"saw": context}

    @staticmethod
    def static(state: State, other: Any) -> dict[str, Any]:
        return {"saw": other}

    @classmethod
    def of_class(cls, state: State, *, context: Any) -> dict[str, Any]:
        return {"saw": context}


class CallableWithContext:
    async def __call__(self, state: State, context: NodeContext) -> dict[str, Any]:
        return {"saw": context}


def second(state: State, whatever: Any) -> dict[str, Any]:
    return {"saw": whatever}


def annotated(state: State, *, about: NodeContext) -> dict[str, Any]:
    return {"saw": about}


def named_behind_defaults(state: State, limit: int = 5, context: Any = None) -> dict[str, Any]:
    return {"saw": context, "limit": limit}


def no_parameters() -> dict[str, Any]:
    return {}


def three(state: State, about: Any, limit: int) -> dict[str, Any]:
    return {"saw": about}


WITH_CONTEXT: dict[str, Any] = {
    "second": second,
    "annotated": annotated,
    "named behind defaults": named_behind_defaults,
    "method": Methods().with_context,
    "async object": CallableWithContext(),
    "lambda": lambda s, c: {"saw": c},
    "partial": functools.partial(three, limit=5),
}


@pytest.mark.parametrize("node", WITH_CONTEXT.values(), ids=WITH_CONTEXT)
def test_a_node_that_asks_for_it_is_given_a_context(node: Any) -> None:
    """Each way to ask for a context works."""
    assert ran(node)["saw"] == NodeContext(run_id="r", graph="one", node="node", step=1)


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (no_parameters, "it takes no positional argument"),
        (lambda *, state: {}, "it takes no positional argument"),
        (lambda **state: {}, "it takes no positional argument"),
        (three, "nothing is passed for its parameter 'limit'"),
        (lambda state, *, limit: {}, "nothing is passed for its parameter 'limit'"),
        (Methods.node, "its first parameter is 'self': give the method of an object"),
        (Methods.with_context, "its first parameter is 'self': give the method of an object"),
        (functools.partial(nothing, State()), "it takes no positional argument"),
    ],
    ids=[
        "nothing",
        "keyword-only",
        "any keywords",
        "three",
        "required keyword",
        "unbound",
        "unbound with context",
        "full",
    ],
)
def test_a_signature_that_cannot_be_called_is_refused(graph: StateGraph, node: Any, text: str) -> None:
    """When it is added, not when it runs."""
    with pytest.raises(GraphError, match=f"node 'draft': {text}"):
        graph.add_node("draft", node)


def test_the_decorator_adds_a_function(graph: StateGraph) -> None:
    """Under its own name, sync or async, or under given names; it leaves the function as it is."""

    @graph.node
    def draft(state: State) -> dict[str, Any]:
        return {}

    @graph.node("second review")
    @graph.node
    async def review(state: State) -> dict[str, Any]:
        return {}

    assert dict(graph.nodes) == {"draft": draft, "review": review, "second review": review}


# --------------------------------------------------------------------------- edges, entry and exits


def test_an_unknown_node_comes_with_a_suggestion(line: StateGraph) -> None:
    expected = r"no node is named 'reviw'; did you mean 'review'\? \(known: 'draft', 'publish', 'review'\); add_node"
    with pytest.raises(UnknownNodeError, match=expected):
        line.add_edge("draft", "reviw")


def test_a_function_in_place_of_the_name_of_its_node(line: StateGraph) -> None:
    """As add_sequence takes functions, it is easy to pass one."""
    with pytest.raises(UnknownNodeError, match="give the name of the node, a str"):
        line.set_entry_point(built)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "make",
    [lambda: None, lambda: key_equals("a", [1]), lambda: not_(key_exists("a")), lambda: str],
    ids=["None", "=", "not", "own"],
)
def test_an_edge_is_given_once(line: StateGraph, make: Callable[[], Any]) -> None:
    """Predicates that mean the same make the same edge."""
    if make() is not None:
        line.add_edge("draft", "review", make())

    with pytest.raises(GraphError, match=r"edge 'draft' -> 'review' .* is already there"):
        line.add_edge("draft", "review", make())


# --------------------------------------------------------------------------- validation


@pytest.mark.parametrize(
    ("nodes", "edges", "entry", "exits", "problems"),
    [
        ("", "", "", "", ["it has no nodes", "it has no entry point", "it has no exit point"]),
        ("a", "", "a", "", ["it has no exit point", "node 'a' is a dead end"]),
        ("a", "", "", "a", ["it has no entry point"]),
        ("a b", "", "a", "a b", ["node 'b' cannot be reached from the entry point 'a'"]),
        ("a b c", "a>b a>c", "a", "b", ["node 'c' is a dead end"]),
        ("a b c d", "a>b a>c c>d d>c", "a", "b", ["can be reached from node 'c'", "can be reached from node 'd'"]),
        ("a b c", "a>b c>b", "a", "b", ["node 'c' cannot be reached"]),
        ("a b c", "a>b b>c", "a", "b", ["node 'c' cannot be reached", "node 'c' is a dead end"]),
        ("a b", "a>a", "a", "b", ["node 'b' cannot be reached", "no exit point can be reached from node 'a'"]),
    ],
)
def test_all_problems_are_in_one_error(
    graph: StateGraph, nodes: str, edges: str, entry: str, exits: str, problems: list[str]
) -> None:
    """One error names all problems, each once."""
    built(graph, nodes, edges, entry, exits)

    with pytest.raises(GraphError) as caught:
        graph.validate()

    assert len(caught.value.problems) == len(problems)
    for problem, found in zip(problems, caught.value.problems, strict=True):
        assert problem in found
        assert found in str(caught.value)


def test_a_run_validates_first(line: StateGraph) -> None:
    """A run validates the graph again, also after a change, before any node runs."""
    line.validate()
    line.add_node("lost", nothing)

    for call in (line.validate, lambda: line.execute(State()), lambda: line.resume("a")):
        with pytest.raises(GraphError, match="'lost'"):
            call()


# --------------------------------------------------------------------------- fingerprint

_IN_A_PROCESS = """
from stategraph import *
graph = StateGraph(GraphConfig("review", observer="noop"))
for name in ("draft", "review", "publish"):
    graph.add_node(name, lambda state: {})
graph.add_edge("draft", "review", key_equals("tags", {"a", "b", ("c", frozenset({"d", "e"}))}))
graph.add_edge("review", "draft", lambda state: True)
graph.add_edge("review", "publish", or_(not_(key_exists("a")), lambda state: False), name="done")
print(graph.fingerprint)
"""


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    """The fingerprint does not depend on the hash seed or on addresses in memory."""
    prints = {
        subprocess.run(
            [sys.executable, "-c", _IN_A_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("0", "1", "2")
    }

    assert len(prints) == 1
    assert len(prints.pop()) == 32


@pytest.fixture
def make() -> Callable[..., str]:
    def fingerprint(nodes: str = "a b c", edges: str = "a>b b>c", name: str = "g", node: Any = nothing) -> str:
        graph = StateGraph(GraphConfig(name, observer="noop"))
        for node_name in nodes.split():
            graph.add_node(node_name, node)
        for edge in edges.split():
            source, target, *predicate = edge.split(">")
            graph.add_edge(source, target, *map(key_exists, predicate))
        return graph.fingerprint

    return fingerprint


@pytest.mark.parametrize(
    ("changes", "to"),
    [
        ({"edges": "a>b>x a>c>y"}, {"edges": "a>c>y a>b>x"}),  # the first edge that holds is taken
        ({"nodes": "a b c d"}, {}),
        ({"edges": "a>b b>c c>a"}, {}),
        ({"edges": "a>b"}, {}),
        ({"edges": "a>b>key b>c"}, {}),
        ({"edges": "a>c c>b"}, {}),
        ({"nodes": "a b c2", "edges": "a>b b>c2"}, {}),
    ],
    ids=str,
)
def test_the_fingerprint_changes_with_the_structure(
    make: Callable[..., str], changes: dict[str, str], to: dict[str, str]
) -> None:
    """The fingerprint changes with nodes, edges, their order at one node, and the tests of predicates."""
    assert make(**changes) != make(**to)


@pytest.mark.parametrize("changes", [{"nodes": "c a b"}, {"edges": "b>c a>b"}, {"name": "h"}, {"node": dict}], ids=str)
def test_the_fingerprint_does_not_change_with_the_rest(make: Callable[..., str], changes: dict[str, Any]) -> None:
    """The fingerprint ignores the order of nodes, of edges at different nodes, and the code of nodes."""
    assert make(**changes) == make()


class TestIntervals:
    """A given store is saved to, unless the configuration turns that off."""

    def test_of_a_store_object(self, tmp_path: Path) -> None:
        """A store object sets the interval as a named one does; a memory store does so for graphs by name."""
        checkpoint = CheckpointConfig(preserve=True)
        with SqliteStore(tmp_path / "a.db") as store:
            assert StateGraph(GraphConfig("g", checkpoint=checkpoint), store=store).config.checkpoint.interval == 1
            said = attrs.evolve(checkpoint, interval=0)
            assert StateGraph(GraphConfig("g", checkpoint=said), store=store).config.checkpoint.interval == 0
        assert StateGraph(GraphConfig("g"), store=MemoryStore()).config.checkpoint.interval == 0
        assert StateGraph("g", store=MemoryStore()).config.checkpoint.interval == 1

    @pytest.mark.parametrize(
        ("options", "interval"),
        [({}, 0), ({"store": "sqlite"}, 1), ({"store": "disk", "interval": 0}, 0), ({"interval": 5}, 5)],
    )
    def test_of_a_named_store(self, options: dict[str, Any], interval: int) -> None:
        assert CheckpointConfig(**options).interval == interval


EMPTY: dict[str, Any] = {}


def test_a_key_that_is_not_there_is_told_with_those_that_are() -> None:
    """The error for a missing key of the State lists similar keys first; other mappings are left alone."""
    graph = alone(StateGraph("g"), lambda state: {"n": state["topc"] if state["n"] else EMPTY["topc"]})
    with pytest.raises(ExecutionError, match=r"KeyError: 'topc' \(the State has 'topic', 'n'\)"):
        graph.execute(State({"n": 1, "topic": "x"}))
    with pytest.raises(ExecutionError, match=r"KeyError: 'topc' \(path"):
        graph.execute(State({"n": 0, "topic": "x"}))
