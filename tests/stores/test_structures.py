"""What is kept of a graph with its runs, for pictures: entry, exits, what its nodes are, and what is in them."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stategraph import (
    CheckpointConfig,
    ExecutionError,
    GraphConfig,
    InterruptNode,
    MapNode,
    ParallelNode,
    RetryPolicy,
    State,
    StateGraph,
    key_equals,
)
from stategraph._values.progress import NodeOutline
from stategraph._values.provenance import EdgeStructure, GraphStructure
from stategraph.stores import get_checkpoint_store
from stategraph.stores._codec.provenance import drawing_parts, structure_of
from stategraph.stores._codec.type_codecs import DecodeError
from stategraph.stores.sqlite import SqliteStore


def is_short(state):
    return len(state.get("text", "")) < 10


def drawn(structure):
    """Return all that is known of a structure, with what is not compared."""
    outlines = {
        name: (outline.kind, outline.notes, outline.nested and drawn(outline.nested))
        for name, outline in structure.outlines.items()
    }
    return structure, [edge.shown for edge in structure.edges], structure.entry, structure.exits, outlines


def kept(store, *which):
    structure = store.load(*which).structure
    assert structure is not None
    return structure


def config(name):
    return GraphConfig(name, observer="noop", checkpoint=CheckpointConfig(interval=1, preserve=True))


def graph_of_all_kinds(store=None):
    nested = StateGraph(config("translate"))
    nested.add_node("split", lambda state: {})
    nested.add_node("join", lambda state: {})
    nested.add_edge("split", "join", is_short)
    nested.set_entry_point("split")
    nested.set_exit_point("join")
    graph = StateGraph(config("letters"), store=store)
    graph.add_node("begin", lambda state: {"items": [1]}, retry=RetryPolicy(4), timeout=2.5, on_error="mend")
    graph.add_node("each", MapNode(lambda item: item, "items", "done"))
    graph.add_node("sides", ParallelNode({"left": lambda state: {}, "right": lambda state: {}}))
    graph.add_node("nested", nested.as_node())
    graph.add_node("mend", lambda state: {})
    graph.add_node("ask", InterruptNode(None, "verdict"))
    for source, target in (("begin", "each"), ("each", "sides"), ("sides", "nested"), ("mend", "ask")):
        graph.add_edge(source, target)
    graph.add_edge("nested", "ask", key_equals("to", "nobody"))
    graph.add_edge("nested", "ask")
    graph.set_entry_point("begin")
    graph.set_exit_point("ask")
    return graph


STORES = [
    pytest.param("memory", {}, id="memory"),
    *(
        pytest.param(store, {"serializer": serializer}, id=f"{store}-{serializer}")
        for store in ("sqlite", "disk")
        for serializer in ("msgpack", "json")
    ),
]


@pytest.mark.parametrize(("store", "options"), STORES)
def test_a_store_keeps_what_a_picture_needs(store, options, tmp_path):
    """Whoever has the store alone can draw the graph."""
    path = {} if store == "memory" else {"path": str(tmp_path / "runs")}
    with get_checkpoint_store(store, **path, **options) as opened:
        graph = graph_of_all_kinds(opened)
        graph.execute(State(run_id="r"))
        structure = kept(opened, "r")

    assert drawn(structure) == drawn(graph.structure)
    assert (structure.entry, structure.exits) == ("begin", ("ask",))
    assert structure.outlines["begin"].notes == ("up to 4 attempts", "at most 2.5 s")
    kinds = {name: outline.kind for name, outline in structure.outlines.items()}
    assert kinds == {"begin": "function", "each": "map", "sides": "parallel", "nested": "graph", "ask": "pause"}
    assert structure.outlines["sides"].nested.nodes == ("left", "right")
    assert structure.outlines["nested"].nested.entry == "split"
    assert structure.outlines["nested"].nested.edges[0].shown == "is_short"


def test_it_is_no_part_of_the_fingerprint():
    """A node that becomes a map is still the node that a saved State goes on at."""
    outer = graph_of_all_kinds().structure
    for structure in (outer, outer.outlines["nested"].nested):
        edges = (EdgeStructure(edge.source, edge.target, edge.label) for edge in structure.edges)
        bare = GraphStructure(structure.nodes, tuple(edges))

        assert bare == structure
        assert bare.fingerprint == structure.fingerprint


def rows_of(path):
    with closing(sqlite3.connect(path)) as database:
        return [row[0] for row in database.execute("SELECT json FROM checkpoints WHERE run_id = 'r' ORDER BY sequence")]


def graph_with(store, node):
    checkpoint = CheckpointConfig(interval=1, retention="full", preserve=True)
    graph = StateGraph(GraphConfig("g", observer="noop", checkpoint=checkpoint), store=store)
    graph.add_node("first", lambda state: {"items": [1, 2]})
    graph.add_node("second", node)
    graph.add_node("third", lambda state: {"third": True})
    graph.add_edge("first", "second")
    graph.add_edge("second", "third")
    graph.set_entry_point("first")
    graph.set_exit_point("third")
    return graph


def test_it_is_kept_once(tmp_path):
    """Steps do not pay for it."""
    with SqliteStore(tmp_path / "runs.db", serializer="json") as store:
        graph_with(store, lambda state: {}).execute(State(run_id="r"))

    assert ['"first","second"' in row for row in rows_of(tmp_path / "runs.db")] == [True, False, False, False, False]


def test_what_has_changed_since_is_kept_anew(tmp_path):
    """The fingerprint is the same, what is drawn is not."""

    def fails(state):
        raise ValueError("not yet")

    with SqliteStore(tmp_path / "runs.db") as store:
        with pytest.raises(ExecutionError, match="not yet"):
            graph_with(store, fails).execute(State(run_id="r"))
        graph_with(store, MapNode(lambda item: item, "items", "done")).resume("r")

        assert kept(store, "r", 1, 0).outlines == {}
        assert kept(store, "r").outlines["second"].kind == "map"


def nested_twice(depth):
    """Return a structure in which each one holds the next one twice."""
    structure = GraphStructure(("a",), (), "a", ("a",))
    for _ in range(depth):
        twice = {name: NodeOutline("graph", (), structure) for name in "ab"}
        structure = GraphStructure(("a", "b"), (), "a", ("b",), twice)
    return structure


def made_again(structure):
    edges = [[edge.source, edge.target, edge.label] for edge in structure.edges]
    return structure_of(list(structure.nodes), edges, drawing_parts(structure))


def test_what_is_nested_in_many_places_is_kept_once():
    """Or 16 levels would be 65,536 structures."""
    structure = nested_twice(16)

    assert len(drawing_parts(structure)[-1]) == 16
    assert drawing_parts(made_again(structure)) == drawing_parts(structure)


def test_a_graph_that_contains_itself_has_a_structure():
    """`validate` says what is wrong with it; to look at it first is no error."""
    graph = StateGraph(config("loop"))
    graph.add_node("again", graph.as_node())
    graph.set_entry_point("again")

    assert graph.structure.outlines["again"].nested.outlines["again"].nested is None


NAMES = some.text(max_size=3)
NODES = some.lists(NAMES, max_size=3).map(tuple)
EDGES = some.lists(some.builds(EdgeStructure, NAMES, NAMES, NAMES, NAMES), max_size=3).map(tuple)


def structures(nested):
    outlines = some.dictionaries(NAMES, some.builds(NodeOutline, NAMES, NODES, nested), max_size=3)
    return some.builds(GraphStructure, NODES, EDGES, some.none() | NAMES, NODES, outlines)


@given(structures(some.none() | structures(some.none() | structures(some.none()))))
def test_it_comes_back_as_it_was(structure):
    """Whatever the names are."""
    assert drawn(made_again(structure)) == drawn(structure)


@pytest.mark.parametrize(
    "drawing",
    [
        5,
        [1],
        [1, [], {}],
        ["a", [], {}, 5],
        ["a", [], {}, [[0, "x"]]],
        ["a", [], {}, [[0]]],
        ["a", "b", {}],
        ["a", [1], {}],
        ["a", [], []],
        ["a", [], {"a": "map"}],
        ["a", [], {"a": [5, []]}],
        ["a", [], {"a": ["map", [5]]}],
        ["a", [], {"a": ["graph", [], 0]}],
        ["a", [], {"a": ["graph", [], -1]}, [], [[["a"], [], None, [], {}]]],
        ["a", [], {"a": ["graph", [], True]}, [], [[["a"], [], None, [], {}]] * 2],
        ["a", [], {"a": ["graph", [], 0]}, [], [[["b"], [], None, [], {"b": ["graph", [], 0]}, []]]],
        ["a", [], {"a": ["graph", [], 0]}, [], {}],
    ],
)
def test_parts_that_are_none_are_refused(drawing):
    """As a damaged checkpoint, not as an error of whoever looks at it later."""
    with pytest.raises((DecodeError, TypeError, ValueError, LookupError)):
        structure_of(["a"], [], drawing)
